"""Reading segments: by offset, by time, by priority. Takes no lock and changes nothing."""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock.errors import FrameCorrupt, FrameError, FrameTruncated, LogError, OffsetOutOfRange
from penstock.log.base import Batches, Damage
from penstock.log.files import FileSystem
from penstock.log.frames import FrameTable, LocatedFrame
from penstock.log.index import IndexDamaged, SegmentIndex
from penstock.log.segment import HEADER_LOST, Segment, ValidFrame, load_index, next_frame, walk
from penstock.log.segment_header import SEGMENT_HEADER_BYTES
from penstock.record.batch import Batch
from penstock.record.frame import FrameHeader, checksum, decode_rows, read_header
from penstock.record.salt import UNKNOWN
from penstock.record.schema import BITS
from penstock.record.singles import Singles, read_singles

_logger = logging.getLogger("penstock.log")

Int64s: TypeAlias = NDArray[np.int64]
_F = TypeVar("_F")

INDEX_CACHE_BYTES = 32 << 20
"""Indexes of sealed segments that a log keeps in memory."""

_WINDOW_BYTES_MIN = 128 << 10  # mapped at once, for reads that ask for little: a usual batch
_VALUE = BITS["value"]
_RETRIES = 100  # a reader meets a file that was just trimmed or compacted; each time it is newer

# How most reads end, at the edge of what is mapped: not worth a raise.
_CUT_OFF = FrameTruncated(0, "the bytes end within the body")


class SegmentList(NamedTuple):
    """The segments of a log at one moment, replaced as a whole so that readers need no lock."""

    segments: tuple[Segment, ...]
    bases: tuple[int, ...]
    newest: tuple[int, ...]
    """The largest timestamp up to each segment's end, of all but the last, which still grows."""

    @classmethod
    def of(cls, segments: Iterable[Segment]) -> SegmentList:
        every = tuple(segments)
        stamps = accumulate((segment.last_timestamp for segment in every[:-1]), max)
        return cls(every, tuple(segment.base_offset for segment in every), tuple(stamps))

    def at(self, offset: int) -> int:
        """The number of the segment in which an offset lies."""
        return max(bisect_right(self.bases, offset) - 1, 0)


