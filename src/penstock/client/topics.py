"""Topics: settings, statistics, delays, and looking at their messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Unpack

from penstock.client.arguments import maybe_time, parse_limit, plain_settings
from penstock.client.base import AsyncCalls, SyncCalls
from penstock.client.link import Link
from penstock.client.waiting import Steps
from penstock.durations import Moment
from penstock.log.base import Batches
from penstock.model import calls
from penstock.model.messages import DelayedMessage, MessagePage, PeekedMessage
from penstock.model.names import TopicName, group_name
from penstock.model.positions import Position, place_of
from penstock.model.settings import TopicSettings
from penstock.model.stats import DelayStats, LatencyRow, PriorityStats, TopicStats
from penstock.model.topic_options import TopicOptions
from penstock.model.topics import Compacted, PartitionBounds

_PAGE = 1000
_STATS_PAGE = 500
_PEEK_MAX = 100_000


def _all_stats(link: Link, namespace: str) -> Steps[list[TopicStats]]:
    found: list[TopicStats] = []
    offset, total = 0, 1
    while offset < total:
        page = yield from link.ask(
            calls.TabulateTopics(
                namespace=namespace, details=True, offset=offset, limit=_STATS_PAGE
            )
        )
        found += page.details
        offset, total = offset + _STATS_PAGE, page.total
    return found


def _latencies(
    link: Link, name: TopicName, since: Moment | None, until: Moment | None
) -> Steps[list[LatencyRow]]:
    found: list[LatencyRow] = []
    begin = maybe_time(since, "since")
    end = maybe_time(until, "until")
    while True:
        page = yield from link.ask(
            calls.ListLatencies(namespace=name.namespace, topic=name.topic, since=begin, until=end)
        )
        found += page.rows
        if page.next is None:
            return found
        begin = page.next


def _peek(
    link: Link, name: TopicName, partition: int | None, at: Position, limit: int
) -> Steps[list[PeekedMessage]]:
    parse_limit(limit)
    found: list[PeekedMessage] = []
    place = place_of(at)
    while True:
        page = yield from link.ask(
            calls.Peek(
                namespace=name.namespace,
                topic=name.topic,
                partition=partition,
                at=place,
                limit=min(limit - len(found), _PEEK_MAX),
            )
        )
        found += page.messages()
        # Of one partition an answer may end before the limit, and can be gone on with.
        if page.partition is None or len(found) >= limit or page.next_offset >= page.end:
            return found
        partition, place = page.partition, page.next_offset


def _maybe_group(group: str | None) -> str | None:
    return None if group is None else group_name(group)


def _batches(page: MessagePage) -> Batches:
    return Batches(page.batches, page.next_offset, page.damage)


class Topics(SyncCalls):
    def create_topic(
        self, /, topic: str, *, exist_ok: bool = False, **settings: Unpack[TopicOptions]
    ) -> TopicSettings:
        """Make a topic. Settings: partitions, visibility, max_retries, backoff, ttl, retention,
        fsync and more; a wrong one says what is allowed."""
        given = plain_settings(settings)
        call = calls.CreateTopic(**self._topic(topic), settings=given, exist_ok=exist_ok)
        return self._ask(call).settings

    def alter_topic(self, /, topic: str, **settings: Unpack[TopicOptions]) -> TopicSettings:
        """Change settings, or add partitions, while it is in use."""
        call = calls.AlterTopic(**self._topic(topic), settings=plain_settings(settings))
        return self._ask(call).settings

    def sync(self) -> None:
        """Make durable all that was done in this client's namespace before, whatever the fsync
        policies of its topics say."""
        self._ask(calls.Sync(namespace=self._namespace))

    def compact(self, topic: str) -> Compacted:
        """Rewrite the files of a topic without what nobody needs any more: messages that expired,
        that every group has done where the topic keeps only others, or that a later one of their
        key replaces. It happens by itself, too; see the setting `compaction_interval`."""
        return self._ask(calls.Compact(**self._topic(topic)))

    def delete_topic(self, topic: str) -> None:
        """With all its messages. Its dead letters stay until their own topic is deleted."""
        self._ask(calls.DeleteTopic(**self._topic(topic)))

    def namespaces(self) -> list[str]:
        """Every namespace that has a topic, and "default"."""
        return self._ask(calls.ListNamespaces()).namespaces

    def topics(self) -> list[str]:
        """The topics of this client's namespace, those of dead letters too."""
        return self._ask(calls.ListTopics(namespace=self._namespace)).topics

    def describe_topic(self, topic: str) -> TopicSettings:
        """Its settings, with the defaults where none was given."""
        return self._ask(calls.DescribeTopic(**self._topic(topic))).settings

    def stats(self, topic: str) -> TopicStats:
        """Depth, rates and more, by partition, group and priority."""
        return self._ask(calls.DescribeStats(**self._topic(topic)))

    def priority_stats(self, topic: str) -> PriorityStats:
        """Each priority of a topic, and of its partitions: ready, in flight, enqueue and dequeue
        rate, and when it was last served."""
        return self._ask(calls.DescribePriorities(**self._topic(topic)))

    def all_stats(self) -> list[TopicStats]:
        """Of every topic of this client's namespace."""
        return self._run(_all_stats(self._link, self._namespace))

    def latencies(
        self, topic: str, *, since: Moment | None = None, until: Moment | None = None
    ) -> list[LatencyRow]:
        """How long messages waited for their first hand-out, and were worked on until their ack:
        by minute, queue group and priority. By default of the last hour, the present minute too."""
        return self._run(_latencies(self._link, self._name(topic), since, until))

    def cancel(self, topic: str, id_: str) -> bool:
        """Take back a delayed message; False if it is delivered or cancelled already."""
        return self._ask(calls.CancelDelayed(**self._topic(topic), id=str(id_) or "-")).found

    def delayed(self, topic: str, limit: int | None = None) -> Iterator[DelayedMessage]:
        """Messages that wait, in the order in which they were published."""
        return self._delayed_pages(self._topic(topic), parse_limit(limit))

    def _delayed_pages(self, topic: dict[str, str], left: int) -> Iterator[DelayedMessage]:
        after: int | None = 0
        while left > 0 and after is not None:
            page = self._ask(calls.ListDelayed(**topic, after=after, limit=min(left, _PAGE)))
            yield from page.delayed
            left -= len(page.delayed)
            after = page.next

    def delay_stats(self, topic: str | None = None) -> DelayStats:
        """Delayed messages of a topic or, by default, of all topics of this client's namespace: how
        many wait, when the next falls due, and what became of the others."""
        if topic is None:
            return self._ask(calls.SummarizeDelays(namespace=self._namespace))
        return self._ask(calls.DescribeDelays(**self._topic(topic)))

    def peek(
        self,
        topic: str,
        *,
        partition: int | None = None,
        at: Position = "earliest",
        limit: int = 10,
    ) -> list[PeekedMessage]:
        """Look at messages without consuming them: of one partition, or of all in the order of
        time."""
        return self._run(_peek(self._link, self._name(topic), partition, at, limit))

    def read(self, topic: str, partition: int, at: Position, max_bytes: int = 4 << 20) -> Batches:
        """Messages of a partition as columns, as they lie in the log, and where to go on."""
        call = calls.Read(
            **self._topic(topic), partition=partition, at=place_of(at), max_bytes=max_bytes
        )
        return _batches(self._ask(call))

    def purge(self, topic: str, *, group: str | None = None) -> int:
        """Drop every message of a topic, or skip them all for one group; how many there were."""
        return self._ask(calls.Purge(**self._topic(topic), group=_maybe_group(group))).count

    def trim(self, topic: str, partition: int, before: Position) -> PartitionBounds:
        """Drop the messages of a partition that are before a position; what it holds then."""
        return self._ask(
            calls.Trim(**self._topic(topic), partition=partition, before=place_of(before))
        )


