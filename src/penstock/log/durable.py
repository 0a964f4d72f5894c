"""How written bytes become durable: fsyncs by the policy, shared by all who wait for them."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future
from contextlib import suppress
from typing import NamedTuple

from penstock.config import LogConfig
from penstock.errors import DataFolderLost, LogClosed, LogError, LogFailed, TooManyOpenFiles
from penstock.log.base import DONE
from penstock.log.commit import Committer
from penstock.log.descriptors import is_out_of_descriptors
from penstock.log.files import File, FileSystem, is_out_of_room
from penstock.log.reader import SegmentReader
from penstock.log.recovery import seal
from penstock.log.segment import Segment
from penstock.log.watermarks import DurableMark

_logger = logging.getLogger("penstock.log")

_NO_DESCRIPTOR_PAUSE_MS = 100  # before a commit is tried again for which there was none


class Unsynced(NamedTuple):
    """A sealed segment whose bytes may still be in the operating system alone."""

    segment: Segment
    file: File


class DurableLog(SegmentReader):
    """A log that is being written to: what of it is durable, and the commits that make it so.

    Whoever writes holds the write lock, and calls `_plan_commit` after each frame, unless a commit
    is due that will cover it. A commit holds that lock only to see what there is to sync, and syncs
    everything that was written before.
    """

    _active: Segment
    _active_file: File
    _mark: DurableMark
    _durable_end: int

    def __init__(
        self, folder: str, files: FileSystem, config: LogConfig, committer: Committer
    ) -> None:
        super().__init__(folder, files, config.index_interval_bytes)
        self.config = config
        self.committer = committer
        """Runs the log's fsyncs. What is appended from there is synced next."""
        self._write_lock = threading.Lock()
        self._commit_lock = threading.Lock()  # taken before the write lock, never after it
        self._closed = False
        self._abandoned = False
        self._failure: LogError | None = None
        self._unsynced: list[Unsynced] = []
        self._unnamed: Segment | None = None
        """The newest segment, as long as its name may be in the operating system alone."""
        self._round: Future[None] | None = None
        self._commit_is_due = False
        self._writes_since_commit = 0

    @property
    def durable_end(self) -> int:
        return self._durable_end

    @property
    def failure(self) -> LogError | None:
        """Why the log stopped; None while it takes writes."""
        return self._failure

    def sync(self) -> None:
        """Make everything durable that was appended so far, whatever the policy."""
        self.check_open()
        self._commit(active_too=True)
        if self._failure:
            raise self._failure

    def ordered(self) -> None:
        """Each log has its own files, which a power cut may leave in any order: fsync."""
        self.sync()

    def sync_soon(self) -> Future[None]:
        """A future for when everything that was appended so far is durable."""
        with self._write_lock:
            self._check_writable()
            if self._round is None:
                self._round = Future()
            self.committer.schedule(0, self._commit_all)
            return self._round

    def _plan_commit(self) -> Future[None]:
        """See to it that what was just written is synced when the policy says."""
        policy = self.config.fsync
        durable = DONE
        if policy == "always":
            if self._round is None:
                self._round = Future()
            durable, delay_ms = self._round, 0
        elif policy == "interval":
            delay_ms = self.config.fsync_interval_ms
        else:
            self._writes_since_commit += 1
            if policy == "never" or self._writes_since_commit < self.config.fsync_batch_writes:
                return durable
            delay_ms = 0
        if not self._commit_is_due:
            self.committer.schedule(delay_ms, self._commit_all)
            self._commit_is_due = True  # not sooner: after a Ctrl-C here nobody would commit
        return durable

    def _commit_all(self) -> None:
        with suppress(TooManyOpenFiles):  # then a later one is planned
            self._commit(active_too=True)

    def _commit_sealed(self) -> None:
        with suppress(TooManyOpenFiles):
            self._commit(active_too=self.config.fsync == "always")

    def _commit(self, *, active_too: bool) -> None:
        """Sync what was written before now, raise `durable_end`, and tell those who wait for it."""
        with self._commit_lock:
            with self._write_lock:
                unsynced = list(self._unsynced)
                target = self.end if active_too else self._active.base_offset
                active = self._active_file
                done = None
                if active_too:
                    done, self._round = self._round, None
                    self._commit_is_due = False
                    self._writes_since_commit = 0
            try:
                if self._failure:
                    raise self._failure
                if unsynced or target > self._durable_end:
                    self._sync_and_seal(unsynced, active if active_too else None)
                    self._durable_end = target
                    self._mark.write(target)
            except (OSError, LogFailed, DataFolderLost) as exc:
                if isinstance(exc, OSError) and is_out_of_descriptors(exc):
                    self._commit_later(done, _NO_DESCRIPTOR_PAUSE_MS)
                    raise TooManyOpenFiles(self.folder) from exc
                failure = self._failure or self._fail(exc)
                if done:
                    done.set_exception(failure)
                return
            except BaseException:  # Ctrl-C: whoever waits is told by the next commit
                self._commit_later(done)
                raise
        if done:
            done.set_result(None)

    def _commit_later(self, done: Future[None] | None, delay_ms: int = 0) -> None:
        with self._write_lock:
            if self._round is None:
                self._round = done
            elif done:
                self._round.add_done_callback(lambda newer: _copy_outcome(newer, done))
            self.committer.schedule(delay_ms, self._commit_all)
            self._commit_is_due = True

    def _sync_and_seal(self, unsynced: list[Unsynced], active: File | None) -> None:
        unnamed = self._unnamed
        if unnamed:  # before anything in it is confirmed, the file's name has to be on disk
            self._files.sync_folder(self.folder)
        for unsynced_segment in unsynced:
            unsynced_segment.file.sync()
        if active:
            active.sync()
        with self._write_lock:
            del self._unsynced[: len(unsynced)]
            if self._unnamed is unnamed:
                self._unnamed = None
        failed: OSError | None = None
        for segment, file in unsynced:
            file.close()
            try:
                seal(self._files, segment)
                segment.index = None
            except OSError as exc:
                # The messages are safe. The index stays in memory, and is made again at open.
                _logger.warning("no index for %s: %s", segment.path, exc)
                # A disk that fails here fails elsewhere: stop.
                if not is_out_of_room(exc) and not is_out_of_descriptors(exc):
                    failed = exc
        if failed:
            raise failed

    def check_open(self) -> None:
        """Raise LogClosed if it is."""
        if self._abandoned:
            raise LogClosed(
                f"the log {self.folder} was opened by the process that this one was forked from, "
                "which goes on with it; open what you need after the fork"
            )
        if self._closed:
            raise LogClosed(f"the log {self.folder} is closed")

    def _check_writable(self) -> None:
        self.check_open()
        if self._failure:
            raise self._failure

    def _stopped_by(self, exc: OSError) -> LogError:
        """The error to raise after one of the operating system's. The log stops, unless there
        were only no descriptors left, so that nothing happened at all."""
        return TooManyOpenFiles(self.folder) if is_out_of_descriptors(exc) else self._fail(exc)

    def stop(self, error: LogError) -> None:
        """Take no more writes, and say this to who tries."""
        if self._failure is None:
            self._failure = error

    def _fail(self, exc: BaseException) -> LogError:
        if self._failure is None:
            self._failure = LogFailed(self.folder, exc)
            _logger.error("%s", self._failure)
        return self._failure


def _copy_outcome(newer: Future[None], older: Future[None]) -> None:
    failure = newer.exception()
    if failure:
        older.set_exception(failure)
    else:
        older.set_result(None)
