"""Stream mode: reading topics as a member of a group, and the groups seen from outside."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from penstock.client.async_producer import AsyncProducer
from penstock.client.base import AsyncCalls, BaseClient, SyncCalls
from penstock.client.producer import Acks, ProducedTopic, Producer, ProducerConfig
from penstock.client.stream_reader import StreamConfig
from penstock.client.streams import AsyncStream, Stream
from penstock.durations import Duration, parse_ms, parse_ns
from penstock.errors import InvalidInput
from penstock.model import calls
from penstock.model.groups import StreamGroup
from penstock.model.names import TopicName, group_name
from penstock.model.positions import Position, place_of


def _stream_config(
    commit_every: Duration | None,
    session_timeout: Duration,
    assignor: str,
    member_id: str | None,
) -> StreamConfig:
    named = "" if member_id is None else member_id
    for name, given in (("assignor", assignor), ("member_id", named)):
        if not isinstance(given, str):
            raise InvalidInput(f"{name} is {given!r:.100}; it must be text")
    return StreamConfig(
        commit_every_ns=None if commit_every is None else parse_ns(commit_every, "commit_every"),
        session_timeout_ms=parse_ms(session_timeout, "session_timeout"),
        assignor=assignor,
        member_id=member_id,
    )


def _names(client: BaseClient, topics: str | Sequence[str]) -> list[TopicName]:
    several = [topics] if isinstance(topics, str) else topics
    if not isinstance(several, Iterable):
        raise InvalidInput(f"topics is {topics!r:.100}; give the name of a topic, or a list")
    return [client._name(topic) for topic in several]


def _set_stream_offsets(
    client: BaseClient,
    group: str,
    offsets: Mapping[str, Mapping[int, int]],
    incarnations: Mapping[str, str],
) -> calls.SetStreamOffsets:
    if not isinstance(offsets, Mapping) or not all(
        isinstance(each, Mapping) for each in offsets.values()
    ):
        raise InvalidInput(f"offsets is {offsets!r:.100}; give {{topic: {{partition: offset}}}}")
    return calls.SetStreamOffsets(
        namespace=client._namespace,
        group=group_name(group),
        offsets={topic: dict(each) for topic, each in offsets.items()},
        incarnations=dict(incarnations),
    )


class StreamGroupCalls(SyncCalls):
    def stream(
        self,
        topics: str | Sequence[str],
        group: str,
        *,
        start: Position = "earliest",
        commit_every: Duration | None = "5s",
        session_timeout: Duration = "30s",
        assignor: str = "sticky",
        member_id: str | None = None,
    ) -> Stream:
        """Read topics in order as a member of a group; `start` is for where it never committed."""
        config = _stream_config(commit_every, session_timeout, assignor, member_id)
        stream = Stream(self._link, _names(self, topics), group, start, config)
        self._streams.add(stream)
        return stream

    def producer(
        self,
        topic: str,
        *,
        messages_max: int = 100,
        bytes_max: int = 64 << 10,
        linger: Duration = "5ms",
        acks: Acks = "leader",
        retries: int = 3,
    ) -> Producer:
        """For many single messages: gathers them into batches, and sends each batch once."""
        config = ProducerConfig(
            messages_max=messages_max,
            bytes_max=bytes_max,
            linger_ms=parse_ms(linger, "linger"),
            acks=acks,
            retries=retries,
        )
        produced = ProducedTopic(self._link, self._name(topic), config)
        self._run(produced.look_up())
        producer = Producer(produced, config)
        self._producers.add(producer)
        return producer

    def stream_groups(self) -> list[str]:
        """The groups that read topics of this client's namespace as streams."""
        return self._ask(calls.ListStreamGroups(namespace=self._namespace)).groups

    def describe_stream_group(self, group: str) -> StreamGroup:
        """Its members and their partitions, what is committed, and the lag on each partition."""
        return self._ask(calls.DescribeStreamGroup(namespace=self._namespace, group=group))

    def reset_stream_group(
        self, group: str, topic: str, to: Position, *, partition: int | None = None
    ) -> None:
        """Let a stream group start elsewhere: "earliest", "latest", an offset or a time.

        Only while it has no members. It need not exist yet.
        """
        self._ask(
            calls.ResetStreamGroup(
                **self._topic(topic),
                group=group_name(group),
                to=place_of(to),
                partition=partition,
            )
        )

    def set_stream_offsets(
        self,
        group: str,
        offsets: Mapping[str, Mapping[int, int]],
        *,
        incarnations: Mapping[str, str] | None = None,
    ) -> None:
        """Say how far a stream group is: offsets by topic and partition, all or none, in one call.

        Only while it has no members. With `incarnations`, as `stats` has them, a topic that was
        deleted and made again meanwhile is TopicRecreated.
        """
        self._ask(_set_stream_offsets(self, group, offsets, incarnations or {}))

    def delete_stream_group(self, group: str) -> None:
        """Forget what a stream group has committed. Only while it has no members."""
        self._ask(calls.DeleteStreamGroup(namespace=self._namespace, group=group))


