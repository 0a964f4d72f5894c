"""What became of the messages of each topic since the broker was opened.

This is the only place that counts them; statistics and `/metrics` read it, and need not open a
topic for it. What is counted are batches and decisions, never message by message. It is kept while
the broker is open, and gone with it: these are statistics.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from penstock.broker.rates import Meter
from penstock.delivery.ledger import Dropped, Event, Nacked, Rejected
from penstock.model.names import TopicName
from penstock.model.stats import MessageCounters
from penstock.record.batch import Batch
from penstock.record.schema import BITS, Priority

_EXPIRES_AT = BITS["expires_at"]


class GroupMeters(dict[str, tuple[Meter, ...]]):
    """What each group was handed, by priority; made when it is first asked for."""

    def __init__(self) -> None:
        super().__init__()
        self._gone = 0  # what groups were handed that are deleted

    def __missing__(self, group: str) -> tuple[Meter, ...]:
        return self.setdefault(group, tuple(Meter() for _ in Priority))

    def forget(self, group: str) -> None:
        """It is deleted. What it was handed still counts for the topic."""
        self._gone += sum(meter.total for meter in self.pop(group, ()))

    def total(self) -> int:
        return self._gone + sum(meter.total for lanes in list(self.values()) for meter in lanes)

    def rate(self, group: str, now_ns: int) -> float:
        return sum(meter.per_second(now_ns) for meter in self.get(group, ()))

    def lane_rate(self, priority: int, now_ns: int) -> float:
        return sum(lanes[priority].per_second(now_ns) for lanes in list(self.values()))


class PartitionCounters:
    """Of one partition; by priority where that is asked for."""

    __slots__ = (
        "acked",
        "dead_lettered",
        "delays_cancelled",
        "delays_delivered",
        "delays_expired",
        "delivered",
        "expired",
        "last_served_us",
        "nacked",
        "published",
        "rejected",
    )

    def __init__(self) -> None:
        self.published = tuple(Meter() for _ in Priority)
        self.delivered = GroupMeters()
        self.last_served_us: list[int | None] = [None] * len(Priority)
        self.acked = 0
        self.nacked = 0
        self.rejected = 0
        self.expired = 0
        self.dead_lettered = 0
        self.delays_delivered = 0
        self.delays_cancelled = 0
        self.delays_expired = 0

    def count_mixed(self, batch: Batch, now_ns: int) -> None:
        """Messages of several priorities are published; of others the caller counts the lane."""
        counts = np.bincount(batch.priority_numbers(), minlength=len(Priority))
        for priority, count in enumerate(counts.tolist()):
            if count:
                self.published[priority].add(count, now_ns)

    def count_settled(self, events: Iterable[Event]) -> None:
        """Of a nack or a reject. A nack too many makes a dead letter, and is one all the same."""
        for event in events:
            if isinstance(event, Nacked):
                self.nacked += event.offsets.count
            elif isinstance(event, Rejected):
                if event.reason == "rejected":
                    self.rejected += event.offsets.count
                else:
                    self.nacked += event.offsets.count

    def count_dropped(self, events: Iterable[Event]) -> None:
        """Of a receive that found messages which outlived their TTL."""
        for event in events:
            if isinstance(event, Dropped):
                self.expired += sum(part.offsets.count for part in event.parts)

    def count_due(self, batch: Batch, wall_us: int) -> None:
        """Delayed messages fell due and are in the partition."""
        expired = 0
        if batch.columns & _EXPIRES_AT:
            ends_us = batch.expires_us()
            expired = int((ends_us <= wall_us).sum())
        self.delays_expired += expired
        self.delays_delivered += len(batch) - expired

    def publish_rate(self, now_ns: int) -> float:
        return sum(meter.per_second(now_ns) for meter in self.published)


class TopicCounters(dict[int, PartitionCounters]):
    """Of the partitions of one topic, by number; each made when it is first asked for."""

    def __missing__(self, partition: int) -> PartitionCounters:
        return self.setdefault(partition, PartitionCounters())

    def summary(self) -> MessageCounters:
        """Of all partitions together."""
        each = list(self.values())
        return MessageCounters(
            published=sum(meter.total for one in each for meter in one.published),
            delivered=sum(one.delivered.total() for one in each),
            acked=sum(one.acked for one in each),
            nacked=sum(one.nacked for one in each),
            rejected=sum(one.rejected for one in each),
            expired=sum(one.expired for one in each),
            dead_lettered=sum(one.dead_lettered for one in each),
        )


class Counters:
    """Of all topics that were open since the broker was."""

    def __init__(self) -> None:
        self._topics: dict[TopicName, TopicCounters] = {}

    def of(self, topic: TopicName) -> TopicCounters:
        found = self._topics.get(topic)
        return self._topics.setdefault(topic, TopicCounters()) if found is None else found

    def forget(self, topic: TopicName) -> None:
        """It is deleted; the next one of that name begins with nothing."""
        self._topics.pop(topic, None)

    def summaries(self) -> Iterator[tuple[TopicName, MessageCounters]]:
        """Of each topic to which anything happened."""
        for topic, counters in sorted(self._topics.items()):
            if counters:
                yield topic, counters.summary()
