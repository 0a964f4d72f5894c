"""A shard whose stream is full takes no more messages, and everything else goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.cluster.local_nats import LocalNats, find_nats_server
from penstock.cluster.local_nodes import LocalCluster
from penstock.errors import DiskFull, MissingExtra
from tests.integration.cluster.conftest import kept_running
from tests.integration.cluster.test_cluster import until

pytestmark = pytest.mark.timeout(180)

SHARD_BYTES = 16 << 20
VALUE = b"x" * 200_000


@pytest.fixture
def small(tmp_path: Path) -> Iterator[LocalCluster]:
    """One server and one node; its shards have little room."""
    try:
        find_nats_server()
    except MissingExtra as exc:
        pytest.skip(str(exc))
    settings = {"cluster_shard_bytes": SHARD_BYTES, "cluster_replicas": 1, "cluster_standbys": 0}
    nats = LocalNats(tmp_path / "nats", count=1)
    yield from kept_running(LocalCluster(tmp_path, nodes=1, settings=settings, nats=nats))


def test_acks_and_purges_make_room(small: LocalCluster) -> None:
    with penstock.connect(small.urls[0], retry_for="2s") as client:
        client.create_topic("full")
        stored = _fill(client)
        assert stored > SHARD_BYTES // len(VALUE) // 2
        for message in client.receive("full", group="g", max_messages=10):
            message.ack()
        assert client.stats("full").groups[0].depth == stored - 10
        assert len(client.peek("full", limit=1000)) == stored
        client.purge("full")

        def takes_more() -> bool:
            try:
                client.publish("full", b"again")
            except DiskFull:
                return False
            return True

        until(takes_more, 20)
        assert [message.value for message in client.peek("full")] == [b"again"]


def _fill(client: penstock.Client) -> int:
    """How many messages are taken until it is full."""
    for stored in range(2 * SHARD_BYTES // len(VALUE)):
        try:
            client.publish("full", VALUE)
        except DiskFull:
            return stored
    raise AssertionError("it never was full")
