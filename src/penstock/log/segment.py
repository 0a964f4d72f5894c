"""Segments: the files of a log, their names, and how to walk through one frame by frame.

A segment `<base offset, 20 digits>.log` holds frames one after the other, from its base offset on.
Once sealed it never changes; compaction writes a new file of the next generation,
`<base offset>.g<generation>.log`, whose name appears only when it is whole. The highest generation
of a base offset is the one that counts.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_left
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

from penstock.errors import FrameCorrupt, FrameError
from penstock.log import index as index_format
from penstock.log.files import FileSystem
from penstock.log.index import IndexDamaged, IndexHeader, SegmentIndex
from penstock.record.frame import HEADER_BYTES, MAGIC, FrameHeader, read_header, verify
from penstock.record.writing import EncodedFrame

_NAME = re.compile(r"^(?P<base>\d{20})(?:\.g(?P<generation>\d+))?\.log$")
_INDEX_NAME = re.compile(r"^\d{20}(?:\.g\d+)?\.index$")
_CHECKED_TIMES_MAX = 16  # a search checks so many times as many bytes as there are

NO_LIMIT = 1 << 63
"""Above any offset."""


class Segment:
    """One file of a log. Only the last of a log, the active one, grows.

    The writer moves `tail` when the bytes are there, and both numbers at once: a reader that stays
    below it never meets a frame that is being written, and a writer that was interrupted between
    two steps goes on where the last whole frame ends.
    """

    __slots__ = (
        "base_offset",
        "generation",
        "index",
        "last_timestamp",
        "limit",
        "path",
        "priorities",
        "tail",
    )

    def __init__(self, folder: str, base_offset: int, generation: int = 0) -> None:
        self.base_offset = base_offset
        self.generation = generation
        self.path = os.path.join(folder, segment_name(base_offset, generation))
        self.tail = (base_offset, 0)
        """One past the last offset, and the length in bytes."""
        self.limit = NO_LIMIT
        """No frame of it goes beyond this offset, as far as its neighbours in the folder tell."""
        self.last_timestamp = index_format.NO_TIME
        self.priorities = 0
        self.index: SegmentIndex | None = None
        """In memory for the active segment; otherwise loaded when it is needed."""

    @property
    def next_offset(self) -> int:
        return self.tail[0]

    @property
    def size_bytes(self) -> int:
        return self.tail[1]

    @property
    def is_dense(self) -> bool:
        """Whether there is a message at each offset: compaction leaves gaps."""
        return not self.generation

    @property
    def name(self) -> str:
        return os.path.basename(self.path)

    @property
    def index_path(self) -> str:
        return self.path.removesuffix(".log") + ".index"

    def add(self, frame: FrameHeader | EncodedFrame) -> None:
        """Take note of a frame that now lies at the end."""
        (next_offset, position), index = self.tail, self.index
        assert index is not None
        assert frame.base_offset >= next_offset
        newest, priorities = self.last_timestamp, frame.priorities
        if frame.last_timestamp > newest and frame.row_count:
            self.last_timestamp = newest = frame.last_timestamp
        self.priorities |= priorities
        if position >= index.next_block_at:
            index.begin_block(position, frame.base_offset, newest, priorities)
        else:
            index.last_timestamps[-1] = newest
            index.priorities[-1] |= priorities
        self.tail = (frame.next_offset, position + frame.frame_bytes)

    def take_summary(self, header: IndexHeader) -> None:
        """Know of the segment what its index file says."""
        self.tail = (header.next_offset, header.segment_bytes)
        self.last_timestamp = header.last_timestamp
        self.priorities = header.priorities

    def __repr__(self) -> str:
        return f"<Segment {self.name}: {self.base_offset} up to {self.next_offset}>"


def segment_name(base_offset: int, generation: int = 0) -> str:
    suffix = f".g{generation}" if generation else ""
    return f"{base_offset:020d}{suffix}.log"


def parse_segment_name(name: str) -> tuple[int, int] | None:
    """Base offset and generation, if this is a segment's name."""
    match = _NAME.match(name)
    return (int(match["base"]), int(match["generation"] or 0)) if match else None


def is_index_name(name: str) -> bool:
    return _INDEX_NAME.match(name) is not None


def load_index(files: FileSystem, segment: Segment) -> tuple[IndexHeader, SegmentIndex]:
    """A sealed segment's index from its file, or IndexDamaged if it is not there or not right."""
    try:
        header, index = index_format.decode(files.read(segment.index_path))
    except FileNotFoundError:
        raise IndexDamaged("missing") from None
    if header.base_offset != segment.base_offset:
        raise IndexDamaged("of another segment")
    if header.segment_bytes != files.size(segment.path):
        raise IndexDamaged("made for another length of the segment")
    return header, index


class Found(NamedTuple):
    """A frame whose checksum is right."""

    position: int
    header: FrameHeader


class Broken(NamedTuple):
    """Bytes that are no frame, up to the next one that is or the end of the file."""

    position: int
    next_position: int
    first_offset: int
    next_offset: int | None
    """None when no frame follows, so that nobody here knows what is missing."""
    reason: str


