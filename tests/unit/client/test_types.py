"""What a type checker, `help()` and an editor know of a client."""

from __future__ import annotations

import os
import pydoc
import sys
from pathlib import Path

import pytest
from mypy import api

from penstock.client.client import AsyncClient, Client

PROGRAM = Path(__file__).with_name("user_program.py")


def test_the_types_of_the_main_calls_are_what_a_program_sees(tmp_path: Path) -> None:
    cache = f"--cache-dir={tmp_path}"
    options = ["--strict", "--warn-unused-ignores", "--follow-imports=silent", cache]
    limit = sys.getrecursionlimit()
    try:
        said, errors, status = api.run([*options, os.fspath(PROGRAM)])
    finally:
        sys.setrecursionlimit(limit)  # mypy raises it, and other tests live below it
    assert (status, errors) == (0, ""), said


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_help_shows_what_the_main_calls_take_and_do(kind: type) -> None:
    page = pydoc.plain(pydoc.render_doc(kind))
    for words in (
        "publish(self, topic: 'str', value: 'Value'",
        "dict, a list, a struct, a dataclass",
        "start: 'GroupStart' = 'earliest'",
        "receive_batch(",
        "wait: 'Duration' = 0",
    ):
        assert words in page
