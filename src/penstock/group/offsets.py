"""Positions: where a reader starts, what may be committed, how far behind a group is.

A start is described, not computed: only the broker can ask a log for its ends or search it by
time (`broker/peek.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

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
