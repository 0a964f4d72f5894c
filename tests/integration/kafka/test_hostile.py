"""Bytes that no client would send: each is refused, and nobody else notices."""

from __future__ import annotations

import random
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest
from crc32c import crc32c

from penstock.server.kafka import messages
from tests.integration.kafka.clients import Message, confluent_publish, confluent_read
from tests.integration.kafka.raw import answer, is_closed, opened
from tests.integration.server.running import RunningServer

API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 7, -1)


def framed(key: int, version: int, body: bytes) -> bytes:
    return struct.pack(">ihhih", 10 + len(body), key, version, 7, -1) + body


SOME = [Message(None, b"%d" % n, (), 1_700_000) for n in range(3)]


@pytest.fixture(autouse=True)
def _others_go_on(kafka: str) -> Iterator[None]:
    yield
    confluent_publish(kafka, "afterwards", SOME)
    assert confluent_read(kafka, "afterwards", 3) == SOME


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        struct.pack(">i", -1),
        struct.pack(">i", 0),
        struct.pack(">i", (1 << 31) - 1),
        struct.pack(">i", (64 << 20) + 1),
        struct.pack(">ihhih", 10, 999, 0, 7, -1),
        struct.pack(">ihhih", 10, 3, 99, 7, -1),
        struct.pack(">ih", 2, 18),
        struct.pack(">ihh", (1 << 20) + 1, 3, 1),  # only what brings messages is so long
        framed(3, 1, struct.pack(">i", 20_001) + struct.pack(">hc", 1, b"x") * 20_001),
        framed(0, 3, struct.pack(">hhiihci", -1, 1, 9, 1, 1, b"x", 20_000) + bytes(160_000)),
        struct.pack(">ihhih", 10, 0, 0, 7, -1),  # Produce 0 is offered to be looked for, not done
        struct.pack(">ihhihi", 14, 3, 1, 7, -1, (1 << 31) - 1),  # so many topics
        struct.pack(">ihhihi", 14, 3, 1, 7, 32000, 0),  # a name of the client past the end
        struct.pack(">ihhih", 10, 18, 3, 7, -1),  # a flexible head that ends too early
    ],
)
def test_what_is_no_request_ends_the_connection(kafka: str, sent: bytes) -> None:
    with opened(kafka) as sock:
        sock.sendall(sent)
        assert is_closed(sock)


def test_a_later_client_is_told_what_there_is(kafka: str) -> None:
    with opened(kafka) as sock:
        sock.sendall(struct.pack(">ihhih", 10, 18, 99, 7, -1))
        told = answer(sock)
        correlation, error, count = struct.unpack_from(">ihi", told)
        assert (correlation, error) == (7, 35)
        assert count > 20
        sock.sendall(API_VERSIONS)  # and the connection goes on
        assert struct.unpack_from(">ih", answer(sock)) == (7, 0)


def test_answers_come_in_order_however_requests_are_cut(kafka: str) -> None:
    requests = b"".join(struct.pack(">ihhih", 10, 18, 0, n, -1) for n in range(50))
    rng = random.Random(7)
    with opened(kafka) as sock:
        while requests:
            cut = rng.randint(1, 40)
            sock.sendall(requests[:cut])
            requests = requests[cut:]
        found = [struct.unpack_from(">i", answer(sock))[0] for _ in range(50)]
    assert found == list(range(50))


def test_random_bytes_in_frames(kafka: str) -> None:
    rng = random.Random(11)
    for key in (0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 15, 16, 19, 20, 21, 22, 32, 36, 37, 44):
        for version in (0, 1, 2, 3, 4, 5, 7, 8, 11):
            body = rng.randbytes(rng.randint(0, 80))
            frame = struct.pack(">hhih", key, version, 1, -1) + body
            with opened(kafka) as sock:
                sock.sendall(struct.pack(">i", len(frame)) + frame)
                sock.shutdown(socket.SHUT_WR)
                assert is_closed(sock)


