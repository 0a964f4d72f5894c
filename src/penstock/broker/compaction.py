"""When the sealed segments of a topic are rewritten, and what of them nobody needs any more.

By itself, every topic's `compaction_interval` at the most, and not while much is published: those
that were sealed since the last time, whose small frames are merged; all of them where a quarter of
their messages may go. `Broker.compact` does all of it at once.

What may go beside messages that a later one of their key replaces: those that expired, unless a
group holds them or is still to make dead letters of them; with `retention_mode="consumed"`, those
that every group has done; and letters that were redriven or purged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import msgspec
import numpy as np

from penstock.broker.partition import Partition
from penstock.broker.topic import Topic
from penstock.broker.withheld import done_between
from penstock.clock import Clock
from penstock.delivery.offsets import EMPTY, Offsets
from penstock.errors import DiskFull, LogClosed
from penstock.log.base import BoolArray, Int64Array
from penstock.record.frame import EXPIRES

if TYPE_CHECKING:
    from penstock.broker.retention import TopicRetention

_logger = logging.getLogger("penstock.broker")

HEAVY_PER_SECOND = 2000
"""Messages a second on a partition: while so many come, its segments are left alone."""

LOOK_AGAIN_NS = 3600 * 1_000_000_000
"""How often segments are searched for messages that have expired since."""

_REMOVED_SHARE_MIN = 0.25  # a file is rewritten as a whole, for no less than that


class _Looked(msgspec.Struct):
    """What was looked at last."""

    sealed_end: int = 0
    all_ns: int = 0
    done: int = 0


class TopicCompaction:
    def __init__(self, clock: Clock, retention: TopicRetention) -> None:
        self._clock = clock
        self._retention = retention
        self._looked: WeakKeyDictionary[Partition, _Looked] = WeakKeyDictionary()
        self._next_ns: WeakKeyDictionary[Topic, int] = WeakKeyDictionary()
        self.aside: Callable[[Callable[[], None]], None] = lambda work: work()
        """How long work is done: by the broker's thread for it, if it has one."""

    def look(self, topic: Topic) -> None:
        """Rewrite what is worth it, if it is time."""
        now_ns = self._clock.monotonic_ns()
        interval_ms = topic.settings.compaction_interval_ms
        if interval_ms is None or not any(self._has_work(topic, p) for p in topic.partitions):
            return
        if now_ns < self._next_ns.get(topic, 0):
            topic.tend()  # look again in a while
            return
        self._next_ns[topic] = now_ns + interval_ms * 1_000_000
        self.aside(lambda: self._run(topic))

    def look_again_ns(self, topic: Topic) -> int | None:
        """When to look again although nothing happens: messages may have expired."""
        if topic.settings.compaction_interval_ms is None:
            return None
        waiting = [self._looked[p].all_ns for p in topic.partitions if p in self._looked]
        expires = any(_may_expire(p) for p in topic.partitions)
        return min(waiting) + LOOK_AGAIN_NS if waiting and expires else None

    def compact(self, topic: Topic) -> None:
        """All of it, now: also what is not sealed yet, and whatever little can go."""
        for partition in topic.partitions:
            log = partition.log
            log.roll()
            size_bytes = log.size_bytes
            self._compact(topic, partition, everything=True)
            if log.size_bytes < size_bytes:  # what is left of many files may fit into one
                self._compact(topic, partition, everything=True)

    def _run(self, topic: Topic) -> None:
        for partition in topic.partitions:
            if not self._has_work(topic, partition):
                continue
            if partition.counters.publish_rate(self._clock.monotonic_ns()) > HEAVY_PER_SECOND:
                topic.tend()
                continue
            try:
                self._compact(topic, partition)
            except LogClosed:
                return
            except DiskFull as exc:  # it would need room before it makes some
                _logger.warning("%s is not compacted: %s", topic.name, exc)

    def _has_work(self, topic: Topic, partition: Partition) -> bool:
        log, looked = partition.log, self._looked.get(partition)
        if log.sealed_end <= log.start:
            return False
        return (
            looked is None
            or looked.sealed_end != log.sealed_end
            or self._may_go(topic, partition, looked)
        )

    def _may_go(self, topic: Topic, partition: Partition, looked: _Looked) -> bool:
        """Whether there may be much to remove from what was looked at before."""
        if _may_expire(partition):
            return self._clock.monotonic_ns() >= looked.all_ns + LOOK_AGAIN_NS
        log = partition.log
        done = self._unneeded(topic, partition).count - looked.done
        return done >= _REMOVED_SHARE_MIN * max(1, log.sealed_end - log.start)

    def _compact(self, topic: Topic, partition: Partition, *, everything: bool = False) -> None:
        log, looked = partition.log, self._looked.setdefault(partition, _Looked())
        keyed = topic.settings.compacted
        every_segment = everything or keyed or self._may_go(topic, partition, looked)
        sealed_end, now_ns = log.sealed_end, self._clock.monotonic_ns()
        if sealed_end <= log.start:
            return
        with topic.delays.at_rest(partition.number):
            partition.checkpoint()  # merged frames no longer tell who sent them
        needs = self._needs(topic, partition)
        log.compact(
            self._clock.wall_ns() // 1000,
            keyed=keyed,
            since=0 if every_segment else looked.sealed_end,
            needs=needs,
            removed_share_min=0 if everything or keyed else _REMOVED_SHARE_MIN,
        )
        looked.sealed_end = sealed_end
        if every_segment:
            looked.all_ns, looked.done = now_ns, needs.done.count

    def _needs(self, topic: Topic, partition: Partition) -> PartitionNeeds:
        settings = topic.settings
        unneeded = self._unneeded(topic, partition)
        with partition.lock:
            held = EMPTY
            for queue in partition.queues.values():
                held |= Offsets.of(queue.state.outstanding.copy())
        log = partition.log
        held |= Offsets.run(self._retention.window_start(topic, partition), log.end)
        undone = EMPTY
        if settings.dead_letters and settings.dead_letter_expired:
            undone = Offsets.run(log.start, log.end) - _done_by_all(topic, partition)
        return PartitionNeeds(unneeded, held | undone)

    def _unneeded(self, topic: Topic, partition: Partition) -> Offsets:
        """What no reader will ask for, whatever its age."""
        gone = partition.passed_over()
        if topic.settings.retention_mode != "consumed":
            return gone
        floor = self._retention.others_done(topic, partition)
        return gone | (_done_by_all(topic, partition) & Offsets.run(0, floor))


