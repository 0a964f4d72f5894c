"""Stream groups over the wire: their members' calls, positions, and what operators ask."""

from __future__ import annotations

from typing import Annotated

import msgspec

from penstock.broker.structs import StreamGroup
from penstock.group.assignment import TopicPartition
from penstock.group.session import Standing
from penstock.wire.messages import MessageView, Small, Whole
from penstock.wire.values import Place, Seconds, Short

POSITIONS_MAX = 10_000
"""In one fetch: as many as a topic may have partitions."""


class PartitionRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    topic: str
    """`topic`, or `namespace/topic` where it is not the default one."""
    partition: Small


class Position(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An offset in a partition."""

    topic: str
    partition: Small
    offset: Whole


class Join(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    topics: list[str]
    """Of the namespace in the path."""
    member_id: Short | None = None
    """Its own from a former life; by default the group gives it one."""
    session_timeout: Seconds = "30s"
    assignor: str = "sticky"


class MemberCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who calls."""

    member_id: str
    generation: Whole


class Sync(MemberCall, frozen=True, kw_only=True, forbid_unknown_fields=True):
    revoked: list[PartitionRef]
    """Partitions that the member was asked for, and has finished with."""


class Commit(MemberCall, frozen=True, kw_only=True, forbid_unknown_fields=True):
    offsets: list[Position]
    """On each partition the offset to go on from."""
    number: Whole | None = None
    """Counts the member's commits, so that a late one does not undo a newer one."""


class StandingView(msgspec.Struct, frozen=True, kw_only=True):
    """All that a member holds at present; the answer to each of its calls."""

    member_id: str
    generation: int
    assigned: list[PartitionRef]
    revoke: list[PartitionRef]
    """To be finished, committed, and given back by `sync`."""
    rebalancing: bool
    session_timeout_ms: int
    heartbeat_interval_ms: int
    committed: list[Position]
    """Where the group goes on, on the partitions that are assigned."""


class MemberView(msgspec.Struct, frozen=True, kw_only=True):
    member_id: str
    partitions: list[PartitionRef]


class Lag(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    partition: int
    lag: int


class StreamGroupView(msgspec.Struct, frozen=True, kw_only=True):
    """What a group looks like right now."""

    group: str
    phase: str
    generation: int
    members: list[MemberView]
    committed: list[Position]
    lag: list[Lag]


class StreamGroups(msgspec.Struct, frozen=True, kw_only=True):
    groups: list[str]


class Offsets(msgspec.Struct, frozen=True, kw_only=True):
    offsets: list[Position]


class Reset(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    topic: str
    """Of the namespace in the path."""
    to: Place
    partition: Small | None = None
    """By default all."""


class Fetch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a reader of several partitions wants next."""

    positions: Annotated[list[Position], msgspec.Meta(max_length=POSITIONS_MAX)]
    max_bytes: Annotated[int, msgspec.Meta(ge=1, le=64 << 20)] = 1 << 20
    """Of each partition, about."""
    wait: Seconds = 0
    """How long to wait for the first message if there is none, at most 30 s."""
    group: str | None = None
    member_id: str | None = None
    """A member of a group: the wait ends when its heartbeat would bring something new."""
    generation: Whole = 0


class FetchedPart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one partition gave. As Arrow, `rows` says how many rows of the table are from it."""

    topic: str
    partition: int
    next_offset: int
    start: int
    end: int
    out_of_range: bool = False
    """The position is no longer, or not yet, in the log."""
    rows: int = 0
    messages: list[MessageView] = []


class Fetched(msgspec.Struct, frozen=True, kw_only=True):
    parts: list[FetchedPart]
    woken: bool
    """The member should heartbeat now."""


def standing_of(seen: StandingView) -> Standing:
    return Standing(
        member_id=seen.member_id,
        generation=seen.generation,
        assigned=tuple(places(seen.assigned)),
        revoke=tuple(places(seen.revoke)),
        rebalancing=seen.rebalancing,
        session_timeout_ms=seen.session_timeout_ms,
        heartbeat_interval_ms=seen.heartbeat_interval_ms,
    )


def group_view(group: StreamGroup) -> StreamGroupView:
    return StreamGroupView(
        group=group.group,
        phase=group.phase,
        generation=group.generation,
        members=[
            MemberView(member_id=member, partitions=refs(held))
            for member, held in group.members.items()
        ],
        committed=positions(group.committed),
        lag=[Lag(topic=p.topic, partition=p.partition, lag=n) for p, n in group.lag.items()],
    )


def group_of(seen: StreamGroupView) -> StreamGroup:
    return StreamGroup(
        group=seen.group,
        phase=seen.phase,
        generation=seen.generation,
        members={member.member_id: places(member.partitions) for member in seen.members},
        committed=offsets_of(seen.committed),
        lag={TopicPartition(each.topic, each.partition): each.lag for each in seen.lag},
    )


def refs(partitions: list[TopicPartition] | tuple[TopicPartition, ...]) -> list[PartitionRef]:
    return [PartitionRef(*each) for each in partitions]


def places(partitions: list[PartitionRef]) -> list[TopicPartition]:
    return [TopicPartition(each.topic, each.partition) for each in partitions]


def positions(offsets: dict[TopicPartition, int]) -> list[Position]:
    return [Position(place.topic, place.partition, offset) for place, offset in offsets.items()]


def offsets_of(given: list[Position]) -> dict[TopicPartition, int]:
    return {TopicPartition(each.topic, each.partition): each.offset for each in given}
