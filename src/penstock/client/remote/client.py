"""The clients of a server: the faces of `Client` and `AsyncClient`, over HTTP."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self
from weakref import WeakSet

import msgspec

from penstock.broker.delays import DelayedMessage
from penstock.client.messages import (
    AsyncReceivedBatch,
    AsyncReceivedMessage,
    ReceivedBatch,
    ReceivedMessage,
    held,
)
from penstock.client.operations import Position
from penstock.client.producer import Acks, producer_config
from penstock.client.remote.asking import Asking
from penstock.client.remote.connections import AsyncConnections, Connections
from penstock.client.remote.http import Address, Request, Writer
from penstock.client.remote.leases import leased_far_away
from penstock.client.remote.letters import AsyncRemoteDeadLetters, RemoteDeadLetters
from penstock.client.remote.operations import RemoteOperations
from penstock.client.remote.producers import AsyncRemoteProducer, RemoteProducer, RemoteTopic
from penstock.client.remote.streams import AsyncRemoteStream, RemoteStream
from penstock.client.streams import stream_config, stream_topics
from penstock.client.waiting import Steps, awaiting, blocking, run
from penstock.clock import Clock
from penstock.config import api_key as default_api_key
from penstock.durations import Duration, parse_ns
from penstock.errors import InvalidInput

_PAGE = 1000
_FIRST_TRY_S = 3.0  # so long a server may take to come up while somebody connects


class RemoteConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How a client reaches its server."""

    api_key: str | None = None
    """By default that of PENSTOCK_API_KEY."""
    timeout_ms: int = 30_000
    """How long an answer may take, on top of the time that a receive waits."""
    retry_for_ms: int = 30_000
    """What can pass is tried again for so long: a server that restarts, a full disk."""
    tls_ca: str | None = None
    """The certificate of the authority that signed the server's, a PEM file."""


