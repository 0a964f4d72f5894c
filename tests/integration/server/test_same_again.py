"""Requests on one connection, cut into pieces or sent together: each counts once."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from penstock.server.keys import KeyStore
from tests.integration.server.asking import Http
from tests.integration.server.running import RunningServer

REMEMBERED_MAX = 4096


class Caller:
    """One connection, on which bytes are sent as they are."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), 10)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._rest = b""

    def status(self) -> int:
        """Of the next answer."""
        while b"\r\n\r\n" not in self._rest:
            self._more()
        head, _, self._rest = self._rest.partition(b"\r\n\r\n")
        lines = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:])
        length = int(lines.get(b"content-length", b"0"))
        while len(self._rest) < length:
            self._more()
        self._rest = self._rest[length:]
        return int(head.split()[1])

    def _more(self) -> None:
        received = self.sock.recv(65536)
        assert received, "the server hung up"
        self._rest += received


@pytest.fixture
def caller(server: RunningServer, http: Http) -> Iterator[Caller]:
    http.ask("PUT", "/v1/topics/orders")
    caller = Caller(server.port)
    yield caller
    caller.sock.close()


def publish(value: bytes, *headers: bytes) -> bytes:
    lines = [
        b"POST /v1/topics/orders/messages HTTP/1.1",
        b"host: localhost",
        b"content-type: application/octet-stream",
        *headers,
        b"content-length: %d" % len(value),
    ]
    return b"\r\n".join(lines) + b"\r\n\r\n" + value


def stored(ps: Any) -> list[bytes]:
    return [message.value for message in ps.peek("orders", limit=10_000)]


def test_the_same_head_brings_another_body(caller: Caller, ps: Any) -> None:
    values = [b"one", b"two", b"six", b"GET / HTTP/1.1\r\n\r\n", b"PUT / HTTP/1.1\r\n\r\n"]
    for value in values:
        caller.sock.sendall(publish(value))
        assert caller.status() == 201
    assert stored(ps) == values


def test_however_requests_are_cut_into_pieces_each_counts_once(caller: Caller, ps: Any) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    values: list[bytes] = []
    for _ in range(60):
        some = [b"%07d" % rng.randrange(10**7) for _ in range(rng.choice((1, 1, 1, 2, 5)))]
        data = b"".join(publish(value) for value in some)
        while data:
            size = rng.choice((len(data), len(data), rng.randrange(1, len(data) + 1)))
            caller.sock.sendall(data[:size])
            data = data[size:]
            if data:
                time.sleep(0.001)  # or the pieces would come as one
        values += some
        for _ in some:
            assert caller.status() == 201, seed
    assert stored(ps) == values, seed


def test_the_rest_of_a_head_is_never_taken_for_a_head(caller: Caller, ps: Any) -> None:
    values = [b"%07d" % number for number in range(8)]
    requests = [publish(value) for value in values]
    cut = len(requests[0]) - len(values[0]) - 20  # in the last line of the head
    for first, second in zip(requests[::2], requests[1::2], strict=True):
        caller.sock.sendall(first + second[:cut])  # one is answered while the next one has begun
        assert caller.status() == 201
        caller.sock.sendall(second[cut:])
        assert caller.status() == 201
    caller.sock.sendall(requests[0])
    assert caller.status() == 201
    assert stored(ps) == [*values, values[0]]


OFFER = (
    b"connection: Upgrade, HTTP2-Settings",
    b"upgrade: h2c",
    b"http2-settings: AAMAAABkAAQAoAAAAAIAAAAA",
)
"""What the HTTP client of Java sends by default."""


