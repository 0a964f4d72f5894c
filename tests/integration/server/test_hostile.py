"""What strangers send: damaged, endless, slow, or larger inside than outside."""

from __future__ import annotations

import os
import random
import resource
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.broker.broker import Broker
from tests.integration.server.asking import Http, talk
from tests.integration.server.running import RunningServer

ARROW = "application/vnd.apache.arrow.stream"
MESSAGES = "/v1/topics/orders/messages"
PUBLISH = (
    b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json" % MESSAGES.encode()
)
ADDRESSES = [MESSAGES.encode(), b"/nope", b"/healthz"]


@pytest.fixture
def orders(http: Http) -> Http:
    http.ask("PUT", "/v1/topics/orders")
    return http


def stream(table: pa.Table, **options: object) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as out:
        out.write_table(table)
    return bytes(sink.getvalue())


def stored(http: Http) -> int:
    return int(http.get("/v1/topics/orders/stats").json["messages"])


# HTTP.


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
        b"hello\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /v1/topics HTTP/9.9\r\n\r\n",
        b"GET /v1/topics HTTP/1.1\r\nhost: localhost\r\nno colon here\r\n\r\n",
        b"POST /v1/topics HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\ncontent-length: 20\r\n\r\n",
        b"POST /v1/topics HTTP/1.1\r\nhost: localhost\r\ncontent-length: -5\r\n\r\n",
        b"POST /v1/topics HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999999999999999\r\n\r\n",
        b"POST /v1/topics HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"\x00" * 1000,
    ],
)
def test_what_is_no_http_is_answered_and_hung_up_on(server: RunningServer, data: bytes) -> None:
    answer = talk(server.port, data)
    assert answer.startswith(b"HTTP/1.1 4"), answer
    with Http(server.port) as http:
        assert http.get("/healthz").status == 200


@pytest.mark.parametrize("path", ADDRESSES)
def test_a_huge_body_is_refused_before_it_is_sent(server: RunningServer, path: bytes) -> None:
    head = b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9999999999\r\n\r\n" % path
    began = time.monotonic()
    assert b"413 " in talk(server.port, head)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("path", ADDRESSES)
def test_headers_without_end_are_cut_off(server: RunningServer, path: bytes) -> None:
    endless = b"GET %b HTTP/1.1\r\n" % path + b"x-a: " + b"y" * (1 << 20)
    assert b"request_too_large" in talk(server.port, endless)


def test_the_limits_hold_also_after_a_request_for_nothing_of_ours(broker: Broker) -> None:
    first = b"GET /nope HTTP/1.1\r\nhost: localhost\r\n\r\n"
    with RunningServer(broker, request_timeout_ms=300, body_bytes_max=1000) as server:
        for second, refused in (
            (b"GET /x HTTP/1.1\r\nh: " + b"y" * (1 << 20), b"request_too_large"),
            (
                b"POST /x HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1001\r\n\r\n",
                b"request_too_large",
            ),
            (b"POST /x HTTP/1.1\r\nhost: localhost\r\ncontent-le", b"request_timeout"),
            (b"%b\r\ncontent-length: 9\r\n\r\n12" % PUBLISH, b"request_timeout"),
        ):
            answer = talk(server.port, first + second)
            assert answer.index(b'"not_found"') < answer.index(refused), answer


def test_who_asks_for_nothing_of_ours_is_told_so_and_may_go_on(http: Http) -> None:
    for method, path in (
        ("GET", "/nope"),
        ("POST", "/nope"),
        ("GET", "//v1/topics"),
        ("PUT", "/v1"),
    ):
        answer = http.ask(method, path)
        assert (answer.status, answer.code) == (404, "not_found"), path
        assert "connection" not in answer.headers
    assert http.get("/healthz").status == 200


def test_an_address_may_be_whole_as_for_a_proxy(server: RunningServer) -> None:
    end = b" HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    assert b'"status":"ok"' in talk(server.port, b"GET http://here:80/healthz" + end)
    assert b"200 OK" in talk(server.port, b"GET HTTPS://here/v1/stats/topics?limit=1" + end)
    assert b"200 OK" in talk(server.port, b"GET http://here" + end)
    assert b"400 " in talk(server.port, b"OPTIONS *" + end)
    assert b"400 " in talk(server.port, b"CONNECT elsewhere:80" + end)


