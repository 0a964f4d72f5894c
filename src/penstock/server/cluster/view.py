"""A node and its cluster, as they are shown."""

from __future__ import annotations

import time

from penstock.cluster.node import ClusterNode
from penstock.cluster.verify import verify_shard
from penstock.errors import InvalidInput, NotOwner
from penstock.model.cluster import (
    ClusterNodeView,
    ClusterRoutes,
    ClusterStatus,
    OwnedView,
    ShardVerified,
    ShardView,
)


class NodeView:
    """What can be asked of it over HTTP."""

    def __init__(self, node: ClusterNode) -> None:
        self._node = node

    def status(self) -> ClusterStatus:
        node, state = self._node, self._node.state
        alive = node.members.alive(time.monotonic())
        return ClusterStatus(
            cluster=node.config.cluster,
            node=node.me,
            nodes=[
                ClusterNodeView(
                    node=name,
                    url=info.url,
                    alive=name in alive,
                    draining=name in state.draining,
                    version=info.version,
                    owns=sorted(n for n, owner in state.owners.items() if owner.node == name),
                    follows=info.follows,
                )
                for name, info in sorted(node.nodes.items())
            ],
            shards=[self._shard(number) for number in range(state.shards)],
            owned=[
                OwnedView(
                    shard=number,
                    term=shard.term,
                    committed_seq=shard.writer.committed_seq,
                    under_way=shard.writer.under_way,
                    stream_bytes=shard.used_bytes,
                    stream_bytes_max=shard.stream.bytes_max,
                )
                for number, shard in sorted(node.shards.items())
            ],
            takeovers=node.takeovers,
            lost=node.lost_shards,
        )

    def routes(self) -> ClusterRoutes:
        node = self._node
        return ClusterRoutes(
            shards=node.state.shards,
            nodes={name: info.url for name, info in node.nodes.items()},
            owners={number: owner.node for number, owner in node.state.owners.items()},
        )

    def drain(self, node: str, *, on: bool) -> None:
        self._node.drain(node, on=on)

    def pin(self, shard: int, node: str | None) -> None:
        self._check(shard)
        self._node.pin(shard, node)

    def replace(self, node: str) -> None:
        self._node.replace(node)

    def verify(self, shard: int) -> ShardVerified:
        self._check(shard)
        owned = self._node.shards.get(shard)
        if owned is None:
            owner = self._node.owner(shard)
            raise NotOwner(shard, "no node" if owner is None else owner.url)
        return verify_shard(owned)

    def reasons(self) -> list[str]:
        return self._node.reasons()

    def _shard(self, number: int) -> ShardView:
        node, owner = self._node, self._node.state.owners.get(number)
        return ShardView(
            shard=number,
            owner=None if owner is None else owner.node,
            url=None if owner is None else owner.url,
            pinned=node.state.pins.get(number),
            standbys=sorted(name for name, info in node.nodes.items() if number in info.follows),
        )

    def _check(self, shard: int) -> None:
        if shard >= self._node.state.shards:
            raise InvalidInput(
                f"there is no shard {shard}; they go up to {self._node.state.shards - 1}"
            )
