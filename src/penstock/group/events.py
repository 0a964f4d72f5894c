"""What a group must remember over a restart, as events, and the state that is their fold.

Members are not remembered: after a restart they join again. Committed offsets are, and a bound on
the generations in use, so that a call from before the restart can never pass for a new one.

An event is a MessagePack array that starts with its tag and its group, so that all groups can share
one log. New fields go to the end and need a default; none is renamed or removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from penstock.errors import InvalidInput
from penstock.group.assignment import TopicPartition


class Committed(msgspec.Struct, frozen=True, array_like=True):
    """Where a group goes on reading a partition."""

    offset: int  # the next message to read: one past the last that is done
    metadata: str = ""  # the committer's own note


class GenerationsReserved(msgspec.Struct, frozen=True, array_like=True, tag="generations_reserved"):
    """Generations up to this one may be in use; after a restart they go on above it.

    Taken in large blocks, so that few rebalances write anything. It has to be durable before the
    group's next answer goes out.
    """

    group: str
    up_to: int


class OffsetsCommitted(msgspec.Struct, frozen=True, array_like=True, tag="committed"):
    """Positions were set, all at once; those of other partitions stay as they are."""

    group: str
    offsets: dict[TopicPartition, Committed]


class TopicForgotten(msgspec.Struct, frozen=True, array_like=True, tag="topic_forgotten"):
    """A topic was deleted; one that gets its name later starts without offsets."""

    group: str
    topic: str


class GroupDeleted(msgspec.Struct, frozen=True, array_like=True, tag="group_deleted"):
    """The group is gone with all its offsets."""

    group: str


Event = GenerationsReserved | OffsetsCommitted | TopicForgotten | GroupDeleted


class StreamGroupState(msgspec.Struct, array_like=True):
    """The fold of one group's events."""

    generations_reserved: int = 0
    offsets: dict[TopicPartition, Committed] = {}

    def apply(self, event: Event) -> None:
        match event:
            case GenerationsReserved(up_to=up_to):
                self.generations_reserved = up_to
            case OffsetsCommitted(offsets=offsets):
                self.offsets |= offsets
            case TopicForgotten(topic=topic):
                self.offsets = {p: c for p, c in self.offsets.items() if p.topic != topic}
            case GroupDeleted():
                self.generations_reserved, self.offsets = 0, {}


def fold(
    states: dict[str, StreamGroupState], events: Iterable[Event]
) -> dict[str, StreamGroupState]:
    """Bring the states of all groups up to date, in place.

    Events that a snapshot already holds may come again, as long as they come in their order and
    all that followed them follows: the last word on each partition wins.
    """
    for event in events:
        if isinstance(event, GroupDeleted):
            states.pop(event.group, None)
        else:
            states.setdefault(event.group, StreamGroupState()).apply(event)
    return states


def encode(event: Event) -> bytes:
    return _encoder.encode(event)


def decode(data: bytes | memoryview) -> Event:
    try:
        return _event_decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise InvalidInput(f"not an event of a group: {exc}") from exc


def encode_transaction(number: int, events: Sequence[OffsetsCommitted]) -> bytes:
    """What a transaction committed, for all groups, as one entry."""
    return _encoder.encode((number, events))


def decode_transaction(data: bytes | memoryview) -> tuple[int, list[OffsetsCommitted]]:
    try:
        return _transaction_decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise InvalidInput(f"not what a transaction committed: {exc}") from exc


def encode_snapshot(states: dict[str, StreamGroupState]) -> bytes:
    return _encoder.encode(states)


def decode_snapshot(data: bytes | memoryview) -> dict[str, StreamGroupState]:
    try:
        return _snapshot_decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise InvalidInput(f"not a snapshot of groups: {exc}") from exc


_encoder = msgspec.msgpack.Encoder()
_event_decoder: msgspec.msgpack.Decoder[Event] = msgspec.msgpack.Decoder(Event)
_transaction_decoder = msgspec.msgpack.Decoder(tuple[int, list[OffsetsCommitted]])
_snapshot_decoder = msgspec.msgpack.Decoder(dict[str, StreamGroupState])
