"""Answers are bounded by bytes; who wants more asks again, and misses nothing."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.broker.broker import Broker
from penstock.model.names import topic_name
from penstock.record.batch import Batch
from tests.integration.server.asking import Http
from tests.integration.server.running import RunningServer

BYTES_MAX = 100_000
VALUES = [b"%03d" % number + b"x" * 20_000 for number in range(30)]
AT_ONCE = 4  # that fit, with all that lies around them


@pytest.fixture
def server(broker: Broker) -> Iterator[RunningServer]:
    with RunningServer(broker, body_bytes_max=BYTES_MAX) as server:
        yield server


def fill(broker: Broker, frames: int, **settings: Any) -> None:
    """The values in their order, in so many frames."""
    name = topic_name("orders")
    broker.create_topic(name, settings)
    rows = len(VALUES) // frames
    for start in range(0, len(VALUES), rows):
        values = VALUES[start : start + rows]
        priority = [number % 5 for number in range(rows)]
        broker.publish(name, Batch.build(values, priority=priority if rows > 1 else 2))


@pytest.mark.parametrize("accept", ["application/json", "application/vnd.apache.arrow.stream"])
@pytest.mark.parametrize(("frames", "partitions"), [(1, 1), (5, 1), (30, 1), (30, 7)])
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_receive_ends_where_the_answer_would_be_too_long(
    http: Http, broker: Broker, frames: int, partitions: int, codec: str, accept: str
) -> None:
    fill(broker, frames, partitions=partitions, codec=codec)
    path = "/v1/topics/orders/groups/g/receive"
    taken = 0
    while taken < len(VALUES):
        answer = http.post(path, {"max_messages": 1000}, accept=accept)
        assert len(answer.body) < BYTES_MAX * 1.3
        (group,) = http.get("/v1/topics/orders/stats").json["groups"]
        assert group["in_flight"] > taken
        taken = group["in_flight"]  # nothing is leased that was not handed out
    assert http.post(path, {"max_messages": 1000}).json["messages"] == []


def test_each_message_is_received_once_and_in_order(ps: Any, broker: Broker) -> None:
    fill(broker, 30)
    got: list[bytes] = []
    while messages := ps.receive("orders", "g", max_messages=1000):
        assert {message.delivery_count for message in messages} == {1}
        got += [message.value for message in messages]
    assert got == VALUES


def test_no_message_is_lost_where_the_log_is_read_in_parts(broker: Broker) -> None:
    """What is not read because enough was must not be taken for damaged."""
    name = topic_name("orders")
    broker.create_topic(name, {})
    for _ in range(2):
        broker.publish(name, Batch.build([b"x" * 1000] * 1000))
    got: list[int] = []
    # More than the values of the first frame have, and less than its columns.
    while delivered := broker.receive(name, "g", 2000, None, "", None, 1_002_000):
        got += [each.count for each in delivered]
    assert (len(got), sum(got)) == (3, 2000)


def test_one_message_is_handed_out_however_long_it_is(http: Http, broker: Broker) -> None:
    name = topic_name("orders")
    broker.create_topic(name, {})
    for _ in range(2):
        broker.publish(name, Batch.build([b"x" * 3 * BYTES_MAX] * 2))
    for _ in range(4):
        answer = http.post("/v1/topics/orders/groups/g/receive", {"max_messages": 10})
        assert len(answer.json["messages"]) == 1
    for offset in range(4):
        page = http.get(f"/v1/topics/orders/messages?at={offset}&limit=10").json
        assert (len(page["messages"]), page["next_offset"]) == (1, offset + 1)


@pytest.mark.parametrize("frames", [1, 5, 30])
def test_a_peek_ends_and_says_where_to_go_on(
    http: Http, broker: Broker, ps: Any, frames: int
) -> None:
    fill(broker, frames)
    page = http.get("/v1/topics/orders/messages?limit=1000").json
    assert len(page["messages"]) == AT_ONCE == page["next_offset"]
    assert page["end"] == len(VALUES)
    # The client asks on.
    assert [message.value for message in ps.peek("orders", limit=1000)] == VALUES
    assert [message.value for message in ps.peek("orders", limit=7, at=2)] == VALUES[2:9]


def test_a_read_takes_no_more_than_the_server_gives(http: Http, broker: Broker) -> None:
    fill(broker, 30)
    path = "/v1/topics/orders/partitions/0/messages?max_bytes=50000000"
    page = http.get(path).json
    assert AT_ONCE <= len(page["messages"]) <= AT_ONCE + 2
    assert page["next_offset"] == len(page["messages"])


def test_pages_of_letters_and_delays_end_early_and_go_on(
    http: Http, broker: Broker, ps: Any
) -> None:
    fill(broker, 30, max_retries=0)
    name = topic_name("orders")
    broker.delay(name, Batch.build(VALUES), broker.clock.wall_ns() // 1000 + 3_600_000_000)
    for delivered in broker.receive(name, "g", 1000):
        broker.reject(name, delivered.partition, "g", delivered.nonce, None)

    page = http.get("/v1/topics/orders/dead-letters?limit=1000").json
    assert AT_ONCE <= len(page["letters"]) <= AT_ONCE + 1
    assert page["count"] == len(VALUES)
    assert page["next"] is not None
    assert [letter.message.value for letter in ps.dead_letters("orders")] == VALUES

    page = http.get("/v1/topics/orders/delayed?limit=1000").json
    assert AT_ONCE <= len(page["delayed"]) <= AT_ONCE + 1
    assert page["next"] is not None
    assert [each.message.value for each in ps.delayed("orders")] == VALUES


@pytest.mark.parametrize("header", [b"connection: keep-alive", b"connection: close"])
def test_who_takes_its_answer_steadily_is_not_cut_off(broker: Broker, header: bytes) -> None:
    name = topic_name("orders")
    broker.create_topic(name, {})
    for _ in range(4):
        broker.publish(name, Batch.build([b"x" * (4 << 20)]))
    with RunningServer(broker, request_timeout_ms=800) as server, socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
        sock.settimeout(10)
        sock.connect(("127.0.0.1", server.port))
        sock.sendall(
            b"GET /v1/topics/orders/messages HTTP/1.1\r\nhost: localhost\r\n%b\r\n\r\n" % header
        )
        began, received = time.monotonic(), 0
        while received < 16 << 20:
            part = sock.recv(1 << 20)
            assert part, "the server hung up"
            received += len(part)
            # At such a speed that it takes thrice as long as a request may take to arrive.
            pause_s = began + 2.4 * received / (16 << 20) - time.monotonic()
            if pause_s > 0:
                time.sleep(pause_s)