@pytest.mark.parametrize("pieces", [1, 2, 3])
def test_who_offers_http2_is_answered_in_this_one(caller: Caller, ps: Any, pieces: int) -> None:
    values = [b"one", b"two", b"six"]
    for value in values * 2:
        data = publish(value, *OFFER)
        at = [len(data) * piece // pieces for piece in range(pieces + 1)]
        for start, end in pairwise(at):
            caller.sock.sendall(data[start:end])
            time.sleep(0.002)  # or the pieces would come as one
        assert caller.status() == 201
    caller.sock.sendall(publish(b"end"))
    assert caller.status() == 201
    assert stored(ps) == [*values, *values, b"end"]


def test_who_offers_http2_and_wants_to_end_is_let_go(caller: Caller, ps: Any) -> None:
    caller.sock.sendall(publish(b"one", b"connection: close", *OFFER))
    assert caller.status() == 201
    assert caller.sock.recv(1) == b""
    assert stored(ps) == [b"one"]


def test_offers_one_after_the_other_are_all_heard(caller: Caller, ps: Any) -> None:
    values = [b"%d" % number for number in range(50)]
    caller.sock.sendall(b"".join(publish(value, *OFFER) for value in values))
    assert [caller.status() for _ in values] == [201] * 50
    assert stored(ps) == values


def test_nobody_is_connected_to_somewhere_else(caller: Caller, ps: Any) -> None:
    caller.sock.sendall(
        publish(b"one") + b"CONNECT elsewhere:80 HTTP/1.1\r\nhost: localhost\r\n\r\nbytes"
    )
    assert (caller.status(), caller.status()) == (201, 400)
    assert stored(ps) == [b"one"]


def test_what_is_no_request_is_not_answered_before_the_one_ahead_of_it(caller: Caller) -> None:
    poll = b'{"wait": 0.2}'
    lines = [
        b"POST /v1/topics/orders/groups/g/receive HTTP/1.1",
        b"host: localhost",
        b"content-type: application/json",
        b"content-length: %d" % len(poll),
    ]
    caller.sock.sendall(b"\r\n".join(lines) + b"\r\n\r\n" + poll + b"\0 is no request\r\n\r\n")
    assert (caller.status(), caller.status()) == (200, 400)
    assert caller.sock.recv(1) == b""


def test_a_first_request_for_nothing_of_ours_may_come_in_pieces(caller: Caller) -> None:
    for piece in (b"GET /favi", b"con.ico HTTP/1.1\r\nho", b"st: x\r\n\r\n"):
        caller.sock.sendall(piece)
        time.sleep(0.002)
    assert caller.status() == 404


def test_a_body_in_chunks_is_not_taken_for_one_of_a_length(caller: Caller, ps: Any) -> None:
    chunked = publish(b"").replace(b"content-length: 0", b"transfer-encoding: chunked")
    for value in (b"one", b"two"):
        caller.sock.sendall(chunked + b"%x\r\n%b\r\n0\r\n\r\n" % (len(value), value))
        assert caller.status() == 201
    assert stored(ps) == [b"one", b"two"]


def test_a_key_that_was_revoked_is_refused_also_with_a_head_that_is_known(
    server: RunningServer, caller: Caller
) -> None:
    elsewhere = KeyStore.open(server.config.data)
    key, token = elsewhere.create("app", "producer")
    request = publish(b"x", b"authorization: Bearer " + token.encode())
    for _ in range(3):
        caller.sock.sendall(request)
        assert caller.status() == 201
    elsewhere.revoke(key.id)
    caller.sock.sendall(request)
    assert caller.status() == 401


def test_a_connection_that_is_to_be_closed_is_closed_the_second_time_too(
    server: RunningServer, caller: Caller
) -> None:
    for _ in range(3):
        last = Caller(server.port)
        last.sock.sendall(publish(b"x", b"connection: close"))
        assert last.status() == 201
        assert last.sock.recv(1) == b""
        last.sock.close()


def test_only_so_many_addresses_are_remembered(server: RunningServer, caller: Caller) -> None:
    for number in range(REMEMBERED_MAX + 100):
        caller.sock.sendall(b"GET /v1/topics/t%d HTTP/1.1\r\nhost: localhost\r\n\r\n" % number)
        assert caller.status() == 404
    found = server.server.config.app._found  # type: ignore[union-attr]
    assert 0 < len(found) <= REMEMBERED_MAX
