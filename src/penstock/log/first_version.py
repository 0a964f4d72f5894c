"""Logs of the first version of the format, and how they become logs of this one.

Segments of the first version are frames from the first byte on, without a header and without a
salt. Each is written again under a salt of its own: to a temporary file that is synced and then
renamed over the old one. So a crash leaves every segment in one of the two versions, and whoever
runs the conversion again finds out which by its header. Indexes are made when the log is opened.

What was damaged stays missing, and is reported when the log is opened. Behind a damaged frame the
conversion goes on where that frame says that it ends, or where the index says that a block begins.
It does not search: a message may hold a frame of the first version. The old file is kept beside
the new one as `<name>.damaged`.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress

from penstock.errors import FormatOutdated, FrameError
from penstock.log.files import File, FileSystem, write_durably, write_synced
from penstock.log.index import IndexDamaged, IndexHeader, SegmentIndex
from penstock.log.recovery import list_segments
from penstock.log.segment import Segment, begin_segment, load_index, parse_segment_name
from penstock.log.segment_header import SEGMENT_HEADER_BYTES, decode_header
from penstock.log.watermarks import DURABLE_FILE, encode_mark, read_mark
from penstock.record.frame import FrameHeader, read_header, verify
from penstock.record.writing import Buffer, resalted

_VERSION = 1
_WRITE_BYTES = 1 << 20  # gathered before they are written


def logs_in(files: FileSystem, folder: str) -> Iterator[str]:
    """The folders of logs in a folder, at any depth: those that hold a segment."""
    try:
        names = files.list(folder)
    except (FileNotFoundError, NotADirectoryError):
        return
    if any(map(parse_segment_name, names)):
        yield folder
        return
    for name in names:
        yield from logs_in(files, os.path.join(folder, name))


def convert_log(files: FileSystem, folder: str) -> None:
    """Bring every segment of a log to this version. Nobody may have the log open.

    It may be called again after a crash, and does nothing to a log that is of this version.
    """
    segments = [s for s in list_segments(files, folder)[0] if _is_outdated(files, s)]
    if not segments:
        return
    indexes = {segment: _load_index(files, segment) for segment in segments}
    # Indexes say what was durable, and count no more once their segments have changed.
    durable_path = os.path.join(folder, DURABLE_FILE)
    ends = [index[0].next_offset for index in indexes.values() if index]
    write_durably(
        files, durable_path, encode_mark(max([read_mark(files, durable_path) or 0, *ends]))
    )
    for segment, index in indexes.items():
        _Conversion(files, segment, index[1] if index else None).run()
    files.sync_folder(folder)


def _is_outdated(files: FileSystem, segment: Segment) -> bool:
    start = files.read(segment.path, SEGMENT_HEADER_BYTES + 1)
    try:
        return decode_header(start, segment.path) is None  # or its first frame is damaged
    except FormatOutdated:
        return True


def _load_index(files: FileSystem, segment: Segment) -> tuple[IndexHeader, SegmentIndex] | None:
    try:
        return load_index(files, segment, _VERSION)
    except IndexDamaged:
        return None


class _Conversion:
    """One segment on its way."""

    def __init__(self, files: FileSystem, segment: Segment, index: SegmentIndex | None) -> None:
        self._files = files
        self._segment = segment
        self._blocks = index.positions if index else []
        self._buffer = files.map(segment.path, 0, files.size(segment.path))
        self._is_damaged = False

    def run(self) -> None:
        path = self._segment.path
        file = begin_segment(self._files, self._segment, path + ".tmp")
        try:
            self._write_frames(file)
            file.sync()
        finally:
            file.close()
        if self._is_damaged:
            write_synced(self._files, path + ".damaged", self._buffer)
        self._files.rename(path + ".tmp", path)

    def _write_frames(self, file: File) -> None:
        pending: list[Buffer] = []
        pending_bytes = 0
        for position, header in self._frames():
            frame = self._buffer[position : position + header.frame_bytes]
            pending += resalted([frame], self._segment.salt)
            pending_bytes += len(frame)
            if pending_bytes >= _WRITE_BYTES:
                file.append([b"".join(pending)])
                pending, pending_bytes = [], 0
        file.append([b"".join(pending)])

    def _frames(self) -> Iterator[tuple[int, FrameHeader]]:
        position, expected = 0, self._segment.base_offset
        while position < len(self._buffer):
            header = self._frame_at(position)
            if header is None or header.base_offset < expected:
                self._is_damaged = True
                position = self._after(position, expected)
                continue
            yield position, header
            position, expected = position + header.frame_bytes, header.next_offset

    def _after(self, position: int, lost_offset: int) -> int:
        """Where the first frame begins, after a damaged one, that can be found without a search."""
        places = list(self._blocks[bisect_right(self._blocks, position) :])
        with suppress(FrameError):
            places.insert(0, position + read_header(self._buffer, position).frame_bytes)
        for place in places:
            header = self._frame_at(place)
            if header and header.base_offset > lost_offset:
                return place
        return len(self._buffer)

    def _frame_at(self, position: int) -> FrameHeader | None:
        try:
            header = read_header(self._buffer, position)
            verify(self._buffer, position, header)
        except FrameError:
            return None
        return header
