"""The command line as a test calls it: in this process, with pipes for its input and output."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from penstock.__main__ import main

COMMAND = [sys.executable, "-m", "penstock"]


class Done(NamedTuple):
    """How a command ended, and what it said."""

    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def json_lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


class Shell:
    """Runs commands on one place: a folder, or a server."""

    def __init__(self, *where: str, cwd: Path, **environ: str) -> None:
        self.where = where
        self.cwd = cwd
        self.environ = environ

    def __call__(self, *args: object, stdin: bytes = b"", code: int | None = 0) -> Done:
        """Run a command here. `code`: what it is to end with; None: whatever."""
        done = run(*args, *self.where, stdin=stdin, cwd=self.cwd, **self.environ)
        assert code is None or done.code == code, f"{args} ended with {done}"
        assert "Traceback" not in done.err
        return done

    def start(self, *args: object, **options: Any) -> subprocess.Popen[bytes]:
        """The same as a process of its own, for signals and pipes."""
        process = subprocess.Popen(
            [*COMMAND, *map(str, args), *self.where],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.cwd,
            env=environment(**self.environ),
            **options,
        )
        _started.append(process)
        return process


_started: list[subprocess.Popen[bytes]] = []


def stop_all() -> None:
    """No process outlives its test, also when that fails."""
    while _started:
        process = _started.pop()
        if process.poll() is None:
            process.kill()
            process.communicate()


def run(*args: object, stdin: bytes = b"", cwd: Path | None = None, **environ: str) -> Done:
    out, err = io.BytesIO(), io.BytesIO()
    argv = ["penstock", *map(str, args)]
    streams = {
        "stdin": io.TextIOWrapper(io.BufferedReader(io.BytesIO(stdin)), "utf-8"),  # type: ignore[type-var]
        "stdout": io.TextIOWrapper(out, "utf-8", write_through=True),
        "stderr": io.TextIOWrapper(err, "utf-8", write_through=True),
    }
    with (
        patch.object(sys, "argv", argv),
        patch.dict(os.environ, environment(**environ), clear=True),
        patch.multiple(sys, **streams),
        _standing_in(cwd),
    ):
        try:
            code = main()
        except SystemExit as exc:
            code = exc.code if isinstance(exc.code, int) else 0 if exc.code is None else 1
        streams["stdout"].flush()
    return Done(code, out.getvalue(), err.getvalue().decode())


def environment(**more: str) -> dict[str, str]:
    """Nothing of the one who runs the tests may reach a command."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PENSTOCK", "_PENSTOCK"))}
    return {**kept, "COLUMNS": "200", **more}


@contextmanager
def _standing_in(folder: Path | None) -> Iterator[None]:
    former = os.getcwd()
    if folder is not None:
        os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(former)
