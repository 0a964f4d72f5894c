"""The application as any ASGI server calls it."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from penstock.broker.api import Api
from penstock.broker.broker import Broker
from penstock.config import ServerConfig
from penstock.server.application import Application
from penstock.server.door import Door
from penstock.server.keys import KeyStore


@pytest.fixture
def door(broker: Broker) -> Door:
    config = ServerConfig(data=broker.folder, body_bytes_max=100)
    return Door(Api(broker), config, KeyStore.open(broker.folder))


def ask(door: Door, method: str, path: str, *body: bytes) -> tuple[int, Any]:
    """The status of the answer, and its JSON."""
    sent: list[Any] = []
    parts = [{"type": "http.request", "body": part, "more_body": True} for part in body]
    parts.append({"type": "http.request", "body": b"", "more_body": False})
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
        "client": ("10.0.0.7", 1),
    }

    async def receive() -> Any:
        if not parts:
            await asyncio.Event().wait()  # it stays connected
        return parts.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    async def call() -> None:
        await Application(door)(scope, receive, send)

    asyncio.run(call())
    start, rest = sent
    return start["status"], msgspec.json.decode(rest["body"] or b"null")


def test_a_message_goes_round(door: Door) -> None:
    assert ask(door, "PUT", "/v1/topics/orders", b"{}")[0] == 201
    assert ask(door, "POST", "/v1/topics/orders/messages", b'{"value":', b'"x"}')[0] == 201
    status, got = ask(door, "POST", "/v1/topics/orders/groups/g/receive", b'{"wait": 1}')
    assert (status, got["messages"][0]["value"]) == (200, "x")


def test_what_is_wrong_is_told_by_a_problem(door: Door) -> None:
    assert ask(door, "GET", "/nope")[1]["code"] == "not_found"
    long = ask(door, "POST", "/v1/topics/orders/messages", b"x" * 60, b"x" * 60)
    assert (long[0], long[1]["code"]) == (413, "request_too_large")
