"""How an error is told: a sentence for people or, with --json, one JSON document and no more.

Needs nothing but the core install, so that it can also say that an extra is missing.
"""

from __future__ import annotations

import sys
import traceback
from typing import Any

import msgspec

from penstock.cli.exits import Exit, code_of, sentence
from penstock.cli.output import wants_json, write_line
from penstock.errors import PenstockError


def report(error: BaseException, code: Exit) -> None:
    """Say on stderr what went wrong. The notes of an exception say what was done before it."""
    notes = getattr(error, "__notes__", [])
    if wants_json():
        _write_json(error, code, notes)
        return
    if not isinstance(error, PenstockError | OSError | KeyboardInterrupt):
        traceback.print_exception(error)
        return
    for each in notes:
        write_line(each, stderr=True)
    if not isinstance(error, KeyboardInterrupt):
        told = (sentence(error), "red")
        write_line(("penstock: ", "bold red"), told, f" [{code_of(error)}]", stderr=True)


def _write_json(error: BaseException, code: Exit, notes: list[str]) -> None:
    problem: dict[str, Any] = {
        "code": code_of(error),
        "message": sentence(error),
        "retriable": bool(getattr(error, "retriable", False)),
        "exit_code": int(code),
    }
    if notes:
        problem["notes"] = notes
    if problem["code"] == "bug":
        problem["traceback"] = "".join(traceback.format_exception(error))
    sys.stderr.write(msgspec.json.encode({"error": problem}).decode() + "\n")
