"""Positions: what may be committed, where a reader starts, how far behind it is.

A start is described, not computed: only the broker can ask a log for its ends or search it by
time. It turns an `AtTime` into an `AtOffset` with the log's `find`, and `land` does the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from penstock.errors import InvalidInput
from penstock.group.assignment import TopicPartition
from penstock.group.events import Committed

METADATA_BYTES_MAX = 4096


class Earliest(msgspec.Struct, frozen=True, tag="earliest"):
    """The oldest message that is still there."""


class Latest(msgspec.Struct, frozen=True, tag="latest"):
    """Only what is published from now on."""


class AtOffset(msgspec.Struct, frozen=True, tag="offset"):
    offset: int


class AtTime(msgspec.Struct, frozen=True, tag="time"):
    """The first message at or after a time."""

    timestamp_us: int


Start = Earliest | Latest | AtOffset | AtTime


class Bounds(msgspec.Struct, frozen=True):
    """The messages a log holds: offsets from `start` up to, not including, `end`."""

    start: int
    end: int


class Landing(msgspec.Struct, frozen=True):
    """Where a reader begins, and how many messages it wanted that are no longer there."""

    offset: int
    missed: int = 0


def starts(
    committed: Mapping[TopicPartition, Committed],
    partitions: Iterable[TopicPartition],
    reset: Start,
) -> dict[TopicPartition, Start]:
    """Where to begin on each partition: at its committed offset or, without one, at `reset`."""
    return {p: AtOffset(committed[p].offset) if p in committed else reset for p in partitions}


def land(start: Earliest | Latest | AtOffset, bounds: Bounds) -> Landing:
    """The offset to read from, within what the log holds.

    An offset that retention has overtaken lands on the oldest message, and the gap is told, never
    passed over in silence. One past the end lands on the end.
    """
    match start:
        case Earliest():
            return Landing(bounds.start)
        case Latest():
            return Landing(bounds.end)
        case AtOffset(offset=wanted):
            offset = min(max(wanted, bounds.start), bounds.end)
            return Landing(offset, missed=max(0, offset - wanted))


def lag(
    committed: Mapping[TopicPartition, Committed], bounds: Mapping[TopicPartition, Bounds]
) -> dict[TopicPartition, int]:
    """Messages in each log that the group has not done; all of them where it never committed."""
    behind = {}
    for partition, held in bounds.items():
        done = committed[partition].offset if partition in committed else held.start
        behind[partition] = max(0, held.end - max(done, held.start))
    return behind


def checked(offsets: Mapping[TopicPartition, int | Committed]) -> dict[TopicPartition, Committed]:
    """Offsets as they are stored, or InvalidInput."""
    entries = {}
    for partition, entry in offsets.items():
        entry = entry if isinstance(entry, Committed) else Committed(entry)
        offset = entry.offset
        if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset < 1 << 63:
            raise InvalidInput(f"offset {offset!r} of {partition} is not a whole number from 0 up")
        if len(entry.metadata.encode()) > METADATA_BYTES_MAX:
            raise InvalidInput(
                f"the metadata of {partition} is longer than {METADATA_BYTES_MAX} bytes"
            )
        entries[TopicPartition(*partition)] = entry
    return entries