class PartitionNeeds:
    """What readers of a partition need, and what not."""

    def __init__(self, done: Offsets, held: Offsets) -> None:
        self.done = done
        self._held = held

    @property
    def has_unneeded(self) -> bool:
        return self.done.count > 0

    def needed(self, offsets: Int64Array) -> BoolArray:
        return _among(offsets, self._held)

    def unneeded(self, offsets: Int64Array) -> BoolArray:
        return _among(offsets, self.done)


def _among(offsets: Int64Array, some: Offsets) -> BoolArray:
    if not len(offsets) or not some.count:
        return np.zeros(len(offsets), np.bool_)
    here = some & Offsets.run(int(offsets[0]), int(offsets[-1]) + 1)
    return np.isin(offsets, here.array())


def _done_by_all(topic: Topic, partition: Partition) -> Offsets:
    """What every queue group has done. One that was never on this partition has done nothing."""
    groups = {group for each in topic.partitions for group in [*each.queues]}
    with partition.lock:
        if not groups or not groups <= partition.queues.keys():
            return EMPTY
        start, end = partition.log.start, partition.log.end
        every = [done_between(q.state.acked, start, end) for q in partition.queues.values()]
    done = every[0]
    for each in every[1:]:
        done = done & each
    return done


def _may_expire(partition: Partition) -> bool:
    log = partition.log
    return bool(log.priorities_between(log.start, log.sealed_end) & EXPIRES)
