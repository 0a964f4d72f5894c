"""What can be seen of a broker without a change: statistics, alarms, what waits."""

from __future__ import annotations

import threading
from contextlib import suppress

from penstock.broker.alarms import alarms_of
from penstock.broker.dead_letters import DeadLetterQueue
from penstock.broker.publish_calls import PublishCalls
from penstock.broker.stats import empty_stats, topic_stats
from penstock.broker.topic import Topic
from penstock.broker.topic_delays import sum_of
from penstock.errors import TopicNotFound
from penstock.model.messages import DelayedMessage
from penstock.model.names import TopicName
from penstock.model.settings import TopicSettings
from penstock.model.stats import Alarm, DelayStats, LatencyRow, TopicStats


class LookCalls(PublishCalls):
    """Nothing here writes; the dead letters that it gives can be redriven and purged."""

    def stats(self, name: TopicName) -> TopicStats:
        topic = self._topics.get(name)
        if topic is not None:
            return topic_stats(self, topic)
        self._check_not_opening(name)
        claim = [threading.get_ident()]
        try:  # nobody else opens it meanwhile
            self._claims.take(lambda: [name], claim)
            with self._lock:
                settings = self.settings(name)
                topic = self._topics.get(name)
                resting = None if topic is not None else self._resting_stats.of(name)
            if topic is None:
                return resting or self._take_stats(name, settings)
        finally:
            claim.clear()
            self._claims.tell()
        return topic_stats(self, topic)

    def alarms(self, topic: Topic) -> list[Alarm]:
        """Those of a topic that are on."""
        return alarms_of(topic, self._retention, self.clock.wall_ns() // 1000)

    def latency_page(
        self,
        name: TopicName,
        since_us: int | None,
        until_us: int | None,
        rows_max: int | None = None,
    ) -> tuple[list[LatencyRow], int | None]:
        """How long messages took, minute by minute, and with which minute to go on.

        Without `rows_max` it is all at once. With it the call is short, however much is stored: the
        page may have fewer rows, even none, and still there are more.
        """
        topic = self.topic(name, create=False)
        return self.latencies.page(topic.name, since_us, until_us, rows_max)

    def delayed(
        self, name: TopicName, after: int = 0, limit: int = 100, bytes_max: int | None = None
    ) -> list[tuple[int, DelayedMessage]]:
        """Messages that wait, by place; with `bytes_max` until they have so many bytes."""
        return self.topic(name, create=False).delays.pending(after, limit, bytes_max)

    def delay_stats(self, name: TopicName) -> DelayStats:
        return self.topic(name, create=False).delays.stats()

    def all_delay_stats(self, namespace: str | None = None) -> DelayStats:
        """Of all topics together. One at rest in which nothing waits is not opened for it."""
        self._check_open()
        found: list[DelayStats] = []
        for name in self.topics(namespace):
            if name in self._topics or self._unopened.may_have_delays(name):
                with suppress(TopicNotFound):  # deleted just now
                    found.append(self.delay_stats(name))
        return sum_of(found)

    def dead_letters(self, name: TopicName) -> DeadLetterQueue:
        return DeadLetterQueue(self, name)

    # Inside.

    def _take_stats(self, name: TopicName, settings: TopicSettings) -> TopicStats:
        """Of a topic that is not open, and is not left so."""
        if self._store.is_empty(name):
            stats = empty_stats(self, name, settings.partitions)
        else:
            topic = self._store.open_topic(name, settings, self._dead_letter_store(name))
            try:
                stats = topic_stats(self, topic)
            finally:
                topic.close()
        with self._lock:
            self._resting_stats.keep(name, stats)
        return stats
