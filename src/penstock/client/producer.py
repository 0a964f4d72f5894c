"""A producer: single messages are gathered into batches, and a retried batch is stored once."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import deque
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future
from itertools import count
from typing import Any, Literal, Self, get_args

import mmh3
import msgspec

from penstock.client.context_managers import AsyncClosing, Closing
from penstock.client.link import Link
from penstock.client.waiting import Pause, Steps, run, run_async
from penstock.config import LogConfig
from penstock.durations import Duration
from penstock.errors import InvalidInput, PenstockError, TopicNotFound
from penstock.log.appender import BufferedAppender, Sent
from penstock.log.base import DONE, Appendable, Appended
from penstock.model.calls import DescribeTopic
from penstock.model.names import TopicName
from penstock.model.published import Placed, ProducerSequence
from penstock.model.settings import TopicSettings, parse_ttl_us
from penstock.record.batch import Batch

Acks = Literal["none", "leader", "all"]


class ProducerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How a producer gathers and sends."""

    messages_max: int = 100
    bytes_max: int = 64 << 10
    linger_ms: int = 5
    acks: Acks = "leader"
    """What `result()` waits for: nothing, the operating system, or the topic's fsync policy."""
    retries: int = 3
    retry_backoff_ms: int = 100

    def __post_init__(self) -> None:
        if self.acks not in get_args(Acks):
            raise InvalidInput(f"acks is {self.acks!r}; allowed: {', '.join(get_args(Acks))}")
        for name, least in (("messages_max", 1), ("bytes_max", 1), ("retries", 0)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise InvalidInput(
                    f"{name} is {value!r}; it must be a whole number of at least {least}"
                )


class ProducedTopic:
    """What a producer knows of its topic, and how it sends to it. For threads and event loops."""

    def __init__(self, link: Link, name: TopicName, config: ProducerConfig) -> None:
        self._link = link
        self._name = name
        self._config = config
        self.settings = TopicSettings()
        """The true ones once they were asked for."""

    @property
    def partitions(self) -> int:
        return max(self.settings.partitions, self._link.partitions(self._name))

    def now_us(self) -> int:
        return self._link.clock.wall_ns() // 1000

    def look_up(self) -> Steps[None]:
        call = DescribeTopic(namespace=self._name.namespace, topic=self._name.topic)
        try:
            described = yield from self._link.ask(call)
        except TopicNotFound:
            # Where topics are made on demand, publishing nothing makes this one.
            yield from self._link.publish(self._name, Batch.build([]))
            described = yield from self._link.ask(call)
        self.settings = described.settings

    def append(self, batch: Batch, number: int, identity: ProducerIdentity) -> Steps[Appended]:
        """Store a batch in a partition, once."""
        try:
            placed = yield from self._publish(batch, number, identity)
        except BaseException:
            identity.renew()
            raise
        identity.sequence += len(batch)
        first = placed.first_offset
        durable = placed.durable if self._config.acks == "all" else DONE
        return Appended(first, first + len(batch), 0, placed.ulid, durable)

    def _publish(self, batch: Batch, number: int, identity: ProducerIdentity) -> Steps[Placed]:
        """Where the batch is; what can pass is tried again, here or by the link itself."""
        producer = ProducerSequence(identity.producer_id, 0, identity.sequence)
        retries = 0 if self._link.retries else self._config.retries
        for attempt in range(retries + 1):
            try:
                (placed,) = yield from self._link.publish(
                    self._name,
                    batch,
                    partition=number,
                    producer=producer,
                    wait=False,
                    retry_for_s=None if self._config.retries else 0.0,
                )
                break
            except PenstockError as exc:
                if not exc.retriable or attempt == retries:
                    raise
                yield Pause(self._config.retry_backoff_ms * 2**attempt / 1000)
        return placed


class ProducerIdentity:
    """Who sends to a partition, and the number of the next message.

    A batch whose fate is not known ends it: were the next one sent under the same number, it could
    be taken for a copy of the lost one.
    """

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        self.producer_id = random.getrandbits(62) + 1
        self.sequence = 0


class Producer(Closing):
    """Sends messages to a topic. Any thread may send; leaving the `with` block flushes.

    Closing the client does so too. While messages wait to be sent, they keep their producer alive.

    A batch that fails for a passing reason is sent again; its producer id and sequence number see
    to it that it is not stored twice. Errors come from `result()`, `flush()` and `close()`.
    """

    def __init__(
        self,
        topic: ProducedTopic,
        config: ProducerConfig,
        sink: Callable[[int], Appendable] | None = None,
    ) -> None:
        """The topic was looked up. `sink` makes where the batches of a partition go: by default
        they are sent by the thread that fills a batch, or by the one that sees to lingering."""
        self._topic = topic
        self._sink = sink or self._sending_sink
        self._config = config
        self._turn = count()
        self._appenders: list[BufferedAppender] = []
        self._opening = threading.Lock()
        self._is_alone = False
        self._open_appenders()

    def send(
        self,
        value: bytes | str,
        key: bytes | str | None = None,
        *,
        headers: Mapping[str, bytes | str | None] | None = None,
        priority: int | str = 2,
        ttl: Duration | None = None,
    ) -> Sent:
        """Add a message to the batch of its partition. `result()` of what returns is its offset."""
        if key is None and self._is_alone:
            appender = self._appenders[0]
        else:
            appender = self._appenders[self._partition_of(key)]
        if key is None and headers is None and priority == 2 and ttl is None:
            sent = appender.send_value(value)
        else:
            expires_at_us = None if ttl is None else self._topic.now_us() + parse_ttl_us(ttl)
            sent = appender.send(
                value, key, headers=headers, priority=priority, expires_at_us=expires_at_us
            )
        if not sent.row:  # the first of a batch: a good moment to look for new partitions
            self._open_appenders()
        return sent

    def flush(self) -> None:
        """Send everything that is waiting. Raises the first error of a batch that failed."""
        errors: list[PenstockError] = []
        for appender in self._appenders:
            try:
                appender.flush()
            except PenstockError as exc:
                errors.append(exc)
        if errors:
            raise errors[0]

    def close(self) -> None:
        try:
            self.flush()
        finally:
            for appender in self._appenders:
                appender.close()

    def _partition_of(self, key: bytes | str | None) -> int:
        self._open_appenders()
        if key is None:
            # Neighbours stay together, so that batches fill; the next batch goes elsewhere.
            return next(self._turn) // self._config.messages_max % len(self._appenders)
        try:
            key = key.encode() if isinstance(key, str) else key  # not left to mmh3: it may crash
            return mmh3.hash(key, signed=False) % len(self._appenders)
        except (TypeError, UnicodeEncodeError):
            return 0  # it can be no key: any of them says so

    def _open_appenders(self) -> None:
        """One for each partition, also for those that were added."""
        if len(self._appenders) == self._topic.partitions:
            return
        with self._opening:
            for number in range(len(self._appenders), self._topic.partitions):
                self._appenders.append(
                    BufferedAppender(
                        self._sink(number),
                        messages_max=self._config.messages_max,
                        bytes_max=self._config.bytes_max,
                        linger_ms=self._config.linger_ms,
                    )
                )
            self._is_alone = len(self._appenders) == 1

    def _sending_sink(self, number: int) -> Appendable:
        return _SendingSink(self, number)


class _SendingSink:
    """Sends the batches of one partition at once."""

    def __init__(self, producer: Producer, number: int) -> None:
        self.config: LogConfig = producer._topic.settings.log_config()
        self._producer = producer  # the client must find it as long as there is something to send
        self._topic = producer._topic
        self._number = number
        self._identity = ProducerIdentity()

    def append(self, batch: Batch) -> Appended:
        return run(self._topic.append(batch, self._number, self._identity))


class AsyncProducer(AsyncClosing):
    """Sends messages to a topic; leaving the `async with` block flushes.

    It looks its topic up at the start of the block, or when it is awaited itself. Then `send`
    gathers and never waits: a task for each partition sends. Whoever wants to know awaits `flush`,
    or `result` of what `send` returned.
    """

    def __init__(self, topic: ProducedTopic, config: ProducerConfig) -> None:
        self._topic = topic
        self._config = config
        self._opening = asyncio.Lock()
        self._opened: Producer | None = None
        self._outboxes: list[_Outbox] = []

    def send(
        self,
        value: bytes | str,
        key: bytes | str | None = None,
        *,
        headers: Mapping[str, bytes | str | None] | None = None,
        priority: int | str = 2,
        ttl: Duration | None = None,
    ) -> Sent:
        """Add a message to the batch of its partition. `result` of what returns is its offset."""
        # When it is open, `send` is that of the producer inside.
        raise InvalidInput(
            "this producer is not open yet: use `async with ps.producer(...) as out`, "
            "or `out = await ps.producer(...)`"
        )

    async def flush(self) -> None:
        """Send everything that is waiting. Raises the first error of a batch that failed."""
        if self._opened is not None:
            self._opened.flush()
        errors = [error for outbox in self._outboxes for error in await outbox.drained()]
        if errors:
            raise errors[0]

    async def result(self, sent: Sent) -> int:
        """The offset of a message, once it is as safe as `acks` says."""
        if self._opened is not None and not sent.pending.is_written:
            self._opened.flush()
        if sent.pending.appended is not None:
            # Shielded: the others of its batch wait for the same.
            await asyncio.shield(asyncio.wrap_future(sent.pending.appended.durable))
        return sent.result()

    async def close(self) -> None:
        try:
            await self.flush()
        finally:
            if self._opened is not None:
                self._opened.close()

    def __await__(self) -> Generator[Any, None, Self]:
        return self.__aenter__().__await__()

    async def __aenter__(self) -> Self:
        async with self._opening:
            if self._opened is None:
                await run_async(self._topic.look_up())
                loop = asyncio.get_running_loop()
                self._opened = Producer(
                    self._topic, self._config, lambda number: self._outbox(number, loop)
                )
                self.send = self._opened.send  # type: ignore[method-assign] # the short way
        return self

    def _outbox(self, number: int, loop: asyncio.AbstractEventLoop) -> Appendable:
        outbox = _Outbox(self, number, loop)
        self._outboxes.append(outbox)
        return outbox


class _Outbox:
    """The batches of one partition on their way, in order. Any thread may append."""

    def __init__(
        self, producer: AsyncProducer, number: int, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.config: LogConfig = producer._topic.settings.log_config()
        self._producer = producer  # the client must find it as long as there is something to send
        self._topic = producer._topic
        self._number = number
        self._loop = loop
        self._identity = ProducerIdentity()
        self._queue: deque[tuple[Batch, _Promised]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._errors: list[PenstockError] = []

    def append(self, batch: Batch) -> Any:
        promised = _Promised()
        self._queue.append((batch, promised))
        self._loop.call_soon_threadsafe(self._send_on)
        return promised

    async def drained(self) -> list[PenstockError]:
        """When all is sent: what went wrong since the last time."""
        self._send_on()
        if self._task is not None:
            await asyncio.shield(self._task)
        errors, self._errors = self._errors, []
        return errors

    def _send_on(self) -> None:
        if self._queue and (self._task is None or self._task.done()):
            self._task = self._loop.create_task(self._send())

    async def _send(self) -> None:
        while self._queue:
            batch, promised = self._queue.popleft()
            steps = self._topic.append(batch, self._number, self._identity)
            try:
                appended = await run_async(steps)
                await asyncio.wrap_future(appended.durable)
            except PenstockError as exc:
                self._errors.append(exc)
                promised.durable.set_exception(exc)
            except BaseException as exc:
                promised.durable.set_exception(exc)
                raise
            else:
                promised.offset = appended.first_offset
                promised.durable.set_result(None)


class _Promised:
    """An `Appended` whose offset is known when it is durable."""

    def __init__(self) -> None:
        self.durable: Future[None] = Future()
        self.offset = -1

    @property
    def first_offset(self) -> int:
        self.durable.result()
        return self.offset
