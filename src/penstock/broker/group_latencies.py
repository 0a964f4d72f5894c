"""What is counted of one queue group: latencies by minute and since the start, and rates."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from struct import Struct
from typing import NamedTuple

import numpy as np

from penstock.broker.histogram import Histogram
from penstock.broker.rates import Meter
from penstock.delivery.leases import Lease
from penstock.delivery.offsets import Int64s, Offsets
from penstock.model.stats import Kind
from penstock.record.batch import Batch
from penstock.record.schema import BITS, Priority

MINUTE_US = 60_000_000
RECENT_US = 5 * MINUTE_US
"""The time that `recent` covers: whole minutes, and the present one besides."""

LANES = len(Priority)
SLOTS = 2 * LANES
"""By priority those that waited, then those that were handled."""

_TIMESTAMP = BITS["timestamp"]
_SAMPLE = Struct("=5q")  # slot, start, count, end, and when that was by the monotonic clock
_SECOND_NS = 1_000_000_000
_SAMPLES_BYTES_MAX = 4000 * _SAMPLE.size  # to count few takes nearly as long as to count many


class Minute(NamedTuple):
    """What was counted in one slot. The histogram does not change any more."""

    minute_us: int
    slot: int
    histogram: Histogram


class GroupLatencies:
    """One queue group on all partitions of its topic. Any thread may call anything.

    A hand-out or an ack only appends a sample, which needs no lock; samples are counted when there
    are many, or when statistics are asked for.
    """

    def __init__(self, note: Callable[[int], None]) -> None:
        """`note` is told when a minute ends in which something is counted."""
        self._acked = Meter()  # without those among the samples
        self._note = note
        self._noted_us = 0  # when the minute ends of which it was told last
        self._samples = bytearray()
        self._lock = threading.Lock()
        self._open: dict[tuple[int, int], Histogram] = {}  # by minute and slot
        self._finished: list[Minute] = []  # not stored yet
        self._recent: list[Minute] = []
        self._totals: dict[int, Histogram] = {}  # without the open ones

    def waited(self, priority: int, batch: Batch, count: int, wall_us: int) -> None:
        """Messages are handed out for the first time; `count` is the length of the batch."""
        if batch.columns & _TIMESTAMP:
            column = np.empty((count, 5), np.int64)
            column[:] = priority, 0, 1, wall_us, 0
            column[:, 1] = batch.timestamps_us()
            sample = column.tobytes()
        else:  # one for all
            sample = _SAMPLE.pack(priority, batch.timestamp_us or 0, count, wall_us, 0)
        samples = self._samples
        samples += sample
        if wall_us >= self._noted_us or len(self._samples) >= _SAMPLES_BYTES_MAX:
            self._tend(wall_us)

    def handled(self, lease: Lease, offsets: Offsets, wall_us: int, now_ns: int) -> None:
        """Messages of a lease are done."""
        samples, start_us, parts = self._samples, lease.wall_us, lease.parts
        if len(parts) == 1:
            slot = LANES + parts[0].priority
            samples += _SAMPLE.pack(slot, start_us, offsets.count, wall_us, now_ns)
        else:
            for part in lease.parts_of(offsets):
                slot, count = LANES + part.priority, part.offsets.count
                samples += _SAMPLE.pack(slot, start_us, count, wall_us, now_ns)
        if wall_us >= self._noted_us or len(samples) >= _SAMPLES_BYTES_MAX:
            self._tend(wall_us)

    def acked_per_second(self, now_ns: int) -> float:
        with self._lock:
            self._count_samples()
            return self._acked.per_second(now_ns)

    def take_finished(self, wall_us: int | None) -> tuple[list[Minute], int]:
        """Minutes that are over, to be stored, and when the present one is; 0: there is none.

        Without a time every minute is over.
        """
        present_us = None if wall_us is None else _minute_us(wall_us)
        with self._lock:
            self._noted_us = 0  # first: what comes from now on is noted again
            self._count_samples()
            for minute_us, slot in [place for place in self._open if place[0] != present_us]:
                self._finish(Minute(minute_us, slot, self._open.pop((minute_us, slot))))
            finished, self._finished = self._finished, []
            if not self._open or present_us is None:
                return finished, 0
            self._noted_us = present_us + MINUTE_US
            return finished, self._noted_us

    def minutes(self) -> list[Minute]:
        """Those that are not stored yet, the present one too."""
        with self._lock:
            return [*self._finished, *self._copies()]

    def recent(self, kind: Kind, wall_us: int) -> Histogram:
        """The last minutes, and the present one."""
        slots = range(LANES) if kind == "waited" else range(LANES, SLOTS)
        oldest_us = _minute_us(wall_us) - RECENT_US
        with self._lock:
            known = [*self._recent, *self._copies()]
        return Histogram.of(
            each.histogram
            for each in known
            if each.slot in slots and oldest_us <= each.minute_us <= wall_us
        )

    def remember(self, minute: Minute) -> None:
        """A minute that was counted and stored before the start."""
        with self._lock:
            self._recent.append(minute)

    def totals(self) -> dict[int, Histogram]:
        """By slot, since the start."""
        with self._lock:
            totals = {slot: Histogram.of([total]) for slot, total in self._totals.items()}
            for _, slot, histogram in self._copies():
                totals.setdefault(slot, Histogram()).merge(histogram)
            return totals

    def _tend(self, wall_us: int) -> None:
        """There are many samples, or the first of a minute."""
        if wall_us >= self._noted_us:
            self._noted_us = _minute_us(wall_us) + MINUTE_US
            self._note(self._noted_us)
        if len(self._samples) >= _SAMPLES_BYTES_MAX:
            with self._lock:
                self._count_samples()

    # The lock is held.

    def _add(self, slot: int, minute_us: int, took_us: Int64s, counts: Int64s) -> None:
        histogram = self._open.get((minute_us, slot))
        if histogram is None:
            histogram = self._open[minute_us, slot] = Histogram()
        histogram.add(np.maximum(took_us, 0), counts)

    def _count_samples(self) -> None:
        samples = bytes(self._samples)
        if not samples:
            return
        del self._samples[: len(samples)]  # others may have added some meanwhile
        columns = np.frombuffer(samples, np.int64).reshape(-1, 5).T
        slots, starts_us, counts, ends_us, ends_ns = columns
        places = (ends_us // MINUTE_US) * SLOTS + slots
        for place in dict.fromkeys(places.tolist()):  # in their order
            mine = places == place
            minute, slot = divmod(place, SLOTS)
            self._add(slot, minute * MINUTE_US, (ends_us - starts_us)[mine], counts[mine])
        handled = slots >= LANES
        seconds, counts = ends_ns[handled] // _SECOND_NS, counts[handled]
        for second in dict.fromkeys(seconds.tolist()):
            self._acked.add(int(counts[seconds == second].sum()), second * _SECOND_NS)

    def _finish(self, minute: Minute) -> None:
        self._finished.append(minute)
        self._recent = [m for m in self._recent if abs(m.minute_us - minute.minute_us) <= RECENT_US]
        self._recent.append(minute)
        self._totals.setdefault(minute.slot, Histogram()).merge(minute.histogram)

    def _copies(self) -> Iterator[Minute]:
        """Of the minutes that are not over."""
        self._count_samples()
        for (minute_us, slot), histogram in self._open.items():
            yield Minute(minute_us, slot, Histogram.of([histogram]))


class TopicLatencies(dict[str, GroupLatencies]):
    """The groups of a topic, each made when something is first counted for it."""

    def __init__(self, note: Callable[[int], None]) -> None:
        super().__init__()
        self._note = note

    def __missing__(self, group: str) -> GroupLatencies:
        return self.setdefault(group, GroupLatencies(self._note))


def _minute_us(wall_us: int) -> int:
    """When the minute began."""
    return wall_us - wall_us % MINUTE_US
