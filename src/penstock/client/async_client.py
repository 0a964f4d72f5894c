"""The client of a program on an event loop: the same operations, to be awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from penstock.model.names import TopicName
from penstock.model.letters import LetterFilter, Letter
from penstock.model.messages import DelayedMessage
from penstock.client.arguments import Position, poll_ns
from penstock.client.faces import AsyncClosing
from penstock.client.messages import (
    AsyncReceivedBatch,
    AsyncReceivedMessage,
    Leased,
    held,
    leased,
)
from penstock.client.operations import Asked, Operations
from penstock.client.producer import AsyncProducer, Producer, ProducerConfig
from penstock.client.streams import AsyncStream, StreamConfig
from penstock.client.waiting import awaiting, run_async, threaded
from penstock.durations import Duration

if TYPE_CHECKING:
    from penstock.broker.dead_letters import DeadLetters


class AsyncClient(Operations[AsyncStream, AsyncProducer], AsyncClosing):
    """A connection to a broker, for one event loop."""

    create_topic = threaded(Operations._create_topic)
    alter_topic = threaded(Operations._alter_topic)
    delete_topic = threaded(Operations._delete_topic)
    namespaces = threaded(Operations._namespaces)
    topics = threaded(Operations._topics)
    describe_topic = threaded(Operations._describe_topic)
    stats = threaded(Operations._stats)
    all_stats = threaded(Operations._all_stats)
    latencies = threaded(Operations._latencies)
    cancel = threaded(Operations._cancel)
    delay_stats = threaded(Operations._delay_stats)
    groups = threaded(Operations._groups)
    delete_group = threaded(Operations._delete_group)
    stream_groups = threaded(Operations._stream_groups)
    describe_stream_group = threaded(Operations._describe_stream_group)
    reset_stream_group = awaiting(Operations._reset_stream_group)
    delete_stream_group = threaded(Operations._delete_stream_group)
    seek = threaded(Operations._seek)
    peek = threaded(Operations._peek)
    read = threaded(Operations._read)
    purge = threaded(Operations._purge)
    publish = awaiting(Operations._publish)
    publish_batch = awaiting(Operations._publish_batch)
    schedule_batch = awaiting(Operations._schedule_batch)
    ack = awaiting(Operations.ask_ack)
    nack = awaiting(Operations.ask_nack)
    reject = awaiting(Operations.ask_reject)
    extend = awaiting(Operations.ask_extend)

    async def receive(
        self,
        topic: str,
        group: str,
        max_messages: int = 10,
        *,
        wait: Duration = 0,
        visibility: Duration | None = None,
        consumer: str = "",
        partition: int | None = None,
    ) -> list[AsyncReceivedMessage]:
        """Up to `max_messages` that are ready; waits for the first if there are none."""
        asked = self._asked(topic, group, max_messages, visibility, consumer, partition)
        return held(AsyncReceivedMessage, await self._take(asked, wait))

    async def receive_batch(
        self,
        topic: str,
        group: str,
        max_messages: int = 1000,
        *,
        wait: Duration = 0,
        visibility: Duration | None = None,
        consumer: str = "",
        partition: int | None = None,
        ack: AsyncReceivedBatch | None = None,
    ) -> AsyncReceivedBatch:
        """As `receive`, but as columns, which is much faster for many messages.

        `ack` is a batch that is done: as if its `ack()` had been called first.
        """
        asked = self._asked(topic, group, max_messages, visibility, consumer, partition)
        if ack is not None:
            poll_ns(wait)
            await run_async(AsyncReceivedBatch.checked(ack)._ack_first())
        return AsyncReceivedBatch(await self._take(asked, wait))

    async def _take(self, asked: Asked, wait: Duration) -> Leased:
        wait_ns = poll_ns(wait)
        delivered = self._broker.receive(*asked)
        if wait_ns and not delivered:
            delivered = await run_async(self._long_poll(asked, wait_ns))
        name, group, *_ = asked
        return leased(self._broker, name, group, delivered)

    async def delayed(self, topic: str, limit: int | None = None) -> list[DelayedMessage]:
        """Messages that wait, in the order in which they were published."""
        return await asyncio.to_thread(lambda: list(self._delayed(topic, limit)))

    def dead_letters(self, topic: str) -> AsyncDeadLetters:
        """The dead letters of a topic: list, redrive, purge."""
        return AsyncDeadLetters(self._broker.dead_letters(self._name(topic)))

    def in_namespace(self, namespace: str) -> AsyncClient:
        """The same broker, with the topics of another namespace. Close one of the two."""
        return AsyncClient(self._broker, namespace)._closes_with(self)

    async def close(self) -> None:
        """Send what producers still hold, and leave a clean folder.

        Raises the error of what could not be sent, when all the rest is done.
        """
        async with AsyncExitStack() as closing:  # the last comes first, and all, whatever fails
            closing.push_async_callback(asyncio.to_thread, self._broker.close)
            for stream in list(self._streams):
                closing.push_async_callback(stream.leave, failed=True)  # it may be half done
            for producer in list(self._producers):
                closing.push_async_callback(asyncio.to_thread, producer.close)

    def _new_stream(
        self, topics: Sequence[TopicName], group: str, start: Position, config: StreamConfig
    ) -> AsyncStream:
        return AsyncStream(self._broker, topics, group, start, config)

    def _new_producer(self, name: TopicName, config: ProducerConfig) -> AsyncProducer:
        async def open_() -> Producer:
            producer = await asyncio.to_thread(Producer, self._broker, name, config)
            self._producers.add(producer)
            return producer

        return AsyncProducer(open_)


class AsyncDeadLetters:
    """The dead letters of one topic."""

    def __init__(self, letters: DeadLetters) -> None:
        self._letters = letters

    async def list(self, where: LetterFilter | None = None, limit: int | None = None) -> list[Letter]:
        """Letters that are neither redriven nor purged, oldest first; those that `where` picks."""
        return await asyncio.to_thread(lambda: [*self._letters.list(where, limit)])

    async def count(self) -> int:
        """How many letters are neither redriven nor purged."""
        return await asyncio.to_thread(self._letters.count)

    async def redrive(
        self, letters: Letter | Sequence[Letter] | None = None, where: LetterFilter | None = None
    ) -> int:
        """Send letters back to their topic as new messages: these, those picked, or all."""
        return await asyncio.to_thread(self._letters.redrive, letters, where)

    async def purge(
        self, letters: Letter | Sequence[Letter] | None = None, where: LetterFilter | None = None
    ) -> int:
        """Throw letters away: these, those picked, or all."""
        return await asyncio.to_thread(self._letters.purge, letters, where)
