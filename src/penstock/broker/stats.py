"""What a topic looks like right now."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from penstock.delivery.offsets import Offsets
from penstock.delivery.queue import Stats
from penstock.errors import TopicNotFound
from penstock.model.stats import GroupStats, PartitionStats, TopicStats
from penstock.record.schema import Priority

if TYPE_CHECKING:
    from penstock.broker.look_calls import LookCalls
    from penstock.broker.partition import Partition
    from penstock.broker.topic import Topic
    from penstock.model.names import TopicName


_SCANS_MAX = 64


def topic_stats(broker: LookCalls, topic: Topic, dead: int) -> TopicStats:
    now_ns = broker.clock.monotonic_ns()
    partitions = [
        PartitionStats(
            partition=p.number,
            start=p.log.start,
            end=p.log.end,
            durable_end=p.log.durable_end,
            size_bytes=p.log.size_bytes,
            damaged=len(p.log.damage),
            publish_rate=p.counters.publish_rate(now_ns),
            segments=p.log.segment_count,
        )
        for p in topic.partitions
    ]
    groups = [_group_stats(broker, topic, group) for group in topic.groups()]
    delays = topic.delays.stats()
    made = broker.topic_times(topic.name)
    gone = sum(p.passed_over().count for p in topic.partitions)
    messages = sum(p.end - p.start for p in partitions) - gone
    return TopicStats(
        topic=str(topic.name),
        messages=messages,
        size_bytes=sum(p.size_bytes for p in partitions),
        depth=max((g.depth for g in groups), default=messages),
        in_flight=sum(g.in_flight for g in groups),
        delayed=delays.pending,
        next_due_us=delays.next_due_us,
        dead=dead,
        publish_rate=sum(p.publish_rate for p in partitions),
        deliver_rate=sum(g.deliver_rate for g in groups),
        ack_rate=sum(g.ack_rate for g in groups),
        partitions=partitions,
        groups=groups,
        segments=sum(p.segments for p in partitions),
        counters=broker.counters.of(topic.name).summary(),
        created_us=made.created_us,
        updated_us=made.updated_us,
        incarnation=broker.incarnation(topic.name),
        alarms=broker.alarms(topic),
    )


def empty_stats(broker: LookCalls, name: TopicName, partitions: int, dead: int) -> TopicStats:
    """Of a topic to which nobody has published yet."""
    made = broker.topic_times(name)
    nothing = {"start": 0, "end": 0, "durable_end": 0, "size_bytes": 0, "damaged": 0}
    return TopicStats(
        topic=str(name),
        messages=0,
        size_bytes=0,
        depth=0,
        in_flight=0,
        delayed=0,
        next_due_us=None,
        dead=dead,
        publish_rate=0,
        deliver_rate=0,
        ack_rate=0,
        partitions=[
            PartitionStats(partition=number, publish_rate=0, **nothing)
            for number in range(partitions)
        ],
        groups=[],
        created_us=made.created_us,
        updated_us=made.updated_us,
        incarnation=broker.incarnation(name),
    )


def dead_count(broker: LookCalls, name: TopicName) -> int:
    """Dead letters of a topic that are neither redriven nor purged."""
    if broker.is_dead_letters(name):
        return 0
    dead = broker.dead_letters_of(name)
    try:
        if broker.is_open(dead):
            return broker.dead_letters(name).count()
        return broker.stats(dead).messages  # nobody opens it to be counted
    except TopicNotFound:
        return 0  # there was no letter yet, or the first one is just being written


def _group_stats(broker: LookCalls, topic: Topic, group: str) -> GroupStats:
    each: dict[int, Stats] = {p.number: p.stats(group) for p in topic.partitions}
    now_ns, now_us = broker.clock.monotonic_ns(), broker.clock.wall_ns() // 1000
    counted = topic.partitions[0].latencies[group]  # all partitions share them
    ages = [
        max(0, now_us - p.source.arrived_us(each[p.number].committed))
        for p in topic.partitions
        if each[p.number].depth and p.log.start <= each[p.number].committed < p.log.end
    ]
    return GroupStats(
        group=group,
        depth=sum(s.depth for s in each.values()),
        ready=sum(s.ready for s in each.values()),
        in_flight=sum(s.in_flight for s in each.values()),
        retrying=sum(s.retrying for s in each.values()),
        committed={number: s.committed for number, s in each.items()},
        depth_by_partition={number: s.depth for number, s in each.items()},
        ready_by_priority=_by_priority(
            [ready_by_lane(p, group, each[p.number]) for p in topic.partitions]
        ),
        in_flight_by_priority=_by_priority([s.in_flight_by_priority for s in each.values()]),
        retrying_by_priority=_by_priority([s.retrying_by_priority for s in each.values()]),
        oldest_age_us=max(ages, default=None),
        deliver_rate=sum(p.counters.delivered.rate(group, now_ns) for p in topic.partitions),
        ack_rate=counted.acked_per_second(now_ns),
        waited=broker.latencies.recent(topic.name, group, "waited"),
        handled=broker.latencies.recent(topic.name, group, "handled"),
    )


def ready_by_lane(partition: Partition, group: str, stats: Stats) -> tuple[int, ...]:
    """How many messages of each priority were never handed out; together `stats.ready`."""
    state = partition.queue(group).state
    # Acks may have come since the statistics were taken: they must not lead us past the log's end.
    end = min(stats.committed + stats.depth + len(state.acked.above), partition.log.end)
    return _by_lane(partition, stats.cursors, end, stats.ready, state.unseen)


def messages_by_lane(partition: Partition) -> tuple[int, ...]:
    """How many messages of each priority a partition holds."""
    start, end, gone = partition.log.start, partition.log.end, partition.passed_over()
    cursors = (start,) * len(Priority)
    return _by_lane(partition, cursors, end, end - start - gone.count, lambda found: found - gone)


def _by_lane(
    partition: Partition,
    cursors: Sequence[int],
    end: int,
    total: int,
    chosen: Callable[[Offsets], Offsets],
) -> tuple[int, ...]:
    """How many of the messages between each lane's cursor and the end are chosen. Counted some way
    ahead; the fullest lane gets what is missing of `total`."""
    counts = [0] * len(Priority)
    if total:
        present = partition.source.priorities(min(cursors), end)
        for priority, start in enumerate(cursors):
            for _ in range(_SCANS_MAX):
                if start >= end or not present >> priority & 1:
                    break
                found, start = partition.source.scan(priority, start, 1 << 62, end)
                counts[priority] += chosen(Offsets.of(found)).count
        fullest = max(Priority, key=lambda p: (counts[p], p == Priority.NORMAL))
        counts[fullest] = max(0, counts[fullest] + total - sum(counts))
    return tuple(counts)


def _by_priority(counts: list[tuple[int, ...]]) -> dict[str, int]:
    return {p.name.lower(): sum(each[p] for each in counts) for p in Priority}
