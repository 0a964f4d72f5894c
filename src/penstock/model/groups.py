"""Stream groups: what members are told, where they read, and what operators see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec

from penstock.errors import InvalidInput
from penstock.group.assignment import TopicPartition
from penstock.group.events import Committed
from penstock.group.session import Standing
from penstock.model.values import Seconds, Small, Whole
from penstock.record.batch import Batch

POSITIONS_MAX = 10_000
"""In one fetch: as many as a topic may have partitions."""


class PartitionRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    topic: str
    """`topic`, or `namespace/topic` where it is not the default one."""
    partition: Small


class PartitionOffset(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An offset in a partition."""

    topic: str
    partition: Small
    offset: Whole


class CommittedOffset(PartitionOffset, frozen=True, forbid_unknown_fields=True):
    """Where a group goes on in a partition, and the committer's own note."""

    metadata: str = ""


class MemberStanding(msgspec.Struct, frozen=True, kw_only=True):
    """All that a member holds at present; the answer to each of its calls."""

    member_id: str
    generation: int
    assigned: list[PartitionRef]
    revoke: list[PartitionRef]
    """To be finished, committed, and given back by `sync`."""
    rebalancing: bool
    session_timeout_ms: int
    heartbeat_interval_ms: int
    committed: list[PartitionOffset]
    """Where the group goes on, on the partitions that are assigned."""


class MemberView(msgspec.Struct, frozen=True, kw_only=True):
    member_id: str
    partitions: list[PartitionRef]
    last_heartbeat_us: int | None = None
    """When the group last heard of it, in microseconds since 1970."""


class PartitionLag(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    partition: int
    lag: int


class StreamGroup(msgspec.Struct, frozen=True, kw_only=True):
    """What a group looks like right now."""

    group: str
    phase: str
    generation: int
    members: dict[str, list[TopicPartition]]
    committed: dict[TopicPartition, int]
    lag: dict[TopicPartition, int]
    heartbeats: dict[str, int] = {}
    """When the group last heard of each member, in microseconds since 1970."""


class StreamGroupView(msgspec.Struct, frozen=True, kw_only=True):
    """What a group looks like right now."""

    group: str
    phase: str
    generation: int
    members: list[MemberView]
    committed: list[PartitionOffset]
    lag: list[PartitionLag]


class StreamGroups(msgspec.Struct, frozen=True, kw_only=True):
    groups: list[str]


class CommittedOffsets(msgspec.Struct, frozen=True, kw_only=True):
    offsets: list[CommittedOffset]


class Fetch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a reader of several partitions wants next."""

    positions: Annotated[list[PartitionOffset], msgspec.Meta(max_length=POSITIONS_MAX)]
    max_bytes: Annotated[int, msgspec.Meta(ge=1, le=64 << 20)] = 1 << 20
    """Of each partition, about."""
    wait: Seconds = 0
    """How long to wait for the first message if there is none, at most 30 s."""
    group: str | None = None
    member_id: str | None = None
    """A member of a group: the wait ends when its heartbeat would bring something new."""
    generation: Whole = 0


class FetchedPart(msgspec.Struct, frozen=True, kw_only=True):
    """What one partition gave."""

    topic: str
    partition: int
    next_offset: int
    start: int
    end: int
    out_of_range: bool = False
    """The position is no longer, or not yet, in the log."""
    batches: list[Batch] = []
    """Messages that have expired are left out."""


class Fetched(msgspec.Struct, frozen=True, kw_only=True):
    parts: list[FetchedPart]
    woken: bool
    """The member should heartbeat now."""

    def has_moved(self, wanted: Sequence[PartitionOffset]) -> bool:
        """Whether there is something to read, or a position to look for."""
        return any(
            part.out_of_range or part.next_offset > at.offset
            for part, at in zip(self.parts, wanted, strict=True)
        )

    def is_elsewhere(self, wanted: Sequence[PartitionOffset]) -> bool:
        """Whether some position is not the end of its log, and so worth a read."""
        return any(part.end != at.offset for part, at in zip(self.parts, wanted, strict=True))


def standing_of(seen: MemberStanding) -> Standing:
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
            MemberView(
                member_id=member,
                partitions=refs(held),
                last_heartbeat_us=group.heartbeats.get(member),
            )
            for member, held in group.members.items()
        ],
        committed=positions(group.committed),
        lag=[
            PartitionLag(topic=p.topic, partition=p.partition, lag=n) for p, n in group.lag.items()
        ],
    )


def group_of(seen: StreamGroupView) -> StreamGroup:
    return StreamGroup(
        group=seen.group,
        phase=seen.phase,
        generation=seen.generation,
        members={member.member_id: places(member.partitions) for member in seen.members},
        committed=offsets_of(seen.committed),
        lag={TopicPartition(each.topic, each.partition): each.lag for each in seen.lag},
        heartbeats={
            member.member_id: member.last_heartbeat_us
            for member in seen.members
            if member.last_heartbeat_us is not None
        },
    )


def refs(partitions: list[TopicPartition] | tuple[TopicPartition, ...]) -> list[PartitionRef]:
    return [PartitionRef(*each) for each in partitions]


def places(partitions: list[PartitionRef]) -> list[TopicPartition]:
    return [TopicPartition(each.topic, each.partition) for each in partitions]


def positions(offsets: dict[TopicPartition, int]) -> list[PartitionOffset]:
    return [
        PartitionOffset(place.topic, place.partition, offset) for place, offset in offsets.items()
    ]


def committed_of(
    given: Sequence[PartitionOffset], notes: Sequence[str]
) -> dict[TopicPartition, Committed]:
    if notes and len(notes) != len(given):
        raise InvalidInput(f"{len(given)} offsets, but {len(notes)} of metadata")
    return {
        TopicPartition(each.topic, each.partition): Committed(each.offset, note)
        for each, note in zip(given, notes or [""] * len(given), strict=True)
    }


def committed_offsets(committed: Mapping[TopicPartition, Committed]) -> list[CommittedOffset]:
    return [
        CommittedOffset(place.topic, place.partition, at.offset, at.metadata)
        for place, at in committed.items()
    ]


def offsets_of(given: list[PartitionOffset]) -> dict[TopicPartition, int]:
    return {TopicPartition(each.topic, each.partition): each.offset for each in given}