def test_who_takes_no_answers_is_asked_nothing_more(server: RunningServer, kafka: str) -> None:
    """Its requests stay in its socket; the memory of the server does not grow with them."""
    with opened(kafka) as sock:
        sock.settimeout(1)
        sent = 0
        with suppress(TimeoutError):
            while sent < 256 << 20:
                sent += sock.send(API_VERSIONS * 4096)
        assert sent < 128 << 20
        assert server.door.gate.buffers.taken < 8 << 20
    deadline = time.monotonic() + 10
    while server.door.gate.buffers.taken and time.monotonic() < deadline:
        time.sleep(0.01)
    assert server.door.gate.buffers.taken == 0


def test_requests_sent_ahead_leave_time_for_others(
    server: RunningServer, kafka: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = at_once = 0
    before = 0

    def encode(*args: Any) -> Any:
        nonlocal answered
        answered += 1
        return encoded(*args)

    def tick() -> None:
        nonlocal at_once, before
        at_once, before = max(at_once, answered - before), answered
        if answered < 5000:
            server.call_soon(tick)
        else:
            counted.set()

    counted = threading.Event()
    encoded = messages.encode
    monkeypatch.setattr(messages, "encode", encode)
    with opened(kafka) as sock:
        server.call_soon(tick)
        sending = threading.Thread(target=sock.sendall, args=(API_VERSIONS * 5000,))
        sending.start()
        for _ in range(5000):
            answer(sock)
        sending.join()
    assert counted.wait(10)
    assert at_once < 100


def produced(records: bytes, count: int = 1) -> bytes:
    """One record batch, packed by zstd, for the topic `topic`."""
    packed = pa.compress(records, "zstd", asbytes=True)
    tail = struct.pack(">hiqqqhii", 4, count - 1, 1000, 1000, -1, -1, -1, count) + packed
    batch = struct.pack(">qiibI", 0, len(tail) + 9, 0, 2, crc32c(tail)) + tail
    to = struct.pack(">hhiih5sii", -1, 1, 10_000, 1, 5, b"topic", 1, 0)
    return framed(0, 3, to + struct.pack(">i", len(batch)) + batch)


def record(headers: int) -> bytes:
    """With headers whose names are of one letter and whose values are null."""
    body = b"\0\0\0\1\2v" + varint(headers) + b"\2h\1" * headers
    return varint(len(body)) + body


def varint(number: int) -> bytes:
    number <<= 1
    found = b""
    while number > 127:
        found += bytes((number & 127 | 128,))
        number >>= 7
    return found + bytes((number,))


@pytest.mark.parametrize("headers", [1_000, 300_000])
def test_what_a_small_batch_becomes_is_bounded(kafka: str, headers: int) -> None:
    """300,000 headers in 100 bytes: the message is refused, by an answer."""
    with opened(kafka) as sock:
        sock.sendall(produced(record(headers)))
        (code,) = struct.unpack_from(">h", answer(sock), 4 + 4 + 2 + 5 + 4 + 4)
    assert code == (0 if headers == 1_000 else 87)


def test_much_from_a_small_batch_is_decoded_beside_the_event_loop(
    server: RunningServer, kafka: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = []

    async def aside(work: Any, *args: Any) -> Any:
        beside.append(work.__name__)
        return await done_aside(work, *args)

    done_aside = server.door.aside
    with opened(kafka) as sock:
        sock.sendall(produced(record(900)))  # which opens the topic, beside the loop too
        answer(sock)
        monkeypatch.setattr(server.door, "aside", aside)
        sock.sendall(produced(record(900)))
        answer(sock)
        assert not beside
        sock.sendall(produced(record(900) * 20, 20))
        answer(sock)
    assert len(beside) == 1


def test_a_request_that_does_not_come_to_an_end_is_cut_off(broker: object) -> None:
    with (
        RunningServer(broker, kafka=True, auto_create=True, request_timeout_ms=300) as server,  # type: ignore[arg-type]
        opened(server.kafka) as sock,
    ):
        sock.sendall(struct.pack(">i", 1000) + b"half")
        began = time.monotonic()
        assert is_closed(sock)
        assert time.monotonic() - began < 5