class SegmentReader:
    """What the log that is written here and one that another process writes have in common."""

    def __init__(self, folder: str, files: FileSystem, index_interval_bytes: int) -> None:
        self.folder = folder
        self._files = files
        self._index_interval_bytes = index_interval_bytes
        self._list = SegmentList.of(())
        self._start = 0
        self.end = 0
        """One past the last offset."""
        self._indexes: dict[str, SegmentIndex] = {}
        self._indexes_bytes = 0
        self._damage: dict[tuple[int, int], Damage] = {}

    @property
    def start(self) -> int:
        return self._start

    @property
    def damage(self) -> list[Damage]:
        """What was found damaged since the log was opened, by offset."""
        return sorted(self._damage.values(), key=lambda d: d.first_offset)

    @property
    def segments(self) -> tuple[Segment, ...]:
        return self._list.segments

    @property
    def sealed_end(self) -> int:
        """Where the segment begins that is written to."""
        return self._list.bases[-1]

    @property
    def newest_us(self) -> int:
        return max(segment.last_timestamp for segment in self._list.segments)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self._list.segments)

    def read(self, offset: int, max_bytes: int = 4 << 20) -> Batches:
        """Messages from an offset on: at least one frame's if there are any, up to `max_bytes`.

        Batches share the memory of the mapped file. Damaged frames are skipped and reported.
        """
        end = self.end
        if not self._start <= offset <= end:
            raise OffsetOutOfRange(offset, self._start, end)
        batches: list[Batch] = []
        damage: list[Damage] = []
        while offset < end and not batches:
            offset = self._read_segment(offset, end, max_bytes, _BatchCursor, batches, damage)
        return Batches(batches, offset, damage)

    def frames(self, offset: int, max_bytes: int) -> FrameTable:
        """The frames from an offset on, at least one if there are any, up to `max_bytes`.

        Their rows are not decoded. Damaged frames are skipped and reported.
        """
        end = self.end
        if not self._start <= offset <= end:
            raise OffsetOutOfRange(offset, self._start, end)
        frames: list[LocatedFrame | Singles] = []
        start = offset
        while offset < end and not frames:
            offset = self._read_segment(offset, end, max_bytes, _HeaderCursor, frames, [])
        return FrameTable(start, offset, frames, self._report_frame)

    def find(self, timestamp_us: int) -> int:
        """The first offset whose message is at or after a time; `end` if there is none."""
        for _ in range(_RETRIES):
            try:
                return self._find(timestamp_us)
            except FileNotFoundError:
                self._moved_on()
        raise LogError(f"{self.folder}: its files change faster than they can be read")

    def next_block(self, offset: int, priorities: int) -> int:
        """The first offset from here on whose index block may hold one of these priorities.

        `priorities` is a bit mask. Only indexes are looked at, so a priority that nobody sent is
        passed over at any backlog; `end` if there is none.
        """
        for _ in range(_RETRIES):
            try:
                return self._next_block(max(offset, self._start), priorities)
            except FileNotFoundError:
                self._moved_on()
        raise LogError(f"{self.folder}: its files change faster than they can be read")

    def span_at(self, offset: int) -> Segment:
        """The segment in which an offset lies."""
        segments = self._list
        return segments.segments[segments.at(offset)]

    def priorities_between(self, start: int, end: int) -> int:
        """A bit for each priority, and for expiry, that may occur; one too many is possible."""
        segments = self._list
        if start >= segments.bases[-1]:
            return segments.segments[-1].priorities
        found = 0
        for segment in segments.segments[segments.at(start) :]:
            if segment.base_offset >= end:
                break
            found |= segment.priorities
        return found

    def marks(self, start: int, end: int) -> tuple[Int64s, Int64s]:
        """For cutting a range by size: offsets in it, and the bytes of log before each.

        The offsets are those at which index blocks begin, with `start` first and `end` last.
        """
        for _ in range(_RETRIES):
            try:
                return self._marks(start, end)
            except FileNotFoundError:
                self._moved_on()
        raise LogError(f"{self.folder}: its files change faster than they can be read")

    def headers(self, offset: int) -> Iterator[FrameHeader]:
        """The headers of the frames from the one of an offset on, each verified; for recoveries."""
        while offset < self.end:
            segment, buffer, first_offset = self._frames_from(offset)
            for item in walk(buffer, segment.salt, first_offset, position=0):
                if isinstance(item, ValidFrame) and item.header.next_offset > offset:
                    yield item.header
            if segment.next_offset <= offset:
                return
            offset = segment.next_offset

    def _frames_from(self, offset: int) -> tuple[Segment, memoryview, int]:
        """The segment of an offset, its bytes from a block on, and the first offset in them."""
        for _ in range(_RETRIES):
            segment = self._list.segments[self._list.at(offset)]
            try:
                index = self._index(segment)
                position, first_offset = SEGMENT_HEADER_BYTES, segment.base_offset
                if len(index):
                    block = index.block_of(offset)
                    position, first_offset = index.positions[block], index.offsets[block]
                size_bytes = segment.size_bytes - position
                return segment, self._files.map(segment.path, position, size_bytes), first_offset
            except FileNotFoundError:
                self._moved_on()
        raise LogError(f"{self.folder}: its files change faster than they can be read")

    def _read_segment(
        self,
        offset: int,
        end: int,
        max_bytes: int,
        cursor_type: type[_Cursor[_F]],
        found: list[_F],
        damage: list[Damage],
    ) -> int:
        """Read on in the segment of an offset, and say where to go on."""
        for _ in range(_RETRIES):
            segments = self._list
            number = segments.at(offset)
            segment = segments.segments[number]
            if offset < segment.base_offset:
                if offset < self._start:  # trimmed a moment ago
                    raise OffsetOutOfRange(offset, self._start, self.end)
                lost = Damage(segment.name, 0, offset, segment.base_offset, "frames are missing")
                damage.append(self._report(lost))
                offset = segment.base_offset
            last = number + 1 == len(segments.segments)
            stop = end if last else min(end, segments.bases[number + 1])
            if segment.salt is UNKNOWN:
                damage.append(self._report(Damage(segment.name, 0, offset, stop, HEADER_LOST)))
                return stop
            try:
                cursor = cursor_type(self._files, segment, self._index(segment), offset, max_bytes)
                offset = cursor.read(stop)
                found += cursor.found
                damage += map(self._report, cursor.damage)
                return offset
            except FileNotFoundError:
                self._moved_on()
                if offset < self._start:
                    raise OffsetOutOfRange(offset, self._start, self.end) from None
        raise LogError(f"{self.folder}: its files change faster than they can be read")

    def _find(self, timestamp_us: int) -> int:
        segments, end = self._list, self.end
        for segment in segments.segments[bisect_left(segments.newest, timestamp_us) :]:
            if segment.last_timestamp < timestamp_us or segment.next_offset <= self._start:
                continue
            index = self._index(segment)
            block = index.block_of_time(timestamp_us)
            if block == len(index):
                continue
            offset = max(index.offsets[block], self._start)
            while offset < min(segment.next_offset, end):
                found: list[Batch] = []
                offset = self._read_segment(
                    offset, end, self._index_interval_bytes, _BatchCursor, found, []
                )
                for batch in found:
                    rows = np.flatnonzero(batch.timestamps_us() >= timestamp_us)
                    if len(rows):
                        return batch.slice(int(rows[0]), 1).base_offset or 0
        return end

    def _next_block(self, offset: int, priorities: int) -> int:
        segments, end = self._list, self.end
        for segment in segments.segments[segments.at(offset) :]:
            if segment.priorities & priorities:
                index = self._index(segment)
                block = index.block_of_priorities(index.block_of(offset), priorities)
                if block < len(index):
                    return min(max(offset, index.offsets[block]), end)
        return end

    def _marks(self, start: int, end: int) -> tuple[Int64s, Int64s]:
        segments = self._list
        offsets, sizes, before = [np.array([start])], [np.array([0])], 0
        for segment in segments.segments[segments.at(start) :]:
            if segment.base_offset >= end:
                break
            index = self._index(segment)
            blocks = np.array(index.offsets, np.int64)
            positions = np.array(index.positions[: len(blocks)], np.int64)
            begin, stop = _positions_at(segment, blocks, positions, [start, end])
            inside = (blocks > start) & (blocks < end)
            offsets.append(blocks[inside])
            sizes.append(before + positions[inside] - begin)
            before += stop - begin
        offsets.append(np.array([end]))
        sizes.append(np.array([before]))
        return np.concatenate(offsets), np.concatenate(sizes)

    def _index(self, segment: Segment) -> SegmentIndex:
        index = segment.index
        if index is None:
            index = self._indexes.get(segment.path)
        if index is None:
            try:
                index = load_index(self._files, segment)[1]
            except IndexDamaged:
                index = self._rebuilt_index(segment)
            if self._indexes_bytes > INDEX_CACHE_BYTES:
                self._indexes, self._indexes_bytes = {}, 0
            self._indexes[segment.path] = index
            self._indexes_bytes += index.nbytes
        return index

    def _rebuilt_index(self, segment: Segment) -> SegmentIndex:
        """Made again in memory; opening for writing is what mends the file."""
        again = Segment(self.folder, segment.base_offset, segment.generation)
        again.index = SegmentIndex(self._index_interval_bytes)
        buffer = self._files.map(segment.path, 0, segment.size_bytes)
        for item in walk(buffer, segment.salt, segment.base_offset):
            if isinstance(item, ValidFrame):
                again.tail = (item.header.base_offset, item.position)
                again.add(item.header)
        return again.index

    def _report(self, damage: Damage) -> Damage:
        key = (damage.first_offset, damage.next_offset)
        if key not in self._damage:
            self._damage[key] = damage
            _logger.error("damage in log %s: %s", self.folder, damage)
        return damage

    def _report_frame(self, header: FrameHeader, error: FrameError) -> None:
        """The rows of a frame are not what its header says."""
        name, first = self.span_at(header.base_offset).name, header.base_offset
        self._report(Damage(name, error.position, first, header.next_offset, error.reason))

    def _moved_on(self) -> None:
        """A file is gone. A writer has its new list already; a reader outside looks again."""


class _Cursor(Generic[_F]):
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
        self.found: list[_F] = []
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


class _BatchCursor(_Cursor[Batch]):
    """Collects the rows of the frames, from the offset on."""

    def _take(self, window: memoryview, position: int, header: FrameHeader) -> None:
        batch = decode_rows(window, position, header)
        if header.base_offset < self._offset:
            batch = _from_offset(batch, self._offset)
        if len(batch):
            self.found.append(batch)

    def _take_singles(self, singles: Singles) -> None:
        self.found.append(singles)


class _HeaderCursor(_Cursor[LocatedFrame | Singles]):
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


def _positions_at(
    segment: Segment, blocks: Int64s, positions: Int64s, offsets: Sequence[int]
) -> list[int]:
    """About where in its file some offsets are, as if all messages of a block were equally long."""
    known = np.concatenate([[segment.base_offset], blocks, [segment.next_offset]])
    places = np.concatenate([[SEGMENT_HEADER_BYTES], positions, [segment.size_bytes]])
    skipped = int(len(blocks) > 0 and blocks[0] == segment.base_offset)
    found: list[int] = np.interp(offsets, known[skipped:], places[skipped:]).astype(int).tolist()
    return found
