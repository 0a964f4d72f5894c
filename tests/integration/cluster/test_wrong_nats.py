"""NATS servers that are not there, or not to be relied upon, and what is said of them."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest

from penstock.cluster.local_nats import LocalNats, find_nats_server, free_ports
from penstock.cluster.nats_connection import NatsConnection, NatsOptions
from penstock.cluster.safety import check_nats
from penstock.config import ServerConfig
from penstock.errors import ClusterUnsafe, InvalidInput, MissingExtra, Unavailable

pytestmark = pytest.mark.timeout(60)


def refusal(url: str) -> Exception:
    """What is raised by a connection to a server, which can be closed all the same."""
    connection = NatsConnection(NatsOptions((url,)), "test")
    try:
        with pytest.raises((Unavailable, ClusterUnsafe)) as raised:
            connection.open()
    finally:
        connection.close()
    return cast(Exception, raised.value)


class _OldServer(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        self.wfile.write(b'INFO {"server_id":"x","version":"2.10.4","max_payload":1048576}\r\n')
        for line in self.rfile:
            if line.startswith(b"PING"):
                self.wfile.write(b"PONG\r\n")


@contextmanager
def old_server() -> Iterator[str]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _OldServer) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"nats://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()


def test_a_server_that_is_not_there_is_told_with_the_reason() -> None:
    (port,) = free_ports(1)
    error = refusal(f"nats://127.0.0.1:{port}")
    assert isinstance(error, Unavailable)
    assert f"127.0.0.1:{port}" in str(error)
    assert "refused" in str(error)


def test_a_server_that_is_too_old_is_told() -> None:
    with old_server() as url:
        error = refusal(url)
    assert isinstance(error, ClusterUnsafe)
    assert "2.10.4" in str(error)
    assert "2.12" in str(error)


def test_the_address_of_clients_is_no_monitoring_address() -> None:
    with old_server() as url, pytest.raises(ClusterUnsafe, match="8222"):
        check_nats((url.replace("nats://", "http://"),), declared=False)


def test_a_server_that_syncs_seldom_is_told_what_to_set(tmp_path: Path) -> None:
    try:
        find_nats_server()
    except MissingExtra as exc:
        pytest.skip(str(exc))
    nats = _SeldomSynced(tmp_path, 1)
    try:
        nats.start_all()
        with pytest.raises(ClusterUnsafe, match="sync_interval: always"):
            check_nats((f"http://127.0.0.1:{nats.monitors[0]}",), declared=True)
    finally:
        nats.stop()


class _SeldomSynced(LocalNats):
    def _config(self, number: int) -> str:
        return super()._config(number).replace("sync_interval: always,", "")


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"cluster": "http://a:4222", "advertise": "http://a:8080"}, "nats://a:4222"),
        ({"cluster": "nats://a:4222", "advertise": "a:8080"}, "http://node1:8080"),
        ({"cluster": "nats://a:4222"}, "needs advertise"),
    ],
)
def test_addresses_of_the_wrong_kind_are_refused(settings: dict[str, str], told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        ServerConfig(**settings)  # type: ignore[arg-type]
