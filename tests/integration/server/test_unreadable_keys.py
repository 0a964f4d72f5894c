"""A moment in which no key can be read: what waits goes on after it, and gets nothing in it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest

from penstock.broker.broker import Broker
from penstock.model.messages import NewMessage
from penstock.model.names import parse_topic
from penstock.server.keys import KeyStore, NewKey
from tests.integration.broker.world import until
from tests.integration.server.asking import Http
from tests.integration.server.grpc_client import Client, Leasing, code_of, seconds
from tests.integration.server.running import RunningServer
from tests.integration.server.test_websocket import closed, talking

ORDERS = parse_topic("default/orders")
WITHIN_S = 15  # far less than a poll waits


@pytest.fixture
def keys(broker: Broker) -> KeyStore:
    return KeyStore.open(broker.folder)


@pytest.fixture
def app(keys: KeyStore) -> NewKey:
    return keys.create("app", "consumer")


@pytest.fixture
def server(broker: Broker, keys: KeyStore, app: NewKey) -> Iterator[RunningServer]:
    with RunningServer(broker, keys, grpc="127.0.0.1:0") as server:
        broker.create_topic(ORDERS, {})
        yield server


@contextmanager
def unreadable(server: RunningServer, keys: KeyStore) -> Iterator[None]:
    """Until the server has noticed, at the least."""
    path = Path(server.config.data) / "keys.json"
    whole = path.read_bytes()
    path.write_bytes(b"{")
    until(lambda: server.door.gate.in_doubt)
    yield
    path.with_suffix(".new").write_bytes(whole)
    os.replace(path.with_suffix(".new"), path)


def poll(server: RunningServer, app: NewKey) -> str:
    with Http(server.port, app.token) as http:
        answer = http.post("/v1/topics/orders/groups/g/receive", {"wait": 30})
        return str(answer.json["messages"][0]["value"])


def call(server: RunningServer, app: NewKey) -> str:
    client = Client(server.server.grpc.port, app.token)  # type: ignore[union-attr]
    return str(client.receive(wait=seconds(18)).messages[0].message.value.decode())


def lease(server: RunningServer, app: NewKey) -> str:
    stream = Leasing(Client(server.server.grpc.port, app.token), credit=1)  # type: ignore[union-attr]
    (delivered,) = stream.next().delivered.messages
    stream.end()
    return str(delivered.message.value.decode())


def talk(server: RunningServer, app: NewKey, **fields: Any) -> str:
    with talking(server, additional_headers={"Authorization": f"Bearer {app.token}"}) as talk:
        talk.say("subscribe", **{"id": "s", "topic": "orders", "credit": 1, **fields})
        return talk.values()[0]


def queue(server: RunningServer, app: NewKey) -> str:
    return talk(server, app, mode="queue", group="g")


def peek(server: RunningServer, app: NewKey) -> str:
    return talk(server, app, mode="peek")


@pytest.mark.parametrize("wait", [poll, call, lease, queue, peek])
def test_what_waits_gets_its_message_when_the_keys_can_be_read_again(
    server: RunningServer,
    keys: KeyStore,
    app: NewKey,
    wait: Callable[[RunningServer, NewKey], str],
) -> None:
    with ThreadPoolExecutor(1) as beside:
        waiting = beside.submit(wait, server, app)
        until(lambda: len(server.door.polls) == 1)
        with unreadable(server, keys):
            new = NewMessage(value=msgspec.Raw(b'"a"'))
            _, durable = server.door.api.publish_each(ORDERS, [new])
            durable[0].result(WITHIN_S)
            with Http(server.port, app.token) as http:  # also lets the news come first
                assert http.get("/v1/topics").code == "keys_unreadable"
            assert not waiting.done()
        assert waiting.result(WITHIN_S) == "a"


def test_what_is_watched_and_a_stream_without_credit_stay(
    server: RunningServer, broker: Broker, keys: KeyStore, app: NewKey
) -> None:
    header = {"Authorization": f"Bearer {app.token}"}
    client = Client(server.server.grpc.port, app.token)  # type: ignore[union-attr]
    stream = Leasing(client, credit=0)
    with talking(server, additional_headers=header) as talk:
        talk.say("subscribe", id="all", mode="watch")
        talk.say("subscribe", id="one", mode="watch", path="/v1/topics")
        talk.hear("watched")
        talk.hear("changed")
        with unreadable(server, keys):
            # The looks come once a second, so a second one is no matter of chance.
            looked = time.monotonic() + 2
            until(lambda: server.door.gate.in_doubt and time.monotonic() > looked)
        assert talk.ask("ping")["type"] == "ok"
        broker.create_topic(parse_topic("default/more"), {})
        topics = {"orders"}
        while "more" not in topics:  # both go on telling
            topics |= {row["topic"] for row in talk.hear("watched")["topics"]}
        said = talk.hear(lambda said: said["type"] in ("changed", "problem"))
        assert said["type"] == "changed"
        assert "more" in json.dumps(said["fields"])
        stream.ask(credit={"messages": 1})
        server.door.api.publish_each(ORDERS, [NewMessage(value=msgspec.Raw(b'"a"'))])
        assert len(stream.next().delivered.messages) == 1
        keys.revoke(app.key.id)  # which ends both
        assert closed(talk) == 4401
        assert code_of(stream.next) == (grpc.StatusCode.UNAUTHENTICATED, "unauthenticated")
