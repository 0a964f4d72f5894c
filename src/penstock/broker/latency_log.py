"""The log in which latencies are stored: minutes that are over, by topic, group, priority and kind.

It is `latencies/` in the data folder. A message is one slot of a group in one minute: the topic is
its key, the beginning of the minute its timestamp, and a `_Stored` its value. Messages of the same
minute add up: there was a restart, or the clock was set.

The log is a row of *runs*, in each of which time never goes back; there is a second one only if the
clock was set back. So a time is found in a run without reading it, and the runs together, merged as
they are read, are the history in the order of time. The priority of a message is a mark that the
index of the log finds, so that opening reads only what is marked:

CRITICAL   a topic is made; what is stored of its name before this was another topic's. The value is
           null, and the timestamp that of the message before.
HIGH       a run begins.
NORMAL     all others.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from penstock.broker.group_latencies import Minute
from penstock.broker.histogram import Histogram
from penstock.config import DAY_MS, LogConfig, Retention
from penstock.errors import OffsetOutOfRange
from penstock.log.base import Batches, PartitionLog
from penstock.record import compute as pc
from penstock.record.batch import Batch
from penstock.record.schema import Priority

RETENTION = Retention(age_ms=7 * DAY_MS, bytes_max=256 << 20)
READ_BYTES = 64 << 10
"""Read at once, of the log as it lies on the disk."""

_TOPIC_BEGINS = Priority.CRITICAL
_RUN_BEGINS = Priority.HIGH
_MARKS = 1 << _TOPIC_BEGINS | 1 << _RUN_BEGINS


def latency_log_config(free_bytes_min: int) -> LogConfig:
    return LogConfig(
        segment_bytes=16 << 20,
        segment_age_ms=DAY_MS,
        codec="zstd",
        free_bytes_min=free_bytes_min,
    )


class _Stored(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """New fields go to the end and need a default."""

    group: str
    slot: int
    sum_us: float
    max_us: int
    buckets: dict[int, int]


class Counted(NamedTuple):
    """What was counted in one slot of a group."""

    topic: str
    group: str
    minute: Minute


Timed: TypeAlias = tuple[int, Counted | None]
"""When a minute began and something of it; None: the history has only got there."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Stored)


