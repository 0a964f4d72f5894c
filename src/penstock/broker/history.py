"""How things stood minute by minute: what came and went, what was left, who lagged.

Once a minute, beside the housekeeper's own work, it is noted what has changed. Topics to which
nothing happened, and in which nothing waits, cost nothing. A topic that is at rest when the broker
opens is looked at once, some of them a minute, until all are known: before that there are no totals
of depths.

These are statistics. The minute in which the broker ends is not noted, and a log that cannot be
written loses more, with a warning; nobody else notices.
"""

from __future__ import annotations

import heapq
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.broker.history_log import HistoryLog, HistoryNote, Stored
from penstock.broker.statistics_log import StatisticsLog
from penstock.clock import Clock
from penstock.config import DAY_MS
from penstock.durations import Duration, parse_ms
from penstock.errors import BrokerClosed, InvalidInput, TopicNotFound
from penstock.log.base import PartitionLog
from penstock.model.names import TopicName
from penstock.model.overview import HistoryPage, HistoryRow
from penstock.model.stats import MessageCounters, TopicStats

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

MINUTE_US = 60_000_000
RECENT_MINUTES = 60
READ_MS_MAX = 2000
_LAGS_MAX = 20
_LOOKED_AT_MAX = 200  # of topics at rest, in one minute
_ALL = "/"


class _Gauges(NamedTuple):
    """How a topic stands."""

    depth: int
    in_flight: int
    delayed: int
    dead: int
    lag: dict[str, int]

    @property
    def is_idle(self) -> bool:
        return not (self.depth or self.in_flight or self.delayed)