class AsyncStreamGroupCalls(AsyncCalls):
    def stream(
        self,
        topics: str | Sequence[str],
        group: str,
        *,
        start: Position = "earliest",
        commit_every: Duration | None = "5s",
        session_timeout: Duration = "30s",
        assignor: str = "sticky",
        member_id: str | None = None,
    ) -> AsyncStream:
        """Read topics in order as a member of a group; `start` is for where it never committed."""
        config = _stream_config(commit_every, session_timeout, assignor, member_id)
        stream = AsyncStream(self._link, _names(self, topics), group, start, config)
        self._streams.add(stream)
        return stream

    def producer(
        self,
        topic: str,
        *,
        messages_max: int = 100,
        bytes_max: int = 64 << 10,
        linger: Duration = "5ms",
        acks: Acks = "leader",
        retries: int = 3,
    ) -> AsyncProducer:
        """For many single messages: gathers them into batches, and sends each batch once."""
        config = ProducerConfig(
            messages_max=messages_max,
            bytes_max=bytes_max,
            linger_ms=parse_ms(linger, "linger"),
            acks=acks,
            retries=retries,
        )
        producer = AsyncProducer(ProducedTopic(self._link, self._name(topic), config), config)
        self._producers.add(producer)
        return producer

    async def stream_groups(self) -> list[str]:
        """The groups that read topics of this client's namespace as streams."""
        return (await self._ask(calls.ListStreamGroups(namespace=self._namespace))).groups

    async def describe_stream_group(self, group: str) -> StreamGroup:
        """Its members and their partitions, what is committed, and the lag on each partition."""
        return await self._ask(calls.DescribeStreamGroup(namespace=self._namespace, group=group))

    async def reset_stream_group(
        self, group: str, topic: str, to: Position, *, partition: int | None = None
    ) -> None:
        """Let a stream group start elsewhere: "earliest", "latest", an offset or a time.

        Only while it has no members. It need not exist yet.
        """
        await self._ask(
            calls.ResetStreamGroup(
                **self._topic(topic),
                group=group_name(group),
                to=place_of(to),
                partition=partition,
            )
        )

    async def set_stream_offsets(
        self,
        group: str,
        offsets: Mapping[str, Mapping[int, int]],
        *,
        incarnations: Mapping[str, str] | None = None,
    ) -> None:
        """Say how far a stream group is: offsets by topic and partition, all or none, in one call.

        Only while it has no members. With `incarnations`, as `stats` has them, a topic that was
        deleted and made again meanwhile is TopicRecreated.
        """
        await self._ask(_set_stream_offsets(self, group, offsets, incarnations or {}))

    async def delete_stream_group(self, group: str) -> None:
        """Forget what a stream group has committed. Only while it has no members."""
        await self._ask(calls.DeleteStreamGroup(namespace=self._namespace, group=group))
