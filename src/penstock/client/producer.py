"""A producer: single messages are gathered into batches, and a retried batch is stored once."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Awaitable, Callable, Generator, Mapping
from itertools import count
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

import mmh3
import msgspec

from penstock.model.names import TopicName
from penstock.model.settings import parse_ttl_us
from penstock.model.published import ProducerSequence as ProducerOf
from penstock.client.faces import AsyncClosing, Closing
from penstock.config import LogConfig
from penstock.durations import Duration
from penstock.errors import InvalidInput, PenstockError
from penstock.log.appender import BufferedAppender, Sent
from penstock.log.base import DONE, Appendable, Appended
from penstock.record.batch import Batch

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.topic import Topic

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


class Producer(Closing):
    """Sends messages to a topic. Any thread may send; leaving the `with` block flushes.

    Closing the client does so too. While messages wait to be sent, they keep their producer alive.

    A batch that fails for a passing reason is sent again; its producer id and sequence number see
    to it that it is not stored twice. Errors come from `result()`, `flush()` and `close()`.
    """

    def __init__(self, broker: Broker, name: TopicName, config: ProducerConfig) -> None:
        self._broker = broker
        self._topic: Topic = broker.topic(name)
        self._id = new_producer_id()
        self._gather(config)

    def _gather(self, config: ProducerConfig) -> None:
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
            expires_at_us = None if ttl is None else self._now_us() + parse_ttl_us(ttl)
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
        if len(self._appenders) == self._partitions():
            return
        with self._opening:
            for number in range(len(self._appenders), self._partitions()):
                self._appenders.append(
                    BufferedAppender(
                        self._sink(number),
                        messages_max=self._config.messages_max,
                        bytes_max=self._config.bytes_max,
                        linger_ms=self._config.linger_ms,
                    )
                )
            self._is_alone = len(self._appenders) == 1

    # Where the topic is: here, or, in a subclass, far away.

    def _partitions(self) -> int:
        return len(self._topic.partitions)

    def _sink(self, number: int) -> Appendable:
        return _PartitionSink(self, number)

    def _now_us(self) -> int:
        return self._broker.clock.wall_ns() // 1000


class AsyncProducer(AsyncClosing):
    """Sends messages to a topic; leaving the `async with` block flushes.

    It looks its topic up at the start of the block, or when it is awaited itself. Then `send`
    gathers and does not wait, but for the write of a batch that is full; whoever wants to know
    awaits `flush`, or `result` of what `send` returned.
    """

    def __init__(self, open_: Callable[[], Awaitable[Producer]]) -> None:
        self._open = open_
        self._opening = asyncio.Lock()
        self._opened: Producer | None = None

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
            await asyncio.to_thread(self._opened.flush)

    async def result(self, sent: Sent) -> int:
        """The offset of a message, once it is as safe as `acks` says."""
        return await asyncio.to_thread(sent.result)

    async def close(self) -> None:
        if self._opened is not None:
            await asyncio.to_thread(self._opened.close)

    def __await__(self) -> Generator[Any, None, Self]:
        return self.__aenter__().__await__()

    async def __aenter__(self) -> Self:
        async with self._opening:
            if self._opened is None:
                self._opened = await self._open()
                self.send = self._opened.send  # type: ignore[method-assign] # the short way
        return self


class _PartitionSink:
    """Where the batches of one partition go: numbered, and sent again when that may help."""

    def __init__(self, producer: Producer, number: int) -> None:
        self.config: LogConfig = producer._topic.partitions[number].log.config
        self._producer = producer  # the client must find it as long as there is something to send
        self._broker = producer._broker
        self._topic = producer._topic
        self._number = number
        self._producer_id = producer._id
        self._sending = producer._config
        self._sequence = 0

    def append(self, batch: Batch) -> Appended:
        producer = ProducerOf(self._producer_id, 0, self._sequence)
        for attempt in range(self._sending.retries + 1):
            try:
                (placed,) = self._broker.publish(
                    self._topic.name, batch, partition=self._number, producer=producer
                )
                break
            except PenstockError as exc:
                if not exc.retriable or attempt == self._sending.retries:
                    raise
                time.sleep(self._sending.retry_backoff_ms * 2**attempt / 1000)
        self._sequence += len(batch)
        durable = placed.durable if self._sending.acks == "all" else DONE
        first = placed.first_offset
        return Appended(first, first + len(batch), 0, placed.ulid, durable)


def new_producer_id() -> int:
    return random.getrandbits(62) + 1
