"""Short ways to say what a log holds."""

from __future__ import annotations

from penstock.log.base import Batches
from penstock.log.reader import SegmentReader
from penstock.record.batch import Message


def read_all(log: SegmentReader, offset: int | None = None, max_bytes: int = 1 << 20) -> Batches:
    """Everything from an offset (by default the start) to the end, read in steps."""
    position = log.start if offset is None else offset
    batches, damage = [], []
    while position < log.end:
        step = log.read(position, max_bytes)
        assert step.next_offset > position, "a read that does not get on"
        batches += step.batches
        damage += step.damage
        position = step.next_offset
    return Batches(batches, position, damage)


def messages(log: SegmentReader, offset: int | None = None) -> list[Message]:
    return read_all(log, offset).messages()


def values(log: SegmentReader, offset: int | None = None) -> list[bytes | None]:
    return [message.value for message in messages(log, offset)]


def offsets(log: SegmentReader, offset: int | None = None) -> list[int]:
    return [message.offset for message in messages(log, offset)]