def test_random_bytes_after_a_good_beginning(server: RunningServer) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    good = PUBLISH + b"\r\ncontent-length: 2\r\n\r\n{}"
    for _ in range(200):
        damaged = bytearray(good)
        for _ in range(rng.randrange(1, 6)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        with socket.create_connection(("127.0.0.1", server.port), 5) as sock:
            sock.sendall(damaged)
            sock.shutdown(socket.SHUT_WR)
            answer = b""
            try:
                while part := sock.recv(65536):
                    answer += part
            except ConnectionResetError:
                pass
        assert b"HTTP/1.1 5" not in answer, (seed, bytes(damaged))
    with Http(server.port) as http:
        assert http.get("/healthz").status == 200


def test_requests_sent_ahead_are_answered_in_order(server: RunningServer) -> None:
    with Http(server.port) as http:
        http.ask("PUT", "/v1/topics/orders")
    poll = b'{"wait": 0.2}'
    requests = (
        b"GET /version HTTP/1.1\r\nhost: localhost\r\n\r\n"
        b"POST /v1/topics/orders/groups/g/receive HTTP/1.1\r\nhost: localhost\r\n"
        b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
        b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n" % (len(poll), poll)
    )
    answer = talk(server.port, requests)
    assert answer.count(b"HTTP/1.1 200") == 3
    assert answer.index(b'"version"') < answer.index(b'"messages"') < answer.index(b'"status"')


# Arrow.


def test_damaged_arrow_is_refused_or_read(orders: Http) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    table = pa.table(
        {
            "value": pa.array([b"a" * n for n in range(20)], pa.binary()),
            "key": pa.array([b"k"] * 20, pa.binary()),
            "priority": pa.array([2] * 20, pa.uint8()),
        }
    )
    good = [stream(table), stream(table, compression="zstd"), stream(table.select(["value"]))]
    for turn in range(400):
        body = bytearray(good[turn % len(good)])
        if turn % 5 == 0:
            del body[rng.randrange(len(body)) :]
        for _ in range(rng.randrange(1, 5)):
            if body:
                body[rng.randrange(len(body))] = rng.choice(
                    (0, 1, 127, 128, 255, rng.randrange(256))
                )
        answer = orders.ask("POST", MESSAGES, bytes(body), content_type=ARROW)
        assert answer.status in (201, 400, 413), (seed, turn, answer)
    # Whatever was taken can be given out again.
    got = orders.post("/v1/topics/orders/groups/g/receive", {"max_messages": 100_000})
    assert got.status == 200


@pytest.mark.parametrize(
    "columns",
    [
        {"value": pa.array(["a", "b"]).dictionary_encode()},
        {"value": pa.array([b"a", b"b"], pa.binary_view())},
        {"value": pa.array([[b"a"]], pa.list_(pa.binary()))},
        {"value": pa.array([1, 2])},
        {"key": pa.array([b"a"])},
        {"value": pa.array([b"a"]), "colour": pa.array([b"red"])},
        {"value": pa.array([b"a"]), "priority": pa.array([9], pa.uint8())},
        {"value": pa.array([b"a"]), "timestamp": pa.nulls(1)},
    ],
)
def test_arrow_of_the_wrong_kind_is_refused(orders: Http, columns: dict[str, pa.Array]) -> None:
    answer = orders.ask("POST", MESSAGES, stream(pa.table(columns)), content_type=ARROW)
    assert answer.code == "invalid_input"
    assert stored(orders) == 0


@pytest.mark.parametrize("rows", [1, 20, 300])
def test_lengths_that_lie_are_refused(orders: Http, rows: int) -> None:
    good = stream(pa.table({"value": pa.array([b"a" * 10] * rows)}))
    step = 4 if rows < 300 else 20
    for position in range(0, len(good) - 8, step):
        for lie in (0x7FFFFFFF, 0xFFFFFFFF, 1 << 30, 3):
            body = good[:position] + struct.pack("<I", lie) + good[position + 4 :]
            answer = orders.ask("POST", MESSAGES, body, content_type=ARROW)
            assert answer.status in (201, 400, 413), (position, lie, answer)
    # Whatever was taken can be given out again.
    got = orders.post("/v1/topics/orders/groups/g/receive", {"max_messages": 100_000}).json
    assert len(got["messages"]) == min(stored(orders), 100_000)
    assert orders.get("/v1/topics/orders/stats").json["partitions"][0]["damaged"] == 0


# Memory, in a process of its own.


@pytest.fixture
def process(tmp_path: Path) -> Iterator[tuple[int, int]]:
    script = (
        "import sys\n"
        "from penstock.config import ServerConfig\n"
        "from penstock.server.run import serve\n"
        "serve(ServerConfig(data=sys.argv[1], port=0, log_level='error', free_bytes_min=0),"
        " lambda url: print(url, flush=True))\n"
    )
    started = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "data")], stdout=subprocess.PIPE, text=True
    )
    try:
        assert started.stdout is not None
        yield started.pid, int(started.stdout.readline().rpartition(":")[2])
    finally:
        started.terminate()
        started.communicate(timeout=30)


def resident_bytes(pid: int, what: str = "VmRSS") -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(what):
            return int(line.split()[1]) << 10
    raise AssertionError(what)


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_a_bomb_adds_little_memory(process: tuple[int, int], codec: str) -> None:
    pid, port = process
    bomb = stream(pa.table({"value": pa.array([bytes(1 << 26)] * 16)}), compression=codec)
    assert len(bomb) < 8 << 20
    with Http(port) as http:
        http.ask("PUT", "/v1/topics/orders")
        small = stream(pa.table({"value": pa.array([b"x" * 1000] * 300)}), compression=codec)
        assert http.ask("POST", MESSAGES, small, content_type=ARROW).status == 201
        before = resident_bytes(pid, "VmHWM")
        answer = http.ask("POST", MESSAGES, bomb, content_type=ARROW)
        assert answer.code == "request_too_large"
        assert resident_bytes(pid, "VmHWM") - before < 32 << 20


