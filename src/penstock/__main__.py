"""The `penstock` command; `python -m penstock` is the same."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType

from penstock.cli.exits import Exit
from penstock.cli.problems import report
from penstock.errors import MissingExtra

_RUN_CODE_OF_OTHERS = ("worker", "pipeline")


def command() -> int:
    """What a shell starts: a process of our own, made ready to start quickly."""
    if sys.argv[1:2] not in [[name] for name in _RUN_CODE_OF_OTHERS]:
        gc.set_threshold(100_000)  # what is loaded is no garbage, and need not be looked through
        atexit.register(gc.freeze)  # nor at the end, where that takes a quarter of most commands
        sys.meta_path.insert(0, _NoPandas())
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy starts threads when loaded
    return main()


class _NoPandas:
    """Lets pandas be missing: pyarrow would load it to ask whether a list is one of its own.

    That takes longer than most commands, and no command that runs only our code needs pandas.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("the command line does without pandas", name=name)


def main() -> int:
    """Run the command line. `penstock.cli.exits` lists the exit codes."""
    try:
        return _run()
    except KeyboardInterrupt as exc:  # while a command was still being loaded
        report(exc, Exit.INTERRUPTED)
        return Exit.INTERRUPTED


def _run() -> int:
    try:
        cli = import_module("penstock.cli.app")
    except ModuleNotFoundError as exc:
        if exc.name not in ("typer", "rich"):
            raise
        report(MissingExtra("cli", "the command line"), Exit.USAGE)
        return Exit.USAGE
    return int(cli.run())


if __name__ == "__main__":
    sys.exit(command())
