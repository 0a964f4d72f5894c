"""Segments: the files of a log, their names, and how to walk through one frame by frame.

A segment `<base offset, 20 digits>.log` holds a header (`segment_header.py`), and frames one after
the other from its base offset on. Once sealed it never changes; compaction writes a new file of the
next generation, `<base offset>.g<generation>.log`, whose name appears only when it is whole. The
highest generation of a base offset is the one that counts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import NamedTuple

from penstock.errors import FrameCorrupt, FrameError
from penstock.log import index as index_format
from penstock.log.files import File, FileSystem
from penstock.log.index import IndexDamaged, IndexHeader, SegmentIndex
from penstock.log.segment_header import SEGMENT_HEADER_BYTES, encode_header
from penstock.record.frame import FrameHeader, read_header, verify
from penstock.record.salt import UNKNOWN, Salt
from penstock.record.writing import EncodedFrame

_NAME = re.compile(r"^(?P<base>\d{20})(?:\.g(?P<generation>\d+))?\.log$")
_INDEX_NAME = re.compile(r"^\d{20}(?:\.g\d+)?\.index$")

HEADER_LOST = "the header of the segment is damaged, without which no frame can be read"


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
        "path",
        "priorities",
        "salt",
        "tail",
    )

    def __init__(self, folder: str, base_offset: int, generation: int = 0) -> None:
        self.base_offset = base_offset
        self.generation = generation
        self.path = os.path.join(folder, segment_name(base_offset, generation))
        self.tail = (base_offset, SEGMENT_HEADER_BYTES)
        """One past the last offset, and the length in bytes."""
        self.salt = UNKNOWN
        """Of its frames. Its header says it, and its index."""
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
    def is_empty(self) -> bool:
        """Whether it is a header and nothing else."""
        return self.tail[1] <= SEGMENT_HEADER_BYTES

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
        self.salt = header.salt

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


def begin_segment(files: FileSystem, segment: Segment, path: str | None = None) -> File:
    """Make the file of a segment, by default at its place: a header, and frames to come.

    After an OSError the file may be there without a whole header. It counts as torn then.
    """
    segment.salt = Salt.random()
    file = files.create(path or segment.path)
    try:
        file.append([encode_header(segment.base_offset, segment.salt)])
    except BaseException:
        file.close()
        raise
    return file


def load_index(
    files: FileSystem, segment: Segment, version: int = index_format.VERSION
) -> tuple[IndexHeader, SegmentIndex]:
    """A sealed segment's index from its file, or IndexDamaged if it is not there or not right."""
    try:
        header, index = index_format.decode(files.read(segment.index_path), version)
    except FileNotFoundError:
        raise IndexDamaged("missing") from None
    if header.base_offset != segment.base_offset:
        raise IndexDamaged("of another segment")
    if header.segment_bytes != files.size(segment.path):
        raise IndexDamaged("made for another length of the segment")
    return header, index


class ValidFrame(NamedTuple):
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


def walk(
    buffer: memoryview,
    salt: Salt,
    first_offset: int,
    position: int = SEGMENT_HEADER_BYTES,
) -> Iterator[ValidFrame | Broken]:
    """Every frame of a segment with its checksum verified, and every place where one is missing.

    Where the salt is unknown, because the segment's header is lost, there are no frames.
    """
    expected = first_offset
    if salt is UNKNOWN:
        yield Broken(0, len(buffer), expected, None, HEADER_LOST)
        return
    while position < len(buffer):
        try:
            header = read_header(buffer, position, salt)
            verify(buffer, position, header, salt)
            if header.base_offset < expected:
                raise FrameCorrupt(position, "an offset that was there before")
        except FrameError as exc:
            after = next_frame(buffer, position, salt, expected)
            if after is None:
                yield Broken(position, len(buffer), expected, None, exc.reason)
                return
            yield Broken(position, after.position, expected, after.header.base_offset, exc.reason)
            position, expected = after.position, after.header.base_offset
            continue
        if header.base_offset > expected:
            yield Broken(position, position, expected, header.base_offset, "frames are missing")
        yield ValidFrame(position, header)
        position += header.frame_bytes
        expected = header.next_offset


def next_frame(
    buffer: memoryview, position: int, salt: Salt, lost_offset: int
) -> ValidFrame | None:
    """The first whole frame after a damaged one, which held `lost_offset` at least.

    It is looked for by the segment's own magic number, at each multiple of 8: the length that the
    damaged frame claims may be what is damaged. Frames in the values of messages have another
    magic number and another checksum.
    """
    magic = re.compile(re.escape(salt.magic))
    while match := magic.search(buffer, position + 1):
        position = match.start()
        if position % 8:
            continue
        try:
            header = read_header(buffer, position, salt)
            verify(buffer, position, header, salt)
        except FrameError:
            continue
        if header.base_offset > lost_offset:
            return ValidFrame(position, header)
    return None
