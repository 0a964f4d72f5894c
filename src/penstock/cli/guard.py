"""Around every command: errors become one sentence, with the exit code that belongs to them."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

import msgspec
import typer
from rich.text import Text

from penstock.cli.exits import Exit, code_of, exit_of, sentence
from penstock.cli.tables import PlainConsole
from penstock.errors import PenstockError

P = ParamSpec("P")


def guarded(function: Callable[P, None]) -> Callable[P, None]:
    """The function, whose errors a shell and its user can deal with. A traceback is a bug."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            function(*args, **kwargs)
            sys.stdout.flush()
        except (typer.Exit, typer.Abort, SystemExit):
            _let_go_of_output()
            raise
        except BaseException as exc:  # noqa: BLE001 - this is where every error ends
            code = exit_of(exc)
            if code == Exit.BROKEN_PIPE:
                _let_go_of_output()
            elif isinstance(exc, PenstockError | OSError | KeyboardInterrupt):
                report(exc, code)
            else:
                traceback.print_exc()
            raise typer.Exit(code) from None

    return run


def report(error: BaseException, code: Exit) -> None:
    """Say on stderr what went wrong: as a red sentence or, with --json, as JSON."""
    if isinstance(error, KeyboardInterrupt):
        return
    name = code_of(error)
    if "--json" in sys.argv:
        problem = {
            "error": {
                "code": name,
                "message": sentence(error),
                "retriable": bool(getattr(error, "retriable", False)),
                "exit_code": int(code),
            }
        }
        sys.stderr.write(msgspec.json.encode(problem).decode() + "\n")
        return
    text = Text.assemble(("penstock: ", "bold red"), (sentence(error), "red"), f" [{name}]")
    PlainConsole(stderr=True).print(text)


def _let_go_of_output() -> None:
    """Nothing that is still buffered may fail again when the interpreter ends."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
