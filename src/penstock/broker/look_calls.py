"""What can be seen of a broker without a change: statistics, alarms, what waits."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from penstock.broker.alarms import alarms_of
from penstock.broker.dead_letters import DeadLetterQueue
from penstock.broker.publish_calls import PublishCalls
from penstock.broker.stats import dead_count, empty_stats, topic_stats
from penstock.broker.topic import Topic
from penstock.broker.topic_delays import sum_of
from penstock.errors import TopicNotFound
from penstock.model.messages import DelayedMessage
from penstock.model.names import TopicName
from penstock.model.stats import Alarm, DelayStats, LatencyRow, TopicStats


class LookCalls(PublishCalls):
    """Nothing here writes; the dead letters that it gives can be redriven and purged."""

    def stats(self, name: TopicName) -> TopicStats:
        topic = self._topics.get(name)
        if topic is None:
            self.settings(name)  # or it is not there
            if self._claims.is_mine(name):
                raise self._catalog.not_found(name)  # it is not there yet, or no more
        # Other topics may have to be opened for these; with a claim on this one they could not be.
        dead = dead_count(self, name)
        if topic is not None or name not in self._resting_stats:
            self.streams.take_in()
        if topic is None:
            found = self._claims.holding(lambda: [name], partial(self._take_stats, name, dead))
            if isinstance(found, TopicStats):
                return found
            topic = found
        return topic_stats(self, topic, dead)

    def alarms(self, topic: Topic) -> list[Alarm]:
        """Those of a topic that are on, by what the broker knows of stream groups."""
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

    def _take_stats(self, name: TopicName, dead: int) -> TopicStats | Topic:
        """Of a claimed topic that is not open, and is not left so; or one that is open by now."""
        with self._lock:
            settings = self.settings(name)
            known = self._topics.get(name) or self._resting_stats.of(name, dead)
        if known is not None:
            return known
        if self._store.is_empty(name):
            stats = empty_stats(self, name, settings.partitions, dead)
        else:
            topic = self._store.open_topic(name, settings, self._dead_letter_store(name))
            try:
                stats = topic_stats(self, topic, dead)
            finally:
                topic.close()
        with self._lock:
            self._resting_stats.keep(name, stats)
        return stats
