"""What a type checker, `help()` and an editor know of a client."""

from __future__ import annotations

import inspect
import os
import pydoc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mypy import api

from penstock import App
from penstock.client.async_producer import AsyncProducer
from penstock.client.client import AsyncClient, Client
from penstock.client.producer import Producer
from penstock.model.settings import SETTINGS_SCHEMA
from penstock.model.topic_options import TopicOptions
from penstock.worker.bodies import MessageOptions
from penstock.worker.consumers import ConsumerOptions
from penstock.worker.testing import TestBench

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


def test_options_that_go_by_name_are_those_that_are_taken() -> None:
    taken = set(SETTINGS_SCHEMA.__struct_fields__)
    assert set(TopicOptions.__annotations__) == taken
    assert set(ConsumerOptions.__annotations__) == options_of(App.consumer, "topic", "group")
    assert set(MessageOptions.__annotations__) == options_of(Client.publish, "topic", "value")


@pytest.mark.parametrize(
    "kind", [Client, AsyncClient, Producer, AsyncProducer, App, TestBench], ids=lambda k: k.__name__
)
def test_no_method_takes_options_that_a_type_checker_does_not_know(kind: type) -> None:
    for name, method in inspect.getmembers(kind, inspect.isfunction):
        if name.startswith("_"):
            continue
        for parameter in inspect.signature(method).parameters.values():
            unknown = parameter.annotation in ("Any", "object", parameter.empty)
            assert parameter.kind != parameter.VAR_KEYWORD or not unknown, f"{name}: {parameter}"


def options_of(method: Callable[..., Any], *others: str) -> set[str]:
    return set(inspect.signature(method).parameters) - {"self", *others}


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