class RemoteClient(RemoteOperations):
    """A connection to a server. Any thread may use it."""

    create_topic = blocking(RemoteOperations.ask_create_topic)
    alter_topic = blocking(RemoteOperations.ask_alter_topic)
    delete_topic = blocking(RemoteOperations.ask_delete_topic)
    namespaces = blocking(RemoteOperations.ask_namespaces)
    topics = blocking(RemoteOperations.ask_topics)
    describe_topic = blocking(RemoteOperations.ask_describe_topic)
    stats = blocking(RemoteOperations.ask_stats)
    all_stats = blocking(RemoteOperations.ask_all_stats)
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

    def __init__(self, asking: Asking, namespace: str) -> None:
        super().__init__(asking, namespace)
        self._streams: WeakSet[RemoteStream] = WeakSet()

    def ask_receive(
        self,
        topic: str,
        group: str,
        max_messages: int = 10,
        *,
        wait: Duration = 0,
        visibility: Duration | None = None,
        consumer: str = "",
        partition: int | None = None,
    ) -> Steps[list[ReceivedMessage]]:
        """Up to `max_messages` that are ready; waits for the first if there are none."""
        name = self._name(topic)
        delivered = yield from self.ask_take(
            name, group, max_messages, wait, visibility, consumer, partition
        )
        return held(ReceivedMessage, leased_far_away(self, name, group, delivered))

    def ask_receive_batch(
        self,
        topic: str,
        group: str,
        max_messages: int = 1000,
        *,
        wait: Duration = 0,
        visibility: Duration | None = None,
        consumer: str = "",
        partition: int | None = None,
    ) -> Steps[ReceivedBatch]:
        """As `receive`, but as columns, which is much faster for many messages."""
        name = self._name(topic)
        delivered = yield from self.ask_take(
            name, group, max_messages, wait, visibility, consumer, partition
        )
        return ReceivedBatch(leased_far_away(self, name, group, delivered))

    receive = blocking(ask_receive)
    receive_batch = blocking(ask_receive_batch)

    def delayed(self, topic: str, limit: int | None = None) -> Iterator[DelayedMessage]:
        """Messages that wait, in the order in which they were published."""
        left = limit if limit is not None else 1 << 62
        after: int | None = 0
        while left > 0 and after is not None:
            page, after = run(self.ask_delayed_page(topic, after, min(left, _PAGE)))
            yield from page
            left -= len(page)

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
    ) -> RemoteStream:
        """Read topics in order as a member of a group; `start` is for where it never committed."""
        config = stream_config(commit_every, session_timeout, assignor, member_id)
        names = stream_topics(topics, self._namespace)
        stream = RemoteStream(self._asking, names, group, start, config)
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
    ) -> RemoteProducer:
        """For many single messages: gathers them into batches, and sends each batch once."""
        config = producer_config(messages_max, bytes_max, linger, acks, retries)
        return RemoteProducer(RemoteTopic(self._asking, self._name(topic), config), config)

    def dead_letters(self, topic: str) -> RemoteDeadLetters:
        """The dead letters of a topic: list, redrive, purge."""
        return RemoteDeadLetters(self._asking, self._name(topic))

    def in_namespace(self, namespace: str) -> RemoteClient:
        """The same server, with the topics of another namespace. Close one of the two."""
        return RemoteClient(self._asking, namespace)

    def close(self) -> None:
        """Leave the groups, and hang up."""
        for stream in list(self._streams):
            stream.leave(failed=True)
        self._asking.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class AsyncRemoteClient(RemoteOperations):
    """A connection to a server, for one event loop."""

    create_topic = awaiting(RemoteOperations.ask_create_topic)
    alter_topic = awaiting(RemoteOperations.ask_alter_topic)
    delete_topic = awaiting(RemoteOperations.ask_delete_topic)
    namespaces = awaiting(RemoteOperations.ask_namespaces)
    topics = awaiting(RemoteOperations.ask_topics)
    describe_topic = awaiting(RemoteOperations.ask_describe_topic)
    stats = awaiting(RemoteOperations.ask_stats)
    all_stats = awaiting(RemoteOperations.ask_all_stats)
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

    def __init__(
        self,
        asking: Asking,
        namespace: str,
        blocking_asking: Asking,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """`blocking_asking`: for the little that cannot be awaited, such as making a producer."""
        super().__init__(asking, namespace)
        self._blocking = blocking_asking
        self._loop = loop
        self._streams: WeakSet[AsyncRemoteStream] = WeakSet()

    def ask_receive(
        self,
        topic: str,
        group: str,
        max_messages: int = 10,
        *,
        wait: Duration = 0,
        visibility: Duration | None = None,
        consumer: str = "",
        partition: int | None = None,
    ) -> Steps[list[AsyncReceivedMessage]]:
        """Up to `max_messages` that are ready; waits for the first if there are none."""
        name = self._name(topic)
        delivered = yield from self.ask_take(
            name, group, max_messages, wait, visibility, consumer, partition
        )
        return held(AsyncReceivedMessage, leased_far_away(self, name, group, delivered))

    def ask_receive_batch(
        self,
        topic: str,
        group: str,
        max_messages: int = 1000,
        *,
        wait: Duration = 0,
        visibility: Duration | None = None,
        consumer: str = "",
        partition: int | None = None,
    ) -> Steps[AsyncReceivedBatch]:
        """As `receive`, but as columns, which is much faster for many messages."""
        name = self._name(topic)
        delivered = yield from self.ask_take(
            name, group, max_messages, wait, visibility, consumer, partition
        )
        return AsyncReceivedBatch(leased_far_away(self, name, group, delivered))

    receive = awaiting(ask_receive)
    receive_batch = awaiting(ask_receive_batch)

    def ask_delayed(self, topic: str, limit: int | None = None) -> Steps[list[DelayedMessage]]:
        """Messages that wait, in the order in which they were published."""
        left = limit if limit is not None else 1 << 62
        found: list[DelayedMessage] = []
        after: int | None = 0
        while left > 0 and after is not None:
            page, after = yield from self.ask_delayed_page(topic, after, min(left, _PAGE))
            found += page
            left -= len(page)
        return found

    delayed = awaiting(ask_delayed)

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
    ) -> AsyncRemoteStream:
        """Read topics in order as a member of a group; `start` is for where it never committed."""
        config = stream_config(commit_every, session_timeout, assignor, member_id)
        names = stream_topics(topics, self._namespace)
        stream = AsyncRemoteStream(self._asking, names, group, start, config, self._blocking)
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
    ) -> AsyncRemoteProducer:
        """For many single messages: gathers them into batches, and sends each batch once."""
        config = producer_config(messages_max, bytes_max, linger, acks, retries)
        known = RemoteTopic(self._blocking, self._name(topic), config)
        run(known.ask_settings())
        target = RemoteTopic(self._asking, self._name(topic), config, known.settings)
        return AsyncRemoteProducer(target, config, self._loop)

    def dead_letters(self, topic: str) -> AsyncRemoteDeadLetters:
        """The dead letters of a topic: list, redrive, purge."""
        return AsyncRemoteDeadLetters(self._asking, self._name(topic))

    def in_namespace(self, namespace: str) -> AsyncRemoteClient:
        """The same server, with the topics of another namespace. Close one of the two."""
        return AsyncRemoteClient(self._asking, namespace, self._blocking, self._loop)

    async def close(self) -> None:
        """Leave the groups, and hang up."""
        for stream in list(self._streams):
            await stream._leave_now(failed=True)
        self._asking.close()
        self._blocking.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


