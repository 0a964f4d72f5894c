"""Traces: what happens to messages is noted in memory, and stored by a thread of its own.

A publish, hand-out or settlement adds a row to a buffer, which takes a microsecond and never waits.
Once a second, or when there are many, the rows are written to the log of traces (`trace_log.py`).
The buffer is bounded: when the disk is slower, rows are dropped and counted.

Nothing depends on traces. A kill loses the last second of them, a log that cannot be written loses
more, with a warning; the broker goes on.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from penstock.broker.housekeeper import Chore
from penstock.broker.partition_traces import PartitionTraces
from penstock.broker.source import LogSource
from penstock.broker.statistics_log import StatisticsLog
from penstock.broker.trace_log import TraceFinder, TraceLog
from penstock.clock import Clock
from penstock.delivery.offsets import Offsets
from penstock.errors import PenstockError
from penstock.log.base import PartitionLog
from penstock.model.names import TopicName
from penstock.model.traces import TraceTotals
from penstock.record.batch import Batch
from penstock.trace.events import ID_BYTES, NO_TRACE, TraceRow
from penstock.trace.sampling import choose

BUFFER_ROWS_MAX = 65_536
FLUSH_ROWS = 8_192
_FLUSH_EVERY_NS = 1_000_000_000
_IDENTIFIED_MAX = 2_000  # rows of one flush whose messages are read, to learn their ids
_IDENTIFIED_MESSAGES_MAX = 10_000  # of one such row
_ALL = 1 << 32


class _Noted(NamedTuple):
    row: TraceRow
    source: LogSource | None
    """Where the ids of its messages are found, if it has none and they are wanted."""


class Tracer:
    """Any thread may call anything."""

    def __init__(
        self, clock: Clock, open_log: Callable[[bool], PartitionLog | None], *, enabled: bool = True
    ) -> None:
        """`open_log` makes a log if it may; else it gives None where there is none."""
        self.plan: Callable[[Chore, int], None] = lambda chore, deadline_ns: None
        """Set by the broker: there is something to store then."""
        self.aside: Callable[[Callable[[], None]], None] = lambda work: work()
        """Set by the broker: do that in a thread of its own."""
        self.noted = 0
        self.dropped = 0
        """Events that were not stored since the broker was opened."""
        self._clock = clock
        self._enabled = enabled
        self._log = StatisticsLog("traces", open_log, TraceLog)
        self._buffer: deque[_Noted] = deque()
        self._planned = False
        self._lock = threading.Lock()  # of the log; never held while a row is added

    def partition(self, topic: TopicName, number: int, share: float) -> PartitionTraces:
        """What notes the events of a partition."""
        return PartitionTraces(
            self.add if self._enabled else None, self._clock, str(topic), number, share
        )

    def add(self, row: TraceRow, source: LogSource | None = None) -> None:
        buffer = self._buffer
        waiting = len(buffer)
        if waiting >= BUFFER_ROWS_MAX:
            self.dropped += row.count
            return
        buffer.append(_Noted(row, source))
        if not self._planned or waiting == FLUSH_ROWS:
            self._planned = True
            wait_ns = 0 if waiting >= FLUSH_ROWS else _FLUSH_EVERY_NS
            self.plan(self._flush_aside, self._clock.monotonic_ns() + wait_ns)

    def totals(self) -> TraceTotals:
        return TraceTotals(noted=self.noted, dropped=self.dropped)

    def flush(self) -> None:
        """Store what was noted before."""
        with self._lock:
            self._planned = False
            waiting = [self._buffer.popleft() for _ in range(len(self._buffer))]
            if not waiting:
                return
            count = sum(noted.row.count for noted in waiting)
            rows = [_identified(*noted) for noted in self._in_reach(waiting)]
            if self._log.write(lambda log: self._append(log, rows)):
                self.noted += count
            else:
                self.dropped += count

    def find(self) -> TraceFinder | None:
        """All that happened until now; None: nothing was ever stored."""
        self.flush()
        with self._lock:
            log = self._log.if_any()
            return None if log is None else log.find()

    def at(self, since_us: int) -> int:
        """Where the first block lies with something from a moment on."""
        self.flush()
        with self._lock:
            log = self._log.if_any()
            return 0 if log is None else log.at(since_us)

    def raw(self, start: int, stop: int | None, bytes_max: int) -> tuple[list[bytes], int, int]:
        """Blocks as they are stored, where to go on, and where the log ends."""
        self.flush()
        with self._lock:
            log = self._log.if_any()
        if log is None:
            return [], start, 0
        end = log.end
        return *log.raw(start, end if stop is None else min(stop, end), bytes_max), end

    def close(self) -> None:
        self.flush()
        with self._lock:
            self._log.close()

    def _flush_aside(self, now_ns: int) -> None:
        self.aside(self.flush)

    def _in_reach(self, waiting: list[_Noted]) -> Iterator[_Noted]:
        """With no more rows to identify than a flush has time for."""
        left = _IDENTIFIED_MAX
        for noted in waiting:
            if noted.source is not None and left:
                left -= 1
                yield noted
            else:
                yield _Noted(noted.row, None)

    # The lock is held.

    def _append(self, log: TraceLog, rows: list[TraceRow]) -> None:
        log.append(rows)
        log.drop_old(self._clock.wall_ns() // 1000)


def _identified(row: TraceRow, source: LogSource | None) -> TraceRow:
    """With the ids of its messages, if they can still be read."""
    if source is None or row.count > _IDENTIFIED_MESSAGES_MAX:
        return row
    try:
        batches = source.fetch(Offsets(row.first, row.count, row.holes))
    except (PenstockError, OSError, ValueError):  # the topic is closed, or the messages are gone
        return row
    if sum(map(len, batches)) == row.count:
        row.ids, row.trace_ids = ids_of(batches)
    return row


def trace_ids_of(batch: Batch) -> bytes:
    """The trace id of each message: what it brought, or its id. What comes from it has the same."""
    ids, given = ids_of([batch])
    if given is None:
        return ids
    each = zip(_split(ids), _split(given), strict=True)
    return b"".join(id_ if trace == NO_TRACE else trace for id_, trace in each)


def ids_of(batches: Sequence[Batch]) -> tuple[bytes, bytes | None]:
    """The ids of all messages of some batches, and the trace ids that they brought."""
    ids: list[bytes] = []
    traces: list[bytes] = []
    for batch in batches:
        chosen = choose(batch, batch.ulid, _ALL)
        assert chosen is not None, "there is a message, and all are chosen"
        ids.append(_each(chosen.ids, batch))
        given = chosen.trace_ids or NO_TRACE
        traces.append(given if len(given) > ID_BYTES else given * len(batch))
    every = b"".join(traces)
    return b"".join(ids), every if every.strip(b"\0") else None


def _each(ids: bytes, batch: Batch) -> bytes:
    if len(ids) > ID_BYTES or len(batch) == 1:
        return ids
    first = int.from_bytes(ids, "big")
    return b"".join((first + row).to_bytes(ID_BYTES, "big") for row in range(len(batch)))


def _split(ids: bytes) -> list[bytes]:
    return [ids[at : at + ID_BYTES] for at in range(0, len(ids), ID_BYTES)]
