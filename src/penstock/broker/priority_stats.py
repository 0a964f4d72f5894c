"""A topic by priority: what waits in each lane, and how quickly it comes and goes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.broker.counters import PartitionCounters
from penstock.broker.partition import Partition
from penstock.broker.stats import messages_by_lane, ready_by_lane
from penstock.broker.topic import Topic
from penstock.clock import Clock
from penstock.model.stats import LaneStats, PartitionLanes, PriorityStats
from penstock.record.schema import Priority


def priority_stats(topic: Topic, clock: Clock) -> PriorityStats:
    """Of all partitions together, and of each."""
    now_ns = clock.monotonic_ns()
    groups = topic.groups()
    each = [_backlog(partition, groups) for partition in topic.partitions]
    together = _Backlog(
        [_sum(ready) for ready in zip(*(backlog.ready for backlog in each), strict=True)],
        _sum([backlog.in_flight for backlog in each]),
    )
    counters = [partition.counters for partition in topic.partitions]
    return PriorityStats(
        topic=str(topic.name),
        lanes=_lanes(together, counters, now_ns),
        partitions=[
            PartitionLanes(partition=number, lanes=_lanes(backlog, [counted], now_ns))
            for number, (backlog, counted) in enumerate(zip(each, counters, strict=True))
        ],
    )


class _Backlog(NamedTuple):
    """By priority: what waits for each group, or for anybody if there is none."""

    ready: Sequence[Sequence[int]]
    in_flight: Sequence[int]


def _backlog(partition: Partition, groups: Sequence[str]) -> _Backlog:
    if not groups:
        return _Backlog([messages_by_lane(partition)], [0] * len(Priority))
    stats = {group: partition.stats(group) for group in groups}
    return _Backlog(
        [ready_by_lane(partition, group, each) for group, each in stats.items()],
        _sum([each.in_flight_by_priority for each in stats.values()]),
    )


def _lanes(
    backlog: _Backlog, counters: Sequence[PartitionCounters], now_ns: int
) -> dict[str, LaneStats]:
    return {
        priority.name.lower(): LaneStats(
            ready=max(ready[priority] for ready in backlog.ready),
            in_flight=backlog.in_flight[priority],
            enqueue_rate=sum(each.published[priority].per_second(now_ns) for each in counters),
            dequeue_rate=sum(each.delivered.lane_rate(priority, now_ns) for each in counters),
            last_served_us=max(
                (at for each in counters if (at := each.last_served_us[priority]) is not None),
                default=None,
            ),
        )
        for priority in Priority
    }


def _sum(counts: Sequence[Sequence[int]]) -> list[int]:
    """By priority."""
    return [sum(each[priority] for each in counts) for priority in Priority]
