"""A client goes away while it waits for the disk. The others wait for the same fsync."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.broker.broker import Broker, BrokerConfig
from penstock.log.files import DiskFile
from penstock.log.local_engine import LocalEngine
from tests.integration.broker.world import QuickFiles, until
from tests.integration.server.running import RunningServer

ANSWER_S_MAX = 20


class SlowFiles(QuickFiles):
    """A disk on which a sync takes until it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.go.set()
        self.syncing = 0

    def create(self, path: str) -> DiskFile:
        return _SlowFile(self, super().create(path))

    def open(self, path: str) -> DiskFile:
        return _SlowFile(self, super().open(path))


class _SlowFile(DiskFile):
    def __init__(self, files: SlowFiles, file: DiskFile) -> None:
        super().__init__(file._descriptor, file.size)
        self._files = files

    def sync(self) -> None:
        self._files.syncing += 1
        assert self._files.go.wait(ANSWER_S_MAX)


@pytest.fixture
def files() -> SlowFiles:
    return SlowFiles()


@pytest.fixture
def server(tmp_path: Path, files: SlowFiles) -> Iterator[RunningServer]:
    config = BrokerConfig(free_bytes_min=0)
    engine = LocalEngine(tmp_path / "data", files=files)
    with Broker(engine, config) as broker, RunningServer(broker) as server:
        yield server
        files.go.set()


def ask(server: RunningServer, path: str, body: Any) -> socket.socket:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    client = socket.create_connection(("127.0.0.1", server.port), timeout=ANSWER_S_MAX)
    client.sendall(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
    return client


def waiting(server: RunningServer) -> int:
    connections = list(server.server.server_state.connections)
    return sum(connection._is_answering() for connection in connections)


@pytest.mark.parametrize("what", ["publish", "ack", "ack and receive"])
def test_who_hangs_up_ends_nobody_elses_wait(
    server: RunningServer, files: SlowFiles, what: str
) -> None:
    with penstock.connect(server.url) as ps:
        ps.create_topic("orders", fsync="always")
        ps.publish_batch("orders", [b"%d" % n for n in range(10)])
        receipts = [message.receipt for message in ps.receive("orders", "g", 3)]
    path, bodies = "/v1/topics/orders/groups/g/ack", [{"receipts": [each]} for each in receipts]
    if what == "publish":
        path, bodies = "/v1/topics/orders/messages", [{"value": "x"}] * 3
    elif what == "ack and receive":
        path, bodies = "/v1/topics/orders/groups/g/receive", [{"ack": body} for body in bodies]
    files.go.clear()
    syncing = files.syncing
    first = ask(server, path, bodies[0])  # its sync is under way; the others share the next
    until(lambda: files.syncing > syncing)
    gone, patient = ask(server, path, bodies[1]), ask(server, path, bodies[2])
    until(lambda: waiting(server) == 3)
    gone.close()
    until(lambda: waiting(server) == 2)
    files.go.set()
    for client in (first, patient):
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 20")
        client.close()


def test_a_poll_ends_also_if_more_was_asked_behind_it(server: RunningServer) -> None:
    with penstock.connect(server.url) as ps:
        ps.create_topic("orders")
    client = ask(server, "/v1/topics/orders/groups/g/receive", {"wait": 30})
    until(lambda: len(server.door.polls) == 1)
    client.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n" * 3)
    client.close()
    until(lambda: len(server.door.polls) == 0)
