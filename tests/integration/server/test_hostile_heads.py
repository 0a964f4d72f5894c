"""Heads and trailers of strangers: endless, doubled, unknown; and keys before bodies."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

import penstock.server
from penstock.broker.broker import Broker
from penstock.config import ServerConfig
from penstock.errors import InvalidInput
from penstock.server.keys import KeyStore
from penstock.server.run import serve
from tests.integration.broker.world import until
from tests.integration.server.asking import Http, talk
from tests.integration.server.running import RunningServer

MESSAGES = b"/v1/topics/orders/messages"
CHUNKED = (
    b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/octet-stream\r\n"
    b"transfer-encoding: chunked\r\n" % MESSAGES
)
ENDLESS = {
    "a header": b"GET /v1/topics HTTP/1.1\r\nhost: localhost\r\nx: ",
    "the address": b"GET /v1/",
    "a trailer": CHUNKED + b"\r\n1\r\nx\r\n0\r\nx: ",
    "a chunk's extension": CHUNKED + b"\r\n1;",
}


@pytest.fixture
def port(server: RunningServer, http: Http) -> Iterator[int]:
    http.ask("PUT", "/v1/topics/orders")
    yield server.port
    assert server.door.gate.buffers.taken == 0


def send_endlessly(port: int, beginning: bytes, piece: bytes, megabytes: int) -> bytes:
    """Until the server has enough of it; what it says then."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port), 20) as sock, suppress(OSError):
        with suppress(BrokenPipeError, ConnectionResetError):
            sock.sendall(beginning)
            for _ in range((megabytes << 20) // len(piece)):
                sock.sendall(piece)
        while part := sock.recv(65536):
            answer += part
    return answer


def slowest_health_s(port: int, over: threading.Event) -> float:
    """How long the server takes to say that it is there, again and again, at the most."""
    took = [0.0]
    with Http(port) as http:
        while not over.is_set():
            began = time.perf_counter()
            assert http.get("/healthz").status == 200
            took.append(time.perf_counter() - began)
    return max(took)


@pytest.mark.parametrize("what", ENDLESS)
def test_what_has_no_end_is_refused(port: int, http: Http, what: str) -> None:
    told = send_endlessly(port, ENDLESS[what], b"y" * 16_384, megabytes=4)
    assert b"request_too_large" in told
    assert http.get("/healthz").status == 200
    assert http.get("/v1/topics/orders/stats").json["messages"] == 0


@pytest.mark.torture
@pytest.mark.parametrize("what", ENDLESS)
def test_what_has_no_end_is_refused_at_full_size(port: int, http: Http, what: str) -> None:
    for piece in (b"y", b"y" * 1000, b"a: b\r\n" * 1000, b"y" * 65_536):
        over = threading.Event()
        with ThreadPoolExecutor(1) as beside:
            asked = beside.submit(slowest_health_s, port, over)
            send_endlessly(port, ENDLESS[what], piece, megabytes=1 if len(piece) == 1 else 200)
            over.set()
        assert asked.result() < 0.1
        assert http.get("/healthz").status == 200


def test_many_small_headers_in_one_piece_are_counted_together(port: int) -> None:
    head = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n" + b"a: b\r\n" * 10_000 + b"\r\n"
    assert b"request_too_large" in talk(port, head)


def test_trailers_are_no_headers(port: int, http: Http) -> None:
    end = b"0\r\ncontent-type: application/json\r\nauthorization: Bearer x\r\nhost: evil\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), 20) as sock:
        sock.sendall(CHUNKED + b"\r\n2\r\n{}\r\n" + end)
        assert sock.recv(100).startswith(b"HTTP/1.1 201 ")
    (message,) = http.get(MESSAGES.decode()).json["messages"]
    assert message["value"] == "{}"  # as application/octet-stream, not as JSON


@pytest.mark.parametrize(
    ("head", "says"),
    [
        (b"GET /v1/topics HTTP/1.1\r\nhost: localhost\r\nhost: localhost\r\n", b"came twice"),
        (
            b"GET /v1/topics HTTP/1.1\r\nhost: localhost\r\n"
            b"authorization: Bearer a\r\nAuthorization: Bearer b\r\n",
            b"came twice",
        ),
        (b"GET /v1/topics HTTP/1.1\r\n", b"'Host' is missing"),
        (b"GET /v1/topics HTTP/1.1\r\nhost: localhost\r\nexpect: 200-ok\r\n", b"'Expect'"),
        (
            b"POST %b HTTP/1.0\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"transfer-encoding: chunked\r\n" % MESSAGES,
            b"needs HTTP/1.1",
        ),
    ],
)
def test_heads_that_can_be_read_in_two_ways_are_refused(
    port: int, head: bytes, says: bytes
) -> None:
    answer = talk(port, head + b"connection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert says in answer


def test_who_asks_first_is_told_to_go_on(port: int) -> None:
    head = (
        b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        b"expect: 100-continue\r\ncontent-length: 14\r\nconnection: close\r\n\r\n" % MESSAGES
    )
    with socket.create_connection(("127.0.0.1", port), 20) as sock:
        sock.sendall(head)
        assert sock.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(b'{"value": "x"}')
        assert sock.recv(100).startswith(b"HTTP/1.1 201 ")


# Keys.


@pytest.mark.parametrize(
    "length",
    [b"content-length: 50000000", b"transfer-encoding: chunked"],
    ids=["length", "chunks"],
)
def test_a_wrong_key_is_refused_before_the_body_is_sent(broker: Broker, length: bytes) -> None:
    keys = KeyStore.open(broker.folder)
    keys.create("app", "producer")
    head = (
        b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/octet-stream\r\n"
        b"authorization: Bearer psk_wrong\r\nexpect: 100-continue\r\n%b\r\n\r\n"
        % (MESSAGES, length)
    )
    with RunningServer(broker, keys) as server:
        with socket.create_connection(("127.0.0.1", server.port), 20) as sock:
            sock.sendall(head)
            assert sock.recv(100).startswith(b"HTTP/1.1 401 ")
        assert server.door.gate.buffers.taken == 0


def test_the_rest_of_a_refused_body_is_skipped(broker: Broker) -> None:
    keys = KeyStore.open(broker.folder)
    token = keys.create("app", "producer").token
    with RunningServer(broker, keys) as server:
        with Http(server.port, "psk_wrong") as http:
            for _ in range(3):  # on one connection
                answer = http.ask(
                    "POST", MESSAGES.decode(), b"x" * 3_000_000, content_type="text/plain"
                )
                assert answer.status == 401
        with Http(server.port, token) as http:
            assert http.get("/v1/topics").status == 200


@pytest.mark.parametrize("call", ["receive", "fetch", "ack and receive"])
def test_a_poll_ends_when_its_key_is_revoked(broker: Broker, call: str) -> None:
    keys = KeyStore.open(broker.folder)
    admin, doomed = keys.create("ops", "admin"), keys.create("app", "consumer")
    body: dict[str, object] = {"wait": 30}
    path = "/v1/topics/orders/groups/g/receive"
    if call == "fetch":
        path = "/v1/fetch"
        body["positions"] = [{"topic": "orders", "partition": 0, "offset": 0}]
    elif call == "ack and receive":
        body["ack"] = {"receipts": []}
    with (
        RunningServer(broker, keys) as server,
        Http(server.port, admin.token) as http,
        Http(server.port, doomed.token) as polling,
    ):
        http.ask("PUT", "/v1/topics/orders")
        polling._connection.request(
            "POST",
            path,
            json.dumps(body),
            {"authorization": f"Bearer {doomed.token}", "content-type": "application/json"},
        )
        until(lambda: len(server.door.polls) == 1)
        assert http.ask("DELETE", "/v1/keys/app").status == 200
        http.post("/v1/topics/orders/messages", {"value": "secret"})
        answer = polling._connection.getresponse()
        assert answer.status == 401
        assert b"secret" not in answer.read()
        stats = http.get("/v1/topics/orders/stats").json
        assert sum(group["in_flight"] for group in stats["groups"]) == 0


def test_a_poll_ends_when_keys_come_into_use(server: RunningServer, http: Http) -> None:
    http.ask("PUT", "/v1/topics/orders")
    with Http(server.port) as polling:
        polling._connection.request(
            "POST",
            "/v1/topics/orders/groups/g/receive",
            b'{"wait": 30}',
            {"content-type": "application/json"},
        )
        until(lambda: len(server.door.polls) == 1)
        KeyStore.open(server.config.data).create("ops", "admin")
        assert polling._connection.getresponse().status == 401


def test_a_server_does_not_start_when_its_keys_are_lost(tmp_path: Path) -> None:
    config = ServerConfig(data=str(tmp_path / "data"), port=0)
    keys = KeyStore.open(config.data)
    keys.check_not_lost()
    keys.create("app", "producer")
    keys.revoke("app")
    (tmp_path / "data" / "keys.json").unlink()
    with pytest.raises(InvalidInput, match=r"keys\.json is gone, and there were keys in it"):
        serve(config)
    with pytest.raises(InvalidInput, match="is gone"):
        penstock.server.app(config.data)
    KeyStore.open(config.data).create("new", "admin")
    KeyStore.open(config.data).check_not_lost()


def test_a_folder_of_an_earlier_version_remembers_its_keys_from_the_next_start(
    tmp_path: Path,
) -> None:
    KeyStore.open(tmp_path).create("app", "producer")
    (tmp_path / "keys.json.lock").write_bytes(b"")
    KeyStore.open(tmp_path).check_not_lost()
    (tmp_path / "keys.json").unlink()
    with pytest.raises(InvalidInput, match="is gone"):
        KeyStore.open(tmp_path).check_not_lost()


def test_keys_can_be_required(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="require_keys is set"):
        serve(ServerConfig(data=str(tmp_path / "data"), port=0, require_keys=True))
