"""Random lives of a log: what users do to it in an order that a seed decides.

A life runs the real `LocalLog` on a simulated disk, with a manual clock and committer, so that it
is the same each time, and keeps a `LogModel` beside it. `at_boundary` is called before every
operation on the disk: there a test can take a copy of the disk as a crash would leave it, have
`check_survivor` open it, and let the life go on.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from random import Random

from penstock.clock import ManualClock
from penstock.config import DAY_MS, CodecName, FsyncPolicy, LogConfig, Retention
from penstock.errors import DiskFull, LogNotFound
from penstock.log.commit import ManualCommitter
from penstock.log.local import LocalLog
from penstock.log.log_reader import LogReader
from penstock.randomness import own_random
from penstock.record.batch import Batch
from tests.simulation.disk import SimulatedFiles
from tests.simulation.model import BrokenPromise, LogModel, Sent, read_all

FOLDER = "log"
POLICIES: tuple[FsyncPolicy, ...] = ("always", "interval", "batch", "never")

INTERVAL_MS = 1000
BATCH_WRITES = 5


def small_segments(
    policy: FsyncPolicy, segment_bytes: int = 4096, codec: CodecName = "none"
) -> LogConfig:
    """A log that rolls every few appends."""
    return LogConfig(
        fsync=policy,
        segment_bytes=segment_bytes,
        codec=codec,
        segment_age_ms=DAY_MS // 2,
        index_interval_bytes=512,
        fsync_interval_ms=INTERVAL_MS,
        fsync_batch_writes=BATCH_WRITES,
        free_bytes_min=0,
    )


class LogLife:
    """One log, its disk, its model, and a seed."""

    def __init__(
        self,
        seed: int,
        config: LogConfig,
        *,
        files: SimulatedFiles | None = None,
        model: LogModel | None = None,
    ) -> None:
        self.seed = seed
        self.rng = Random(seed)
        own_random.seed(seed)  # draws the ids of batches
        self.config = config
        self.files = files or SimulatedFiles()
        self.clock = ManualClock()
        self.committer = ManualCommitter(self.clock)
        self.model = model or LogModel()
        self.log: LocalLog | None = None
        self.at_boundary: Callable[[LogLife], None] | None = None
        self.history: list[str] = []
        self.disk_was_full = 0
        self.compactions = 0
        self.segments: set[int] = set()
        self._unconfirmed: list[tuple[int, int, Future[None]]] = []
        self._serial = 0
        self.files.before_operation = self._boundary
        self.files.during_sync = self._during_sync

    def run(self, steps: int) -> None:
        choices = [
            (30, self.append),
            (6, self.pass_time),
            (3, self.sync),
            (3, self.read_somewhere),
            (2, self.search),
            (1.5, self.trim),
            (1, self.retain),
            (2, self.compact),
            (1, self.reopen),
        ]
        weights, acts = zip(*choices, strict=True)
        for _ in range(steps):
            act = self.rng.choices(acts, weights)[0] if self.log else self.open
            try:
                act()
            except DiskFull as exc:
                self.disk_was_full += 1
                self.history.append(f"  {exc}")
            self._observe()

    # What a life is made of.

    def open(self) -> None:
        self.log = LocalLog.open(
            FOLDER, self.config, files=self.files, clock=self.clock, committer=self.committer
        )
        self._unconfirmed.clear()

    def reopen(self) -> None:
        self._note("reopen")
        log, self.log = self._open_log(), None
        log.close()
        self.model.durable(log.durable_end)
        _require(log.durable_end == log.end, "closed, but not all of it is durable")
        self.open()
        self.check()

    def append(self) -> None:
        self._append()
        if self.rng.random() < 0.5:
            self.committer.run_due()

    def _append(self) -> None:
        log = self._open_log()
        rows = self._some_rows()
        self._note(f"append {len(rows)} at {log.end}")
        self.model.before_append(log.end, rows)
        try:
            appended = log.append(batch_of(rows, self._now_us()))
        except DiskFull:
            self.model.refused()
            _require(log.end == self.model.written_end, "a refused append moved the end")
            raise
        _require(appended.first_offset == self.model.written_end, "appended elsewhere")
        self.model.appended(appended.next_offset)
        self._unconfirmed.append(
            (appended.next_offset, self.clock.monotonic_ns(), appended.durable)
        )

    def pass_time(self) -> None:
        """Let time go by, and the committer have its turn."""
        self._note("time passes")
        self.clock.advance(
            self.rng.choice((0, 0.001, 0.3, 0.9, 1.1, 0.3, 0.9, 1.1, DAY_MS / 1000 + 1))
        )
        self.committer.run_due()
        self._check_policy()

    def sync(self) -> None:
        self._note("sync")
        log = self._open_log()
        before = self.model.written_end
        log.sync()
        _require(log.durable_end >= before, "synced, but not all is durable")

    def trim(self) -> None:
        log = self._open_log()
        self.trim_to(self.rng.choice((log.start, log.end, self.rng.randint(log.start, log.end))))

    def trim_to(self, before: int) -> None:
        log = self._open_log()
        self._note(f"trim {before}")
        self.model.before_trim(before)
        log.trim(before)
        _require(log.start == before, f"trimmed to {before}, starts at {log.start}")
        self.model.trimmed(log.start)

    def retain(self) -> None:
        log = self._open_log()
        retention = self.rng.choice(
            (
                Retention(age_ms=None, segments_max=self.rng.randint(1, 4)),
                Retention(age_ms=None, bytes_max=self.rng.randint(1, 5) * 4096),
                Retention(age_ms=self.rng.randint(1, 10) * 1000, segments_min=2),
            )
        )
        self._note(f"retain {retention}")
        self.model.before_trim(log.end)
        log.retain(retention, self._now_us())
        self.model.trimmed(log.start)

    def compact(self) -> None:
        log = self._open_log()
        keyed = self.rng.random() < 0.5
        self._note(f"compact keyed={keyed}")
        self.model.before_compact(self._now_us(), keyed=keyed)
        compaction = log.compact(self._now_us(), keyed=keyed)
        self.compactions += compaction.messages_removed > 0
        self.check()

    def read_somewhere(self) -> None:
        """What one read brings is the same as what reading all brings there."""
        log = self._open_log()
        offset = self.rng.randint(log.start, log.end)
        batches = log.read(offset, self.rng.choice((1, 500, 5000)))
        every = read_all(log)
        expected = [every[o] for o in sorted(every) if offset <= o < batches.next_offset]
        _require(batches.messages() == expected, f"a read at {offset} differs from reading all")

    def search(self) -> None:
        """`find` and `next_block` agree with a search by hand."""
        log = self._open_log()
        every = read_all(log)
        if not every:
            return
        stamp = self.rng.choice(list(every.values())).timestamp_us + self.rng.randint(-1, 1)
        found = log.find(stamp)
        by_hand = min((o for o, m in every.items() if m.timestamp_us >= stamp), default=log.end)
        _require(found == by_hand, f"find({stamp}) is {found}; by hand it is {by_hand}")
        offset, mask = self.rng.randint(log.start, log.end), self.rng.randint(1, 31)
        block = log.next_block(offset, mask)
        _require(offset <= block <= log.end, f"next_block({offset}) is {block}")
        skipped = [o for o, m in every.items() if offset <= o < block and mask >> m.priority & 1]
        _require(not skipped, f"next_block({offset}, {mask:05b}) is {block}, past {skipped}")

    def check(self) -> None:
        """The log as it is now, nothing having crashed."""
        log = self._open_log()
        self.model.check(log, self.model.written_end)

    # What is seen from outside.

    def _boundary(self, kind: str, path: str) -> None:
        self._observe()
        if self.at_boundary is not None:
            # What looks on must not be looked at, nor move the generator of ids.
            self.files.before_operation = None
            state = random.getstate()
            self.at_boundary(self)
            random.setstate(state)
            self.files.before_operation = self._boundary

    def _during_sync(self, path: str) -> None:
        """Another thread appends while the disk works; this sync does not cover it."""
        # Not when so much is waiting for a sync that the append itself would wait for one.
        if self.log is not None and len(self._unconfirmed) < 8 and self.rng.random() < 0.2:
            try:
                self._append()
            except DiskFull:
                self.disk_was_full += 1

    def _observe(self) -> None:
        """Believe what the log says is durable: by its property and by its futures."""
        if self.log is None:
            return
        self.segments.add(self.log.segments[-1].base_offset)
        self.model.durable(self.log.durable_end)
        if self.config.fsync == "always":
            for next_offset, _, future in self._unconfirmed:
                if future.done() and future.exception() is None:
                    self.model.durable(next_offset)
        self._unconfirmed = [one for one in self._unconfirmed if one[0] > self.model.durable_end]

    def observe_as_reader(self) -> None:
        """Believe what a reader in another process may see: it is never taken back."""
        try:
            reader = LogReader.open(FOLDER, files=self.files)
        except LogNotFound:
            return  # not even its first segment is there yet
        found = read_all(reader)
        self.model.check_messages(found)
        self.model.durable(reader.end)

    def unconfirmed(self) -> list[Future[None]]:
        """The futures of appends that nobody has called durable."""
        return [future for _, _, future in self._unconfirmed if self.config.fsync == "always"]

    def _check_policy(self) -> None:
        """After the committer had its turn, what the policy promises is durable."""
        log = self._open_log()
        waiting = [one for one in self._unconfirmed if one[0] > log.durable_end]
        due_ns = self.clock.monotonic_ns() - INTERVAL_MS * 1_000_000
        late = {
            "always": waiting,
            "interval": [one for one in waiting if one[1] <= due_ns],
            "batch": waiting[BATCH_WRITES - 1 :],
            "never": [],
        }[self.config.fsync]
        if late:
            log.sync()  # raises if the log has stopped, which is a good excuse
            raise BrokenPromise(f"not durable in time: up to offset {late[-1][0]}")

    # How messages come about.

    def _some_rows(self) -> list[Sent]:
        rng = self.rng
        count = rng.choice((1, 1, 2, 3, 5, 8))
        now_us = self._now_us()
        stamped = rng.random() < 0.2
        keyed, prioritised, expiring, with_headers = (rng.random() < 0.4 for _ in range(4))
        deleting = keyed and with_headers and rng.random() < 0.1
        rows = []
        for _ in range(count):
            self._serial += 1
            padding = rng.randbytes(rng.choice((0, 10, 100, 100, 600)))
            rows.append(
                Sent(
                    value=None if deleting else b"%d:" % self._serial + padding,
                    key=b"k%d" % rng.randint(0, 9) if keyed and rng.random() < 0.9 else None,
                    headers=(("n", b"%d" % self._serial),) if with_headers else (),
                    priority=rng.randint(0, 4) if prioritised else 2,
                    timestamp_us=now_us + rng.randint(-5000, 5000) if stamped else now_us,
                    expires_at_us=now_us + rng.randint(-10, 3) * 1_000_000 if expiring else None,
                )
            )
        return rows

    def _now_us(self) -> int:
        return self.clock.wall_ns() // 1000

    def _open_log(self) -> LocalLog:
        assert self.log is not None
        return self.log

    def _note(self, act: str) -> None:
        self.history.append(f"{self.files.operations}: {act}")


@contextmanager
def told(life: LogLife, *more: str) -> Iterator[None]:
    """Say of a failure how to see it again."""
    try:
        yield
    except Exception as exc:
        for note in (f"seed {life.seed}, fsync={life.config.fsync}", *more):
            exc.add_note(note)
        exc.add_note("the life, by operation:\n" + "\n".join(life.history[-12:]))
        exc.add_note("the disk:\n" + "\n".join(list(life.files.trace)[-12:]))
        raise


def batch_of(rows: list[Sent], now_us: int) -> Batch:
    """The rows as a batch that leaves out what the log or the format fills in."""
    stamps = [row.timestamp_us for row in rows]
    return Batch.build(
        [row.value for row in rows],
        keys=[row.key for row in rows] if any(row.key for row in rows) else None,
        headers=[dict(row.headers) for row in rows] if any(row.headers for row in rows) else None,
        priority=[row.priority for row in rows],
        timestamps_us=None if set(stamps) == {now_us} else stamps,
        expires_at_us=[row.expires_at_us for row in rows]
        if any(row.expires_at_us for row in rows)
        else None,
    )


def _require(kept: bool, broken: str) -> None:
    if not kept:
        raise BrokenPromise(broken)
