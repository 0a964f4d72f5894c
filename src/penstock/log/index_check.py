"""Whether an index says what its segment holds."""

from __future__ import annotations

from array import array

import numpy as np

from penstock.log.index import NO_TIME, IndexHeader, SegmentIndex
from penstock.record.frame import FrameHeader


class FrameNotes:
    """What an index is made from, for every frame of a segment."""

    def __init__(self) -> None:
        self._positions = array("q")
        self._offsets = array("q")
        self._last_timestamps = array("q")
        self._priorities = bytearray()
        self._next_offset = 0
        self._size_bytes = 0

    def add(self, position: int, header: FrameHeader) -> None:
        so_far = self._last_timestamps[-1] if self._last_timestamps else NO_TIME
        newest = max(so_far, header.last_timestamp) if header.row_count else so_far
        self._positions.append(position)
        self._offsets.append(header.base_offset)
        self._last_timestamps.append(newest)
        self._priorities.append(header.priorities)
        self._next_offset = header.next_offset
        self._size_bytes = position + header.frame_bytes

    def disagreement(self, header: IndexHeader, index: SegmentIndex) -> str | None:
        """What an index says wrongly of these frames, if anything.

        The blocks may be of any size: how large a log makes them is not written down.
        """
        if header.segment_bytes != self._size_bytes or header.next_offset != self._next_offset:
            return "it is of a segment with another end"
        positions = np.asarray(self._positions)
        entries = np.asarray(index.positions)
        rows = np.searchsorted(positions, entries)
        if (
            not len(rows)
            or rows[0] != 0
            or rows[-1] == len(positions)
            or (np.diff(rows) <= 0).any()
            or (positions[rows] != entries).any()
        ):
            return "it points to places where no frame begins"
        if (np.asarray(self._offsets)[rows] != np.asarray(index.offsets)).any():
            return "it is wrong about the offsets of its blocks"
        newest = np.asarray(self._last_timestamps)
        ends = np.append(rows[1:], len(positions)) - 1
        if (newest[ends] != np.asarray(index.last_timestamps)).any() or (
            header.last_timestamp != newest[-1]
        ):
            return "it is wrong about the timestamps of its blocks"
        masks = np.frombuffer(bytes(self._priorities), np.uint8)
        blocks = np.bitwise_or.reduceat(masks, rows)
        if (blocks != np.frombuffer(bytes(index.priorities), np.uint8)).any() or (
            header.priorities != np.bitwise_or.reduce(masks)
        ):
            return "it is wrong about the priorities of its blocks"
        return None
