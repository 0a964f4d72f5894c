"""Stream groups: their members, and the offsets that they commit."""

from __future__ import annotations

from typing import Generic

from penstock.model.calls.base import Call, T_co, route
from penstock.model.groups import (
    CommittedOffsets,
    MemberStanding,
    PartitionOffset,
    PartitionRef,
    StreamGroup,
    StreamGroups,
)
from penstock.model.values import Seconds, Short, Small, StreamPosition, Whole


class StreamGroupCall(
    Call[T_co], Generic[T_co], frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """A question about one stream group of a namespace."""

    group: str


@route("GET", "/stream-groups", "describe", StreamGroups, tag="streams")
class ListStreamGroups(Call[StreamGroups], frozen=True, kw_only=True):
    """The groups that read topics of a namespace as streams."""


@route("GET", "/stream-groups/{group}", "describe", StreamGroup, tag="streams")
class DescribeStreamGroup(StreamGroupCall[StreamGroup], frozen=True, kw_only=True):
    """Members and their partitions, what is committed, and the lag on each partition."""


@route("DELETE", "/stream-groups/{group}", "manage", tag="streams")
class DeleteStreamGroup(StreamGroupCall[None], frozen=True, kw_only=True):
    """Delete a group and its committed offsets. Only while it has no members."""


@route("GET", "/stream-groups/{group}/offsets", "describe", CommittedOffsets, tag="streams")
class ListCommittedOffsets(StreamGroupCall[CommittedOffsets], frozen=True, kw_only=True):
    """Where a group goes on, on each partition where it has committed."""


@route("POST", "/stream-groups/{group}/reset", "manage", tag="streams", repeatable=True)
class ResetStreamGroup(StreamGroupCall[None], frozen=True, kw_only=True):
    """Move a group to a position. Only while it has no members; it need not exist yet."""

    topic: str
    """Of the namespace in the path."""
    to: StreamPosition
    partition: Small | None = None
    """By default all."""


@route("PUT", "/stream-groups/{group}/offsets", "manage", tag="streams", repeatable=True)
class SetStreamOffsets(StreamGroupCall[None], frozen=True, kw_only=True):
    """Set the offsets of a group on many partitions, all or none. Only while it has no members."""

    offsets: dict[str, dict[int, Whole]]
    """By topic of the namespace in the path, and partition; past the end is at the end."""
    metadata: dict[str, dict[int, str]] = {}
    """A note on each, by topic and partition: at most 4,096 bytes."""
    incarnations: dict[str, str] = {}
    """Which topics of these names are meant: `topic_recreated` if one is another by now."""


@route(
    "POST", "/stream-groups/{group}/join", "consume", MemberStanding, tag="streams", repeatable=True
)
class JoinGroup(StreamGroupCall[MemberStanding], frozen=True, kw_only=True):
    """Join a group, or join it again under the member's own id."""

    topics: list[str]
    """Of the namespace in the path."""
    member_id: Short | None = None
    """Its own from a former life; by default the group gives it one."""
    session_timeout: Seconds = "30s"
    assignor: str = "sticky"


class MemberCall(
    StreamGroupCall[T_co], Generic[T_co], frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """A call of a member, who says where it stands."""

    member_id: str
    generation: Whole


@route(
    "POST",
    "/stream-groups/{group}/heartbeat",
    "consume",
    MemberStanding,
    tag="streams",
    repeatable=True,
)
class Heartbeat(MemberCall[MemberStanding], frozen=True, kw_only=True):
    """Stay in the group; the answer says what to read and what to give back."""


@route(
    "POST", "/stream-groups/{group}/sync", "consume", MemberStanding, tag="streams", repeatable=True
)
class SyncGroup(MemberCall[MemberStanding], frozen=True, kw_only=True):
    """Give back partitions that were asked for; also a heartbeat."""

    revoked: list[PartitionRef]
    """Partitions that the member was asked for, and has finished with."""


@route("POST", "/stream-groups/{group}/leave", "consume", tag="streams", repeatable=True)
class LeaveGroup(MemberCall[None], frozen=True, kw_only=True):
    """Leave the group; others get the partitions at once."""


@route("POST", "/stream-groups/{group}/commit", "consume", tag="streams", repeatable=True)
class CommitOffsets(MemberCall[None], frozen=True, kw_only=True):
    """Set positions, all or none, on partitions that the member holds."""

    offsets: list[PartitionOffset]
    """On each partition the offset to go on from."""
    metadata: list[str] = []
    """A note on each of them, in their order, or none."""
    number: Whole | None = None
    """Counts the member's commits, so that a late one does not undo a newer one."""
