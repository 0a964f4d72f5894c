"""What a topic may forget: what is too old or too much, or what every group is done with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.catalog import Catalog
from penstock.broker.compaction import TopicCompaction
from penstock.broker.partition import Partition
from penstock.broker.topic import Topic
from penstock.broker.withheld import LETTERS_GROUP
from penstock.clock import Clock
from penstock.errors import OffsetOutOfRange

if TYPE_CHECKING:
    from penstock.broker.streams import Streams

RETENTION_EVERY_NS = 60 * 1_000_000_000


def trim(topic: Topic, number: int, before: int) -> None:
    """Drop the messages of a partition below an offset, as somebody asks for."""
    partition = topic.partition(number)
    if before > partition.log.end:
        raise OffsetOutOfRange(before, partition.log.start, partition.log.end)
    if before > partition.log.start:
        with topic.delays.at_rest(number):
            partition.trim_to(before)


class TopicRetention:
    """Applies the settings of topics to their logs."""

    def __init__(self, clock: Clock, catalog: Catalog) -> None:
        self._clock = clock
        self._catalog = catalog
        self.compaction = TopicCompaction(clock, self)
        self.streams: Streams | None = None
        """Whose groups have a say too, once they are known."""

    def apply(self, topic: Topic) -> None:
        """Drop what may go, now, and rewrite what is worth it."""
        self.drop(topic)
        self.compaction.look(topic)

    def drop(self, topic: Topic) -> None:
        """Drop what may go, now."""
        now_us = self._clock.wall_ns() // 1000
        settings = topic.settings
        if settings.retention_waits_for and self.streams is not None:
            self.streams.take_in()
        for partition in topic.partitions:
            if settings.retention_mode == "consumed":
                floor = min(self._consumed(topic, partition), self.others_done(topic, partition))
            else:
                floor = partition.log.kept_from(settings.retention(), now_us)[0]
                floor = min([floor, *self.waited_for(topic, partition)])
            if floor > partition.log.start:
                with topic.delays.at_rest(partition.number):
                    partition.trim_to(floor)

    def next_deadline(self, topic: Topic, now_ns: int) -> int | None:
        """When something grows too old, if nothing comes or is done before."""
        due_us = self.next_due_us(topic)
        again_ns = self.compaction.look_again_ns(topic)
        if again_ns is not None:
            again_ns = max(again_ns, now_ns + RETENTION_EVERY_NS)
        if due_us is None:
            return again_ns
        left_us = due_us - self._clock.wall_ns() // 1000
        next_ns = now_ns + (left_us * 1000 + 1000 if left_us > 0 else RETENTION_EVERY_NS)
        return next_ns if again_ns is None else min(next_ns, again_ns)

    def next_due_us(self, topic: Topic) -> int | None:
        """The same by the wall clock."""
        settings = topic.settings
        if settings.retention_mode == "consumed":
            return None
        retention = settings.retention()
        due_us = [partition.log.grows_old_us(retention) for partition in topic.partitions]
        return min((each for each in due_us if each is not None), default=None)

    def is_by_age_alone(self, topic: Topic) -> bool:
        """Whether `next_due_us` says all: nothing else makes messages go."""
        settings = topic.settings
        return (
            settings.retention_mode == "time"
            and settings.retention_bytes is None
            and settings.retention_segments is None
            and not settings.compacted
        )

    def others_done(self, topic: Topic, partition: Partition) -> int:
        """Below it nobody who is no queue group needs a message of a topic that keeps what is not
        consumed: neither streams, nor those that it waits for, nor the deduplication."""
        floors: list[int] = []
        if self.streams is not None:
            floors = self.streams.floors(topic.name, partition.number, partition.log.start)
        floors += self.waited_for(topic, partition)
        return min([*floors, self.window_start(topic, partition)])

    def window_start(self, topic: Topic, partition: Partition) -> int:
        """From where on messages stay because of their deduplication ids: a restart knows the ids
        of the window by the messages that have them."""
        if not self._catalog.uses_dedup(topic.name):
            return partition.log.end
        window_us = self._catalog.dedup_window_ms(topic.name) * 1000
        since_us = self._clock.wall_ns() // 1000 - window_us
        return partition.log.find(since_us)

    def waited_for(self, topic: Topic, partition: Partition) -> list[int]:
        """Where the groups stand that this topic's retention waits for, such as an archive's, as
        far as the broker was told."""
        names = topic.settings.retention_waits_for
        floors = [partition.stats(name).committed for name in names if name in partition.queues]
        if self.streams is not None and not partition.queues.keys() >= set(names):
            known = self.streams.positions(topic.name)
            floors += [
                known.get(name, {}).get(partition.number, partition.log.start)
                for name in names
                if name not in partition.queues
            ]
        return floors

    def _consumed(self, topic: Topic, partition: Partition) -> int:
        """Below it every group is done, in either mode; without groups nothing is.

        A group that was never here but is on another partition of the topic has all to do. What
        becomes of dead letters by themselves counts only if nobody consumes them.
        """
        groups = set(topic.groups()) or {LETTERS_GROUP for p in topic.partitions if p.queues}
        done = [partition.stats(group).committed for group in groups]
        if self.streams is not None:
            done += self.streams.floors(topic.name, partition.number, partition.log.start)
        return min(done, default=partition.log.start)
