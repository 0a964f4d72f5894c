"""Compaction: sealed segments are written again without what nobody needs.

Gone are messages that have expired, those that no reader needs any more (`Needs`) and, in a keyed
log, those that a later message of the same key supersedes; small frames are merged. Offsets stay as
they are: a frame that lost rows keeps its span and stores the offsets of those that are left.

Crash safety: the new segment is written under a temporary name and synced, then it gets the name of
the next generation, then the folder is synced, and only then the old files go. Whatever is left
of an interrupted run is removed at open. The writer is held up only while the list of segments
is exchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from penstock.errors import DiskFull, LogClosed, LogError, OffsetOutOfRange, TooManyOpenFiles
from penstock.log.base import Needs
from penstock.log.files import File, FileSystem, is_out_of_room
from penstock.log.index import SegmentIndex
from penstock.log.recovery import remove_segments, seal
from penstock.log.segment import Broken, Segment, begin_segment, walk
from penstock.record import compute as pc
from penstock.record.batch import Batch
from penstock.record.frame import FrameHeader, decode_rows
from penstock.record.schema import BITS, new_batch_ulid
from penstock.record.writing import FrameProducer, encode, resalted

if TYPE_CHECKING:
    from penstock.log.local import LocalLog

MERGED_FRAME_BYTES = 64 << 10
"""Frames are merged up to about this size; larger ones are left as they are."""

SPAN_MAX = 1 << 31
"""Frames without rows weigh nothing; their span has 32 bits all the same."""

TOMBSTONE_US = 24 * 60 * 60 * 1_000_000
"""A message with a key and no value deletes the key. It stays this long, so that readers see it."""


class Compaction(NamedTuple):
    """What a run did."""

    segments_before: int
    segments_after: int
    bytes_before: int
    bytes_after: int
    messages_removed: int


def compact(
    log: LocalLog, files: FileSystem, keep: Keep, since: int = 0, removed_share_min: float = 0
) -> Compaction:
    """Rewrite the sealed segments of a log, group by group, where that saves something."""
    sealed = [
        each for each in log.segments[:-1] if each.index is None and each.base_offset >= since
    ]
    after: list[Segment] = []
    removed = 0
    for group in _groups(sealed, log.config.segment_bytes):
        log.check_open()
        rewrite = _Rewrite(log, files, group, keep)
        try:
            if rewrite.is_worthwhile(removed_share_min):
                after.append(rewrite.run(new_batch_ulid(keep.now_us * 1000)))
                removed += rewrite.removed
            else:
                after += group
                if rewrite.is_damaged:  # what was deleted may be in it, and must not come back
                    keep = keep._replace(deletions=True)
        except FileNotFoundError as exc:
            if set(group) <= set(log.segments):
                raise LogError(f"{log.folder}: a segment is missing: {exc}") from exc
            # Otherwise it was trimmed meanwhile, and needs no compaction any more.
    return Compaction(
        len(sealed),
        len(after),
        sum(segment.size_bytes for segment in sealed),
        sum(segment.size_bytes for segment in after),
        removed,
    )


class Keep(NamedTuple):
    """Which messages stay."""

    start: int
    now_us: int
    latest: np.ndarray[Any, np.dtype[np.int64]] | None
    """The last offset of every key, ascending; None for a log without keys."""
    needs: Needs | None = None
    """What readers have to say."""
    deletions: bool = False
    """Whether also those stay that deleted a key long ago."""

    def may_remove(self, frame: FrameHeader) -> bool:
        """Whether a frame may have rows that go; so that the others need not be decoded."""
        return (
            self.latest is not None
            or bool(frame.columns & BITS["expires_at"])
            or frame.base_offset < self.start
            or (self.needs is not None and self.needs.has_unneeded)
        )

    def mask(self, batch: Batch) -> np.ndarray[Any, np.dtype[np.bool_]]:
        offsets = batch.offset_numbers()
        keep = offsets >= self.start
        if batch.columns & BITS["expires_at"]:
            expires = np.asarray(pc.fill_null(batch.expires_at.view(pa.int64()), 1 << 62))
            keep &= expires > self.now_us
        if self.latest is not None and batch.columns & BITS["key"]:
            has_key = np.asarray(pc.is_valid(batch.keys))
            deletes = has_key & np.asarray(pc.is_null(batch.values))
            if self.deletions:
                deletes[:] = False
            forgotten = deletes & (batch.timestamps_us() < self.now_us - TOMBSTONE_US)
            keep &= ~has_key | (np.isin(offsets, self.latest) & ~forgotten)
        if self.needs is not None:
            keep &= ~self.needs.unneeded(offsets)
            keep |= self.needs.needed(offsets) & (offsets >= self.start)
        return keep


def latest_offsets(log: LocalLog) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The last offset of every key. Memory grows with the number of keys, not of messages."""
    latest = pa.table({"key": pa.array([], pa.binary()), "offset": pa.array([], pa.int64())})
    offset, end = log.start, log.durable_end
    while offset < end:
        try:
            batches = log.read(offset, 16 << 20)
        except OffsetOutOfRange as exc:  # trimmed meanwhile
            offset = exc.start
            continue
        parts = [latest]
        for batch in batches:
            if batch.columns & BITS["key"]:
                columns = {"key": batch.keys, "offset": batch.offsets}
                # A message that a power cut may still take supersedes nothing.
                counts = pc.field("key").is_valid() & (pc.field("offset") < end)
                parts.append(pa.table(columns).filter(counts))
        grouped = pa.concat_tables(parts).group_by("key").aggregate([("offset", "max")])
        latest = grouped.rename_columns({"offset_max": "offset"}).select(["key", "offset"])
        offset = batches.next_offset
    return np.sort(np.asarray(latest.column("offset")))