def test_a_body_of_very_many_messages_adds_little_memory(process: tuple[int, int]) -> None:
    pid, port = process
    with Http(port) as http:
        http.ask("PUT", "/v1/topics/orders")
        small = {"messages": [{"value": "x" * 300}] * 10_000}
        assert http.post(MESSAGES, small).status == 201
        before = resident_bytes(pid, "VmHWM")
        for what, items in (
            ("messages", b"{}"),
            ("messages", b'{"headers":{}}'),
            ("receipts", b'"ab"'),
        ):
            body = b'{"%b":[%b%b]}' % (
                what.encode(),
                (items + b",") * ((24 << 20) // len(items)),
                items,
            )
            path = MESSAGES if what == "messages" else "/v1/topics/orders/groups/g/ack"
            assert http.post(path, body).code == "request_too_large"
            nested = b'{"ack":%b}' % body
            if what == "receipts":
                answer = http.post("/v1/topics/orders/groups/g/receive", nested)
                assert answer.code == "request_too_large"
        assert resident_bytes(pid, "VmHWM") - before < 200 << 20


def test_many_commas_and_braces_inside_of_messages_do_no_harm(broker: Broker) -> None:
    value = 'a "list": [{}, {}], and \\'
    with RunningServer(broker, batch_messages_max=10) as server, Http(server.port) as http:
        http.ask("PUT", "/v1/topics/orders")
        one = {"value": value * 50_000, "headers": {f"h{n}": value for n in range(20)}}
        assert http.post(MESSAGES, one).status == 201
        many = {"messages": [{"value": value * 10_000}] * 10}
        assert http.post(MESSAGES, many).status == 201
        many["messages"].append({})
        assert http.post(MESSAGES, many).code == "request_too_large"
        assert stored(http) == 11


def test_thousands_of_idle_polls_are_cheap(process: tuple[int, int]) -> None:
    pid, port = process
    count = 2_000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count + 200:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, count + 200), hard))
    body = b'{"wait": 30}'
    request = (
        b"POST /v1/topics/orders/groups/g%d/receive HTTP/1.1\r\nhost: localhost\r\n"
        b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
    )
    with Http(port) as http:
        http.ask("PUT", "/v1/topics/orders")
        before = resident_bytes(pid)
        polls = []
        try:
            for number in range(count):
                sock = socket.create_connection(("127.0.0.1", port), 30)
                sock.sendall(request % (number % 10, len(body), body))
                polls.append(sock)
            deadline = time.monotonic() + 60
            while http.get("/v1/stats").json["polls"] < count:
                assert time.monotonic() < deadline
                time.sleep(0.02)
            assert (resident_bytes(pid) - before) / count < 40_000
            http.post(MESSAGES, {"messages": [{"value": str(n)} for n in range(3)]})
            # Each group gets every message, and one poll of it is answered; the others sleep on.
            while http.get("/v1/stats").json["polls"] > count - 10:
                assert time.monotonic() < deadline
                time.sleep(0.02)
            assert http.get("/v1/stats").json["polls"] == count - 10
        finally:
            for sock in polls:
                sock.close()


# Slowness.


def test_who_sends_too_slowly_is_cut_off(broker: Broker) -> None:
    with RunningServer(broker, request_timeout_ms=300, idle_timeout_ms=600) as server:
        began = time.monotonic()
        answer = talk(server.port, b"POST /v1/topics HTTP/1.1\r\nhost: localhost\r\ncontent-len")
        assert b"408 " in answer
        assert b"request_timeout" in answer
        assert b"408 " in talk(server.port, PUBLISH + b"\r\ncontent-length: 9\r\n\r\n1234")
        chunked = b"\r\ntransfer-encoding: chunked\r\n\r\n2\r\n12\r\n"
        assert b"408 " in talk(server.port, PUBLISH + chunked)
        for path, status in ((b"/nope", b"404 "), (b"/healthz", b"405 ")):
            # That is known from the head; for the rest of the body nobody waits long.
            head = b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n1234" % path
            assert status in talk(server.port, head)
        assert talk(server.port, b"") == b""  # who says nothing at all is hung up on
        assert time.monotonic() - began < 10


@pytest.mark.parametrize("header", [b"connection: keep-alive", b"connection: close"])
def test_who_does_not_take_its_answers_is_cut_off(broker: Broker, header: bytes) -> None:
    with RunningServer(broker, request_timeout_ms=500) as server:
        with Http(server.port) as http:
            http.ask("PUT", "/v1/topics/orders")
            for _ in range(4):
                value = os.urandom(4 << 20)
                http.ask("POST", MESSAGES, value, content_type="application/octet-stream")
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(("127.0.0.1", server.port))
            sock.sendall(
                b"GET %b HTTP/1.1\r\nhost: localhost\r\n%b\r\n\r\n" % (MESSAGES.encode(), header)
            )
            assert sock.recv(12) == b"HTTP/1.1 200"
            deadline = time.monotonic() + 10
            while server.server.server_state.connections:
                assert time.monotonic() < deadline
                time.sleep(0.02)