class AsyncTopics(AsyncCalls):
    async def create_topic(
        self, /, topic: str, *, exist_ok: bool = False, **settings: Unpack[TopicOptions]
    ) -> TopicSettings:
        """Make a topic. Settings: partitions, visibility, max_retries, backoff, ttl, retention,
        fsync and more; a wrong one says what is allowed."""
        given = plain_settings(settings)
        call = calls.CreateTopic(**self._topic(topic), settings=given, exist_ok=exist_ok)
        return (await self._ask(call)).settings

    async def alter_topic(self, /, topic: str, **settings: Unpack[TopicOptions]) -> TopicSettings:
        """Change settings, or add partitions, while it is in use."""
        call = calls.AlterTopic(**self._topic(topic), settings=plain_settings(settings))
        return (await self._ask(call)).settings

    async def sync(self) -> None:
        """Make durable all that was done in this client's namespace before, whatever the fsync
        policies of its topics say."""
        await self._ask(calls.Sync(namespace=self._namespace))

    async def compact(self, topic: str) -> Compacted:
        """Rewrite the files of a topic without what nobody needs any more: messages that expired,
        that every group has done where the topic keeps only others, or that a later one of their
        key replaces. It happens by itself, too; see the setting `compaction_interval`."""
        return await self._ask(calls.Compact(**self._topic(topic)))

    async def delete_topic(self, topic: str) -> None:
        """With all its messages. Its dead letters stay until their own topic is deleted."""
        await self._ask(calls.DeleteTopic(**self._topic(topic)))

    async def namespaces(self) -> list[str]:
        """Every namespace that has a topic, and "default"."""
        return (await self._ask(calls.ListNamespaces())).namespaces

    async def topics(self) -> list[str]:
        """The topics of this client's namespace, those of dead letters too."""
        return (await self._ask(calls.ListTopics(namespace=self._namespace))).topics

    async def describe_topic(self, topic: str) -> TopicSettings:
        """Its settings, with the defaults where none was given."""
        return (await self._ask(calls.DescribeTopic(**self._topic(topic)))).settings

    async def stats(self, topic: str) -> TopicStats:
        """Depth, rates and more, by partition, group and priority."""
        return await self._ask(calls.DescribeStats(**self._topic(topic)))

    async def priority_stats(self, topic: str) -> PriorityStats:
        """Each priority of a topic, and of its partitions: ready, in flight, enqueue and dequeue
        rate, and when it was last served."""
        return await self._ask(calls.DescribePriorities(**self._topic(topic)))

    async def all_stats(self) -> list[TopicStats]:
        """Of every topic of this client's namespace."""
        return await self._run(_all_stats(self._link, self._namespace))

    async def latencies(
        self, topic: str, *, since: Moment | None = None, until: Moment | None = None
    ) -> list[LatencyRow]:
        """How long messages waited for their first hand-out, and were worked on until their ack:
        by minute, queue group and priority. By default of the last hour, the present minute too."""
        return await self._run(_latencies(self._link, self._name(topic), since, until))

    async def cancel(self, topic: str, id_: str) -> bool:
        """Take back a delayed message; False if it is delivered or cancelled already."""
        call = calls.CancelDelayed(**self._topic(topic), id=str(id_) or "-")
        return (await self._ask(call)).found

    async def delayed(self, topic: str, limit: int | None = None) -> list[DelayedMessage]:
        """Messages that wait, in the order in which they were published."""
        found: list[DelayedMessage] = []
        left, after = parse_limit(limit), 0
        fields = self._topic(topic)
        while left > 0:
            page = await self._ask(calls.ListDelayed(**fields, after=after, limit=min(left, _PAGE)))
            found += page.delayed
            left -= len(page.delayed)
            if page.next is None:
                break
            after = page.next
        return found

    async def delay_stats(self, topic: str | None = None) -> DelayStats:
        """Delayed messages of a topic or, by default, of all topics of this client's namespace: how
        many wait, when the next falls due, and what became of the others."""
        if topic is None:
            return await self._ask(calls.SummarizeDelays(namespace=self._namespace))
        return await self._ask(calls.DescribeDelays(**self._topic(topic)))

    async def peek(
        self,
        topic: str,
        *,
        partition: int | None = None,
        at: Position = "earliest",
        limit: int = 10,
    ) -> list[PeekedMessage]:
        """Look at messages without consuming them: of one partition, or of all in the order of
        time."""
        return await self._run(_peek(self._link, self._name(topic), partition, at, limit))

    async def read(
        self, topic: str, partition: int, at: Position, max_bytes: int = 4 << 20
    ) -> Batches:
        """Messages of a partition as columns, as they lie in the log, and where to go on."""
        call = calls.Read(
            **self._topic(topic), partition=partition, at=place_of(at), max_bytes=max_bytes
        )
        return _batches(await self._ask(call))

    async def purge(self, topic: str, *, group: str | None = None) -> int:
        """Drop every message of a topic, or skip them all for one group; how many there were."""
        return (await self._ask(calls.Purge(**self._topic(topic), group=_maybe_group(group)))).count

    async def trim(self, topic: str, partition: int, before: Position) -> PartitionBounds:
        """Drop the messages of a partition that are before a position; what it holds then."""
        return await self._ask(
            calls.Trim(**self._topic(topic), partition=partition, before=place_of(before))
        )
