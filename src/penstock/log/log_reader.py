"""Reading a log that another process is writing. Changes nothing, needs no lock."""

from __future__ import annotations

import math
import os
import time
from types import TracebackType
from typing import Self

from penstock.config import LogConfig
from penstock.errors import FrameError, LogError, LogNotFound
from penstock.log.base import Damage
from penstock.log.files import DiskFiles, FileSystem
from penstock.log.index import IndexDamaged, SegmentIndex
from penstock.log.reader import SegmentList, SegmentReader
from penstock.log.recovery import list_segments
from penstock.log.segment import Broken, Segment, load_index, walk
from penstock.log.segment_header import decode_header
from penstock.log.watermarks import (
    DURABLE_FILE,
    START_FILE,
    MarkDamaged,
    read_mark,
    read_mark_or_raise,
)
from penstock.record.frame import HEADER_BYTES, FrameHeader, read_header
from penstock.record.salt import UNKNOWN, Salt

_POLL_S = 0.02
_RETRIES = 100
_LOOK_BYTES = 4 << 10


class LogReader(SegmentReader):
    """A log as its files show it from outside: only what is durable, so it never changes again.

    `refresh` looks for what is new; `read` and `find` answer from the last look.
    """

    @classmethod
    def open(cls, folder: str | os.PathLike[str], *, files: FileSystem | None = None) -> Self:
        path = os.fspath(folder) if files else os.path.abspath(folder)
        reader = cls(path, files or DiskFiles(), LogConfig().index_interval_bytes)
        reader.refresh()
        return reader

    @property
    def durable_end(self) -> int:
        return self.end

    def refresh(self) -> None:
        """Learn of messages, segments and trims since the last look."""
        short: tuple[int, int] | None = None
        for _ in range(_RETRIES):
            try:
                durable = self._look()
            except FileNotFoundError:
                continue  # a segment was trimmed or compacted between two of our steps
            if durable <= self.end:
                return
            # A listing may miss files that are exchanged meanwhile: so this has to be seen twice.
            if short == (self.end, durable):
                last = self._list.segments[-1]
                reason = "they were durable, and are gone"
                self._report(Damage(last.name, last.size_bytes, self.end, durable, reason))
                self.end = durable
                return
            short = self.end, durable
        raise LogError(f"{self.folder}: its files change faster than they can be read")

    def wait(self, offset: int, timeout_s: float | None = None) -> bool:
        """Wait until a message at an offset or beyond is durable; False when time is up."""
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while self.end <= offset:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return False
            time.sleep(min(_POLL_S, left_s))
            self.refresh()
        return True

    def close(self) -> None:
        """Nothing is held open; here so that both kinds of log can be used alike."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _moved_on(self) -> None:
        self.refresh()

    def _path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def _look(self) -> int:
        """Learn what there is; up to where it should be."""
        try:
            durable = read_mark(self._files, self._path(DURABLE_FILE))
            found, _ = list_segments(self._files, self.folder)
        except (FileNotFoundError, NotADirectoryError):
            found = []
        if not found:
            raise LogNotFound(f"there is no log in {self.folder}")
        known = {segment.path: segment for segment in self._list.segments}
        segments = [known.get(segment.path, segment) for segment in found]
        for segment in segments:
            self._take_summary(segment)
        if durable is None:  # what is sealed was durable before
            durable = max([self.end, *(s.next_offset for s in segments if s.index is None)])
        kept: list[Segment] = []
        for segment in segments:
            if kept and segment.base_offset < kept[-1].next_offset:
                continue  # its messages are in a compacted segment
            if segment.index is not None:
                self._walk(segment, durable)
            kept.append(segment)
        self._list = SegmentList.of(kept)
        try:
            self._start = read_mark_or_raise(self._files, self._path(START_FILE)) or 0
        except MarkDamaged:
            self._start = kept[0].base_offset
        self.end = max(self._start, min(durable, kept[-1].next_offset))
        return durable

    def _take_summary(self, segment: Segment) -> None:
        """A sealed segment tells by its index; the growing one has one in memory."""
        if segment.index is None and segment.salt is not UNKNOWN:
            return
        try:
            segment.take_summary(load_index(self._files, segment)[0])
            segment.index = None
        except IndexDamaged:
            if segment.index is None:
                segment.index = SegmentIndex(self._index_interval_bytes)

    def _walk(self, segment: Segment, durable: int) -> None:
        """Learn what a segment without an index holds, from where we were."""
        if segment.is_empty:  # a writer that recovers may make it anew, as long as nothing is in it
            header = decode_header(self._files.read(segment.path, _LOOK_BYTES), segment.path)
            segment.salt = header.salt if header else UNKNOWN
        if segment.salt is UNKNOWN:
            return
        self._skim(segment, durable)
        at = segment.size_bytes
        buffer = memoryview(self._files.read(segment.path, position=at))
        for item in walk(buffer, segment.salt, segment.next_offset, position=0):
            if isinstance(item, Broken):
                if item.next_offset is None or item.next_offset > durable:
                    break
                segment.tail = (item.next_offset, at + item.next_position)
            elif item.header.next_offset > durable:
                break
            else:
                segment.add(item.header)

    def _skim(self, segment: Segment, durable: int) -> None:
        """Take note of frames by their headers alone, up to the last one or to what is damaged.

        A frame is as long as it says, and of as many offsets, if the next one begins there and
        with that offset. Whether its bytes are right is found out by who reads them.
        """
        headers = _Headers(self._files, segment.path, segment.salt)
        found = headers.at(segment.size_bytes)
        while found and found.base_offset == segment.next_offset and found.next_offset < durable:
            after = headers.at(segment.size_bytes + found.frame_bytes)
            if after is None or after.base_offset != found.next_offset:
                return
            segment.add(found)
            found = after


class _Headers:
    """The headers in a file, read a little at a time: a log is far more than its headers."""

    def __init__(self, files: FileSystem, path: str, salt: Salt) -> None:
        self._files = files
        self._path = path
        self._salt = salt
        self._start, self._window = 0, memoryview(b"")

    def at(self, position: int) -> FrameHeader | None:
        if not self._start <= position <= self._start + len(self._window) - HEADER_BYTES:
            self._window = memoryview(self._files.read(self._path, _LOOK_BYTES, position))
            self._start = position
        try:
            return read_header(self._window, position - self._start, self._salt)
        except FrameError:
            return None
