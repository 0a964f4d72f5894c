"""The `penstock` command; `python -m penstock` is the same."""

from __future__ import annotations

import sys
from importlib import import_module

from penstock.errors import MissingExtra


def main() -> int:
    """Run the command line. `penstock.cli.exits` lists the exit codes."""
    try:
        return _run()
    except KeyboardInterrupt:  # while a command was still being loaded
        return 130


def _run() -> int:
    try:
        cli = import_module("penstock.cli.app")
    except ModuleNotFoundError as exc:
        if exc.name not in ("typer", "rich"):
            raise
        print(f"penstock: {MissingExtra('cli', 'the command line')}", file=sys.stderr)
        return 2
    return int(cli.run())


if __name__ == "__main__":
    sys.exit(main())