class LatencyLog:
    """One thread at a time calls; a `LatencyHistory` is read by any."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        self._inherited = log.end
        self._runs = [log.start]  # where each begins
        self._topics: dict[str, int] = {}  # where what is stored of them begins
        self._newest_us = self._last_minute_us()  # of the last run
        self._find_marks()

    def append(self, counted: Sequence[Counted]) -> None:
        ordered = sorted(counted, key=lambda each: each.minute.minute_us)
        first_us, last_us = ordered[0].minute.minute_us, ordered[-1].minute.minute_us
        goes_back = first_us < self._newest_us
        appended = self._log.append(
            Batch.build(
                [_encode(each) for each in ordered],
                keys=[each.topic for each in ordered],
                timestamps_us=[each.minute.minute_us for each in ordered],
                priority=_RUN_BEGINS if goes_back else Priority.NORMAL,
            )
        )
        if goes_back:
            self._runs.append(appended.first_offset)
        self._newest_us = last_us

    def drop_old(self, wall_us: int) -> None:
        self._log.retain(RETENTION, wall_us)

    def begin(self, topic: str) -> None:
        """A topic is made."""
        stamp_us = [self._newest_us]
        batch = Batch.build([None], keys=[topic], timestamps_us=stamp_us, priority=_TOPIC_BEGINS)
        self._topics[topic] = self._log.append(batch).next_offset

    def forget(self, topic: str) -> None:
        """A topic is deleted. If it is made again, that will be noted."""
        self._topics.pop(topic, None)

    def history(self, topic: str) -> LatencyHistory:
        """Of a topic, as it is now."""
        return self._history(self._topics.get(topic, 0), self._log.end, topic)

    def inherited(self) -> LatencyHistory:
        """Of all topics, as it was when the log was opened."""
        return self._history(0, self._inherited, None)

    def close(self) -> None:
        self._log.close()

    def _history(self, start: int, end: int, topic: str | None) -> LatencyHistory:
        bounds = pairwise([*self._runs, end])
        start = max(start, self._log.start)
        runs = [(max(first, start), min(stop, end)) for first, stop in bounds]
        return LatencyHistory(
            self._log, [(first, stop) for first, stop in runs if first < stop], topic
        )

    def _last_minute_us(self) -> int:
        log = self._log
        if log.start == log.end:
            return 0
        last = [int(batch.timestamps_us()[-1]) for batch in log.read(log.end - 1)]
        # Where it is damaged: too late a time only makes one run more.
        return max(last or [log.newest_us])

    def _find_marks(self) -> None:
        log = self._log
        offset = log.next_block(log.start, _MARKS)
        while offset < self._inherited:
            read = log.read(offset, 1)
            for batch in read:
                if batch.priority == _RUN_BEGINS:
                    self._runs.append(batch.next_offset - len(batch))
                elif batch.priority == _TOPIC_BEGINS:
                    self._topics |= dict.fromkeys(_texts(batch.keys), batch.next_offset)
            offset = log.next_block(read.next_offset, _MARKS)


class LatencyHistory:
    """What is stored at one moment, in the order of time, read as far as somebody wants it."""

    def __init__(
        self, log: PartitionLog, runs: Sequence[tuple[int, int]], topic: str | None
    ) -> None:
        self._log = log
        self._runs = runs
        self._topic = None if topic is None else pa.scalar(topic.encode())
        self.reads = 0
        """So often something was read, of `READ_BYTES` or less, or of one batch that is longer."""

    def minutes(self, since_us: int) -> Iterator[Timed]:
        """From a minute on. Every batch that is read is told of, whether or not there is anything
        of the topic in it.
        """
        found = self._log.find(since_us)
        runs = [self._run(start, stop, since_us, found) for start, stop in self._runs]
        return heapq.merge(*runs, key=itemgetter(0))

    def _run(self, start: int, stop: int, since_us: int, found: int) -> Iterator[Timed]:
        """What a run has; `found` is where the log has the first message from that time on."""
        offset = found if found >= start else self._first(start, stop, since_us)
        while offset < stop:
            read = self._read(offset, READ_BYTES)
            for batch in read:
                if batch.next_offset > stop:
                    return
                yield from self._of_batch(batch, since_us)
            offset = read.next_offset

    def _first(self, start: int, stop: int, since_us: int) -> int:
        """The first offset of a run that is not before a time; most often all of it is not."""
        low, high, middle = start, stop, start
        while low < high:
            read = self._read_at(middle, 1)
            if any(batch.timestamps_us()[0] < since_us for batch in read):
                low = middle + 1
            else:
                high = middle
            middle = (low + high) // 2
        return low

    def _read(self, offset: int, max_bytes: int) -> Batches:
        self.reads += 1
        return self._read_at(offset, max_bytes)

    def _read_at(self, offset: int, max_bytes: int) -> Batches:
        while True:
            try:
                return self._log.read(max(offset, self._log.start), max_bytes)
            except OffsetOutOfRange:  # retention was quicker
                continue

    def _of_batch(self, batch: Batch, since_us: int) -> Iterator[Timed]:
        keys, values, minutes_us = batch.keys, batch.values, batch.timestamps_us()
        if minutes_us[-1] < since_us or values.null_count:  # too old, or only a mark
            return
        yield max(int(minutes_us[0]), since_us), None
        mine = minutes_us >= since_us
        if self._topic is not None:
            mine &= pc.equal(keys, self._topic).to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(mine)
        if not len(rows):
            return
        keys, values = keys.take(rows), values.take(rows)
        for topic, value, minute_us in zip(
            _texts(keys), values.to_pylist(), minutes_us[rows].tolist(), strict=True
        ):
            yield minute_us, _decode(topic, minute_us, value)


def _texts(keys: pa.BinaryArray) -> list[str]:
    return [key.decode() for key in keys.to_pylist()]


def _encode(counted: Counted) -> bytes:
    _, slot, histogram = counted.minute
    stored = _Stored(counted.group, slot, histogram.sum_us, histogram.max_us, histogram.buckets)
    return _encoder.encode(stored)


def _decode(topic: str, minute_us: int, value: bytes) -> Counted:
    stored = _decoder.decode(value)
    histogram = Histogram(stored.buckets, stored.sum_us, stored.max_us)
    return Counted(topic, stored.group, Minute(minute_us, stored.slot, histogram))
