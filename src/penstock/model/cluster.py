"""A cluster as it is shown: its nodes, its shards, and where requests go."""

from __future__ import annotations

import msgspec


class ClusterNodeView(msgspec.Struct, frozen=True, kw_only=True):
    """A node."""

    node: str
    url: str
    alive: bool
    draining: bool
    version: str
    owns: list[int]
    follows: list[int]
    """Shards whose files it keeps ready."""


class ShardView(msgspec.Struct, frozen=True, kw_only=True):
    """A shard."""

    shard: int
    owner: str | None
    url: str | None
    pinned: str | None
    standbys: list[str]


class OwnedView(msgspec.Struct, frozen=True, kw_only=True):
    """A shard of the node that answers."""

    shard: int
    term: int
    committed_seq: int
    """The last record that is committed."""
    under_way: int
    """Records that were sent and are not confirmed."""
    stream_bytes: int
    stream_bytes_max: int


class ClusterStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster as one of its nodes sees it."""

    cluster: str
    node: str
    """Which one says so."""
    nodes: list[ClusterNodeView]
    shards: list[ShardView]
    owned: list[OwnedView]
    takeovers: int
    """Shards that this node took over since it was started."""
    lost: int
    """Shards that it lost without being asked."""


class ClusterRoutes(msgspec.Struct, frozen=True, kw_only=True):
    """Where to ask: a namespace lives in the shard that its hash says."""

    shards: int
    nodes: dict[str, str]
    """The URL of each."""
    owners: dict[int, str]
    """The node that owns each shard."""


class ShardVerified(msgspec.Struct, frozen=True, kw_only=True):
    """The stream of a shard was read from its first record, and the files compared with it."""

    shard: int
    records: int
    void: int
    """Records that do not count: sent by owners that had been replaced."""
    frames: int
    """Compared with the files of the node."""
    damaged: list[str]
    """What was wrong. With files that were, the node fetches them again."""
    repaired: bool
