"""What blocks and what is awaited have the same methods, with the same arguments and words."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from penstock.client.async_producer import AsyncProducer
from penstock.client.client import AsyncClient, Client
from penstock.client.dead_letters import AsyncDeadLetters, DeadLetters
from penstock.client.producer import Producer
from penstock.client.received import (
    AsyncReceivedBatch,
    AsyncReceivedMessage,
    ReceivedBatch,
    ReceivedMessage,
)
from penstock.client.streams import AsyncStream, Stream

PAIRS: list[tuple[type, type]] = [
    (Client, AsyncClient),
    (Stream, AsyncStream),
    (DeadLetters, AsyncDeadLetters),
    (Producer, AsyncProducer),
    (ReceivedMessage, AsyncReceivedMessage),
    (ReceivedBatch, AsyncReceivedBatch),
]
ONLY_ASYNC = {"result"}  # of a producer: what is sent has a `result()` of its own, which blocks


def methods(kind: type) -> dict[str, Any]:
    found = {}
    for name in dir(kind):
        method = inspect.getattr_static(kind, name)
        if not name.startswith("_") and inspect.isfunction(method):
            parameters = inspect.signature(method).parameters.values()
            found[name] = [(p.name, p.kind, p.default) for p in parameters if p.name != "self"]
    return found


@pytest.mark.parametrize(("blocking", "awaited"), PAIRS, ids=lambda kind: kind.__name__)
def test_twins_take_the_same_arguments(blocking: type, awaited: type) -> None:
    others = {name: each for name, each in methods(awaited).items() if name not in ONLY_ASYNC}
    assert others == methods(blocking)


@pytest.mark.parametrize("kind", [each for pair in PAIRS for each in pair])
def test_every_method_says_what_it_does(kind: type) -> None:
    silent = [name for name in methods(kind) if not inspect.getdoc(getattr(kind, name))]
    assert silent in ([], ["close"]), silent


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_every_method_says_what_it_returns(kind: type) -> None:
    for name in methods(kind):
        annotations = inspect.get_annotations(getattr(kind, name))
        assert "return" in annotations, f"{kind.__name__}.{name}"
        assert annotations["return"] not in ("Any", "object"), f"{kind.__name__}.{name}"
