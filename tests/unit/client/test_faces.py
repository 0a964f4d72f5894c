"""A client far away has the methods of one that is here, with the same arguments."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from penstock.client.remote.client import AsyncRemoteClient, RemoteClient
from penstock.client.remote.letters import AsyncRemoteDeadLetters, RemoteDeadLetters
from penstock.client.remote.producers import AsyncRemoteProducer, RemoteProducer
from penstock.client.remote.streams import AsyncRemoteStream, RemoteStream

from penstock.broker.dead_letters import DeadLetters
from penstock.client.client import AsyncClient, AsyncDeadLetters, AsyncProducer, Client
from penstock.client.producer import Producer
from penstock.client.streams import AsyncStream, Stream

PAIRS: list[tuple[type, type]] = [
    (Client, RemoteClient),
    (AsyncClient, AsyncRemoteClient),
    (Stream, RemoteStream),
    (AsyncStream, AsyncRemoteStream),
    (DeadLetters, RemoteDeadLetters),
    (AsyncDeadLetters, AsyncRemoteDeadLetters),
    (Producer, RemoteProducer),
    (AsyncProducer, AsyncRemoteProducer),
]


def face(kind: type) -> dict[str, Any]:
    """What people call, with its arguments and whether it is awaited."""
    special = {
        "__iter__",
        "__aiter__",
        "__len__",
        "__enter__",
        "__exit__",
        "__aenter__",
        "__await__",
    }
    found: dict[str, Any] = {}
    for name in dir(kind):
        method = inspect.getattr_static(kind, name)
        if name.startswith("_") and name not in special:
            continue
        if isinstance(method, property):
            found[name] = "property"
        elif callable(method) and getattr(method, "__module__", "").startswith("penstock"):
            parameters = inspect.signature(method).parameters.values()
            arguments = [(p.name, p.kind, p.default) for p in parameters if p.name != "self"]
            found[name] = inspect.iscoroutinefunction(method), arguments
    return {name: each for name, each in found.items() if not name.startswith("ask_")}


@pytest.mark.parametrize(("here", "far"), PAIRS, ids=lambda kind: kind.__name__)
def test_both_are_called_in_the_same_way(here: type, far: type) -> None:
    assert face(far) == face(here)


def test_the_comparison_would_notice() -> None:
    class Other(RemoteClient):
        def publish(self, topic: str, value: bytes) -> None: ...  # type: ignore[override]

    assert face(Other) != face(Client)
    assert set(face(Client)) >= {"publish", "receive", "stream", "producer", "close", "ack"}
