"""Looking into the files of a log without opening it. Nothing is locked, changed or believed.

A writer may be at work meanwhile. What is durable is read first, and the files after it, so that
everything below that mark has to be there; what lies behind it and is no whole frame is
unfinished: being written at this moment, or left by a crash for the next open to cut. That is
no damage, because nobody was promised it. The rules are those of `recovery`, which mends what
this module only tells of.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress

from penstock.errors import LogError, LogNotFound
from penstock.log.files import DiskFiles, FileSystem
from penstock.log.index import IndexDamaged
from penstock.log.recovery import list_segments
from penstock.log.report import Finding, LogReport, SegmentReport
from penstock.log.segment import Segment, is_index_name, load_index, parse_segment_name
from penstock.log.segment_header import decode_header
from penstock.log.segment_scan import OnBytes, Options, SegmentScan, unreadable
from penstock.log.watermarks import DURABLE_FILE, START_FILE, read_mark

_LOOKS_MAX = 100  # at a folder whose files come and go while it is looked at
_READ_BYTES_MAX = 1 << 30  # of one segment at once
_PARENTS_MAX = 3  # how far above a log the lock of its data folder may be


def find_logs(folder: str | os.PathLike[str]) -> list[str]:
    """The folder itself if it holds a log, and every folder below it that does."""
    found = []
    # Not through a FileSystem: a log never looks for others. Links to folders are not followed.
    for path, folders, names in os.walk(os.fspath(folder)):
        folders.sort()
        if any(parse_segment_name(n) or is_index_name(n) or n == DURABLE_FILE for n in names):
            found.append(path)
    return found


def inspect_log(
    folder: str | os.PathLike[str],
    options: Options | None = None,
    *,
    files: FileSystem | None = None,
    on_bytes: OnBytes | None = None,
) -> LogReport:
    """Everything that is in the folder of a log, and all that is wrong with it."""
    look = _LogLook(os.fspath(folder), options or Options(), files or DiskFiles(), on_bytes)
    report: LogReport | None = None
    for _ in range(_LOOKS_MAX):
        before = report
        try:
            report = look.run()
        except FileNotFoundError:
            continue  # trimmed or compacted between two of our steps
        # A listing may miss files that are exchanged meanwhile: damage has to be seen twice.
        if not report.damage or (before and report.damage == before.damage):
            return report
    if report is None:
        raise LogError(f"{look.folder}: its files change faster than they can be read; try again")
    return report


def segment_bytes(folder: str | os.PathLike[str], *, files: FileSystem | None = None) -> int:
    """How many bytes a look into a log has to go through."""
    files = files or DiskFiles()
    total = 0
    for segment in list_segments(files, os.fspath(folder))[0]:
        with suppress(FileNotFoundError):
            total += files.size(segment.path)
    return total


def inspect_segment(
    path: str | os.PathLike[str],
    options: Options | None = None,
    *,
    files: FileSystem | None = None,
    on_bytes: OnBytes | None = None,
) -> LogReport:
    """One segment, whatever its file is called and wherever it lies."""
    path = os.fspath(path)
    folder, name = os.path.split(path)
    look = _LogLook(folder or ".", options or Options(), files or DiskFiles(), on_bytes)
    parsed = parse_segment_name(name)
    if is_index_name(name):
        segment_name = name.removesuffix(".index") + ".log"
        raise LogError(f"{path} is an index; look at its segment {segment_name} or at the folder")
    segment = Segment(folder, *(parsed or (0, 0)))
    segment.path = path
    return look.run_one(segment, is_named=parsed is not None)


class _LogLook:
    """One pass over a log. Sealed segments never change, so that a second pass is quick."""

    def __init__(
        self, folder: str, options: Options, files: FileSystem, on_bytes: OnBytes | None
    ) -> None:
        self.folder = folder
        self.options = options
        self.files = files
        self.on_bytes = on_bytes or (lambda _: None)
        self.sealed: dict[str, SegmentReport] = {}
        self.report = LogReport(folder=folder)
        self.durable = 0

    def run(self) -> LogReport:
        self._read_marks()
        segments, leftovers = self._list()
        for segment in segments:
            self._believe_index(segment)
        self.report.durable = self.durable
        if not segments and not self.durable:
            raise LogNotFound(f"there is no log in {self.folder}")
        if segments and self.report.start_mark is None and self.report.damage:
            self.report.start = segments[0].base_offset  # the mark is there, but nobody can read it
        for name in leftovers:
            self._note(name, "left by a step that was interrupted; the next open removes it")
        self._in_order(segments)
        self._check_ends()
        return self.report

    def run_one(self, segment: Segment, *, is_named: bool) -> LogReport:
        self._read_marks()
        self.report.findings.clear()  # of marks: they are not what was asked for
        data = self._read(segment)
        if not is_named or self.report.durable_mark is None:
            header = decode_header(data, segment.path)
            segment.base_offset = header.base_offset if header else segment.base_offset
            self.durable = 1 << 63  # nothing says that a part of it may be unfinished
        else:
            self._believe_index(segment)
        is_last = all(other.base_offset <= segment.base_offset for other in self._list()[0])
        seen = self._look_into(segment, data, is_last=is_last)
        self.report.segments.append(seen)
        self.report.start = max(self.report.start_mark or 0, seen.base_offset)
        self.report.durable = self.report.end = seen.next_offset
        return self.report

    def _list(self) -> tuple[list[Segment], list[str]]:
        try:
            return list_segments(self.files, self.folder)
        except (FileNotFoundError, NotADirectoryError):
            raise LogNotFound(f"there is no folder {self.folder}") from None

    # The marks.

    def _read_marks(self) -> None:
        self.report = LogReport(folder=self.folder, writer=_writer_of(self.files, self.folder))
        self.report.start_mark = self._mark(START_FILE)
        self.report.durable_mark = self._mark(DURABLE_FILE)
        self.report.start = self.report.start_mark or 0
        self.durable = max(self.report.durable_mark or 0, self.report.start)

    def _mark(self, name: str) -> int | None:
        path = os.path.join(self.folder, name)
        for _ in range(_LOOKS_MAX):  # the writer may be overwriting it at this moment
            mark = read_mark(self.files, path)
            if mark is not None:
                return mark
        try:
            data = self.files.read(path)
        except FileNotFoundError:
            return None
        what = f"it does not hold an offset with its checksum: {data[:16].hex(' ') or 'no bytes'}"
        if name == START_FILE:
            self._damage(name, what)
        else:  # it is never synced, so that a power cut may leave anything in it
            self._note(name, f"{what}; the next open writes it again")
        return None

    def _believe_index(self, segment: Segment) -> None:
        """A valid index says that its segment is on disk, as a mark does."""
        try:
            header, _ = load_index(self.files, segment)
        except IndexDamaged:
            return
        self.durable = max(self.durable, header.next_offset)

    # The segments.

    def _in_order(self, segments: list[Segment]) -> None:
        """Look at each segment, and at what should be between it and the one before."""
        kept = self.report.segments
        for number, segment in enumerate(segments):
            before = kept[-1] if kept else None
            expected = before.next_offset if before else self.report.start
            if before and segment.base_offset < expected:
                self._note(segment.name, "a compacted segment has its messages; left to be removed")
                continue
            if segment.base_offset > expected:
                if before and expected >= self.durable:
                    self._cut(segments[number:])
                    return
                self._missing(before, segment)
            seen = self._look_at(segment, is_last=number + 1 == len(segments))
            kept.append(seen)
            if seen.unfinished_bytes:
                self._cut(segments[number + 1 :])
                return
            if not seen.is_last and seen.next_offset <= self.report.start:
                self._note(segment.name, "all of it was trimmed; the next open removes it")

    def _look_at(self, segment: Segment, *, is_last: bool) -> SegmentReport:
        seen = self.sealed.get(segment.path)
        if seen is None:
            try:
                seen = self._look_into(segment, self._read(segment), is_last=is_last)
            except FileNotFoundError:
                raise
            except OSError as exc:
                return unreadable(segment, exc, is_last=is_last)
            if seen.index == "ok" and not seen.findings:
                self.sealed[segment.path] = seen
        return seen

    def _look_into(self, segment: Segment, data: memoryview, *, is_last: bool) -> SegmentReport:
        look = SegmentScan(self.files, self.options, self.on_bytes)
        start, durable = self.report.start, self.durable
        return look.run(segment, data, start=start, durable=durable, is_last=is_last)

    def _read(self, segment: Segment) -> memoryview:
        # A copy: where a disk is bad, or a writer cuts its file, a mapped page kills the process.
        if self.files.size(segment.path) <= _READ_BYTES_MAX:
            return memoryview(self.files.read(segment.path))
        return self.files.map(segment.path, 0, self.files.size(segment.path))

    def _missing(self, before: SegmentReport | None, segment: Segment) -> None:
        start = self.report.start
        if segment.base_offset <= start:
            return
        if before and before.torn:
            before.torn.next_offset = segment.base_offset
            return
        reason = "no segment after this one holds them"
        if before is None:
            reason = "no segment holds them, and no mark says that they were trimmed"
        file, expected = (before.file, before.next_offset) if before else (segment.name, start)
        self._lost(file, None, max(expected, start), segment.base_offset, reason)

    def _cut(self, later: list[Segment]) -> None:
        for segment in later:
            self._note(segment.name, "it follows an unfinished write; the next open removes it")

    def _check_ends(self) -> None:
        report = self.report
        last = report.segments[-1] if report.segments else None
        end = last.next_offset if last else 0
        report.end = max(end, self.durable)
        if end < self.durable:
            if last and last.torn:
                last.torn.next_offset = self.durable
                return
            file, position = (last.file, last.size_bytes) if last else (DURABLE_FILE, None)
            first = max(end, report.start)  # what was trimmed is not lost
            if first < self.durable:
                self._lost(file, position, first, self.durable, "they were durable, and are gone")

    def _damage(self, file: str, reason: str) -> None:
        self.report.findings.append(Finding(file=file, reason=reason))

    def _lost(self, file: str, position: int | None, first: int, after: int, reason: str) -> None:
        self.report.findings.append(
            Finding(
                file=file,
                reason=reason,
                position=position,
                first_offset=first,
                next_offset=after,
            )
        )

    def _note(self, file: str, reason: str) -> None:
        self.report.findings.append(Finding(file=file, reason=reason, is_damage=False))


def _writer_of(files: FileSystem, folder: str) -> str | None:
    """Who holds the lock of a log or of the data folder above it, as far as can be seen.

    Trying the lock would tell, too, but for that moment a writer that starts would be refused.
    """
    try:
        held = set(_flocks(files.read("/proc/locks").decode()))
    except OSError:
        return None
    path = os.path.abspath(folder)
    for _ in range(1 + _PARENTS_MAX):
        lock = os.path.join(path, "LOCK")
        try:
            owner = files.read(lock, 4096).decode(errors="replace").strip()
            inode = os.stat(lock).st_ino
        except OSError:
            owner, inode = "", 0
        named = re.match(r"process (\d+)\b", owner)
        # The same process may hold the locks of other folders, and have left this one.
        if named and (int(named[1]), inode) in held:
            return owner
        path = os.path.dirname(path)
    return None


def _flocks(locks: str) -> Iterator[tuple[int, int]]:
    """Process and inode, from lines such as `3: FLOCK  ADVISORY  WRITE 4711 00:2a:101 0 EOF`."""
    for line in locks.splitlines():
        words = line.split()
        if len(words) > 5 and words[1] == "FLOCK" and words[3] == "WRITE":
            pid, inode = words[4], words[5].rpartition(":")[2]
            if pid.isdigit() and inode.isdigit():
                yield int(pid), int(inode)
