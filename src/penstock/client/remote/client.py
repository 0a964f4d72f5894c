"""The clients of a server: the faces of `Client` and `AsyncClient`, over HTTP."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack

from penstock.model.listing import parse_limit
from penstock.model.names import TopicName
from penstock.model.messages import DelayedMessage
from penstock.client.arguments import Position
from penstock.client.faces import AsyncClosing, Closing
from penstock.client.messages import (
    AsyncReceivedBatch,
    AsyncReceivedMessage,
    ReceivedBatch,
    ReceivedMessage,
)
from penstock.client.producer import ProducerConfig
from penstock.client.remote.letters import AsyncRemoteDeadLetters, RemoteDeadLetters
from penstock.client.remote.operations import RemoteOperations
from penstock.client.remote.producers import AsyncRemoteProducer, RemoteProducer, RemoteTopic
from penstock.client.remote.streams import AsyncRemoteStream, RemoteStream
from penstock.client.streams import StreamConfig
from penstock.client.waiting import Steps, awaiting, blocking, run

_PAGE = 1000


class RemoteClient(RemoteOperations[RemoteStream, RemoteProducer], Closing):
    """A connection to a server. Any thread may use it."""

    create_topic = blocking(RemoteOperations.ask_create_topic)
    alter_topic = blocking(RemoteOperations.ask_alter_topic)
    delete_topic = blocking(RemoteOperations.ask_delete_topic)
    namespaces = blocking(RemoteOperations.ask_namespaces)
    topics = blocking(RemoteOperations.ask_topics)
    describe_topic = blocking(RemoteOperations.ask_describe_topic)
    stats = blocking(RemoteOperations.ask_stats)
    all_stats = blocking(RemoteOperations.ask_all_stats)
    latencies = blocking(RemoteOperations.ask_latencies)
    cancel = blocking(RemoteOperations.ask_cancel)
    delay_stats = blocking(RemoteOperations.ask_delay_stats)
    groups = blocking(RemoteOperations.ask_groups)
    delete_group = blocking(RemoteOperations.ask_delete_group)
    stream_groups = blocking(RemoteOperations.ask_stream_groups)
    describe_stream_group = blocking(RemoteOperations.ask_describe_stream_group)
    reset_stream_group = blocking(RemoteOperations.ask_reset_stream_group)
    delete_stream_group = blocking(RemoteOperations.ask_delete_stream_group)
    seek = blocking(RemoteOperations.ask_seek)
    peek = blocking(RemoteOperations.ask_peek)
    read = blocking(RemoteOperations.ask_read)
    purge = blocking(RemoteOperations.ask_purge)
    publish = blocking(RemoteOperations.ask_publish)
    publish_batch = blocking(RemoteOperations.ask_publish_batch)
    schedule_batch = blocking(RemoteOperations.ask_schedule_batch)
    ack = blocking(RemoteOperations.ask_ack)
    nack = blocking(RemoteOperations.ask_nack)
    reject = blocking(RemoteOperations.ask_reject)
    extend = blocking(RemoteOperations.ask_extend)
    receive = blocking(RemoteOperations.ask_receive)
    receive_batch = blocking(RemoteOperations.ask_receive_batch)

    _message = ReceivedMessage
    _batch = ReceivedBatch

    def delayed(self, topic: str, limit: int | None = None) -> Iterator[DelayedMessage]:
        """Messages that wait, in the order in which they were published."""
        return self._delayed_pages(topic, parse_limit(limit))

    def _delayed_pages(self, topic: str, left: int) -> Iterator[DelayedMessage]:
        after: int | None = 0
        while left > 0 and after is not None:
            page, after = run(self.ask_delayed_page(topic, after, min(left, _PAGE)))
            yield from page
            left -= len(page)

    def dead_letters(self, topic: str) -> RemoteDeadLetters:
        """The dead letters of a topic: list, redrive, purge."""
        return RemoteDeadLetters(self._asking, self._name(topic))

    def in_namespace(self, namespace: str) -> RemoteClient:
        """The same server, with the topics of another namespace. Close one of the two."""
        return RemoteClient(self._asking, namespace)._closes_with(self)

    def close(self) -> None:
        """Send what producers still hold, leave the groups, and hang up.

        Raises the error of what could not be sent, when all the rest is done.
        """
        with ExitStack() as closing:  # the last comes first, and all of it, whatever fails
            closing.callback(self._asking.close)
            for stream in list(self._streams):
                closing.callback(stream.leave, failed=True)
            for producer in list(self._producers):
                closing.callback(producer.close)

    def _new_stream(
        self, topics: Sequence[TopicName], group: str, start: Position, config: StreamConfig
    ) -> RemoteStream:
        return RemoteStream(self._asking, topics, group, start, config)

    def _new_producer(self, name: TopicName, config: ProducerConfig) -> RemoteProducer:
        producer = RemoteProducer(RemoteTopic(self._asking, name, config), config)
        self._producers.add(producer)
        return producer


class AsyncRemoteClient(RemoteOperations[AsyncRemoteStream, AsyncRemoteProducer], AsyncClosing):
    """A connection to a server, for one event loop."""

    create_topic = awaiting(RemoteOperations.ask_create_topic)
    alter_topic = awaiting(RemoteOperations.ask_alter_topic)
    delete_topic = awaiting(RemoteOperations.ask_delete_topic)
    namespaces = awaiting(RemoteOperations.ask_namespaces)
    topics = awaiting(RemoteOperations.ask_topics)
    describe_topic = awaiting(RemoteOperations.ask_describe_topic)
    stats = awaiting(RemoteOperations.ask_stats)
    all_stats = awaiting(RemoteOperations.ask_all_stats)
    latencies = awaiting(RemoteOperations.ask_latencies)
    cancel = awaiting(RemoteOperations.ask_cancel)
    delay_stats = awaiting(RemoteOperations.ask_delay_stats)
    groups = awaiting(RemoteOperations.ask_groups)
    delete_group = awaiting(RemoteOperations.ask_delete_group)
    stream_groups = awaiting(RemoteOperations.ask_stream_groups)
    describe_stream_group = awaiting(RemoteOperations.ask_describe_stream_group)
    reset_stream_group = awaiting(RemoteOperations.ask_reset_stream_group)
    delete_stream_group = awaiting(RemoteOperations.ask_delete_stream_group)
    seek = awaiting(RemoteOperations.ask_seek)
    peek = awaiting(RemoteOperations.ask_peek)
    read = awaiting(RemoteOperations.ask_read)
    purge = awaiting(RemoteOperations.ask_purge)
    publish = awaiting(RemoteOperations.ask_publish)
    publish_batch = awaiting(RemoteOperations.ask_publish_batch)
    schedule_batch = awaiting(RemoteOperations.ask_schedule_batch)
    ack = awaiting(RemoteOperations.ask_ack)
    nack = awaiting(RemoteOperations.ask_nack)
    reject = awaiting(RemoteOperations.ask_reject)
    extend = awaiting(RemoteOperations.ask_extend)
    receive = awaiting(RemoteOperations.ask_receive)
    receive_batch = awaiting(RemoteOperations.ask_receive_batch)

    _message = AsyncReceivedMessage
    _batch = AsyncReceivedBatch

    def ask_delayed(self, topic: str, limit: int | None = None) -> Steps[list[DelayedMessage]]:
        """Messages that wait, in the order in which they were published."""
        left = parse_limit(limit)
        found: list[DelayedMessage] = []
        after: int | None = 0
        while left > 0 and after is not None:
            page, after = yield from self.ask_delayed_page(topic, after, min(left, _PAGE))
            found += page
            left -= len(page)
        return found

    delayed = awaiting(ask_delayed)

    def dead_letters(self, topic: str) -> AsyncRemoteDeadLetters:
        """The dead letters of a topic: list, redrive, purge."""
        return AsyncRemoteDeadLetters(self._asking, self._name(topic))

    def in_namespace(self, namespace: str) -> AsyncRemoteClient:
        """The same server, with the topics of another namespace. Close one of the two."""
        return AsyncRemoteClient(self._asking, namespace)._closes_with(self)

    async def close(self) -> None:
        """Send what producers still hold, leave the groups, and hang up.

        Raises the error of what could not be sent, when all the rest is done.
        """
        async with AsyncExitStack() as closing:  # the last comes first, and all, whatever fails
            closing.callback(self._asking.close)
            for stream in list(self._streams):
                closing.push_async_callback(stream.leave, failed=True)
            for producer in list(self._producers):
                closing.push_async_callback(producer.close)

    def _new_stream(
        self, topics: Sequence[TopicName], group: str, start: Position, config: StreamConfig
    ) -> AsyncRemoteStream:
        return AsyncRemoteStream(self._asking, topics, group, start, config)

    def _new_producer(self, name: TopicName, config: ProducerConfig) -> AsyncRemoteProducer:
        producer = AsyncRemoteProducer(RemoteTopic(self._asking, name, config), config)
        self._producers.add(producer)
        return producer
