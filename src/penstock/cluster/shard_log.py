"""A log of a shard: the files of this node, and the shard's stream, which is the truth about it.

An append is written to the files, so that reads and everything that the broker decides go on at
once, and goes to the stream in the same order as the appends to all other logs of the shard. Up to
`durable_end` it is committed: the mark `durable` says so, without ever being synced. What lies
behind that in the files when the owner fails was perhaps never committed: it is cut off before the
log is opened again, and comes back from the stream if it was.

The files are a cache. They are not synced; after the machine has lost power they are thrown away.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from itertools import pairwise
from typing import Protocol

import msgspec

from penstock.clock import Clock
from penstock.cluster.records import ROLL, Draft, RecordKind, trimmed
from penstock.config import LogConfig
from penstock.errors import CacheDamaged, LogError
from penstock.log.base import DONE, Needs
from penstock.log.commit import Committer
from penstock.log.compact import Compaction
from penstock.log.files import FileSystem, is_out_of_room, write_synced
from penstock.log.index import IndexDamaged
from penstock.log.local import LocalLog
from penstock.log.reader import SegmentList
from penstock.log.recovery import list_segments, remove_segments, seal
from penstock.log.segment import Segment, ValidFrame, load_index, walk
from penstock.log.segment_header import decode_header
from penstock.log.watermarks import DURABLE_FILE, read_mark, write_start
from penstock.record.frame import read_header
from penstock.record.salt import PLAIN
from penstock.record.schema import BatchUlids
from penstock.record.writing import EncodedFrame, resalted


class Order(Protocol):
    """The order of all appends to a shard, as one of its logs sees it."""

    tells_each: bool
    """Whether who appends has to know when that is committed. Not where nothing is answered before
    all that was appended so far is: one wait is enough."""

    def check_room(self, size_bytes: int, *, for_messages: bool) -> None: ...

    def append(
        self, draft: Draft, size_bytes: int = 0, then: Callable[[int], None] | None = None
    ) -> Future[None]: ...

    def barrier(self) -> Future[None]: ...

    def wait(self, future: Future[None]) -> None:
        """Until it is committed. Raises ShardLost."""
        ...

    def trim_stored(self, log: ShardLog, before: int) -> None:
        """The stream says that a log begins there from now on."""
        ...

    def aside(self, work: Callable[[], None]) -> None:
        """Do something later that may wait for the disk."""
        ...

    def broken(self, log: ShardLog, error: LogError) -> None:
        """The files of a log cannot be written to: nothing more may be confirmed."""
        ...


class ShardLog(LocalLog):
    """See above. Without an order it follows: what it gets is committed already."""

    number: int
    _order: Order | None = None
    _rolled = False
    """Whether the next frame is the first of a file."""
    _last: Future[None] = DONE
    _trimmed_to = 0

    @classmethod
    def of_shard(
        cls,
        folder: str,
        number: int,
        config: LogConfig,
        *,
        clock: Clock,
        files: FileSystem,
        committer: Committer,
        order: Order | None,
        ulids: BatchUlids | None = None,
    ) -> ShardLog:
        """Raises CacheDamaged if the files do not hold what was committed."""
        committed = cut_to_committed(files, folder)
        log = cls(folder, _unsynced(config), clock, files, committer, False, ulids)
        log.number = number
        log._order = order
        log._trimmed_to = log._start
        if log.end != committed or log._damage:
            log._order = None
            log.close()
            raise CacheDamaged(f"{folder} ends at {log.end}, and {committed} was committed")
        return log

    # What the owner does.

    def sync(self) -> None:
        """Until all of the shard that was appended so far is committed."""
        self.check_open()
        if self._order is not None:
            self._order.wait(self._order.barrier())
        if self._failure:
            raise self._failure

    def ordered(self) -> None:
        """Nothing: all logs of a shard are in one order."""

    def sync_soon(self) -> Future[None]:
        return DONE if self._order is None else self._order.barrier()

    def roll(self) -> None:
        super().roll()
        self._rolled = True

    def reconfigure(self, config: LogConfig) -> None:
        super().reconfigure(_unsynced(config))

    def trim(self, before: int) -> None:
        """The files go once the stream says so."""
        if self._order is None:
            self._forget(before)
            return
        before = min(before, self.end)
        if before <= self._start:
            return
        if before == self.end:
            self.roll()
        self.check_open()
        with self._write_lock:
            self._check_writable()
            self._start = before
            stored = partial(self._trim_stored, before)
            self._last = self._order.append(trimmed(self.number, before), then=stored)

    def compact(
        self,
        now_us: int,
        *,
        keyed: bool = False,
        since: int = 0,
        needs: Needs | None = None,
        removed_share_min: float = 0,
    ) -> Compaction:
        """Nothing: the files are what the stream holds."""
        count, size_bytes = self.segment_count, self.size_bytes
        return Compaction(count, count, size_bytes, size_bytes, 0)

    def close(self) -> None:
        if self._order is not None and not self._closed and self._failure is None:
            if not self._last.done():
                self._order.wait(self._last)
            self._forget(self._trimmed_to)
        super().close()

    # What the stream says. One thread at a time.

    def committed(self, next_offset: int) -> None:
        """All below is in the stream."""
        if next_offset <= self._durable_end or self._released:
            return
        self._durable_end = next_offset
        try:
            self._mark.write(next_offset)
        except OSError as exc:
            self._fail(exc)

    def take(self, data: memoryview, flags: int) -> None:
        """Frames from the stream, as they stand alone; those that are here are passed over."""
        if flags & ROLL:
            LocalLog.roll(self)
        position, now_us = 0, self._clock.wall_ns() // 1000
        while position < len(data):
            header = read_header(data, position)
            after = position + header.frame_bytes
            if header.next_offset > self.end:
                if header.base_offset != self.end:
                    raise CacheDamaged(
                        f"{self.folder} ends at {self.end}, and the stream goes on at "
                        f"{header.base_offset}"
                    )
                frame = EncodedFrame(
                    resalted([data[position:after]], self._active.salt),
                    header.frame_bytes,
                    header.raw_bytes,
                    header.base_offset,
                    header.next_offset,
                    header.row_count,
                    header.last_timestamp,
                    header.priorities,
                )
                with self._write_lock:
                    LocalLog._append(self, frame, now_us)
            position = after
        if self._waiting:
            self._notify()
        self.committed(self.end)
        if self._failure:
            raise self._failure

    def _trim_stored(self, before: int, seq: int) -> None:
        self._trimmed_to = max(self._trimmed_to, before)
        if self._order is not None:
            self._order.trim_stored(self, before)
            self._order.aside(partial(self._forget, self._trimmed_to))

    def _forget(self, before: int) -> None:
        """Remove the files of what is below."""
        with self._commit_lock:
            if self._released or before <= (read_mark(self._files, self._start_path) or 0):
                return
        self._commit(active_too=False)  # a segment that is sealed later would leave its index
        with self._commit_lock:
            if self._released:
                return
            try:
                write_start(self._files, self.folder, before)
            except OSError as exc:
                self._fail(exc)
                return
            with self._write_lock:
                self._start = max(self._start, before)
                segments = self._list.segments
                gone = [s for s, after in pairwise(segments) if after.base_offset <= before]
                self._list = SegmentList.of(segments[len(gone) :])
            self._discard(gone)

    @property
    def _start_path(self) -> str:
        return os.path.join(self.folder, "start")

    # The write lock is held.

    def _append(self, frame: EncodedFrame, now_us: int) -> Future[None]:
        order = self._order
        if order is None:
            return super()._append(frame, now_us)
        order.check_room(frame.frame_bytes, for_messages=self.config.free_bytes_min > 0)
        super()._append(frame, now_us)
        flags, self._rolled = (ROLL if self._rolled else 0), False
        plain = resalted(frame.buffers, PLAIN)
        end = frame.next_offset
        self._last = order.append(
            Draft(RecordKind.FRAMES, self.number, plain, flags, end),
            frame.frame_bytes,
            lambda seq: self.committed(end),
        )
        return self._last if order.tells_each else DONE

    def _plan_commit(self) -> Future[None]:
        """Nothing is synced here."""
        return DONE

    def _commit(self, *, active_too: bool) -> None:
        """Give the segments that are full their indexes; what is committed the stream says."""
        with self._commit_lock:
            with self._write_lock:
                unsynced, self._unsynced = self._unsynced, []
                self._unnamed = None
                self._commit_is_due = False
            for segment, file in unsynced:
                file.close()
                try:
                    seal(self._files, segment)
                    segment.index = None
                except OSError as exc:
                    if not is_out_of_room(exc):
                        self._fail(exc)

    def _fail(self, exc: BaseException) -> LogError:
        failure = super()._fail(exc)
        if self._order is not None:
            self._order.broken(self, failure)
        return failure


def cut_to_committed(files: FileSystem, folder: str) -> int:
    """Remove from a closed log what is not known to be committed; where it ends now."""
    try:
        segments, _ = list_segments(files, folder)
    except FileNotFoundError:
        return 0
    end = read_mark(files, os.path.join(folder, DURABLE_FILE))
    if end is None:
        if segments and any(files.size(each.path) > 64 for each in segments):
            raise CacheDamaged(f"{folder}: nobody knows what of it was committed")
        end = read_mark(files, os.path.join(folder, "start")) or 0
    while segments and segments[-1].base_offset > end:
        remove_segments(files, [segments.pop()])
    if segments:
        _cut(files, segments[-1], end)
    return end


def _cut(files: FileSystem, segment: Segment, end: int) -> None:
    """Cut the last segment there."""
    try:
        if load_index(files, segment)[0].next_offset <= end:
            return
        files.remove(segment.index_path)
    except IndexDamaged:
        pass
    buffer = files.map(segment.path, 0, files.size(segment.path))
    header = decode_header(buffer, segment.path)
    if header is None:
        return  # it was only being made
    for item in walk(buffer, header.salt, segment.base_offset):
        if isinstance(item, ValidFrame) and item.header.next_offset <= end:
            continue
        # In a new file: somebody may still have the pages of this one mapped.
        write_synced(files, segment.path + ".tmp", buffer[: item.position])
        files.rename(segment.path + ".tmp", segment.path)
        return


def _unsynced(config: LogConfig) -> LogConfig:
    """The same, but that the files are never synced: what is committed lasts in the stream."""
    return msgspec.structs.replace(config, fsync="never")
