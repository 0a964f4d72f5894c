"""The application within another one, under a prefix, and served as any ASGI server does."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

import penstock
import penstock.server
from penstock.errors import InvalidInput
from penstock.server.application import Application
from tests.integration.broker.world import until
from tests.integration.server.asking import Http


async def hello(request: Request) -> PlainTextResponse:
    return PlainTextResponse("hello")


@contextmanager
def served(app: Any) -> Iterator[int]:
    """By uvicorn as it comes, without anything of ours."""
    sock = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="on"))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([sock])), daemon=True)
    thread.start()
    until(lambda: server.started)
    try:
        yield int(sock.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


@pytest.fixture
def queue(tmp_path: Path) -> Application:
    return penstock.server.app(tmp_path / "data", free_bytes_min=0)


def test_it_works_under_a_prefix_beside_other_routes(queue: Application, tmp_path: Path) -> None:
    routes = [Route("/hello", hello), Mount("/a/queue", queue)]
    with served(Starlette(routes=routes, lifespan=queue.lifespan)) as port, Http(port) as http:
        assert http.get("/hello").body == b"hello"
        assert http.get("/a/queue/healthz").json == {"status": "ok"}
        assert http.get("/healthz").status == 404
        at = "/a/queue/v1/topics/orders"
        for _ in range(2):  # found by its route, then in the dictionary
            assert http.ask("PUT", f"{at}?exist_ok=true").status in (200, 201)
            assert http.post(f"{at}/messages", {"value": "x"}).status == 201
            got = http.post(f"{at}/groups/g/receive", {"wait": "1s"}).json["messages"]
            assert [message["value"] for message in got] == ["x"]
        missing = http.get("/a/queue/nope")
        assert (missing.status, missing.json["instance"]) == (404, "/a/queue/nope")
        assert http.get("/a/queue/openapi.json").json["servers"] == [{"url": "/a/queue"}]
        assert b'src="docs/' in http.get("/a/queue/docs").body  # relative to the page
        assert (
            http.get("/a/queue/docs/swagger-ui.css").headers["content-type"].startswith("text/css")
        )
    with penstock.connect(tmp_path / "data") as ps:  # the folder was let go
        assert ps.stats("orders").messages == 2


def test_it_is_an_application_by_itself(queue: Application, tmp_path: Path) -> None:
    with served(queue) as port, penstock.connect(f"http://127.0.0.1:{port}") as ps:
        ps.create_topic("orders")
        ps.publish_batch("orders", [b"x" * 1000] * 1000)
        assert len(ps.receive_batch("orders", "g", 1000)) == 1000
        assert ps.receive("orders", "g", wait="20ms") == []
    with penstock.connect(tmp_path / "data") as ps:
        assert ps.stats("orders").messages == 1000


def test_who_hangs_up_leaves_the_line(queue: Application) -> None:
    with served(queue) as port, Http(port) as http:
        http.ask("PUT", "/v1/topics/orders")
        body = b'{"wait": 30}'
        head = (
            b"POST /v1/topics/orders/groups/g/receive HTTP/1.1\r\nhost: localhost\r\n"
            b"content-type: application/json\r\ncontent-length: %d\r\n\r\n"
        )
        with socket.create_connection(("127.0.0.1", port)) as waiting:
            waiting.sendall(head % len(body) + body)
            until(lambda: len(queue.door.polls) == 1)
        until(lambda: len(queue.door.polls) == 0)
        http.post("/v1/topics/orders/messages", {"value": "x"})
        assert len(http.post("/v1/topics/orders/groups/g/receive", {}).json["messages"]) == 1


def test_slow_bodies_are_ended_by_the_application(tmp_path: Path) -> None:
    app = penstock.server.app(tmp_path / "data", request_timeout_ms=300)
    with served(app) as port, socket.create_connection(("127.0.0.1", port), 20) as slow:
        slow.sendall(
            b"POST /v1/topics/orders/messages HTTP/1.1\r\nhost: localhost\r\n"
            b"content-type: application/json\r\ncontent-length: 10\r\n\r\n{"
        )
        assert slow.recv(100).startswith(b"HTTP/1.1 408 ")


def test_a_broker_that_is_open_stays_open(broker: Any) -> None:
    app = penstock.server.app(broker)
    with served(app) as port, Http(port) as http:
        assert http.ask("PUT", "/v1/topics/orders").status == 201
    assert not broker.closed


def test_a_setting_that_is_not_known_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="'colour' is not a setting"):
        penstock.server.app(tmp_path / "data", colour="red")
    with pytest.raises(InvalidInput, match="require_keys"):
        penstock.server.app(tmp_path / "data", require_keys=True)