def connect_remote(
    url: str, namespace: str, config: RemoteConfig, clock: Clock | None = None
) -> RemoteClient:
    """A client, once the server has answered."""
    asking = _blocking_asking(url, config, clock)
    try:
        client = RemoteClient(asking, namespace)
        run(asking.ask(Request("GET", "/version"), retry_for_s=_patience_s(config)))
    except BaseException:
        asking.close()
        raise
    return client


def connect_remote_async(
    url: str,
    namespace: str,
    config: RemoteConfig,
    loop: asyncio.AbstractEventLoop,
    clock: Clock | None = None,
) -> AsyncRemoteClient:
    """The same for an event loop; called from a thread beside it."""
    blocking_asking = _blocking_asking(url, config, clock)
    try:
        address = Address.parse(url)
        connections = AsyncConnections(
            address, _writer(address, config), _tls(address, config), config.timeout_ms / 1000
        )
        asking = Asking(connections, config.retry_for_ms / 1000, clock)
        client = AsyncRemoteClient(asking, namespace, blocking_asking, loop)
        run(blocking_asking.ask(Request("GET", "/version"), retry_for_s=_patience_s(config)))
    except BaseException:
        blocking_asking.close()
        raise
    return client


def remote_config(
    api_key: str | None, timeout: Duration, retry_for: Duration, tls_ca: str | None
) -> RemoteConfig:
    return RemoteConfig(
        api_key=api_key,
        timeout_ms=max(1, parse_ns(timeout, "timeout") // 1_000_000),
        retry_for_ms=parse_ns(retry_for, "retry_for") // 1_000_000,
        tls_ca=tls_ca,
    )


def _blocking_asking(url: str, config: RemoteConfig, clock: Clock | None) -> Asking:
    address = Address.parse(url)
    connections = Connections(
        address, _writer(address, config), _tls(address, config), config.timeout_ms / 1000
    )
    return Asking(connections, config.retry_for_ms / 1000, clock)


def _writer(address: Address, config: RemoteConfig) -> Writer:
    return Writer(address, config.api_key or default_api_key())


def _tls(address: Address, config: RemoteConfig) -> ssl.SSLContext | None:
    if address.scheme != "https":
        return None
    try:
        return ssl.create_default_context(cafile=config.tls_ca)
    except (OSError, ssl.SSLError) as exc:
        raise InvalidInput(f"tls_ca {config.tls_ca!r} cannot be read: {exc}") from None


def _patience_s(config: RemoteConfig) -> float:
    return min(_FIRST_TRY_S, config.retry_for_ms / 1000)
