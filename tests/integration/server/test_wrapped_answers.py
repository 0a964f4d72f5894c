"""Who stands between the application and the connection sees each answer before it leaves."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.broker.api import Api
from penstock.broker.broker import Broker
from penstock.config import ServerConfig
from penstock.server.application import Application
from penstock.server.door import Door
from penstock.server.keys import KeyStore
from penstock.server.run import Server


class Holding:
    """An application whose answers leave only when it says so, as those of a cluster's nodes do."""

    def __init__(self, app: Application) -> None:
        self.app = app
        self.dispatcher, self.sqs = app.dispatcher, app.sqs
        self.held: list[str] = []
        self.may_leave = True

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def holding(message: Any) -> None:
            self.held.append(message["type"])
            if not self.may_leave:
                message = {**message, "status": 503} if "status" in message else message
            await send(message)

        await self.app(scope, receive, holding)


@pytest.fixture
def holding(broker: Broker) -> Iterator[tuple[Holding, int]]:
    config = ServerConfig(data=broker.folder, port=0)
    door = Door(Api(broker), config, KeyStore.open(broker.folder))
    app = Holding(Application(door))
    server = Server(door, None, app)
    sock = socket.create_server(("127.0.0.1", 0))
    port: int = sock.getsockname()[1]
    started = threading.Event()
    server.on_started = started.set
    loop = asyncio.new_event_loop()

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(server.serve(sockets=[sock]))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert started.wait(20)
    yield app, port
    loop.call_soon_threadsafe(server.stop)
    thread.join(20)
    sock.close()
    door.close()


@pytest.mark.parametrize("dialect", ["http", "sqs"])
def test_no_answer_passes_it_by(holding: tuple[Holding, int], dialect: str) -> None:
    app, port = holding
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    for number, app.may_leave in enumerate((True, False, True)):
        if dialect == "http":
            connection.request("GET", "/v1/topics")
        else:
            kind = "application/x-amz-json-1.0"
            headers = {"Content-Type": kind, "X-Amz-Target": "AmazonSQS.ListQueues"}
            connection.request("POST", "/", b"{}", headers)
        answer = connection.getresponse()
        json.loads(answer.read())
        assert answer.status == (200 if app.may_leave else 503)
        assert len(app.held) == 2 * (number + 1)
    connection.close()
