"""Too much of everything: connections, bodies, answers that nobody takes, long work.

Small here; at full size under `make torture`.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import pytest

from penstock.broker.broker import Broker, BrokerConfig
from penstock.config import ServerConfig
from penstock.errors import Unavailable
from penstock.log.local_engine import LocalEngine
from penstock.server.access_log import AccessLog
from penstock.server.gate import ByteBudget
from penstock.server.http import dispatch
from penstock.server.keys import KeyStore
from penstock.server.open_files import connections_below_limit
from tests.integration.broker.world import Background, QuickFiles, until
from tests.integration.server import grpc_client
from tests.integration.server.asking import Http, talk
from tests.integration.server.process import ServerProcess
from tests.integration.server.running import RunningServer

ORDERS = "/v1/topics/orders"
RAW = "application/octet-stream"
WAIT_S_MAX = 20


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), WAIT_S_MAX)


def head(path: str, length: int | None, *lines: str) -> bytes:
    body = "transfer-encoding: chunked" if length is None else f"content-length: {length}"
    text = "\r\n".join([f"POST {path} HTTP/1.1", "host: localhost", *lines, body])
    return f"{text}\r\n\r\n".encode()


def read_answer(sock: socket.socket) -> tuple[int, bytes]:
    """The status and the body of the only answer."""
    with sock.makefile("rb") as file:
        return next_answer(file)


def next_answer(file: IO[bytes]) -> tuple[int, bytes]:
    status = int(file.readline().split()[1])
    length = 0
    while (line := file.readline().lower()) != b"\r\n":
        if line.startswith(b"content-length: "):
            length = int(line.partition(b":")[2])
    return status, file.read(length)


# Connections.


def test_more_connections_than_allowed_are_refused(broker: Broker) -> None:
    with RunningServer(broker, connections_max=10) as server, ExitStack() as open_:
        idle = [open_.enter_context(connect(server.port)) for _ in range(10)]
        until(lambda: len(server.server.server_state.connections) == 10)
        assert talk(server.port, b"").startswith(b"HTTP/1.1 503 ")
        idle.pop().close()
        until(lambda: len(server.server.server_state.connections) == 9)
        with Http(server.port) as http:
            assert http.get("/healthz").status == 200


def test_so_are_more_connections_to_the_grpc_port(broker: Broker) -> None:
    hello = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
    with RunningServer(broker, grpc="127.0.0.1:0", connections_max=40) as server:
        port = server.server.grpc.port  # type: ignore[union-attr]
        with ExitStack() as open_:
            idle = [open_.enter_context(connect(port)) for _ in range(15)]
            for each in idle:
                each.sendall(hello)
            until(lambda: sum(map(_is_hung_up, idle)) == 5)  # ten are a quarter
        client = grpc_client.Client(port)
        until(lambda: client.ask("list_topics") is not None)
        client.channel.close()


def _is_hung_up(sock: socket.socket) -> bool:
    """Whether the server closed it; its first frames are read."""
    sock.settimeout(0.01)
    try:
        while sock.recv(4096):
            pass
    except TimeoutError:
        return False
    except ConnectionResetError:
        pass
    return True


def test_half_of_the_open_files_are_for_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [(1024, 4096)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: limits.append(new))
    assert connections_below_limit(16_384) == 2048
    assert limits[-1] == (4096, 4096)
    assert connections_below_limit(100) == 100
    limits.append((256, 256))
    assert connections_below_limit(16_384) == 128


@pytest.mark.torture
def test_segments_roll_while_connections_are_at_their_limit(tmp_path: Path) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 20_000), hard))
    server = ServerProcess(tmp_path / "data", connections_max=1100)
    with server, ExitStack() as open_:
        http = open_.enter_context(Http(server.port))
        assert http.ask("PUT", ORDERS, {"segment_bytes": 4096}).status == 201
        for _ in range(1500):
            open_.enter_context(connect(server.port))
        for _ in range(100):
            value = b"x" * 2000
            assert http.ask("POST", f"{ORDERS}/messages", value, content_type=RAW).status == 201
        assert http.get("/readyz").status == 200


# Memory.


def test_the_budget_counts_and_forgets() -> None:
    budget = ByteBudget(100)
    budget.take(60)
    with pytest.raises(Unavailable):
        budget.take(41)
    budget.take(40)
    budget.add(10)
    with pytest.raises(Unavailable):
        budget.take(0)
    budget.give_back(110)
    assert budget.taken == 0


def test_bodies_under_way_share_a_budget(broker: Broker) -> None:
    size = 1 << 20
    path, kind = f"{ORDERS}/messages", f"content-type: {RAW}"
    with (
        RunningServer(broker, body_bytes_max=size, buffered_bytes_max=size) as server,
        Http(server.port) as http,
    ):
        http.ask("PUT", ORDERS)
        buffers = server.door.gate.buffers
        with connect(server.port) as first, connect(server.port) as second:
            first.sendall(head(path, size, kind) + b"x" * (size - 1))
            until(lambda: buffers.taken == size - 1)
            second.sendall(head(path, size, kind) + b"x" * 1000)
            status, body = read_answer(second)
            assert (status, json.loads(body)["code"]) == (503, "unavailable")
            first.sendall(b"x")
            assert read_answer(first)[0] == 201
        with connect(server.port) as third:  # which goes away in the middle
            third.sendall(head(path, size, kind) + b"x" * 500_000)
            until(lambda: buffers.taken == 500_000)
        until(lambda: buffers.taken == 0)
        assert http.ask("POST", path, b"x" * size, content_type=RAW).status == 201


def memory_after(work: Callable[[ServerProcess], None], server: ServerProcess) -> int:
    """By how many bytes the memory of a server grew at the most."""
    before = server.memory_bytes("VmHWM")
    work(server)
    return server.memory_bytes("VmHWM") - before


def send_bodies_with_a_wrong_key(server: ServerProcess, count: int, size: int) -> None:
    """All at once; half of them are kept, half are cut off in the middle."""
    wrong = "authorization: Bearer psk_0123456789ab_" + "x" * 43
    body = b"x" * size
    with ExitStack() as open_:
        clients = [open_.enter_context(connect(server.port)) for _ in range(count)]
        for client in clients:
            client.sendall(head(f"{ORDERS}/messages", size, f"content-type: {RAW}", wrong))
        for number, client in enumerate(clients):
            assert read_answer(client)[0] == 401
            client.sendall(body if number % 2 else body[: size // 2])


@pytest.mark.parametrize(
    ("count", "size"), [(10, 8 << 20), pytest.param(60, 60 << 20, marks=pytest.mark.torture)]
)
def test_bodies_of_strangers_are_not_kept(tmp_path: Path, count: int, size: int) -> None:
    KeyStore.open(tmp_path / "data").create("app", "producer")
    with ServerProcess(tmp_path / "data") as server:
        talk(server.port, b"GET /nope HTTP/1.0\r\n\r\n")
        grown = memory_after(lambda s: send_bodies_with_a_wrong_key(s, count, size), server)
    assert grown < 32 << 20


def fill_with_long_messages(http: Http, count: int, size: int) -> None:
    http.ask("PUT", ORDERS)
    for _ in range(count):
        value = os.urandom(size)
        assert http.ask("POST", f"{ORDERS}/messages", value, content_type=RAW).status == 201


def test_the_next_answer_waits_until_the_client_reads(broker: Broker) -> None:
    ahead = 4
    request = f"GET {ORDERS}/messages?limit=4 HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()
    with RunningServer(broker) as server:
        with Http(server.port) as http:
            fill_with_long_messages(http, 4, 2 << 20)
        buffers = server.door.gate.buffers
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
            sock.settimeout(WAIT_S_MAX)
            sock.connect(("127.0.0.1", server.port))
            sock.sendall(request * ahead)
            until(lambda: 8 << 20 < buffers.taken < 16 << 20)  # it is made, and on its way
            with Http(server.port) as http:
                for _ in range(20):  # time enough for another answer
                    assert http.get("/healthz").status == 200
            assert 8 << 20 < buffers.taken < 16 << 20
            with sock.makefile("rb") as file:
                for _ in range(ahead):
                    status, body = next_answer(file)
                    assert (status, len(body) > 8 << 20) == (200, True)
        until(lambda: buffers.taken == 0)


def read_and_take_nothing(server: ServerProcess, count: int) -> None:
    request = f"GET {ORDERS}/messages?limit=100 HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()
    with ExitStack() as open_:
        for _ in range(count):
            open_.enter_context(connect(server.port)).sendall(request * 60)
        with Http(server.port) as http:
            for _ in range(50):
                assert http.get("/healthz").status == 200
                time.sleep(0.1)


@pytest.mark.torture
def test_answers_that_nobody_takes_are_bounded(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", buffered_bytes_max=128 << 20) as server:
        with Http(server.port) as http:
            fill_with_long_messages(http, 16, 4 << 20)
        grown = memory_after(lambda s: read_and_take_nothing(s, 60), server)
    # The budget, and for each of four threads an answer of 64 MiB in three or four forms.
    assert grown < 3 << 29


@pytest.mark.torture
@pytest.mark.timeout(300)
def test_three_thousand_slow_clients_are_gone_within_forty_seconds(tmp_path: Path) -> None:
    count = 3000
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 20_000), hard))
    slow_head = b"POST /v1/topics HTTP/1.1\r\nhost: local"
    slow_body = head(f"{ORDERS}/messages", 100, f"content-type: {RAW}") + b"x"
    slow_reader = f"GET {ORDERS}/messages HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()
    with ServerProcess(tmp_path / "data") as server, ExitStack() as open_:
        http = open_.enter_context(Http(server.port))
        fill_with_long_messages(http, 1, 300_000)
        before = server.memory_bytes("VmRSS")
        for number in range(count):
            client = socket.socket()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", server.port))
            client.sendall((slow_head, slow_body, slow_reader)[number % 3])
            open_.callback(client.close)
        deadline = time.monotonic() + 40
        while server.open_files() > 100:
            assert time.monotonic() < deadline
            assert http.get("/healthz").status == 200
            time.sleep(1)
        assert server.memory_bytes("VmRSS") - before < 400 << 20


# Time: what takes long does not hold up the others.


class Gated:
    """Stands for a call that takes until it is let go."""

    def __init__(self, call: Callable[..., Any]) -> None:
        """Of the broker; on topic orders only."""
        self._call = call
        self.entered = threading.Event()
        self.go = threading.Event()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if str(args[0]) == "orders":
            self.entered.set()
            assert self.go.wait(WAIT_S_MAX)
        return self._call(*args, **kwargs)


@pytest.fixture
def orders(http: Http) -> Http:
    http.ask("PUT", ORDERS)
    http.post(f"{ORDERS}/messages", {"messages": [{"value": "x"}] * 3000})
    return http


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("receive", "groups/g/receive", {"max_messages": 2000}),
        ("nack", "groups/g/nack", None),
        ("purge", "", None),
    ],
)
def test_a_long_call_holds_up_nobody_but_its_topics_groups(
    orders: Http,
    server: RunningServer,
    broker: Broker,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    path: str,
    body: Any,
) -> None:
    taken = orders.post(f"{ORDERS}/groups/g/receive", {"max_messages": 1}).json["messages"]
    receipts = {"receipts": [taken[0]["receipt"]]}
    slow = Gated(getattr(broker, method))
    monkeypatch.setattr(broker, method, slow)

    def call() -> int:
        with Http(server.port) as other:
            if method == "purge":
                return other.ask("DELETE", f"{ORDERS}/messages").status
            return other.post(f"{ORDERS}/{path}", body or receipts).status

    def ack() -> int:
        with Http(server.port) as other:
            return other.post(f"{ORDERS}/groups/g/ack", receipts).status

    long_call = Background(call)
    assert slow.entered.wait(WAIT_S_MAX)
    short_call = Background(ack)  # it may wait for the lock, but not on the event loop
    with Http(server.port) as http:
        assert http.get("/healthz").status == 200
        assert http.ask("PUT", "/v1/topics/others").status == 201
        assert http.post("/v1/topics/others/messages", {"value": "y"}).status == 201
        got = http.post("/v1/topics/others/groups/g/receive", {"wait": 5}).json["messages"]
        assert [message["value"] for message in got] == ["y"]
        assert http.post(f"{ORDERS}/messages", {"value": "z"}).status == 201
    slow.go.set()
    assert long_call.result() == 200
    assert short_call.result() == 200
    assert not server.door.long_calls._running


def test_polls_rest_while_a_long_call_is_at_work_and_go_on_after_it(
    http: Http, server: RunningServer, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    http.ask("PUT", ORDERS)

    def poll() -> Any:
        with Http(server.port) as other:
            return other.post(f"{ORDERS}/groups/g/receive", {"wait": 20}).json["messages"]

    polling = Background(poll)
    until(lambda: len(server.door.polls) == 1)
    slow = Gated(broker.purge)
    monkeypatch.setattr(broker, "purge", slow)
    purging = Background(lambda: ask_alone(server, "DELETE", f"{ORDERS}/messages?group=other"))
    assert slow.entered.wait(WAIT_S_MAX)
    http.post(f"{ORDERS}/messages", {"value": "x"})
    assert len(server.door.polls) == 1
    slow.go.set()
    assert [message["value"] for message in polling.result()] == ["x"]
    assert purging.result() == 200


def ask_alone(server: RunningServer, method: str, path: str) -> int:
    with Http(server.port) as http:
        return http.ask(method, path).status


def test_members_heartbeat_while_all_other_threads_are_at_work(
    orders: Http, server: RunningServer, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined = orders.post("/v1/stream-groups/audit/join", {"topics": ["orders"]}).json
    member = {"member_id": joined["member_id"], "generation": joined["generation"]}
    slow = Gated(broker.topic)
    monkeypatch.setattr(broker, "topic", slow)
    peeks = [Background(lambda: ask_alone(server, "GET", f"{ORDERS}/messages")) for _ in range(20)]
    assert slow.entered.wait(WAIT_S_MAX)
    for _ in range(5):
        assert orders.post("/v1/stream-groups/audit/heartbeat", member).status == 200
    assert orders.get("/readyz").status == 200
    slow.go.set()
    assert {peek.result() for peek in peeks} == {200}


@pytest.mark.parametrize(("bytes_", "aside"), [(1_000, False), (100_000, True)])
def test_long_bodies_are_decoded_beside_the_loop(
    http: Http, monkeypatch: pytest.MonkeyPatch, bytes_: int, aside: bool
) -> None:
    threads: list[str] = []
    decode = dispatch.decode_json

    def noted(*args: Any) -> Any:
        threads.append(threading.current_thread().name)
        return decode(*args)

    monkeypatch.setattr(dispatch, "decode_json", noted)
    http.post(f"{ORDERS}/messages", {"value": "x" * bytes_})
    assert threads[0].startswith("penstock-aside") == aside


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("messages", {"value": "x", "ttl": "1h" * 1_000_000}),
        ("messages", {"value": "x", "delay": "1h" * 1_000_000}),
        ("groups/g/receive", {"consumer": "c" * 9_000_000}),
        ("groups/g/receive", {"wait": "1s" * 1_000_000}),
    ],
)
def test_long_fields_are_refused(orders: Http, path: str, body: Any) -> None:
    answer = orders.post(f"{ORDERS}/{path}", body)
    assert (answer.status, answer.code) == (400, "invalid_input")
    assert len(answer.body) < 1000


def test_settings_and_names_are_no_long_bodies(orders: Http) -> None:
    answer = orders.ask("PATCH", ORDERS, {"ttl": "1h" * 2_000_000})
    assert (answer.status, answer.code) == (413, "request_too_large")


def test_who_does_not_read_the_log_holds_up_nobody(broker: Broker) -> None:
    read_end, write_end = os.pipe()
    with open(write_end, "wb", buffering=0) as out:
        log = AccessLog(out)
        with RunningServer(broker, log=log) as server, Http(server.port) as http:
            for _ in range(1000):  # a pipe takes 64 KiB
                assert http.get("/healthz").status == 200
            until(lambda: log._waiting_bytes > 0)
            os.close(read_end)
            until(lambda: log._waiting_bytes == 0)


# Readiness.


class FailingFiles(QuickFiles):
    failure: OSError | None = None

    def __init__(self) -> None:
        self.before_append = self._fail

    def _fail(self, path: str) -> None:
        if self.failure is not None:
            raise self.failure


@pytest.fixture
def failing(tmp_path: Path) -> Iterator[tuple[FailingFiles, Http]]:
    files = FailingFiles()
    config = BrokerConfig(free_bytes_min=0)
    with (
        Broker(LocalEngine(tmp_path / "other", files=files), config) as broker,
        RunningServer(broker) as server,
        Http(server.port) as http,
    ):
        http.ask("PUT", ORDERS)
        yield files, http
        files.failure = None


def test_readiness_tells_of_refused_publishes(failing: tuple[FailingFiles, Http]) -> None:
    files, http = failing
    assert http.get("/readyz").status == 200
    files.failure = OSError(errno.ENOSPC, "No space left on device")
    assert http.post(f"{ORDERS}/messages", {"value": "x"}).code == "disk_full"
    answer = http.get("/readyz")
    assert (answer.status, answer.code) == (503, "unavailable")
    assert "the disk is full" in answer.json["detail"]
    assert http.get("/healthz").status == http.get("/health").status == 200
    files.failure = None
    assert http.post(f"{ORDERS}/messages", {"value": "x"}).status == 201
    assert http.get("/readyz").status == 200


def test_readiness_tells_of_failed_logs(failing: tuple[FailingFiles, Http]) -> None:
    files, http = failing
    files.failure = OSError(errno.EIO, "Input/output error")
    assert http.post(f"{ORDERS}/messages", {"value": "x"}).status == 500
    files.failure = None
    answer = http.get("/readyz")
    assert (answer.status, answer.code) == (503, "unavailable")
    assert "has failed" in answer.json["detail"]


def test_readiness_looks_at_the_disk(tmp_path: Path) -> None:
    config = BrokerConfig(free_bytes_min=1 << 60)
    with (
        Broker(LocalEngine(tmp_path / "data", files=QuickFiles()), config) as broker,
        RunningServer(broker) as server,
        Http(server.port) as http,
    ):
        assert "the disk is full" in http.get("/readyz").json["detail"]


def test_a_server_without_room_for_one_body_is_refused() -> None:
    with pytest.raises(ValueError, match="buffered_bytes_max"):
        ServerConfig(body_bytes_max=100, buffered_bytes_max=99)
