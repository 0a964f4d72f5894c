"""Clusters: brokers whose logs are replicated."""

from __future__ import annotations

from penstock.errors.base import InvalidInput
from penstock.errors.logs import LogError
from penstock.errors.server import Unavailable


class ClusterError(LogError):
    """Something that happens only in a cluster."""

    code = "cluster_error"


class ShardLost(ClusterError):
    """This node does not own the shard any more, or cannot be sure of it. Whether what was under
    way was stored is not known; ask again, and the next owner answers."""

    code = "shard_lost"
    retriable = True

    def __init__(self, shard: int, reason: str) -> None:
        self.shard = shard
        super().__init__(
            f"shard {shard} changes its owner: {reason}. What was under way may be stored or not; "
            "ask again"
        )


class NotOwner(ClusterError):
    """Another node owns the shard. `owner` is its URL."""

    code = "not_owner"
    retriable = True

    def __init__(self, shard: int, owner: str) -> None:
        self.shard, self.owner = shard, owner
        super().__init__(f"shard {shard} is at {owner}; ask there")


class StoreDamaged(Unavailable):
    """A NATS server cannot read a record that it stores; another one may."""

    code = "store_damaged"

    def __init__(self, server: str, stream: str, seq: int) -> None:
        self.server = server
        self.stream = stream
        self.seq = seq
        super().__init__(
            f"NATS server {server} cannot read record {seq} of {stream}, which was not dropped: "
            "its store is damaged. Stop it, remove its folder of this stream, and start it again: "
            "it gets the stream from the others"
        )


class ShardDamaged(ClusterError):
    """The stream of a shard does not hold what was written to it."""

    code = "shard_damaged"

    def __init__(self, seq: int, reason: str) -> None:
        self.seq = seq
        super().__init__(
            f"record {seq} of the stream is damaged: {reason}. Restore the store of the NATS "
            "servers from a backup, or from a server that still has it; no message was taken back"
        )


class CacheDamaged(ClusterError):
    """The files of a node are not what its shard's stream says. They are fetched again."""

    code = "cache_damaged"


class ClusterUnsafe(InvalidInput):
    """NATS is not configured to keep what it confirms."""

    code = "cluster_unsafe"


class NotInCluster(InvalidInput):
    """This does not work in a cluster."""

    code = "not_in_cluster"
