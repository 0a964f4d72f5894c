"""One pass over the frames of a segment: verified, and past the damaged ones."""

from __future__ import annotations

from typing import Generic, TypeVar

import numpy as np

from penstock.errors import FrameCorrupt, FrameError, FrameTruncated
from penstock.log.base import Damage
from penstock.log.files import FileSystem
from penstock.log.frames import LocatedFrame
from penstock.log.index import SegmentIndex
from penstock.log.segment import Segment, next_frame
from penstock.log.segment_header import SEGMENT_HEADER_BYTES
from penstock.record.batch import Batch
from penstock.record.frame import FrameHeader, checksum, decode_rows, read_header
from penstock.record.schema import BITS
from penstock.record.singles import Singles, read_singles

F = TypeVar("F")

_WINDOW_BYTES_MIN = 128 << 10  # mapped at once, for reads that ask for little: a usual batch
_VALUE = BITS["value"]

# How most reads end, at the edge of what is mapped: not worth a raise.
_CUT_OFF = FrameTruncated(0, "the bytes end within the body")


class FrameCursor(Generic[F]):
    """One pass over the frames of a segment from the block of an offset on."""

    def __init__(
        self,
        files: FileSystem,
        segment: Segment,
        index: SegmentIndex,
        offset: int,
        max_bytes: int,
    ) -> None:
        self._files = files
        self._segment = segment
        self._offset = offset
        self._left_bytes = max_bytes
        self.found: list[F] = []
        self.damage: list[Damage] = []
        self._salt = segment.salt
        self._before_single = False
        block = index.block_of(offset)
        self._position, self._expected = SEGMENT_HEADER_BYTES, segment.base_offset
        # Frames before the first block are damaged ones: they are to be met, and told of.
        if len(index) and index.offsets[block] <= offset:
            self._position, self._expected = index.positions[block], index.offsets[block]
        self._map(max(max_bytes, _WINDOW_BYTES_MIN))

    def read(self, stop: int) -> int:
        """Collect frames up to the offset `stop` or `max_bytes`, and say where to go on."""
        while self._expected < stop:
            self._read_singles(stop)
            error = self._read_run(stop)
            if isinstance(error, FrameTruncated) and self._more_to_map:
                if self.found:
                    break
                self._map(max(self._frame_bytes(), _WINDOW_BYTES_MIN))
            elif error:
                self._skip(error, stop)
            elif self.found and not self._before_single:
                break
        return max(self._expected, self._offset)

    def _read_singles(self, stop: int) -> None:
        """Go past the next frames if there are many single messages among them, in one pass."""
        at, first = self._position - self._origin, self._expected
        skip = max(self._offset - first, 0)
        run = read_singles(
            self._window, at, self._salt, first, skip, stop - first - skip, self._left_bytes
        )
        if run is not None:
            singles, end = run
            self._take_singles(singles)
            self._left_bytes -= singles.frames_bytes
            self._position = self._origin + end
            self._expected = singles.next_offset

    def _read_run(self, stop: int) -> FrameError | None:
        """Go past the next frames, as many as may be, or up to one that is not whole: returned.

        First all headers, then all checksums, then all rows: a checksum fills the processor's
        cache with data, and after each of them the code for the rest would have to be fetched anew.
        """
        window, origin = self._window, self._origin
        frames, error = self._headers(stop)
        seed = self._salt.seed
        sums = [checksum(window, at, end, seed) for at, end, _ in frames]
        for (at, end, header), crc in zip(frames, sums, strict=True):
            try:
                if crc != header.crc:
                    raise FrameCorrupt(at, "the checksum does not match")
                if header.next_offset > self._offset:
                    self._take(window, at, header)
            except FrameError as exc:
                return exc
            if header.base_offset > self._expected:
                self._lost(self._position, header.base_offset, "frames are missing")
            self._position = origin + end
            self._expected = header.next_offset
        return error

    def _take(self, window: memoryview, position: int, header: FrameHeader) -> None:
        """A frame that was verified and reaches beyond the offset; FrameError if it is wrong."""
        raise NotImplementedError

    def _take_singles(self, singles: Singles) -> None:
        """The same of many frames."""
        raise NotImplementedError

    def _headers(self, stop: int) -> tuple[list[tuple[int, int, FrameHeader]], FrameError | None]:
        """Where the next frames begin and end, if their headers are right; and what is no frame.

        Up to the first single message after others: it may be the first of many."""
        window, at, expected = self._window, self._position - self._origin, self._expected
        salt = self._salt
        frames: list[tuple[int, int, FrameHeader]] = []
        after_others = self._before_single = False
        try:
            while expected < stop:
                header = read_header(window, at, salt)
                if header.row_count != 1 or header.columns != _VALUE:
                    after_others = True
                elif after_others:
                    self._before_single = True
                    break
                frame_bytes, next_offset = header.frame_bytes, header.next_offset
                end = at + frame_bytes
                size_bytes = max(header.raw_bytes, frame_bytes)  # as it is in memory
                if next_offset <= self._offset:
                    size_bytes = 0  # before what was asked for
                if size_bytes > self._left_bytes and (frames or self.found):
                    break
                if end > len(window):
                    return frames, _CUT_OFF
                self._left_bytes -= size_bytes
                if header.base_offset < expected:
                    raise FrameCorrupt(at, "an offset that was there before")
                frames.append((at, end, header))
                at, expected = end, next_offset
        except FrameError as exc:
            return frames, exc
        return frames, None

    def _frame_bytes(self) -> int:
        """How long the next frame says it is; its header may be just beyond the window."""
        try:
            at = self._position - self._origin
            return read_header(self._window, at, self._salt).frame_bytes
        except FrameTruncated:
            return 0

    def _skip(self, error: FrameError, stop: int) -> None:
        """Go on after a damaged frame: at the next one that is whole, or at the segment's end."""
        damaged_at = self._position
        self._map(self._segment.size_bytes - damaged_at)
        after = next_frame(self._window, 0, self._salt, self._expected)
        next_offset = after.header.base_offset if after else stop
        if next_offset > self._offset:
            self._lost(damaged_at, min(next_offset, stop), error.reason)
        self._expected = next_offset
        if after:
            self._position += after.position

    def _lost(self, position: int, next_offset: int, reason: str) -> None:
        name, first = self._segment.name, self._expected
        self.damage.append(Damage(name, position, first, next_offset, reason))

    def _map(self, length: int) -> None:
        self._origin = self._position
        rest = self._segment.size_bytes - self._position
        self._window = self._files.map(self._segment.path, self._position, min(length, rest))
        # A window that is shorter than it was to be ends where the file was cut behind our back.
        self._more_to_map = len(self._window) == length < rest


class BatchCursor(FrameCursor[Batch]):
    """Collects the rows of the frames, from the offset on."""

    def _take(self, window: memoryview, position: int, header: FrameHeader) -> None:
        batch = decode_rows(window, position, header)
        if header.base_offset < self._offset:
            batch = _from_offset(batch, self._offset)
        if len(batch):
            self.found.append(batch)

    def _take_singles(self, singles: Singles) -> None:
        self.found.append(singles)


class HeaderCursor(FrameCursor[LocatedFrame | Singles]):
    """Collects where the frames lie."""

    def _take(self, window: memoryview, position: int, header: FrameHeader) -> None:
        self.found.append((window, position, header))

    def _take_singles(self, singles: Singles) -> None:
        self.found.append(singles)


def _from_offset(batch: Batch, offset: int) -> Batch:
    """Without the rows before an offset."""
    skipped = offset - (batch.base_offset or 0)
    if batch.columns & BITS["offset"]:
        skipped = int(np.searchsorted(batch.offset_numbers(), offset))
    return batch.slice(skipped)
