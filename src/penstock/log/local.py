"""The log in a folder of this machine."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Iterable
from concurrent.futures import Future
from itertools import pairwise
from types import TracebackType
from typing import Self

from msgspec.structs import replace

from penstock.clock import Clock, SystemClock
from penstock.config import LogConfig, Retention
from penstock.errors import (
    AccessDenied,
    DiskFull,
    FrameError,
    LogError,
    LogFailed,
    ReadOnlyFileSystem,
    TooManyOpenFiles,
    storage_error,
)
from penstock.forks import abandon_in_children
from penstock.log.base import DONE, Appended, Needs
from penstock.log.commit import SHARED, Committer
from penstock.log.compact import Compaction, Keep, compact, latest_offsets
from penstock.log.durable import DurableLog, Unsynced
from penstock.log.files import DiskFiles, File, FileSystem, is_out_of_room
from penstock.log.index import NO_TIME, SegmentIndex
from penstock.log.reader import SegmentList
from penstock.log.recovery import recover, remove_segments
from penstock.log.segment import Segment, begin_segment
from penstock.log.segment_header import SEGMENT_HEADER_BYTES
from penstock.log.watermarks import DurableMark, write_start
from penstock.record.batch import Batch
from penstock.record.frame import EXPIRES, HEADER_BYTES, read_header
from penstock.record.plain import Single
from penstock.record.schema import BatchUlids
from penstock.record.writing import (
    COMPRESS_BYTES_MIN,
    NOBODY,
    SINGLE_BYTES_MAX,
    EncodedFrame,
    FrameProducer,
    check_messages,
    encode,
    encode_single,
    resalted,
)

_logger = logging.getLogger("penstock.log")

_UNSYNCED_SEGMENTS_MAX = 8  # sealed ones that wait for their fsync before the writer has to wait
_UNLOOKED_BYTES_MAX = 16 << 20  # written before anybody looks again whether there is room
_UNLOOKED_PART = 1000  # of the room that there is: many logs may write to one disk


class LocalLog(DurableLog):
    """A log of segments in a folder that this process alone writes to.

    Any thread may call anything. Appends are serialised by a lock that is held for the write, never
    for an fsync; readers take no lock. An fsync covers every append before it, so concurrent
    appends with `always` share one. A write or fsync that fails otherwise than for lack of room
    stops the log: it takes no more appends, says why, and is recovered by being opened again.
    """

    @classmethod
    def open(
        cls,
        folder: str | os.PathLike[str],
        config: LogConfig | None = None,
        *,
        clock: Clock | None = None,
        files: FileSystem | None = None,
        committer: Committer | None = None,
        lock: bool = True,
        ulids: BatchUlids | None = None,
    ) -> Self:
        """Open a log, or make a new one. What a crash left is put in order first.

        `lock=False` is for a caller that holds the lock on the data folder above this one. Logs
        that share `ulids` give their messages ids that are in one order.
        """
        # Absolute, since the process may go to another folder while the log is open.
        return cls(
            os.fspath(folder) if files else os.path.abspath(folder),
            config or LogConfig(),
            clock or SystemClock(),
            files or DiskFiles(),
            committer or SHARED,
            lock,
            ulids,
        )

    def __init__(
        self,
        folder: str,
        config: LogConfig,
        clock: Clock,
        files: FileSystem,
        committer: Committer,
        lock: bool,
        ulids: BatchUlids | None = None,
    ) -> None:
        super().__init__(folder, files, config, committer)
        self._ulids = ulids or BatchUlids()
        self._clock = clock
        self._compact_lock = threading.Lock()  # taken before all others
        # Taken as it is, not by way of the condition, which a Ctrl-C could leave locked for ever.
        self._news_lock = threading.RLock()
        self._news: threading.Condition | None = None  # made by the first who waits
        self._waiting = 0
        self._released = False
        self._uncounted = False
        """Whether there may be bytes behind the active segment's last frame."""
        self._roomy_until = 0
        """Up to this length of the active segment nobody has to look whether there is room."""
        self._roll_at_us = 0
        self._short_bytes_max = _short_bytes_max(config)

        try:
            files.make_folder(folder)
            self._folder_lock = files.lock(folder, _this_process()) if lock else None
        except OSError as exc:
            raise storage_error(exc, f"{folder} cannot be the folder of a log") from exc
        try:
            found = recover(files, folder, config.index_interval_bytes)
            self._mark = DurableMark(files, folder)
            self._mark.write(found.end)
        except BaseException as exc:
            if self._folder_lock:
                self._folder_lock.release()
            if not isinstance(exc, OSError):
                raise
            if is_out_of_room(exc):
                raise DiskFull(f"{folder}: no room to open the log: {exc}") from exc
            error = storage_error(exc, f"{folder} cannot be opened")
            if isinstance(error, AccessDenied | ReadOnlyFileSystem | TooManyOpenFiles):
                raise error from exc  # nothing is wrong with the log
            raise LogFailed(folder, exc) from exc
        self._list = SegmentList.of(found.segments)
        self.may_expire = _may_expire(found.segments)
        self._active, self._active_file = found.segments[-1], found.active
        self._start, self.end = found.start, found.end
        self._durable_end = found.end
        self._active_since_us = self._first_write_us()
        for damage in found.damage:
            self._report(damage)
        abandon_in_children(self)

    def append(
        self,
        batch: Batch,
        by: FrameProducer = NOBODY,
        *,
        keep_ids: bool = False,
    ) -> Appended:
        """Write a batch as one frame. When this returns, the operating system has it.

        `keep_ids` is for messages that come from another log and stay who they are.
        """
        if batch.base_offset is not None:
            batch = batch.unplaced(keep_ids=keep_ids)
        if self._unsynced and len(self._unsynced) >= _UNSYNCED_SEGMENTS_MAX:
            self._commit_sealed()  # the disk is slower than the writer: wait for it here
        with self._write_lock:
            if self._closed or self._failure:
                self._check_writable()
            config, wall_ns = self.config, self._clock.wall_ns()
            now_us, ulid = wall_ns // 1000, self._ulids.next(wall_ns)
            active = self._active
            frame = encode(
                batch,
                active.tail[0],
                ulid,
                now_us,
                config.codec,
                by,
                None,
                active.salt,
                config.codec_level,
                config.compress_bytes_min,
            )
            # What comes from another log was taken there, by the limit of its time.
            if frame.raw_bytes > config.message_bytes_max and not keep_ids:
                check_messages(batch, config.message_bytes_max)
            durable = self._append(frame, now_us)
        if self._waiting:
            self._notify()
        return Appended(frame.base_offset, frame.next_offset, frame.last_timestamp, ulid, durable)

    def append_value(self, value: bytes, *, is_entry: bool = False) -> Appended:
        """Append a message that is a value and no more: the short way of most of them.

        An entry of a journal is one that nobody asks for by its id, which says when it was written
        and no more. What is not short, or may have to wait for the disk, is appended all the same.
        """
        unsynced = self._unsynced
        if len(value) > self._short_bytes_max or (
            unsynced and len(unsynced) >= _UNSYNCED_SEGMENTS_MAX
        ):
            return self.append(Single(value))
        with self._write_lock:
            if self._closed or self._failure:
                self._check_writable()
            wall_ns = self._clock.wall_ns()
            now_us = wall_ns // 1000
            ulid = wall_ns // 1_000_000 << 80 if is_entry else self._ulids.next(wall_ns)
            active = self._active
            frame = encode_single(value, active.tail[0], ulid, now_us, salt=active.salt)
            durable = self._append(frame, now_us)
        if self._waiting:
            self._notify()
        return Appended(frame.base_offset, frame.next_offset, now_us, ulid, durable)

    def wait(self, offset: int, timeout_s: float | None = None) -> bool:
        """Wait until there is a message at an offset or beyond; False when time is up."""
        with self._news_lock:
            if self._news is None:
                self._news = threading.Condition(self._news_lock)
            self._waiting += 1
            try:
                self._news.wait_for(lambda: self.end > offset or self._closed, timeout_s)
            finally:
                self._waiting -= 1
        return self.end > offset

    def trim(self, before: int) -> None:
        """Forget every offset below `before`, for good. Segments go as soon as all of them did."""
        before = min(before, self.end)
        if before <= self._start:
            return
        if before == self.end:
            self.roll()
        if before > self._durable_end or self._unsynced:
            self.sync()  # a segment that is sealed after it went would leave its index behind
        with self._commit_lock:
            self.check_open()
            try:
                write_start(self._files, self.folder, before)
            except OSError as exc:
                raise self._stopped_by(exc) from exc
            with self._write_lock:
                self._start = before
                segments = self._list.segments
                gone = [s for s, after in pairwise(segments) if after.base_offset <= before]
                self._list = SegmentList.of(segments[len(gone) :])
                self.may_expire = _may_expire(self._list.segments)
            self._discard(gone)

    def retain(self, retention: Retention, now_us: int) -> int:
        """Drop whole segments from the old end as the limits say; how many segments went."""
        before, dropped = self.kept_from(retention, now_us)
        if dropped:
            self.trim(before)
        return dropped

    def kept_from(self, retention: Retention, now_us: int) -> tuple[int, int]:
        """Where the log starts if the limits are applied, and how many segments go."""
        age_ms, bytes_max, most = retention.age_ms, retention.bytes_max, retention.segments_max
        oldest_us = now_us - age_ms * 1000 if age_ms is not None else NO_TIME
        if not self._active.is_empty and self._active.last_timestamp < oldest_us:
            self.roll()
        segments = self._list.segments
        bytes_left, count = self.size_bytes, len(segments)
        for segment in segments[: max(len(segments) - retention.segments_min, 0)]:
            if not (
                segment.last_timestamp < oldest_us
                or (bytes_max is not None and bytes_left > bytes_max)
                or (most is not None and count > most)
            ):
                break
            bytes_left -= segment.size_bytes
            count -= 1
        dropped = len(segments) - count
        return (segments[dropped].base_offset if dropped else self._start), dropped

    def grows_old_us(self, retention: Retention) -> int | None:
        """When the oldest segment reaches the age limit; None if it is kept for ever."""
        segments = self._list.segments
        if (
            retention.age_ms is None
            or self.end <= self._start
            or len(segments) < retention.segments_min
        ):
            return None
        return segments[0].last_timestamp + retention.age_ms * 1000

    def compact(
        self,
        now_us: int,
        *,
        keyed: bool = False,
        since: int = 0,
        needs: Needs | None = None,
        removed_share_min: float = 0,
    ) -> Compaction:
        """Rewrite sealed segments without what nobody needs. Appends and reads go on meanwhile."""
        with self._compact_lock:
            self.sync()
            latest = latest_offsets(self) if keyed else None
            keep = Keep(self.start, now_us, latest, needs)
            return compact(self, self._files, keep, since, removed_share_min)

    @property
    def segment_count(self) -> int:
        return len(self._list.segments)

    def reconfigure(self, config: LogConfig) -> None:
        """Go on with other settings, from the next append on."""
        with self._write_lock:
            self.config = config
            self._short_bytes_max = _short_bytes_max(config)
            self._roomy_until = 0
        # A commit that waits for the old interval would hold up appends of a stricter policy.
        self.committer.schedule(0, self._commit_all)

    def roll(self) -> None:
        """Seal the active segment, if there is anything in it, and start the next one."""
        with self._write_lock:
            self._check_writable()
            if not self._active.is_empty:
                self._roll()

    def replace_segments(self, old: list[Segment], new: Segment) -> bool:
        """Put a compacted segment in the place of its sources, if all of them are still there."""
        with self._commit_lock:
            with self._write_lock:
                segments = self._list.segments
                try:
                    at = segments.index(old[0])
                except ValueError:
                    return False
                if list(segments[at : at + len(old)]) != old:
                    return False
                rest = segments[at + len(old) :]
                self._list = SegmentList.of((*segments[:at], new, *rest))
            self._discard(old)
            return True

    def close(self) -> None:
        """Sync what is open, and let the folder go. A closed log can be read, not written.

        Raises LogFailed, once the folder is let go, if some of it could not be made durable.
        """
        with self._write_lock:
            if self._released:
                return
            self._closed = True
        with self._compact_lock:  # a compaction sees that it is to end, and leaves nothing undone
            pass
        try:
            self._commit(active_too=True)
        except TooManyOpenFiles as exc:
            self._fail(exc)
        with self._commit_lock:
            if self._released:
                return
            self._released = True
            self._active_file.close()
            for unsynced in self._unsynced:
                unsynced.file.close()
            self._mark.close()
            if self._folder_lock:
                self._folder_lock.release()
        self._notify()
        if self._failure and self._durable_end < self.end:
            raise self._failure

    def abandon(self) -> None:
        """This is a forked process: the log is its parent's."""
        self._write_lock, self._commit_lock = threading.Lock(), threading.Lock()
        self._compact_lock, self._news_lock = threading.Lock(), threading.RLock()
        self._news = None
        self._closed = self._released = self._abandoned = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _notify(self) -> None:
        with self._news_lock:
            if self._news is not None:
                self._news.notify_all()

    # Writing. The write lock is held.

    def _append(self, frame: EncodedFrame, now_us: int) -> Future[None]:
        size_bytes = self._active.tail[1] + frame.frame_bytes
        if size_bytes > self._roomy_until or now_us >= self._roll_at_us:
            active = self._active
            self._make_room(frame.frame_bytes, now_us)
            if self._active is not active:
                frame = replace(frame, buffers=resalted(frame.buffers, self._active.salt))
        if self._uncounted:
            self._cut_uncounted()
        self._uncounted = True
        if frame.priorities & EXPIRES:
            self.may_expire = True
        try:
            self._active_file.append(frame.buffers)
            self._active.add(frame)
            self.end = frame.next_offset
        except OSError as exc:
            raise self._not_written(frame, exc) from exc
        except BaseException:  # Ctrl-C: the segment says whether the frame counts
            self.end = self._active.next_offset
            raise
        self._uncounted = False
        if self._commit_is_due and self.config.fsync == "interval":
            return DONE
        return self._plan_commit()

    def _make_room(self, frame_bytes: int, now_us: int) -> None:
        """Look at the disk, and start the next segment if this one is full or old enough.

        To be called when the active segment reaches `_roomy_until`, or time does `_roll_at_us`.
        """
        self._roomy_until = 0  # if there is none, the next one looks too
        config = self.config
        free = self._files.free_bytes(self.folder)
        spare_bytes = free - config.free_bytes_min
        if spare_bytes < frame_bytes:
            raise DiskFull(
                f"{self.folder}: {free >> 20} MB free on its disk; writes stop below "
                f"{config.free_bytes_min >> 20} MB. They go on when there is room."
            )
        age_us = config.segment_age_ms * 1000
        if not self._active.is_empty and (
            self._active.size_bytes + frame_bytes > config.segment_bytes
            or now_us - self._active_since_us >= age_us
        ):
            self._roll()
        if self._active.is_empty:
            self._active_since_us = now_us
        size_bytes = self._active.size_bytes
        unlooked_bytes = min(spare_bytes // _UNLOOKED_PART, _UNLOOKED_BYTES_MAX)
        self._roomy_until = min(size_bytes + max(frame_bytes, unlooked_bytes), config.segment_bytes)
        self._roll_at_us = self._active_since_us + age_us

    def _not_written(self, frame: EncodedFrame, exc: OSError) -> LogError:
        """Remove what a failed write left; the error to raise."""
        try:
            self._active_file.truncate(self._active.size_bytes)
        except OSError as worse:
            return self._stopped_by(worse)  # or the next append removes it
        if is_out_of_room(exc):
            self._roomy_until = 0
            return DiskFull(f"{self.folder}: no room for {frame.frame_bytes} bytes")
        return self._stopped_by(exc)

    def _cut_uncounted(self) -> None:
        """Remove what an interrupted append (Ctrl-C) left behind the last frame: it never was."""
        try:
            self._active_file.truncate(self._active.size_bytes)
        except OSError as exc:
            raise self._stopped_by(exc) from exc
        self._uncounted = False

    def _roll(self) -> None:
        if self._uncounted:
            self._cut_uncounted()
        segment = Segment(self.folder, self._active.next_offset)
        segment.index = SegmentIndex(self.config.index_interval_bytes)
        try:
            file = begin_segment(self._files, segment)
        except OSError as exc:
            if is_out_of_room(exc):
                raise DiskFull(f"{self.folder}: no room for a new segment") from exc
            raise self._stopped_by(exc) from exc
        sealed = Unsynced(self._active, self._active_file)
        try:
            self._go_on_in(segment, file, sealed)
        except BaseException:  # Ctrl-C: half of it would write to a file that is closed
            self._go_on_in(segment, file, sealed)
            raise

    def _go_on_in(self, segment: Segment, file: File, sealed: Unsynced) -> None:
        """Exchange the active segment. It does no harm to do this twice."""
        if sealed not in self._unsynced:
            self._unsynced.append(sealed)
        self._unnamed = segment
        self._active, self._active_file = segment, file
        self._roomy_until = 0
        if self._list.segments[-1] is not segment:
            self._list = SegmentList.of((*self._list.segments, segment))
        if not self._commit_is_due or self.config.fsync != "interval" or len(self._unsynced) > 1:
            self.committer.schedule(0, self._commit_sealed)
        # Else the commit that is due within the interval comes soon enough; at once it would only
        # be in the way of whoever writes so much.

    def _discard(self, segments: list[Segment]) -> None:
        """Remove files that no longer count. What cannot be removed now is removed at open."""
        try:
            remove_segments(self._files, segments)
        except OSError as exc:
            _logger.warning("%s: a file that is not needed stays: %s", self.folder, exc)

    def _first_write_us(self) -> int:
        """When the active segment got its first frame: the time in that frame's ULID."""
        active = self._active
        window = self._files.map(active.path, SEGMENT_HEADER_BYTES, HEADER_BYTES)
        try:
            ulid = read_header(window, salt=active.salt).ulid
        except FrameError:  # empty, or damaged: its age counts from now on
            return self._clock.wall_ns() // 1000
        return int.from_bytes(ulid[:6], "big") * 1000


def _short_bytes_max(config: LogConfig) -> int:
    """Of a value that is laid down as it is, and is not too long, whatever it is; -1: of none."""
    bytes_min = config.message_bytes_max
    if config.codec != "none":
        bytes_min = min(bytes_min, config.compress_bytes_min)
    return SINGLE_BYTES_MAX if bytes_min >= COMPRESS_BYTES_MIN else -1


def _may_expire(segments: Iterable[Segment]) -> bool:
    return any(segment.priorities & EXPIRES for segment in segments)


def _this_process() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"
