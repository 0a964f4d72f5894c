"""What answers is no Penstock server, or a hostile one: an error with a code, and in time."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

import penstock
import penstock.aio
from penstock.errors import ProtocolError, Unavailable
from tests.integration.server.fake import FakeServer

HTML = b"<html><body>Sign in to the hotel's network</body></html>"
ARROW = b"application/vnd.apache.arrow.stream"
CALLS: dict[str, Callable[[Any], Any]] = {
    "publish": lambda ps: ps.publish("orders", b"x"),
    "publish_batch": lambda ps: ps.publish_batch("orders", [b"x", b"y"], keys=[b"a", b"b"]),
    "delay": lambda ps: ps.publish("orders", b"x", delay="1h"),
    "receive": lambda ps: ps.receive("orders", "g"),
    "receive_batch": lambda ps: ps.receive_batch("orders", "g"),
    "ack": lambda ps: ps.ack("g", "orders:0:0:1:000000000000001"),
    "peek": lambda ps: ps.peek("orders", partition=0),
    "stats": lambda ps: ps.stats("orders"),
    "topics": lambda ps: ps.topics(),
    "delete_topic": lambda ps: ps.delete_topic("orders"),
}


def answer(status: bytes, body: bytes = b"", *heads: bytes) -> bytes:
    lines = [b"HTTP/1.1 " + status, *heads, b"content-length: %d" % len(body)]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


WRONG = {
    "302": answer(b"302 Found", b"", b"location: http://example.org/"),
    "302 with JSON": answer(b"302 Found", b"{}", b"content-type: application/json"),
    "304": b"HTTP/1.1 304 Not Modified\r\n\r\n",
    "200 with HTML": answer(b"200 OK", HTML, b"content-type: text/html"),
    "201 with HTML": answer(b"201 Created", HTML, b"content-type: text/html; charset=utf-8"),
    "200 with another JSON": answer(b"200 OK", b"7", b"content-type: application/json"),
    "101": b"HTTP/1.1 101 Switching Protocols\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n",
    "101 alone": b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
    "JSON that says nothing": answer(b"200 OK", b"[7]", b"content-type: application/json"),
    "Arrow that is none": answer(b"200 OK", b"ARROW1", b"content-type: " + ARROW),
    "cut JSON": answer(b"200 OK", b'{"topics": [', b"content-type: application/json"),
    "not HTTP": b"SSH-2.0-OpenSSH_9.6\r\n",
    "an endless head": b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 20_000,
}


@pytest.fixture(params=WRONG)
def hostile(request: pytest.FixtureRequest) -> Iterator[FakeServer]:
    with FakeServer(WRONG[request.param]) as server:
        yield server


def test_what_no_penstock_server_answers_is_a_protocol_error(hostile: FakeServer) -> None:
    with penstock.connect(hostile.url, timeout="5s", retry_for=0) as ps:
        for call, name in enumerate(CALLS):
            with pytest.raises(ProtocolError):
                pytest.fail(f"{name} gave {CALLS[name](ps)!r}")
            assert hostile.requests == call + 1


def test_also_on_an_event_loop(hostile: FakeServer) -> None:
    async def work() -> None:
        async with penstock.aio.connect(hostile.url, timeout="5s", retry_for=0) as ps:
            for call in ("publish", "receive", "topics"):
                with pytest.raises(ProtocolError):
                    await CALLS[call](ps)

    asyncio.run(work())


def test_no_client_is_made_of_a_page_that_says_200() -> None:
    page = answer(b"200 OK", HTML, b"content-type: text/html")
    with FakeServer(page) as server, pytest.raises(ProtocolError, match="text/html"):
        penstock.connect(server.url + "/elsewhere", retry_for=0)


def trickle(head: bytes, piece: bytes) -> Callable[[socket.socket], None]:
    """An answer that goes on and on, never longer silent than a moment."""

    def write(sock: socket.socket) -> None:
        with suppress(OSError):
            sock.sendall(head)
            while True:
                sock.sendall(piece)
                time.sleep(0.02)

    return write


ENDLESS = {
    "chunks": trickle(
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n",
        b"1\r\n \r\n",
    ),
    "a body": trickle(
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 999999999\r\n\r\n",
        b" ",
    ),
    "a head": trickle(b"HTTP/1.1 200 OK\r\n", b"a: b\r\n"),
    "other heads": trickle(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_a_call_has_one_deadline_however_often_something_comes(kind: str) -> None:
    with (
        FakeServer(ENDLESS[kind]) as server,
        penstock.connect(server.url, timeout="300ms", retry_for=0) as ps,
        pytest.raises((Unavailable, ProtocolError)),
    ):
        ps.topics()


@pytest.mark.parametrize("kind", ENDLESS)
def test_also_a_call_that_is_awaited(kind: str) -> None:
    async def work(url: str) -> None:
        async with penstock.aio.connect(url, timeout="300ms", retry_for=0) as ps:
            with pytest.raises((Unavailable, ProtocolError)):
                await ps.topics()

    with FakeServer(ENDLESS[kind]) as server:
        asyncio.run(work(server.url))


def test_an_answer_that_is_cut_off_is_lost() -> None:
    def cut(sock: socket.socket) -> None:
        sock.sendall(answer(b"200 OK", b'{"topics":[]}', b"content-type: application/json")[:-3])
        sock.shutdown(socket.SHUT_RDWR)

    with (
        FakeServer(cut) as server,
        penstock.connect(server.url, timeout="5s", retry_for=0) as ps,
        pytest.raises(Unavailable),
    ):
        ps.topics()


def test_a_trailer_changes_nothing() -> None:
    chunked = (
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
        b'd\r\n{"topics":[]}\r\n0\r\ncontent-type: text/html\r\n\r\n'
    )
    with FakeServer(chunked) as server, penstock.connect(server.url, retry_for=0) as ps:
        assert ps.topics() == []
