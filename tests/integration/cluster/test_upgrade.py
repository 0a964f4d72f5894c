"""Nodes of several versions side by side: what is written, all of them can read."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.cluster import records
from penstock.cluster.jetstream import StreamLimits
from penstock.cluster.local_nats import LocalNats, find_nats_server
from penstock.cluster.nats_connection import NatsOptions
from penstock.cluster.node import ClusterNode, NodeConfig
from penstock.errors import ClusterUnsafe, MissingExtra

pytestmark = pytest.mark.timeout(120)

WAIT_S = 60
OLD, NEW = 1, 2


class Nodes:
    """Of one cluster, in this process."""

    def __init__(self, nats: LocalNats, folder: Path) -> None:
        self._nats, self._folder = nats, folder
        self._here: list[ClusterNode] = []

    def start(self, name: str, version: int) -> ClusterNode:
        """It reads records up to a version."""
        config = NodeConfig(
            data=str(self._folder / name),
            node=name,
            url="http://127.0.0.1:1",
            nats=NatsOptions((self._nats.urls,)),
            limits=StreamLimits(1, 1 << 20),
            nats_syncs=True,
            shards=2,
            record_version=version,
        )
        node = ClusterNode(config)
        node.connect()
        self._here.append(node)
        node.start()
        until(lambda: not node.reasons())
        return node

    def stop(self, node: ClusterNode) -> None:
        self._here.remove(node)
        node.close()

    def stop_all(self) -> None:
        for node in list(self._here):
            self.stop(node)


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    monkeypatch.setattr(records, "VERSION", NEW)  # what the later Penstock can decode
    try:
        find_nats_server()
    except MissingExtra as exc:
        pytest.skip(str(exc))
    nats = LocalNats(tmp_path / "nats", 1)
    found = Nodes(nats, tmp_path)
    try:
        nats.start_all()
        yield found
        found.stop_all()
    finally:
        nats.stop()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_later_version_is_written_once_all_members_read_it(nodes: Nodes) -> None:
    old = nodes.start("a", OLD)
    new = nodes.start("b", NEW)
    until(lambda: set(old.nodes) == set(new.nodes) == {"a", "b"})
    beat = new.nodes["b"].beat
    until(lambda: new.nodes["b"].beat > beat + 2)
    assert new.state.record_version == OLD
    nodes.stop(old)
    upgraded = nodes.start("a", NEW)
    until(lambda: upgraded.state.record_version == new.state.record_version == NEW)


def test_a_shard_that_is_taken_over_is_written_in_the_version_agreed_on(nodes: Nodes) -> None:
    def written(node: ClusterNode) -> set[int]:
        """By the header of the last term of each shard."""
        terms = [shard.stream.last_term() for shard in node.shards.values()]
        return {term[8] for term in terms if term is not None}

    old = nodes.start("a", OLD)
    until(lambda: len(old.shards) == 2)
    assert written(old) == {OLD}
    nodes.stop(old)
    new = nodes.start("a", NEW)
    until(lambda: new.state.record_version == NEW)
    nodes.stop(new)
    new = nodes.start("a", NEW)
    until(lambda: len(new.shards) == 2)
    assert written(new) == {NEW}


def test_a_version_that_cannot_read_what_is_written_does_not_join(nodes: Nodes) -> None:
    new = nodes.start("a", NEW)
    until(lambda: new.state.record_version == NEW)
    with pytest.raises(ClusterUnsafe, match=r"version 2, and this Penstock .* reads up to 1"):
        nodes.start("b", OLD)
    assert set(new.registry.nodes()) == {"a"}