class History:
    """Any thread may read; notes are taken by one at a time."""

    def __init__(self, clock: Clock, open_log: Callable[[bool], PartitionLog | None]) -> None:
        """`open_log` makes a log if it may; else it gives None where there is none."""
        self._clock = clock
        self._log = StatisticsLog("notes on topics", open_log, HistoryLog)
        self._lock = threading.Lock()
        self._counted: dict[TopicName, MessageCounters] = {}
        self._gauges: dict[TopicName, _Gauges] = {}
        self._totals: dict[str, tuple[int | None, ...]] = {}
        self._recent: dict[str, deque[tuple[int, int]]] = {}
        self._remembered = False

    def take_notes(self, broker: Broker) -> None:
        """Of the minute that is over, or of what there is of it."""
        now_us = self._clock.wall_ns() // 1000
        minute_us = (now_us - MINUTE_US // 2) // MINUTE_US * MINUTE_US
        with self._lock:
            changes = dict(self._changes(broker))
            notes = [HistoryNote(str(name), minute_us, each) for name, each in changes.items()]
            notes += [
                HistoryNote(key, minute_us, each) for key, each in self._sums(broker, changes)
            ]
            if not notes:
                return
            for each in notes:
                self._note_recent(each)
            self._log.write(lambda log: log.append(notes, now_us))

    def until_next_ns(self) -> int:
        """Until the minute is over."""
        return MINUTE_US * 1000 - self._clock.wall_ns() % (MINUTE_US * 1000)

    def page(self, key: str, since_us: int, until_us: int | None, step_us: int) -> HistoryPage:
        """Of a topic, by what `str` writes of its name, or of all of a namespace."""
        ends_ns = self._clock.monotonic_ns() + READ_MS_MAX * 1_000_000
        since_us -= since_us % step_us
        found: dict[int, list[Stored]] = defaultdict(list)
        complete = True
        for minutes in self._read(since_us, key):
            for each in minutes:
                if until_us is None or each.minute_us < until_us:
                    found[each.minute_us // step_us * step_us].append(each.stored)
            if self._clock.monotonic_ns() > ends_ns:
                complete = False
                break
        rows = [_row(time_us, several) for time_us, several in sorted(found.items())]
        return HistoryPage(rows=rows, complete=complete)

    def recent(self, name: TopicName) -> list[int]:
        """What was published to a topic in each of the last sixty minutes that are over."""
        self._remember()
        last_us = (self._clock.wall_ns() // 1000 // MINUTE_US - 1) * MINUTE_US
        counts = [0] * RECENT_MINUTES
        for minute_us, published in list(self._recent.get(str(name), ())):
            back = (last_us - minute_us) // MINUTE_US
            if 0 <= back < RECENT_MINUTES:
                counts[RECENT_MINUTES - 1 - back] += published
        return counts

    def forget(self, name: TopicName) -> None:
        """It is deleted. The caller may hold locks that taking notes waits for."""
        self._counted.pop(name, None)
        self._gauges.pop(name, None)
        self._recent.pop(str(name), None)

    def close(self) -> None:
        with self._lock:
            self._log.close()

    # The lock is held.

    def _changes(self, broker: Broker) -> Iterator[tuple[TopicName, Stored]]:
        """What is to be noted of each topic."""
        before = self._gauges
        counted = dict(broker.counters.summaries())
        moved = {name for name, each in counted.items() if each != self._counted.get(name)}
        waiting = {name for name, each in before.items() if not each.is_idle}
        unknown = (name for name in broker.topics() if name not in before)
        some = [name for name, _ in zip(unknown, range(_LOOKED_AT_MAX), strict=False)]
        for name in sorted(moved | waiting | set(some)):
            if broker.closed:
                return
            try:
                gauges = _gauges_of(broker.stats(name))
            except BrokerClosed:  # meanwhile
                return
            except TopicNotFound:
                before.pop(name, None)
                continue
            new = counted.get(name, MessageCounters())
            old = self._counted.get(name, MessageCounters())
            if name in counted:
                self._counted[name] = new
            known = before.get(name)
            before[name] = gauges
            if new != old or (gauges != known and not (known is None and gauges.is_idle)):
                yield name, _stored(old, new, gauges)

    def _sums(
        self, broker: Broker, changes: dict[TopicName, Stored]
    ) -> Iterator[tuple[str, Stored]]:
        """Of all topics together and of those of each namespace, without those of dead letters,
        whose messages were counted when they were in their topics."""
        names = [name for name in broker.topics() if not broker.is_dead_letters(name)]
        sums: dict[str, list[int]] = defaultdict(lambda: [0] * 5)
        for name, one in changes.items():
            if broker.is_dead_letters(name):
                continue
            for key in (_ALL, f"{name.namespace}/"):
                for at, count in enumerate(
                    (one.published, one.delivered, one.acked, one.failed, one.dead_lettered)
                ):
                    sums[key][at] += count
        known = all(name in self._gauges for name in names)
        gauges: dict[str, list[int]] = defaultdict(lambda: [0] * 4)
        for name in names if known else ():
            for key in (_ALL, f"{name.namespace}/"):
                for at, value in enumerate(self._gauges[name][:4]):
                    gauges[key][at] += value
        for key in sorted(sums.keys() | gauges.keys()):
            standing: tuple[int | None, ...] = tuple(gauges[key]) if known else (None,) * 4
            counts: list[Any] = sums[key]
            if any(counts) or standing != self._totals.get(key):
                self._totals[key] = standing
                yield key, Stored(*counts, *standing)

    def _note_recent(self, each: HistoryNote) -> None:
        if each.stored.published and not each.key.endswith("/"):
            row = self._recent.setdefault(each.key, deque(maxlen=RECENT_MINUTES))
            row.append((each.minute_us, each.stored.published))

    # The lock is free.

    def _remember(self) -> None:
        """What was published before the start is recent as well."""
        if self._remembered:
            return
        with self._lock:
            if self._remembered:
                return
            self._remembered = True
            now = self._recent
            self._recent = {}
            since_us = self._clock.wall_ns() // 1000 - (RECENT_MINUTES + 1) * MINUTE_US
            with self._log.trying():
                log = self._log.if_any()
                for minutes in log.read(since_us) if log is not None and not now else ():
                    for each in minutes:
                        self._note_recent(each)
            self._recent |= now

    def _read(self, since_us: int, key: str) -> Iterator[list[HistoryNote]]:
        log = None
        with self._lock, self._log.trying():
            log = self._log.if_any()
        if log is not None:
            yield from log.read(since_us, key)


def totals_key(namespace: str | None) -> str:
    """Of all topics of a namespace, or of all there are."""
    return _ALL if namespace is None else f"{namespace}/"


def _gauges_of(stats: TopicStats) -> _Gauges:
    lags = heapq.nlargest(_LAGS_MAX, stats.groups, key=lambda group: group.depth)
    return _Gauges(
        stats.depth,
        stats.in_flight,
        stats.delayed,
        stats.dead,
        {group.group: group.depth for group in lags},
    )


def _stored(old: MessageCounters, new: MessageCounters, gauges: _Gauges) -> Stored:
    def failed(counters: MessageCounters) -> int:
        return counters.nacked + counters.rejected + counters.expired

    return Stored(
        max(0, new.published - old.published),
        max(0, new.delivered - old.delivered),
        max(0, new.acked - old.acked),
        max(0, failed(new) - failed(old)),
        max(0, new.dead_lettered - old.dead_lettered),
        *gauges,
    )


def _row(time_us: int, several: Iterable[Stored]) -> HistoryRow:
    several = list(several)
    last = several[-1]
    return HistoryRow(
        time_us=time_us,
        published=sum(each.published for each in several),
        delivered=sum(each.delivered for each in several),
        acked=sum(each.acked for each in several),
        failed=sum(each.failed for each in several),
        dead_lettered=sum(each.dead_lettered for each in several),
        depth=last.depth,
        in_flight=last.in_flight,
        delayed=last.delayed,
        dead=last.dead,
        lag=last.lag,
    )


def step_of(step: Duration) -> int:
    """In microseconds; InvalidInput for what cannot be."""
    step_us = parse_ms(step, "step") * 1000
    if not 0 < step_us <= DAY_MS * 1000 or step_us % MINUTE_US:
        raise InvalidInput(f"step is {step!r}; it must be whole minutes, up to a day")
    return step_us