def _groups(sealed: Iterable[Segment], segment_bytes: int) -> Iterator[list[Segment]]:
    """Neighbours that fit into one segment together."""
    group: list[Segment] = []
    size = 0
    for segment in sealed:
        follows = not group or group[-1].next_offset == segment.base_offset
        if group and (size + segment.size_bytes > segment_bytes or not follows):
            yield group
            group, size = [], 0
        group.append(segment)
        size += segment.size_bytes
    if group:
        yield group


class _Rewrite:
    """Some neighbouring segments, on their way to being one."""

    def __init__(self, log: LocalLog, files: FileSystem, group: list[Segment], keep: Keep) -> None:
        self.log = log
        self.files = files
        self.group = group
        self.keep = keep
        self.removed = 0
        self.is_damaged = False
        self.new = Segment(log.folder, group[0].base_offset, _next_generation(group))
        self.new.index = SegmentIndex(log.config.index_interval_bytes)

    def is_worthwhile(self, removed_share_min: float) -> bool:
        """Whether messages go, or half of the frames, or a file. Never where there is damage."""
        frames = merged = room = rows = removed = 0
        removes = len(self.group) > 1
        for segment in self.group:
            buffer = self.files.map(segment.path, 0, segment.size_bytes)
            for item in walk(buffer, segment.salt, segment.base_offset):
                if isinstance(item, Broken):
                    self.is_damaged = True
                    return False
                frames += 1
                room -= item.header.raw_bytes
                if room < 0:
                    merged, room = merged + 1, MERGED_FRAME_BYTES - item.header.raw_bytes
                if not removes and item.header.row_count and self.keep.may_remove(item.header):
                    keep = self.keep.mask(decode_rows(buffer, item.position, item.header))
                    rows += len(keep)
                    removed += int(len(keep) - keep.sum())
                    removes = removed > 0 and not removed_share_min
        removes = removes or (removed > 0 and removed >= removed_share_min * rows)
        return removes or merged * 2 <= frames

    def run(self, ulid: int) -> Segment:
        """Write the new segment and put it in the place of the old ones."""
        needed = sum(segment.size_bytes for segment in self.group)
        if self.files.free_bytes(self.log.folder) < needed + self.log.config.free_bytes_min:
            raise DiskFull(f"{self.log.folder}: compaction needs {needed >> 20} MB of room")
        path = self.new.path
        try:
            file = begin_segment(self.files, self.new, path + ".tmp")
            try:
                self._write_frames(file, ulid)
                file.sync()
            finally:
                file.close()
            seal(self.files, self.new)
            self.files.rename(path + ".tmp", path)
            self.files.sync_folder(self.log.folder)
        except (OSError, LogClosed) as exc:
            with suppress(OSError):  # what stays behind is removed at the next open
                self.files.remove(path + ".tmp")
            if isinstance(exc, FileNotFoundError | LogClosed | TooManyOpenFiles):
                raise
            error = DiskFull if is_out_of_room(exc) else LogError
            raise error(f"{path}: compaction stopped, nothing is lost: {exc}") from exc
        self.new.index = None
        if not self.log.replace_segments(self.group, self.new):
            remove_segments(self.files, [self.new])  # they were trimmed meanwhile
        return self.new

    def _write_frames(self, file: File, ulid: int) -> None:
        pending: list[tuple[FrameHeader, Batch, memoryview | None]] = []
        pending_bytes = 0
        for header, batch, raw in self._frames():
            size = header.raw_bytes * len(batch) // max(header.row_count, 1)
            full = pending_bytes + size > MERGED_FRAME_BYTES
            if pending and (full or header.next_offset - pending[0][0].base_offset > SPAN_MAX):
                self._write_merged(file, pending, ulid)
                pending, pending_bytes, ulid = [], 0, ulid + (1 << 24)
            pending.append((header, batch, raw))
            pending_bytes += size
        self._write_merged(file, pending, ulid)

    def _frames(self) -> Iterator[tuple[FrameHeader, Batch, memoryview | None]]:
        """Each frame with the rows that stay, and its bytes if they can stay as they are."""
        for segment in self.group:
            buffer = self.files.map(segment.path, 0, segment.size_bytes)
            for item in walk(buffer, segment.salt, segment.base_offset):
                self.log.check_open()
                if isinstance(item, Broken):
                    raise LogError(f"{segment.path}: damaged at byte {item.position}")
                header = item.header
                batch = decode_rows(buffer, item.position, header)
                keep = self.keep.mask(batch) if self.keep.may_remove(header) else None
                if keep is None or keep.all():
                    yield header, batch, buffer[item.position :][: header.frame_bytes]
                else:
                    self.removed += int(len(keep) - keep.sum())
                    yield header, batch.filter(keep), None

    def _write_merged(
        self, file: File, pending: list[tuple[FrameHeader, Batch, memoryview | None]], ulid: int
    ) -> None:
        first, last = pending[0][0], pending[-1][0]
        raw = pending[0][2]
        if len(pending) == 1 and raw is not None:
            file.append(resalted([raw], self.new.salt))
            self.new.add(first)
            return
        batch = Batch.concat([batch for _, batch, _ in pending if len(batch)] or [pending[0][1]])
        span = last.next_offset - first.base_offset
        if len(batch) != span:
            batch = batch.placed()
        config = self.log.config
        frame = encode(
            batch,
            first.base_offset,
            ulid,
            codec=config.codec,
            by=FrameProducer(term=last.term),
            span=span,
            salt=self.new.salt,
            codec_level=config.codec_level,
            compress_bytes_min=config.compress_bytes_min,
        )
        file.append(frame.buffers)
        self.new.add(frame)


def _next_generation(group: list[Segment]) -> int:
    return max(segment.generation for segment in group) + 1
