"""What falls due on a topic: delays, leases that run out, checkpoints, retention, alarms."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from penstock.broker.alarms import AlarmLog
from penstock.broker.dead_letter_store import NoDeadLetterTopic
from penstock.broker.housekeeper import Chore, Housekeeper
from penstock.broker.partition import Partition
from penstock.broker.retention import RETENTION_EVERY_NS, TopicRetention
from penstock.broker.topic import Topic
from penstock.clock import Clock
from penstock.model.names import TopicName

MOVE_PAUSE_NS = 1_000_000
"""Between two moves of delayed messages: one after another would keep those from running who wait
for the messages. No longer than that: every message is late by half of it, and a processor that
idles for longer takes longer to wake up."""


class TopicChores:
    """The chores of one topic, from when it is opened until it is closed or deleted."""

    def __init__(
        self,
        topic: Topic,
        housekeeper: Housekeeper,
        retention: TopicRetention,
        clock: Clock,
        make_dead_letter_topic: Callable[[TopicName], None],
    ) -> None:
        self._topic = topic
        self._housekeeper = housekeeper
        self._retention = retention
        self._clock = clock
        self._make_dead_letter_topic = make_dead_letter_topic
        self._alarms = AlarmLog(topic, retention, clock)
        self._chores: list[Chore] = [self._move_due, self._retain, self._look_for_alarms]
        self._forgotten = False
        topic.plan_retention = self._plan_retention
        self.plan_delays()
        now_ns = clock.monotonic_ns()
        housekeeper.plan(self._retain, retention.next_deadline(topic, now_ns))
        if topic.settings.retention_mode == "consumed":
            topic.tend()
        for partition in topic.partitions:
            self.look_after(partition)

    def look_after(self, partition: Partition) -> None:
        """From now on, when a lease runs out there, a retry falls due or a checkpoint is."""
        chore = partial(self._look_at, partition)
        self._chores.append(chore)
        partition.plan_look = partial(self._housekeeper.plan, chore)
        self._housekeeper.plan(chore, partition.next_look())

    def plan_delays(self) -> None:
        """A message was delayed: it may be the next to fall due."""
        deadline_ns = self._topic.delays.next_deadline(self._clock.monotonic_ns())
        self._housekeeper.plan(self._move_due, deadline_ns)

    def plan_alarms(self) -> None:
        """The settings are others, or there are other messages that can wait for too long."""
        self._housekeeper.plan(
            self._look_for_alarms, self._alarms.next_look(self._clock.monotonic_ns())
        )

    def forget(self) -> None:
        self._forgotten = True  # whoever uses the topic at this moment may plan once more
        for chore in self._chores:
            self._housekeeper.forget(chore)

    def _move_due(self, now_ns: int) -> int | None:
        if self._forgotten:
            return None
        moved = self._topic.move_due()
        now_ns = self._clock.monotonic_ns()
        next_ns = self._topic.delays.next_deadline(now_ns)
        return max(next_ns, now_ns + MOVE_PAUSE_NS) if moved and next_ns else next_ns

    def _retain(self, now_ns: int) -> int | None:
        if self._forgotten:
            return None
        self._topic.retention_is_planned = False
        self._retention.apply(self._topic)
        self.plan_alarms()
        return self._retention.next_deadline(self._topic, now_ns)

    def _look_for_alarms(self, now_ns: int) -> int | None:
        return None if self._forgotten else self._alarms.look(now_ns)

    def _plan_retention(self) -> None:
        self._housekeeper.plan(self._retain, self._clock.monotonic_ns() + RETENTION_EVERY_NS)

    def _look_at(self, partition: Partition, now_ns: int) -> int | None:
        if self._forgotten:
            return None
        try:
            partition.expire(now_ns)
        except NoDeadLetterTopic:
            self._make_dead_letter_topic(self._topic.name)
            partition.expire(now_ns)
        # Always: another receiver may have noticed before us that something fell due, and have
        # left some of it.
        self._topic.waiters.notify()
        if partition.checkpoint_is_due():
            self._topic.delays.ordered()
            partition.checkpoint()
        return partition.next_look()
