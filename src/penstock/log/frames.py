"""Where the frames of a stretch of log lie and what is in them; their rows when they are asked for.

Whoever wants some messages here and there, as a lane of one priority does, reads the headers of a
stretch once and then decodes no frames but those that it wants. Messages that were published one by
one lie in frames of one row each: a run of them counts as one frame, whose rows are known.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock.errors import FrameError
from penstock.record.batch import Batch
from penstock.record.frame import EXPIRES, FrameHeader, decode_rows
from penstock.record.plain import Plain
from penstock.record.schema import BITS
from penstock.record.singles import Singles

Int64s: TypeAlias = NDArray[np.int64]
LocatedFrame: TypeAlias = tuple[memoryview, int, FrameHeader]
"""The bytes of a stretch of log, where in them a frame begins, and its header."""

FEW = 100
"""A frame of which so few messages are wanted at a time is kept as objects."""


class FrameTable:
    """The frames of [start, stop): an offset that is in none of them has no message.

    Their checksums were right when the table was made. The bytes stay mapped as long as it is
    there, whatever becomes of the segment. A frame is decoded once. Any thread may read.
    """

    def __init__(
        self,
        start: int,
        stop: int,
        frames: Sequence[LocatedFrame | Singles],
        report: Callable[[FrameHeader, FrameError], None],
    ) -> None:
        """Frames in their order; the first may begin before `start`. `report` is told of a frame
        whose rows are not what its header says."""
        self.start = start
        self.stop = stop
        self._frames = frames
        self._report = report
        self._bases = array("q")
        self._stops = array("q")
        self._masks = bytearray()
        self.nbytes = 0
        """What its messages take in memory, at most."""
        self._decoded: dict[int, Batch | None] = {}
        for number, frame in enumerate(frames):
            if isinstance(frame, Singles):
                self._decoded[number] = frame
                self._bases.append(frame.base_offset)
                self._stops.append(frame.next_offset)
                self._masks.append(frame.priority_mask)
                self.nbytes += frame.frames_bytes
            else:
                header = frame[2]
                self._bases.append(header.base_offset)
                self._stops.append(header.next_offset)
                self._masks.append(header.priorities)
                self.nbytes += max(header.raw_bytes, header.frame_bytes)
        self._asked: set[int] = set()
        """Frames of which a few messages were wanted: they are wanted again, and as objects."""
        self.asked_last: Plain | Singles = Plain(())
        """The frame of which a few were wanted last, if it is quickly cut into slices."""

    def scan(self, priority: int, start: int, limit: int, end: int) -> tuple[Int64s, int]:
        """Offsets in [start, end) of messages of a priority, at most `limit`, ascending; and how
        far it got: none below is left out."""
        end = min(end, self.stop)
        masks = np.frombuffer(self._masks, np.uint8)
        hits = np.flatnonzero(masks & (1 << priority))
        bases, stops = np.frombuffer(self._bases, np.int64), np.frombuffer(self._stops, np.int64)
        if len(bases) == (stops - bases).sum():  # of one message each
            found = bases[hits]
        else:
            parts = [
                self._offsets_in(number, priority)
                for number in hits.tolist()
                if self._stops[number] > start
            ]
            found = np.concatenate(parts) if parts else np.empty(0, np.int64)
        found = found[np.searchsorted(found, start) : np.searchsorted(found, end)]
        if len(found) > limit:
            return found[:limit], int(found[limit])
        return found, end

    def run(self, start: int, stop: int) -> Iterator[Batch]:
        """The messages in [start, stop), frame by frame."""
        bases, few = self._bases, stop - start <= FEW
        for number in range(max(bisect_right(bases, start) - 1, 0), len(bases)):
            first = bases[number]
            if first >= stop:
                break
            batch = self._batch(number, few=few)
            if batch is None:
                continue
            if start <= first and self._stops[number] <= stop:
                chosen = batch
            elif batch.columns & BITS["offset"]:
                low, high = np.searchsorted(batch.offset_numbers(), [start, stop]).tolist()
                chosen = batch.slice(low, high - low)
            else:
                low, high = max(start - first, 0), min(stop - first, len(batch))
                chosen = batch.slice(low, max(high - low, 0))
            if len(chosen):
                yield chosen

    def rows(self, offsets: Sequence[int]) -> Iterator[Batch]:
        """The messages at ascending offsets that may lie apart, frame by frame."""
        bases, stops = self._bases, self._stops
        at, count = 0, len(offsets)
        while at < count:
            number = bisect_right(bases, offsets[at]) - 1
            if number < 0:
                at += 1
                continue
            first, at = at, max(bisect_left(offsets, stops[number], at), at + 1)
            batch = self._batch(number, few=at - first <= FEW)
            if batch is not None:
                chosen = _choose(batch, offsets[first:at])
                if len(chosen):
                    yield chosen

    def expiring(self, offsets: Sequence[int]) -> list[int]:
        """Those of the offsets that are in frames in which something expires."""
        bases, masks = self._bases, self._masks
        return [o for o in offsets if masks[bisect_right(bases, o) - 1] & EXPIRES]

    def all_expire(self, start: int, stop: int) -> bool:
        """Whether something expires in each frame of a range within the table."""
        first = bisect_right(self._bases, start) - 1
        masks = self._masks[max(first, 0) : bisect_left(self._bases, stop)]
        return all(mask & EXPIRES for mask in masks)

    def _batch(self, number: int, *, few: bool) -> Batch | None:
        """All rows of a frame; None if they are not what its header says."""
        try:
            batch = self._decoded[number]
        except KeyError:
            window, position, header = self._located(number)
            try:
                batch = decode_rows(window, position, header)
            except FrameError as exc:
                self._report(header, exc)
                batch = None
            self._decoded[number] = batch
        if type(batch) is Singles:
            self.asked_last = batch
        elif few and batch is not None and len(batch) > 1 and batch.columns == BITS["value"]:
            if number not in self._asked:
                self._asked.add(number)
            elif not isinstance(batch, Plain):
                batch = self._decoded[number] = Plain.of(batch)
            if type(batch) is Plain:
                self.asked_last = batch
        return batch

    def _located(self, number: int) -> LocatedFrame:
        frame = self._frames[number]
        assert not isinstance(frame, Singles), "the rows of a run are known from the start"
        return frame

    def _offsets_in(self, number: int, priority: int) -> Int64s:
        """Offsets of the rows of a frame that have a priority, if it has some."""
        frame = self._frames[number]
        if not isinstance(frame, Singles):
            header = frame[2]
            if header.row_count == header.span and not header.columns & BITS["priority"]:
                return np.arange(header.base_offset, header.next_offset)
        batch = self._batch(number, few=False)
        if batch is None:
            return np.empty(0, np.int64)
        offsets = batch.offset_numbers()
        if batch.columns & BITS["priority"]:
            offsets = offsets[batch.priority_numbers() == priority]
        return offsets


def _choose(batch: Batch, offsets: Sequence[int]) -> Batch:
    """The rows of a batch at these ascending offsets, as far as they are there."""
    if batch.columns & BITS["offset"]:
        rows = np.flatnonzero(np.isin(batch.offset_numbers(), offsets))
    else:
        rows = np.asarray(offsets) - (batch.base_offset or 0)
        rows = rows[rows < len(batch)]
    if len(rows) and int(rows[-1]) - int(rows[0]) + 1 == len(rows):
        return batch.slice(int(rows[0]), len(rows))
    return batch.take(rows)
