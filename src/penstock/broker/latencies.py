"""How long messages wait, and how long they are worked on, by queue group and priority.

`waited` is from a message's timestamp to its first hand-out; a retry is no waiting. The timestamp
of a delayed message is of the moment when it fell due. `handled` is from a hand-out to its ack.
Both are by the wall clock; a clock that was set back makes them nothing, not less.

They are counted by minute, that of the hand-out or the ack, and since the start. The housekeeper
stores a minute once it is over, if anything was counted in it, and `close` the last one. The log is
`latencies/` in the data folder: one message for each group, priority and kind, with the topic as
its key, the beginning of the minute as its timestamp and a `_Stored` as its value. Messages of the
same minute add up: there was a restart, or the clock was set. A message without a value says that
from here on another topic has the name.

These are statistics. A kill loses the present minute, and a log that cannot be written loses more,
with a warning; nobody else notices.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.broker.group_latencies import (
    LANES,
    MINUTE_US,
    RECENT_US,
    SLOTS,
    GroupLatencies,
    Minute,
    TopicLatencies,
)
from penstock.broker.histogram import Histogram
from penstock.broker.housekeeper import Chore
from penstock.broker.names import TopicName, parse_topic
from penstock.broker.stats import Kind, LatencyRow, LatencyStats
from penstock.clock import Clock
from penstock.config import DAY_MS, LogConfig, Retention
from penstock.errors import LogFailed, OffsetOutOfRange, PenstockError
from penstock.log.local import LocalLog
from penstock.record.batch import Batch
from penstock.record.schema import Priority

_logger = logging.getLogger("penstock.broker")

HOUR_US = 60 * MINUTE_US
RETENTION = Retention(age_ms=7 * DAY_MS, bytes_max=256 << 20)
_UNSTORED_MAX = 10_000  # messages that wait for a disk which is full


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


class Total(NamedTuple):
    """All that was counted since the start."""

    topic: str
    group: str
    priority: Priority
    kind: Kind
    histogram: Histogram


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Stored)


class Latencies:
    """Those of all topics, and the log in which they are stored."""

    def __init__(self, clock: Clock, open_log: Callable[[bool], LocalLog | None]) -> None:
        """`open_log` makes a log if it may; else it gives None where there is none."""
        self.plan: Callable[[Chore, int], None] = lambda chore, deadline_ns: None
        """Set by the broker: there is something to store then."""
        self._clock = clock
        self._open_log = open_log
        self._log: LocalLog | None = None
        self._topics: dict[TopicName, TopicLatencies] = {}
        self._unstored: list[tuple[TopicName, str, Minute]] = []
        self._inherited = 0  # where the log ended when it was opened
        self._remembered = False
        self._failing = False
        self._lock = threading.Lock()  # taken before that of a group

    def of(self, topic: TopicName) -> TopicLatencies:
        found = self._topics.get(topic)
        return found or self._topics.setdefault(topic, TopicLatencies(self._minute_begins))

    def totals(self) -> Iterator[Total]:
        """All that was counted since the start."""
        for topic, groups in list(self._topics.items()):
            for group, known in list(groups.items()):
                for slot, histogram in sorted(known.totals().items()):
                    yield Total(str(topic), group, _priority(slot), _kind(slot), histogram)

    def recent(self, topic: TopicName, group: str, kind: Kind) -> LatencyStats | None:
        """Of a group's last minutes; None if nothing was counted."""
        if not self._remembered:
            self._remember()
        known = self._groups(topic).get(group)
        if known is None:
            return None
        histogram = known.recent(kind, self._clock.wall_ns() // 1000)
        return LatencyStats(**_figures(histogram)) if histogram.buckets else None

    def rows(
        self, topic: TopicName, since_us: int | None = None, until_us: int | None = None
    ) -> list[LatencyRow]:
        """The minutes that begin before `until_us`, from the one on in which `since_us` lies; by
        default those of the last hour. The present one is there as far as it has got.
        """
        if since_us is None:
            now_us = self._clock.wall_ns() // 1000
            since_us = (now_us if until_us is None else until_us) - HOUR_US
        since_us -= since_us % MINUTE_US
        found: defaultdict[tuple[int, str], dict[int, Histogram]] = defaultdict(dict)
        log: LocalLog | None = None
        with self._lock:
            with self._trying():
                log = self._log_if_any()
            end = log.end if log is not None else 0
            memory = [(group, each) for name, group, each in self._unstored if name == topic]
            for group, known in list(self._groups(topic).items()):
                memory += [(group, each) for each in known.minutes()]
        if log is not None:
            memory += [each[1:] for each in _read(log, since_us, end, str(topic))]
        for group, (minute_us, slot, histogram) in memory:
            if since_us <= minute_us and (until_us is None or minute_us < until_us):
                found[minute_us, group].setdefault(slot, Histogram()).merge(histogram)
        return [row for place in sorted(found) for row in _rows(*place, found[place])]

    def begin(self, topic: TopicName) -> None:
        """A topic is made. What is stored of an earlier one of that name is not its own."""
        with self._lock, self._trying():
            log = self._log_if_any()
            if log is not None:
                log.append(Batch.build([None], keys=[str(topic)]))

    def forget(self, topic: TopicName) -> None:
        """A topic is deleted."""
        with self._lock:
            self._topics.pop(topic, None)
            self._unstored = [each for each in self._unstored if each[0] != topic]

    def forget_group(self, topic: TopicName, group: str) -> None:
        """A group is deleted; what it did stays in the history of the topic."""
        with self._lock:
            known = self._groups(topic).pop(group, None)
            if known is not None:
                minutes, _ = known.take_finished(None)
                self._unstored += [(topic, group, each) for each in minutes]

    def store(self, now_ns: int) -> int | None:
        """Store the minutes that are over; when the next one is."""
        wall_ns = self._clock.wall_ns()
        until_us = self._store(wall_ns // 1000)
        return None if not until_us else now_ns + max(until_us * 1000 - wall_ns, 0)

    def close(self) -> None:
        """Store the present minute as well."""
        self._store(None)
        with self._lock, self._trying():
            if self._log is not None:
                self._log.close()

    def _remember(self) -> None:
        """What a group did just before the start is recent as well."""
        with self._lock, self._trying():
            if self._remembered:
                return
            self._remembered = True
            log = self._log_if_any()
            if log is not None:
                since_us = self._clock.wall_ns() // 1000 - RECENT_US - MINUTE_US
                for topic, group, minute in _read(log, since_us, self._inherited):
                    groups = self._topics.get(parse_topic(topic))
                    if groups is not None:
                        groups[group].remember(minute)

    def _groups(self, topic: TopicName) -> dict[str, GroupLatencies]:
        return self._topics.get(topic) or {}

    def _minute_begins(self, until_us: int) -> None:
        """Something is counted in a minute that ends then."""
        left_ns = until_us * 1000 - self._clock.wall_ns()
        self.plan(self.store, self._clock.monotonic_ns() + max(left_ns, 0))

    def _store(self, wall_us: int | None) -> int:
        with self._lock:
            ends = []
            for topic, groups in list(self._topics.items()):
                for group, known in list(groups.items()):
                    finished, until_us = known.take_finished(wall_us)
                    self._unstored += [(topic, group, minute) for minute in finished]
                    ends += [until_us] if until_us else []
            if self._unstored:
                with self._trying():
                    self._append()
                    self._failing = False
                del self._unstored[:-_UNSTORED_MAX]
            return min(ends, default=0)

    # The lock is held.

    def _append(self) -> None:
        log = self._log_if_any(create=True)
        assert log is not None
        log.append(
            Batch.build(
                [_encode(group, minute) for _, group, minute in self._unstored],
                keys=[str(topic) for topic, _, _ in self._unstored],
                timestamps_us=[minute.minute_us for _, _, minute in self._unstored],
            )
        )
        self._unstored.clear()
        log.retain(RETENTION, self._clock.wall_ns() // 1000)

    def _log_if_any(self, create: bool = False) -> LocalLog | None:
        if self._log is None:
            self._log = self._open_log(create)
            self._inherited = self._log.end if self._log is not None else 0
        return self._log

    @contextmanager
    def _trying(self) -> Iterator[None]:
        """Whatever becomes of statistics, the broker goes on."""
        try:
            yield
        except (PenstockError, OSError) as exc:
            if not self._failing:
                self._failing = True
                _logger.warning("latencies are not stored: %s", exc)
            if isinstance(exc, LogFailed) and self._log is not None:
                failed, self._log = self._log, None  # the next one opens it anew
                with suppress(PenstockError, OSError):
                    failed.close()


def _read(
    log: LocalLog, since_us: int, end: int, topic: str | None = None
) -> list[tuple[str, str, Minute]]:
    """What is stored below an offset, of one topic or of all: topics, groups and their minutes."""
    found: list[tuple[str, str, Minute]] = []
    offset = log.find(since_us)
    while offset < end:
        try:
            read = log.read(max(offset, log.start))
        except OffsetOutOfRange:  # retention was quicker
            continue
        for batch in read:
            keys, values, minutes_us = batch.keys, batch.values, batch.timestamps_us()
            if topic is not None:
                mine = pc.indices_nonzero(pc.equal(keys, pa.scalar(topic.encode())))
                keys, values, minutes_us = keys.take(mine), values.take(mine), minutes_us[mine]
            rows = zip(keys.to_pylist(), values.to_pylist(), minutes_us.tolist(), strict=True)
            for key, value, minute_us in rows:
                name = key.decode()
                if value is None:  # it was another topic
                    found = [each for each in found if each[0] != name]
                else:
                    found.append((name, *_decode(minute_us, value)))
        offset = read.next_offset
    return found


def _encode(group: str, minute: Minute) -> bytes:
    _, slot, histogram = minute
    stored = _Stored(group, slot, histogram.sum_us, histogram.max_us, histogram.buckets)
    return _encoder.encode(stored)


def _decode(minute_us: int, value: bytes) -> tuple[str, Minute]:
    stored = _decoder.decode(value)
    histogram = Histogram(stored.buckets, stored.sum_us, stored.max_us)
    return stored.group, Minute(minute_us, stored.slot, histogram)


def _rows(minute_us: int, group: str, slots: dict[int, Histogram]) -> Iterator[LatencyRow]:
    """A minute of a group: for each kind all priorities together, then one by one."""
    kinds: dict[Kind, range] = {"waited": range(LANES), "handled": range(LANES, SLOTS)}
    for kind, all_slots in kinds.items():
        mine = [slot for slot in all_slots if slot in slots]
        if mine:
            together = Histogram.of(slots[slot] for slot in mine)
            each = [(None, together), *((_priority(slot), slots[slot]) for slot in mine)]
            for priority, histogram in each:
                yield LatencyRow(
                    minute_us=minute_us,
                    group=group,
                    priority=priority.name.lower() if priority is not None else None,
                    kind=kind,
                    **_figures(histogram),
                )


def _figures(histogram: Histogram) -> dict[str, int]:
    count = histogram.count
    p50_us, p95_us, p99_us = histogram.percentiles_us((0.5, 0.95, 0.99))
    return {
        "count": count,
        "mean_us": round(histogram.sum_us / count),
        "p50_us": p50_us,
        "p95_us": p95_us,
        "p99_us": p99_us,
        "max_us": histogram.max_us,
    }


def _priority(slot: int) -> Priority:
    return Priority(slot % LANES)


def _kind(slot: int) -> Kind:
    return "waited" if slot < LANES else "handled"
