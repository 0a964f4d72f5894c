"""Opening a folder: what a crash left is put in order before anything is believed.

The rules, in the order in which they apply:

1. Temporary files, older generations of a segment, and segments whose offsets a compacted one
   before them covers are leftovers of an interrupted step. They are removed.
2. A segment with a valid index was synced before that index was written: it is whole, and is not
   looked at. Only those at the end without one, usually one, are walked frame by frame.
3. Bytes that are no frame, below what is known to be durable, are damage: they stay where they
   are and are reported. Behind that they are the torn tail of writes that nobody was promised:
   the log is cut there, later segments included. A segment without a header is torn as a whole.
   Nothing below the start is lost: a trim does not sync the removal of its segments, so a power
   cut may bring back any of them without those behind.
4. What was written but not known to be durable is written once more and synced: after an fsync
   that failed, the kernel may show data that it will never write.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from itertools import pairwise
from typing import NamedTuple

from penstock.log.base import Damage
from penstock.log.files import File, FileSystem, is_out_of_room, write_synced
from penstock.log.index import IndexDamaged, SegmentIndex
from penstock.log.segment import (
    HEADER_LOST,
    Broken,
    Segment,
    begin_segment,
    is_index_name,
    load_index,
    parse_segment_name,
    walk,
)
from penstock.log.segment_header import SEGMENT_HEADER_BYTES, decode_header
from penstock.log.watermarks import (
    DURABLE_FILE,
    START_FILE,
    MarkDamaged,
    read_mark,
    read_mark_or_raise,
)
from penstock.record.salt import UNKNOWN


class Recovered(NamedTuple):
    """A log as it was found, ready to go on."""

    segments: list[Segment]
    """The sealed ones, and the active one last."""
    active: File
    start: int
    end: int
    damage: list[Damage]


def recover(files: FileSystem, folder: str, interval_bytes: int) -> Recovered:
    """Put a folder in order. When this returns, all that is left of the log is durable."""
    return _Recovery(files, folder, interval_bytes).run()


def list_segments(files: FileSystem, folder: str) -> tuple[list[Segment], list[str]]:
    """The segments that count, by base offset, and the names of leftovers."""
    newest: dict[int, int] = {}
    leftovers: list[str] = []
    names = files.list(folder)
    for name in names:
        parsed = parse_segment_name(name)
        if parsed:
            newest[parsed[0]] = max(parsed[1], newest.get(parsed[0], 0))
        elif name.endswith(".tmp"):
            leftovers.append(name)
    segments = [Segment(folder, base, newest[base]) for base in sorted(newest)]
    kept = {segment.name for segment in segments}
    kept |= {os.path.basename(segment.index_path) for segment in segments}
    leftovers += [n for n in names if (parse_segment_name(n) or is_index_name(n)) and n not in kept]
    return segments, leftovers


class _Recovery:
    def __init__(self, files: FileSystem, folder: str, interval_bytes: int) -> None:
        self.files = files
        self.folder = folder
        self.interval_bytes = interval_bytes
        self.damage: list[Damage] = []
        self.start_is_lost = False
        try:
            self.start = read_mark_or_raise(files, self._path(START_FILE)) or 0
        except MarkDamaged:
            self.start, self.start_is_lost = 0, True
        # This mark is written after each fsync without being synced itself: it may be old, but
        # never says more than what is on disk.
        self.durable = max(read_mark(files, self._path(DURABLE_FILE)) or 0, self.start)

    def run(self) -> Recovered:
        segments, leftovers = list_segments(self.files, self.folder)
        # Names that are seen may not be on disk yet. What replaces a file, and the mark that says
        # it was trimmed, have to be before that file goes.
        self.files.sync_folder(self.folder)
        for name in leftovers:
            self.files.remove(self._path(name))
        if self.start_is_lost:
            self._start_with(segments)
        for segment in segments:
            self._summarise(segment)
        segments = self._in_order(segments)
        end = max(self.durable, segments[-1].next_offset if segments else 0)
        active = segments[-1] if segments else None
        if active is not None and active.next_offset < end:
            reason = "they were durable, and are gone"
            self._lost(active, active.size_bytes, end, reason)
        if active is None and end > self.start:
            lost = Damage("", 0, self.start, end, "there is no segment, but they were durable")
            self.damage.append(lost)
        if active is None or active.index is None or active.next_offset < end:
            active = Segment(self.folder, end)
            active.index = SegmentIndex(self.interval_bytes)
            begin_segment(self.files, active).close()
            segments.append(active)
        segments = self._drop_trimmed(segments)
        for segment in segments[:-1]:
            if segment.index is not None:
                self._seal(segment)
        self.files.sync_folder(self.folder)
        return Recovered(segments, self.files.open(active.path), self.start, end, self.damage)

    def _start_with(self, segments: list[Segment]) -> None:
        """Nobody knows where the log starts: then with all that is there."""
        if segments:
            self.start = segments[0].base_offset
            self.durable = max(self.durable, self.start)
        reason = "where the log starts cannot be read; messages that were trimmed may be back"
        self.damage.append(Damage(START_FILE, 0, self.start, self.start, reason))

    def _summarise(self, segment: Segment) -> None:
        """Believe a valid index; without one the segment gets an empty index, to be filled."""
        try:
            segment.take_summary(load_index(self.files, segment)[0])
            self.durable = max(self.durable, segment.next_offset)
        except IndexDamaged:
            segment.tail = (segment.base_offset, self.files.size(segment.path))
            segment.index = SegmentIndex(self.interval_bytes)

    def _in_order(self, segments: list[Segment]) -> list[Segment]:
        """The segments that make up the log: walked where need be, cut where it is torn."""
        kept: list[Segment] = []
        for number, segment in enumerate(segments):
            before = kept[-1] if kept else None
            if not before and segment.base_offset > self.start:
                reason = "frames are missing"
                lost = Damage(segment.name, 0, self.start, segment.base_offset, reason)
                self.damage.append(lost)
            if before and segment.base_offset < before.next_offset:
                self._remove(segment)  # a compacted segment covers it
                continue
            if before and segment.base_offset > before.next_offset:
                if before.next_offset >= self.durable:
                    self._remove(*segments[number:])
                    break
                self._lost(before, before.size_bytes, segment.base_offset, "frames are missing")
            kept.append(segment)
            if segment.index is not None and self._walk(segment):
                if segment.salt is UNKNOWN:  # it never had a header: not even the file was finished
                    self._remove(kept.pop())
                self._remove(*segments[number + 1 :])
                break
        return kept

    def _walk(self, segment: Segment) -> bool:
        """Learn what a segment holds, and make that durable; whether it was cut."""
        buffer = self.files.map(segment.path, 0, segment.size_bytes)
        self._read_salt(segment, buffer)
        # A compacted segment was synced before it got its name: none of it is a torn tail.
        durable = self.durable if not segment.generation else 1 << 63
        segment.tail = (segment.base_offset, SEGMENT_HEADER_BYTES)
        doubtful: int | None = None
        torn = False
        for item in walk(buffer, segment.salt, segment.base_offset):
            if isinstance(item, Broken):
                torn = item.first_offset >= durable
                if torn:
                    break
                if item.next_offset is not None:
                    self._lost(segment, item.position, item.next_offset, item.reason)
                segment.tail = (item.next_offset or segment.next_offset, item.next_position)
            else:
                segment.add(item.header)
                if doubtful is None and item.header.next_offset > durable:
                    doubtful = item.position
        if segment.salt is not UNKNOWN and (torn or doubtful is not None):
            file = self.files.open(segment.path)
            try:
                if torn:
                    file.truncate(segment.size_bytes)
                if doubtful is not None:
                    file.overwrite(doubtful, buffer[doubtful : segment.size_bytes])
                file.sync()
            finally:
                file.close()
        return torn

    def _read_salt(self, segment: Segment, buffer: memoryview) -> None:
        header = decode_header(buffer, segment.path)
        if header is None:
            return
        segment.salt = header.salt
        if not header.is_whole:
            first, reason = segment.base_offset, "one of the two copies of its header is damaged"
            self.damage.append(Damage(segment.name, 0, first, first, reason))

    def _seal(self, segment: Segment) -> None:
        if (
            segment.salt is UNKNOWN
        ):  # nothing of it can be read, and nobody is to believe that it can
            return
        try:
            seal(self.files, segment)
            segment.index = None
        except OSError as exc:
            # A log on a full disk can be opened and read: the index is in memory, and is laid
            # down when the log is opened with room.
            if not is_out_of_room(exc):
                raise

    def _drop_trimmed(self, segments: list[Segment]) -> list[Segment]:
        """Without those that a trim had not yet removed, or that came back with a power cut."""
        trimmed = [s for s, after in pairwise(segments) if after.base_offset <= self.start]
        self._remove(*trimmed)
        return segments[len(trimmed) :]

    def _lost(self, segment: Segment, position: int, next_offset: int, reason: str) -> None:
        # What was trimmed is not lost: a power cut may bring back some of its segments, not others.
        first = max(segment.next_offset, self.start)
        if first >= next_offset:
            return
        if segment.salt is UNKNOWN:
            position, reason = 0, HEADER_LOST
        self.damage.append(Damage(segment.name, position, first, next_offset, reason))

    def _remove(self, *segments: Segment) -> None:
        remove_segments(self.files, segments)

    def _path(self, name: str) -> str:
        return os.path.join(self.folder, name)


def seal(files: FileSystem, segment: Segment) -> None:
    """Lay down the index of a segment whose bytes are synced; its name is not synced yet."""
    assert segment.index is not None
    data = segment.index.encode(
        segment.base_offset, segment.next_offset, segment.size_bytes, segment.salt
    )
    write_synced(files, segment.index_path + ".tmp", data)
    files.rename(segment.index_path + ".tmp", segment.index_path)


def remove_segments(files: FileSystem, segments: Iterable[Segment]) -> None:
    """Remove files for good, the index first: an index alone would be a leftover for ever."""
    for segment in segments:
        for path in (segment.index_path, segment.path):
            with suppress(FileNotFoundError):
                files.remove(path)