def walk(buffer: memoryview, first_offset: int, limit: int = NO_LIMIT) -> Iterator[Found | Broken]:
    """Every frame of a segment with its checksum verified, and every place where one is missing.

    No frame goes beyond the offset `limit`, which is known where another segment begins there.
    """
    position, expected = 0, first_offset
    while position < len(buffer):
        try:
            header = read_header(buffer, position)
            verify(buffer, position, header)
            if header.base_offset < expected:
                raise FrameCorrupt(position, "an offset that was there before")
        except FrameError as exc:
            after = next_frame(buffer, position, expected, limit)
            if after is None:
                yield Broken(position, len(buffer), expected, None, exc.reason)
                return
            yield Broken(position, after.position, expected, after.header.base_offset, exc.reason)
            position, expected = after.position, after.header.base_offset
            continue
        if header.base_offset > expected:
            yield Broken(position, position, expected, header.base_offset, "frames are missing")
        yield Found(position, header)
        position += header.frame_bytes
        expected = header.next_offset


def next_frame(
    buffer: memoryview, position: int, lost_offset: int, limit: int = NO_LIMIT
) -> Found | None:
    """The first whole frame after a damaged one, which held `lost_offset` at least.

    First where the damaged frame says that it ends, which is right unless its length is hit; then
    wherever the magic number is followed by a frame whose checksum is right. But messages may hold
    anything, frames too, one or a whole segment: so another frame, or the end, has to follow, and
    its offsets have to fit between those before it and those of all that comes after.
    """
    search = _Search(buffer, lost_offset, limit)
    try:
        claimed = search.frame_at(position + read_header(buffer, position).frame_bytes)
    except FrameError:
        claimed = None
    if claimed:
        return claimed
    window = 1 << 20
    for start in range(position + 8, len(buffer), window):
        # Frames begin at multiples of 8; the overlap finds a magic number across two windows.
        chunk = bytes(buffer[start : start + window + len(MAGIC)])
        at = chunk.find(MAGIC)
        while 0 <= at < window:
            here = start + at
            if here % 8 == 0 and search.is_followed(here) and search.is_consistent(here):
                found = search.frame_at(here)
                if found:
                    return found
            at = chunk.find(MAGIC, at + 1)
    return None


class _Search:
    """A look for a frame among bytes that may be anything."""

    def __init__(self, buffer: memoryview, lost_offset: int, limit: int) -> None:
        self._buffer = buffer
        self._lost_offset = lost_offset
        self._limit = limit
        # What looks like a frame all the way to its end may be there a hundred thousand times.
        self._left_bytes = _CHECKED_TIMES_MAX * len(buffer)
        self._runs: dict[int, tuple[int, int]] = {}

    def frame_at(self, position: int) -> Found | None:
        """The frame at a position, if there is one."""
        header = self._header_at(position)
        if header is None or header.frame_bytes > self._left_bytes:
            return None
        self._left_bytes -= header.frame_bytes
        try:
            verify(self._buffer, position, header)
        except FrameError:
            return None
        return Found(position, header)

    def is_followed(self, position: int) -> bool:
        """Whether behind the frame that seems to be here there is another one, or nothing."""
        header = self._header_at(position)
        if header is None:
            return False
        end = position + header.frame_bytes
        after = self._header_at(end)
        if after is not None:
            return after.base_offset >= header.next_offset
        return self._is_end(end)

    def is_consistent(self, position: int) -> bool:
        """Whether the frames from here on contradict none of those that lead to the end."""
        end, next_offset = self._run_from(position)
        if self._is_end(end):
            return True
        after = bisect_left(self._last_run, (end,))
        return after == len(self._last_run) or self._last_run[after][1] >= next_offset

    def _run_from(self, position: int) -> tuple[int, int]:
        """Where frames that follow each other with rising offsets end, and with which offset.

        By their headers alone. Each position is looked at once, however many runs lead to it.
        """
        visited: list[int] = []
        next_offset = 0
        while (run := self._runs.get(position)) is None:
            header = self._header_at(position)
            if header is None or header.base_offset < next_offset:
                run = position, next_offset
                break
            visited.append(position)
            position, next_offset = position + header.frame_bytes, header.next_offset
        else:
            first = self._header_at(position)
            if first is not None and first.base_offset < next_offset:
                run = position, next_offset
        self._runs.update(dict.fromkeys(visited, run))
        return run

    @cached_property
    def _last_run(self) -> list[tuple[int, int]]:
        """Position and first offset of each frame from which others lead to the end."""
        found = []
        whole = bytes(self._buffer)
        at = whole.find(MAGIC)
        while at >= 0:
            header = self._header_at(at) if at % 8 == 0 else None
            if header is not None and self._is_end(self._run_from(at)[0]):
                found.append((at, header.base_offset))
            at = whole.find(MAGIC, at + 1)
        return found

    def _is_end(self, position: int) -> bool:
        """Whether nothing follows, or what was being written at a crash: a part of a header, or
        room that was never filled."""
        return len(self._buffer) - position < HEADER_BYTES or position >= self._filled_bytes

    @cached_property
    def _filled_bytes(self) -> int:
        return len(bytes(self._buffer).rstrip(b"\0"))

    def _header_at(self, position: int) -> FrameHeader | None:
        try:
            header = read_header(self._buffer, position)
        except FrameError:
            return None
        fits = self._lost_offset < header.base_offset and header.next_offset <= self._limit
        return header if fits else None
