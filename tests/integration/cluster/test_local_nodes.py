"""A cluster on one machine that cannot be started says why, at once."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from penstock.cluster.local_nats import LocalNats, find_nats_server
from penstock.cluster.local_nodes import LocalCluster
from penstock.errors import MissingExtra, Unavailable

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(autouse=True)
def nats_server() -> None:
    try:
        find_nats_server()
    except MissingExtra as exc:
        pytest.skip(str(exc))


def test_a_port_that_is_taken_is_told(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        cluster = LocalCluster(tmp_path, 1, first_port=port, nats=LocalNats(tmp_path / "nats", 1))
        began = time.monotonic()
        try:
            with pytest.raises(Unavailable, match=rf"node p0 ended: .* port {port}: another"):
                cluster.start_all()
        finally:
            cluster.stop()
        assert time.monotonic() - began < 50  # and not after a minute of waiting


def test_settings_that_nats_does_not_know_are_told(tmp_path: Path) -> None:
    nats = LocalNats(tmp_path, 1, max_file="plenty")
    try:
        with pytest.raises(Unavailable, match=r"NATS server n0 ended: .*max_file"):
            nats.start_all()
    finally:
        nats.stop()
