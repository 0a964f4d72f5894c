"""What the guide says about users of NATS: nobody but Penstock gets at what it has stored."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.cluster.jetstream import StreamLimits
from penstock.cluster.local_nats import LocalNats, find_nats_server
from penstock.cluster.nats_connection import JetStreamError, NatsConnection, NatsOptions
from penstock.cluster.node import ClusterNode, NodeConfig
from penstock.errors import MissingExtra

pytestmark = pytest.mark.timeout(120)

GUIDE = Path(__file__).parents[3] / "docs" / "howto" / "cluster.md"
WAIT_S = 60


class AsInTheGuide(LocalNats):
    """A server with the accounts of the guide."""

    def _config(self, number: int) -> str:
        (accounts,) = re.findall(r"```text\n(accounts .*?)```", GUIDE.read_text("utf-8"), re.DOTALL)
        return super()._config(number) + accounts.replace('"..."', "secret")

    def options(self, user: str) -> NatsOptions:
        return NatsOptions((f"nats://{user}:secret@{self.host(0)}:{self.ports[0]}",))


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[AsInTheGuide]:
    try:
        find_nats_server()
    except MissingExtra as exc:
        pytest.skip(str(exc))
    server = AsInTheGuide(tmp_path / "nats", 1)
    try:
        server.start_all()
        yield server
    finally:
        server.stop()


def test_others_do_not_get_at_what_penstock_has_stored(nats: AsInTheGuide, tmp_path: Path) -> None:
    config = NodeConfig(
        data=str(tmp_path / "cache"),
        node="a",
        url="http://127.0.0.1:1",
        nats=nats.options("penstock"),
        limits=StreamLimits(1, 1 << 20),
        nats_syncs=True,
        shards=2,
    )
    node = ClusterNode(config)
    node.connect()
    node.start()
    other = NatsConnection(nats.options("shop"), "another program")
    other.open()
    try:
        deadline = time.monotonic() + WAIT_S
        while len(node.shards) < 2:
            assert time.monotonic() < deadline, "it may not do what it has to"
            time.sleep(0.05)
        shard = node.shards[0]
        before = shard.stream.last_seq()
        other.publish(f"{shard.stream.prefix}.1", b"no record of Penstock")
        for what in ("INFO", "PURGE", "DELETE"):
            with pytest.raises(JetStreamError, match="not found"):
                other.api(f"STREAM.{what}.{shard.stream.stream}")
        with pytest.raises(JetStreamError, match="not found"):
            other.api(f"STREAM.MSG.DELETE.{shard.stream.stream}", {"seq": before})
        assert shard.stream.last_seq() == before
        assert shard.failure is None
    finally:
        other.close()
        node.close()
