"""The client of a program on an event loop: the same operations, to be awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from penstock.broker.dead_letters import Chosen, DeadLetters, Letter
from penstock.broker.delays import DelayedMessage
from penstock.client.messages import (
    AsyncReceivedBatch,
    AsyncReceivedMessage,
    Leased,
    held,
    leased,
)
from penstock.client.operations import Asked, Operations, Position, poll_ns
from penstock.client.producer import Acks, Producer, producer_config
from penstock.client.streams import AsyncStream, stream_config, stream_topics
from penstock.client.waiting import awaiting, run_async, threaded
from penstock.durations import Duration
from penstock.log.appender import Sent


class AsyncClient(Operations):
    """A connection to a broker, for one event loop."""

    create_topic = threaded(Operations._create_topic)
    alter_topic = threaded(Operations._alter_topic)
    delete_topic = threaded(Operations._delete_topic)
    namespaces = threaded(Operations._namespaces)
    topics = threaded(Operations._topics)
    describe_topic = threaded(Operations._describe_topic)
    stats = threaded(Operations._stats)
    all_stats = threaded(Operations._all_stats)
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
    ack = awaiting(Operations._ack)
    nack = awaiting(Operations._nack)
    reject = awaiting(Operations._reject)
    extend = awaiting(Operations._extend)

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
    ) -> AsyncReceivedBatch:
        """As `receive`, but as columns, which is much faster for many messages."""
        asked = self._asked(topic, group, max_messages, visibility, consumer, partition)
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
        config = stream_config(commit_every, session_timeout, assignor, member_id)
        names = stream_topics(topics, self._namespace)
        stream = AsyncStream(self._broker, names, group, start, config)
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
        config = producer_config(messages_max, bytes_max, linger, acks, retries)
        return AsyncProducer(Producer(self._broker, self._name(topic), config))

    def dead_letters(self, topic: str) -> AsyncDeadLetters:
        """The dead letters of a topic: list, redrive, purge."""
        return AsyncDeadLetters(self._broker.dead_letters(self._name(topic)))

    def in_namespace(self, namespace: str) -> AsyncClient:
        """The same broker, with the topics of another namespace. Close one of the two."""
        return AsyncClient(self._broker, namespace)

    async def close(self) -> None:
        """Leave a clean folder."""
        self._leave_streams()
        await asyncio.to_thread(self._broker.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


class AsyncProducer:
    """Sends messages to a topic; leaving the `async with` block flushes.

    `send` gathers and does not wait, but for the write of a batch that is full; whoever wants to
    know awaits `flush`, or `result` of what `send` returned.
    """

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self.send = producer.send

    async def flush(self) -> None:
        """Send everything that is waiting. Raises the first error of a batch that failed."""
        await asyncio.to_thread(self._producer.flush)

    async def result(self, sent: Sent) -> int:
        """The offset of a message, once it is as safe as `acks` says."""
        return await asyncio.to_thread(sent.result)

    async def close(self) -> None:
        await asyncio.to_thread(self._producer.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


class AsyncDeadLetters:
    """The dead letters of one topic."""

    def __init__(self, letters: DeadLetters) -> None:
        self._letters = letters

    async def list(self, where: Chosen | None = None, limit: int | None = None) -> list[Letter]:
        """Letters that are neither redriven nor purged, oldest first; those that `where` picks."""
        return await asyncio.to_thread(lambda: [*self._letters.list(where, limit)])

    async def count(self) -> int:
        """How many letters are neither redriven nor purged."""
        return await asyncio.to_thread(self._letters.count)

    async def redrive(
        self, letters: Letter | Sequence[Letter] | None = None, where: Chosen | None = None
    ) -> int:
        """Send letters back to their topic as new messages: these, those picked, or all."""
        return await asyncio.to_thread(self._letters.redrive, letters, where)

    async def purge(
        self, letters: Letter | Sequence[Letter] | None = None, where: Chosen | None = None
    ) -> int:
        """Throw letters away: these, those picked, or all."""
        return await asyncio.to_thread(self._letters.purge, letters, where)
