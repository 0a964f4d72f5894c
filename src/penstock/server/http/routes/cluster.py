"""The cluster: who is there, who owns what, and changes of that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec

from penstock.errors import NotFound
from penstock.model.cluster import ClusterRoutes, ClusterStatus, ShardVerified
from penstock.server.http.endpoints import HttpRequest, Table

if TYPE_CHECKING:
    from penstock.server.door import ClusterView

table = Table("cluster")

ShardNumber = Annotated[int, msgspec.Meta(ge=0, le=1 << 16)]


class NodeNamed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A node."""

    node: str


class DrainWanted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A node, and whether it shall have no shards."""

    node: str
    on: bool = True


class MoveWanted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A shard, and the node that shall own it; null: wherever it belongs."""

    shard: ShardNumber
    node: str | None = None


class VerifyWanted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A shard of the node that is asked."""

    shard: ShardNumber


@table.add("GET", "/v1/cluster", right="describe", result=ClusterStatus, in_namespaces=False)
async def cluster_status(call: HttpRequest) -> ClusterStatus:
    """The nodes and shards of the cluster."""
    return await call.door.aside(_cluster(call).status)


@table.add("GET", "/v1/cluster/routes", right="describe", result=ClusterRoutes, in_namespaces=False)
def cluster_routes(call: HttpRequest) -> ClusterRoutes:
    """Which node owns which shard: where a client can ask directly."""
    return _cluster(call).routes()


@table.add("POST", "/v1/cluster/drain", right="manage", body=DrainWanted, in_namespaces=False)
async def drain_node(call: HttpRequest) -> None:
    """Let a node have no shards, or have them again."""
    wanted: DrainWanted = call.body
    cluster = _cluster(call)
    await call.door.aside(lambda: cluster.drain(wanted.node, on=wanted.on))


@table.add("POST", "/v1/cluster/move", right="manage", body=MoveWanted, in_namespaces=False)
async def move_shard(call: HttpRequest) -> None:
    """Let a shard be at a node, as long as that is there."""
    wanted: MoveWanted = call.body
    await call.door.aside(_cluster(call).pin, wanted.shard, wanted.node)


@table.add("POST", "/v1/cluster/replace", right="manage", body=NodeNamed, in_namespaces=False)
async def replace_node(call: HttpRequest) -> None:
    """Forget a node that does not come back."""
    wanted: NodeNamed = call.body
    await call.door.aside(_cluster(call).replace, wanted.node)


@table.add(
    "POST",
    "/v1/cluster/verify",
    right="manage",
    body=VerifyWanted,
    result=ShardVerified,
    in_namespaces=False,
)
async def verify_shard(call: HttpRequest) -> ShardVerified:
    """Compare the files of a shard with its stream, record by record; wrong ones are replaced."""
    wanted: VerifyWanted = call.body
    return await call.door.aside(_cluster(call).verify, wanted.shard)


def _cluster(call: HttpRequest) -> ClusterView:
    if call.door.cluster is None:
        raise NotFound("this server is no node of a cluster; start it with --cluster")
    return call.door.cluster
