"""The engine of a broker whose logs are those of one shard, on the node that owns it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from weakref import WeakSet

from penstock.cluster.position import POSITION_FILE, CachePosition, this_boot, write_position
from penstock.cluster.records import Draft, created, removed, renamed
from penstock.cluster.replica import Replica, log_path
from penstock.cluster.shard_log import ShardLog
from penstock.cluster.trims import Trims
from penstock.cluster.writer import ShardWriter
from penstock.config import LogConfig
from penstock.errors import LogError, ShardLost
from penstock.log.watermarks import START_FILE, read_mark
from penstock.record.schema import BatchUlids

Wait = Callable[[Future[None]], None]
Aside = Callable[[Callable[[], None]], None]


class ShardEngine:
    """Made from a replica that has followed the stream up to the term of the writer.

    Logs are opened by the broker as those of a data folder are. What is made, renamed and removed
    is a record like any other. The files of a removed log go once that is committed.
    """

    def __init__(
        self,
        replica: Replica,
        writer: ShardWriter,
        wait: Wait,
        aside: Aside,
        *,
        tells_each: bool = True,
    ) -> None:
        """`wait`: until a future is done. `aside`: do something later, on another thread.
        `tells_each`: not where whoever answers waits for all that was appended before."""
        self.tells_each = tells_each
        self.shard = writer.shard
        self.writer = writer
        self.folder = replica.folder
        self.clock = replica.clock
        self.files = replica.files
        self._ulids = BatchUlids()
        self._committer = replica.committer
        self._stream = replica.stream
        self._folder_lock = replica.lock
        self.directory = replica.directory
        self._wait = wait
        self._aside = aside
        self._lock = threading.Lock()
        self._save_lock = threading.Lock()
        self._saved_seq = 0
        self._gone: list[tuple[int, list[int]]] = []
        """Removed logs whose files are there still, and the records that say so."""
        self._logs: WeakSet[ShardLog] = WeakSet()
        self.trims = Trims(replica.fold.voids)
        replica.hand_over()

    # What a broker asks.

    def open(self, name: str, config: LogConfig) -> ShardLog:
        with self._lock:
            number = self.directory.number(name)
            if number is None:
                number = self.directory.next_number
                self.files.remove_folder(log_path(self.folder, number))  # never committed
                self.append(created(number, name))
                self.directory.create(number, name)
        log = ShardLog.of_shard(
            log_path(self.folder, number),
            number,
            config,
            clock=self.clock,
            files=self.files,
            committer=self._committer,
            order=self,
            ulids=self._ulids,
        )
        self._logs.add(log)
        return log

    def names(self, prefix: str) -> list[str]:
        with self._lock:
            return self.directory.below(prefix)

    def rename(self, old: str, new: str) -> None:
        with self._lock:
            self.append(renamed(old, new))
            self.directory.rename(old, new)

    def remove(self, prefix: str) -> None:
        with self._lock:
            numbers = self.directory.under(prefix)
            if not numbers:
                return
            self.append(removed(numbers), then=lambda seq: self._removed(seq, numbers))
            self.directory.remove(numbers)

    def is_intact(self) -> bool:
        """Whether this node still owns the shard, as far as it knows."""
        return self.writer.failure is None

    def loss(self) -> LogError:
        """What is told to who comes once it is not intact."""
        return self.writer.failure or ShardLost(self.shard, "another node took it over")

    def close(self) -> None:
        """After a failure the files stay as they are, to be gone on with by whoever is next."""
        try:
            if self.writer.failure is None:
                self.wait(self.writer.barrier())
                self.save()
        finally:
            self._folder_lock.release()

    def is_damaged(self) -> bool:
        """Whether some of the files that were read do not hold what was written."""
        return any(log.damage for log in list(self._logs))

    def distrust(self) -> None:
        """Have the files fetched again when they are opened next."""
        with suppress(FileNotFoundError):
            self.files.remove(os.path.join(self.folder, POSITION_FILE))

    def start_of(self, number: int) -> int | None:
        """Where a log begins; None: there is no such log."""
        if number not in self.directory:
            return None
        return read_mark(self.files, os.path.join(log_path(self.folder, number), START_FILE)) or 0

    def save(self) -> None:
        """Note how far the files are, and let those of removed logs go: in this order, so that
        nobody who goes on in this folder looks for them."""
        with self._save_lock:
            with self._lock:
                settled = self.writer.settled()
                if settled is None or (settled[0] == self._saved_seq and not self._gone):
                    return
                position = CachePosition(
                    stream=self._stream,
                    boot=this_boot(),
                    seq=settled[0],
                    term=self.writer.term,
                    crc=settled[1],
                    voids=list(self.trims.voids),
                    directory=self.directory.state(),
                )
            if position.seq != self._saved_seq:
                write_position(self.files, self.folder, position)
                self._saved_seq = position.seq
            while self._gone and self._gone[0][0] <= self._saved_seq:
                for number in self._gone.pop(0)[1]:
                    self.files.remove_folder(log_path(self.folder, number))

    # What its logs ask.

    def check_room(self, size_bytes: int, *, for_messages: bool) -> None:
        self.writer.check_room(size_bytes, for_messages=for_messages)

    def append(
        self, draft: Draft, size_bytes: int = 0, then: Callable[[int], None] | None = None
    ) -> Future[None]:
        return self.writer.append(draft, size_bytes, then)

    def barrier(self) -> Future[None]:
        return self.writer.barrier()

    def wait(self, future: Future[None]) -> None:
        self._wait(future)

    def aside(self, work: Callable[[], None]) -> None:
        self._aside(work)

    def broken(self, log: ShardLog, error: LogError) -> None:
        self.writer.fail(error)

    def trim_stored(self, log: ShardLog, before: int) -> None:
        self.trims.note(log.number, before)

    def _removed(self, seq: int, numbers: list[int]) -> None:
        for number in numbers:
            self.trims.note(number, None)
        self._gone.append((seq, numbers))
        self.aside(self.save)
