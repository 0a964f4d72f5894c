"""The sparse index of a segment: an entry for every block of at least 4 KB of log.

An entry says where a block of frames begins, which priorities are in it, and the largest timestamp
up to its end (of the segment so far, so that the entries ascend and can be searched). The index of
the segment that is being written lives in memory alone; it is laid down once, when the segment is
sealed and synced, and never changed. So a valid index file says: this segment is whole and on
disk. One that is missing or damaged is made again from its segment.

The file, little-endian: a header of 64 bytes, then the four columns one after the other.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from functools import reduce
from operator import or_
from typing import NamedTuple

import numpy as np
from crc32c import crc32c

from penstock.record.salt import Salt

MAGIC = b"PNSI"
VERSION = 2
"""In version 1 the salt was reserved: there was none."""

NO_TIME = -(1 << 63)
"""The timestamp of a segment without messages: before any other."""

_HEADER = struct.Struct(
    "<"
    "4s"  # magic            b"PNSI"
    "I"  # crc              CRC32C of everything after this field
    "H"  # version          2
    "B"  # priorities       bit p is set when a message of the segment has priority p
    "B"  # reserved         0
    "I"  # entry_count
    "q"  # base_offset      first offset of the segment
    "q"  # next_offset      one past its last
    "Q"  # segment_bytes    length of the segment's file
    "q"  # last_timestamp   the largest in the segment
    "4s"  # frame_magic      the salt of the segment's frames
    "I"  # crc_seed
    "8s"  # reserved         0
)
HEADER_BYTES = _HEADER.size
ENTRY_BYTES = 8 + 8 + 4 + 1  # offset, last timestamp, position, priorities


class IndexDamaged(Exception):
    """The file is not the index that was written; it is to be made again."""


class IndexHeader(NamedTuple):
    """The header's fields, in the order of the bytes."""

    magic: bytes
    crc: int
    version: int
    priorities: int
    reserved: int
    entry_count: int
    base_offset: int
    next_offset: int
    segment_bytes: int
    last_timestamp: int
    frame_magic: bytes
    crc_seed: int
    reserved_too: bytes

    @property
    def salt(self) -> Salt:
        return Salt(self.frame_magic, self.crc_seed)


class SegmentIndex:
    """The index of one segment, growing while the segment is written: see `Segment.add`.

    One thread adds; others search at the same time. The columns are plain arrays that only grow,
    `offsets` last, so that a searcher never meets a half-written entry. What an interrupt (Ctrl-C)
    left of one goes with the next.
    """

    __slots__ = (
        "_interval_bytes",
        "last_timestamps",
        "next_block_at",
        "offsets",
        "positions",
        "priorities",
    )

    def __init__(self, interval_bytes: int) -> None:
        self.offsets = array("q")
        self.last_timestamps = array("q")
        self.positions = array("I")
        self.priorities = bytearray()
        self._interval_bytes = interval_bytes
        self.next_block_at = 0
        """A frame from this position on is in a block of its own."""

    def __len__(self) -> int:
        return len(self.offsets)

    def begin_block(self, position: int, offset: int, newest: int, priorities: int) -> None:
        """A frame begins a block; `newest` is the largest timestamp up to it, its own included."""
        if len(self.positions) > len(self) or (self.positions and self.positions[-1] == position):
            self._drop_interrupted(position)
        self.positions.append(position)
        self.priorities.append(priorities)
        self.last_timestamps.append(newest)
        self.offsets.append(offset)
        self.next_block_at = position + self._interval_bytes

    def _drop_interrupted(self, position: int) -> None:
        """Drop the entry of a frame that was to lie where one is added now."""
        count = bisect_left(self.positions, position, 0, len(self))
        for column in (self.offsets, self.last_timestamps, self.priorities, self.positions):
            del column[count:]

    def block_of(self, offset: int) -> int:
        """The number of the block in which an offset lies."""
        return max(bisect_right(self.offsets, offset) - 1, 0)

    def block_of_time(self, timestamp_us: int) -> int:
        """The first block with a message at or after a time; `len(self)` if there is none."""
        return bisect_left(self.last_timestamps, timestamp_us, 0, len(self))

    def block_of_priorities(self, block: int, mask: int) -> int:
        """The first block, from this one on, with one of these priorities; `len(self)` if none."""
        count = len(self)
        if block >= count:
            return count
        # As true or false: the largest of the masks is not the first.
        hits = (np.frombuffer(bytes(self.priorities[block:count]), np.uint8) & mask) != 0
        found = int(hits.argmax())
        return block + found if hits[found] else count

    @property
    def nbytes(self) -> int:
        return len(self) * ENTRY_BYTES

    def encode(self, base_offset: int, next_offset: int, segment_bytes: int, salt: Salt) -> bytes:
        """The index as a file, for a segment that is sealed."""
        columns = b"".join(
            (
                _little_endian(self.offsets),
                _little_endian(self.last_timestamps),
                _little_endian(self.positions),
                self.priorities,
            )
        )
        header = _HEADER.pack(
            MAGIC,
            0,
            VERSION,
            reduce(or_, self.priorities, 0),
            0,
            len(self),
            base_offset,
            next_offset,
            segment_bytes,
            self.last_timestamps[-1] if self.last_timestamps else NO_TIME,
            *salt,
            b"",
        )
        crc = crc32c(columns, crc32c(header[8:]))
        return header[:4] + struct.pack("<I", crc) + header[8:] + columns


def decode(data: bytes, version: int = VERSION) -> tuple[IndexHeader, SegmentIndex]:
    """An index from its file; IndexDamaged unless every byte is as it was written."""
    if len(data) < HEADER_BYTES:
        raise IndexDamaged("shorter than its header")
    header = IndexHeader._make(_HEADER.unpack_from(data))
    count = header.entry_count
    if header.magic != MAGIC or len(data) != HEADER_BYTES + count * ENTRY_BYTES:
        raise IndexDamaged("not an index, or of the wrong length")
    if crc32c(memoryview(data)[8:]) != header.crc or header.version != version:
        raise IndexDamaged("the checksum does not match")
    index = SegmentIndex(1)
    columns = memoryview(data)[HEADER_BYTES:]
    index.offsets = _from_little_endian("q", columns[: 8 * count])
    index.last_timestamps = _from_little_endian("q", columns[8 * count : 16 * count])
    index.positions = _from_little_endian("I", columns[16 * count : 20 * count])
    index.priorities = bytearray(columns[20 * count :])
    return header, index


def _little_endian(column: array[int]) -> bytes:
    if sys.byteorder == "big":
        column = column[:]
        column.byteswap()
    return column.tobytes()


def _from_little_endian(code: str, data: memoryview) -> array[int]:
    column = array(code)
    column.frombytes(data)
    if sys.byteorder == "big":
        column.byteswap()
    return column
