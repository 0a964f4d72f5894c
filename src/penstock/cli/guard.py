"""Around every command: errors become one sentence, with the exit code that belongs to them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

import typer

from penstock.cli.exits import Exit, exit_of
from penstock.cli.problems import report

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
            else:
                report(exc, code)
            raise typer.Exit(code) from None

    return run


def _let_go_of_output() -> None:
    """Nothing that is still buffered may fail again when the interpreter ends."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
