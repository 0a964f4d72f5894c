"""How long messages wait, and how long they are worked on, by queue group and priority.

`waited` is from a message's timestamp to its first hand-out; a retry is no waiting. The timestamp
of a delayed message is of the moment when it fell due. `handled` is from a hand-out to its ack.
Both are by the wall clock; a clock that was set back makes them nothing, not less.

They are counted by minute, that of the hand-out or the ack, and since the start. The housekeeper
stores a minute once it is over, if anything was counted in it, and `close` the last one; where and
how is in `latency_log.py`.

These are statistics. A kill loses the present minute, and a log that cannot be written loses more,
with a warning; nobody else notices.
"""

from __future__ import annotations

import heapq
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby, product
from operator import itemgetter
from typing import NamedTuple

from penstock.broker.group_latencies import (
    LANES,
    MINUTE_US,
    RECENT_US,
    SLOTS,
    GroupLatencies,
    TopicLatencies,
)
from penstock.broker.histogram import Histogram
from penstock.broker.housekeeper import Chore
from penstock.broker.latency_log import Counted, LatencyHistory, LatencyLog, Timed
from penstock.broker.statistics_log import StatisticsLog
from penstock.clock import Clock
from penstock.log.base import PartitionLog
from penstock.model.names import TopicName, parse_topic
from penstock.model.stats import Kind, LatencyRow, LatencyStats
from penstock.record.schema import Priority

HOUR_US = 60 * MINUTE_US
READS_MAX = 64
"""So often a page is read on in the log, at the most; then it ends with the minute."""

_UNSTORED_MAX = 10_000  # messages that wait for a disk which is full


class Total(NamedTuple):
    """All that was counted since the start."""

    topic: str
    group: str
    priority: Priority
    kind: Kind
    histogram: Histogram


class Latencies:
    """Those of all topics, and the log in which they are stored."""

    def __init__(self, clock: Clock, open_log: Callable[[bool], PartitionLog | None]) -> None:
        """`open_log` makes a log if it may; else it gives None where there is none."""
        self.plan: Callable[[Chore, int], None] = lambda chore, deadline_ns: None
        """Set by the broker: there is something to store then."""
        self._clock = clock
        self._log = StatisticsLog("latencies", open_log, LatencyLog)
        self._topics: dict[TopicName, TopicLatencies] = {}
        self._unstored: list[Counted] = []
        self._remembered = False
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

    def page(
        self,
        topic: TopicName,
        since_us: int | None = None,
        until_us: int | None = None,
        rows_max: int | None = None,
    ) -> tuple[list[LatencyRow], int | None]:
        """The minutes that begin before `until_us`, from the one on in which `since_us` lies; by
        default those of the last hour. The present one is there as far as it has got.

        With `rows_max` the page ends with the minute in which it gets so many, or when so much was
        read that it has taken long enough; then it says with which minute to go on.
        """
        if since_us is None:
            now_us = self._clock.wall_ns() // 1000
            since_us = (now_us if until_us is None else until_us) - HOUR_US
        since_us -= since_us % MINUTE_US
        history, memory = self._now(topic)
        stored = history.minutes(since_us) if history is not None else ()
        known = [each for each in memory if each[0] >= since_us]
        rows: list[LatencyRow] = []
        in_order = heapq.merge(stored, sorted(known, key=itemgetter(0)), key=itemgetter(0))
        for minute_us, several in groupby(in_order, itemgetter(0)):
            if until_us is not None and minute_us >= until_us:
                break
            # Each page gets on by a minute at least, also where damage has put them out of order.
            may_end = rows_max is not None and minute_us > since_us
            if may_end and _is_long(history):
                return rows, minute_us
            counted = [each for _, each in several if each is not None]
            if counted and may_end and len(rows) >= (rows_max or 0):
                return rows, minute_us
            rows += _rows(minute_us, counted)
        return rows, None

    def begin(self, topic: TopicName) -> None:
        """A topic is made. What is stored of an earlier one of that name is not its own."""
        with self._lock, self._log.trying():
            log = self._log.if_any()
            if log is not None:
                log.begin(str(topic))

    def forget(self, topic: TopicName) -> None:
        """A topic is deleted."""
        with self._lock:
            self._topics.pop(topic, None)
            self._unstored = [each for each in self._unstored if each.topic != str(topic)]
            log = self._log.if_open()
            if log is not None:
                log.forget(str(topic))

    def forget_group(self, topic: TopicName, group: str) -> None:
        """A group is deleted; what it did stays in the history of the topic."""
        with self._lock:
            known = self._groups(topic).pop(group, None)
            if known is not None:
                minutes, _ = known.take_finished(None)
                self._unstored += [Counted(str(topic), group, each) for each in minutes]

    def store(self, now_ns: int) -> int | None:
        """Store the minutes that are over; when the next one is."""
        wall_ns = self._clock.wall_ns()
        until_us = self._store(wall_ns // 1000)
        return None if not until_us else now_ns + max(until_us * 1000 - wall_ns, 0)

    def close(self) -> None:
        """Store the present minute as well."""
        self._store(None)
        with self._lock:
            self._log.close()

    def _remember(self) -> None:
        """What a group did just before the start is recent as well."""
        with self._lock, self._log.trying():
            if self._remembered:
                return
            self._remembered = True
            log = self._log.if_any()
            if log is not None:
                since_us = self._clock.wall_ns() // 1000 - RECENT_US - MINUTE_US
                for _, each in log.inherited().minutes(since_us):
                    groups = self._topics.get(parse_topic(each.topic)) if each else None
                    if each is not None and groups is not None:
                        groups[each.group].remember(each.minute)

    def _now(self, topic: TopicName) -> tuple[LatencyHistory | None, list[Timed]]:
        """What is stored of a topic, and what is not yet."""
        history, name = None, str(topic)
        with self._lock:
            with self._log.trying():
                log = self._log.if_any()
                history = log.history(name) if log is not None else None
            memory = [each for each in self._unstored if each.topic == name]
            for group, known in list(self._groups(topic).items()):
                memory += [Counted(name, group, each) for each in known.minutes()]
        return history, [(each.minute.minute_us, each) for each in memory]

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
                    self._unstored += [Counted(str(topic), group, each) for each in finished]
                    ends += [until_us] if until_us else []
            if self._unstored:
                self._log.write(self._append)
                del self._unstored[:-_UNSTORED_MAX]
            return min(ends, default=0)

    # The lock is held.

    def _append(self, log: LatencyLog) -> None:
        log.append(self._unstored)
        self._unstored.clear()
        log.drop_old(self._clock.wall_ns() // 1000)


def _rows(minute_us: int, counted: Iterable[Counted]) -> Iterator[LatencyRow]:
    """A minute, by group: for each kind all priorities together, then one by one."""
    groups: defaultdict[str, dict[int, Histogram]] = defaultdict(dict)
    for _, group, (_, slot, histogram) in counted:
        groups[group].setdefault(slot, Histogram()).merge(histogram)
    kinds: dict[Kind, range] = {"waited": range(LANES), "handled": range(LANES, SLOTS)}
    for group, (kind, all_slots) in product(sorted(groups), kinds.items()):
        slots = groups[group]
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


def _is_long(history: LatencyHistory | None) -> bool:
    return history is not None and history.reads >= READS_MAX


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
