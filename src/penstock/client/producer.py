"""A producer: single messages are gathered into batches, and a retried batch is stored once.

The one for an event loop is in `async_producer.py`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, Literal, TypeAlias, TypeVar, get_args

import mmh3
import msgspec

from penstock.client.arguments import Value
from penstock.client.context_managers import Closing
from penstock.client.link import Link
from penstock.client.publishing import WINDOW_ALONE
from penstock.client.waiting import Pause, Steps, run
from penstock.config import LogConfig
from penstock.durations import Duration, parse_ns
from penstock.errors import InvalidInput, PartitionNotFound, PenstockError, TopicNotFound
from penstock.log.appender import BufferedAppender, Sent
from penstock.log.base import DONE, Appendable, Appended
from penstock.model.calls import DescribeTopic
from penstock.model.names import TopicName, dedup_names
from penstock.model.published import Placed, ProducerSequence
from penstock.model.settings import TopicSettings, parse_dedup_window_ms, parse_ttl_us
from penstock.randomness import own_random
from penstock.record.batch import Batch
from penstock.record.json_values import encode_json, is_json_like, with_content_type

T = TypeVar("T")

Acks = Literal["none", "leader", "all"]
_DEDUP_ID = "penstock-dedup-id"
_DEDUP_WINDOW = "penstock-dedup-window"


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

    @property
    def name(self) -> str:
        return str(self._name)

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
        sequence = identity.sequence
        if batch is identity.sent:  # Ctrl-C came before its sender heard of it: it is no new one
            sequence -= len(batch)
        producer = ProducerSequence(identity.producer_id, 0, sequence)
        try:
            placed = yield from self._publish(batch, number, producer=producer)
        except (PenstockError, OSError, MemoryError, asyncio.CancelledError):
            identity.renew()  # the batch is given up; after Ctrl-C it is sent again as what it was
            raise
        identity.sequence, identity.sent = sequence + len(batch), batch
        return self._appended(placed)

    def append_known(self, batch: Batch, number: int, _: ProducerIdentity) -> Steps[Appended]:
        """Store a message that has a deduplication id, as a header."""
        batch, how = _taken_apart(batch)
        return self._appended((yield from self._publish(batch, number, **how)))

    def append_later(self, batch: Batch, number: int, _: ProducerIdentity) -> Steps[Appended]:
        """Store messages that are delivered later, each at the time that it is stamped with."""
        return self._appended((yield from self._delay(batch, number)))

    def append_known_later(self, batch: Batch, number: int, _: ProducerIdentity) -> Steps[Appended]:
        """Both: one message that has a deduplication id, as a header, and a time."""
        batch, how = _taken_apart(batch)
        return self._appended((yield from self._delay(batch, number, **how)))

    def _delay(self, batch: Batch, number: int, **known_by: Any) -> Steps[Placed]:
        """Where the batch waits."""
        due = batch.timestamps_us()
        ids, _ = yield from self._retried(
            lambda: self._link.delay(
                self._name, batch.stamped(None), deliver_at=due, partition=number, **known_by
            )
        )
        return ids.placed[0]

    def _appended(self, placed: Placed) -> Appended:
        first = placed.first_offset
        durable = placed.durable if self._config.acks == "all" else DONE
        return Appended(first, first + len(placed.rows), 0, placed.ulid, durable)

    def _publish(self, batch: Batch, number: int, **known_by: Any) -> Steps[Placed]:
        """Where the batch is."""
        retry_for_s = None if self._config.retries else 0.0
        (placed,) = yield from self._retried(
            lambda: self._link.publish(
                self._name,
                batch,
                partition=number,
                wait=False,
                retry_for_s=retry_for_s,
                **known_by,
            )
        )
        return placed

    def _retried(self, attempt: Callable[[], Steps[T]]) -> Steps[T]:
        """What can pass is tried again, here or by the link itself."""
        left = 0 if self._link.retries else self._config.retries
        backoff_s = self._config.retry_backoff_ms / 1000
        while True:
            try:
                return (yield from attempt())
            except PenstockError as exc:
                if not exc.retriable or not left:
                    raise
            yield Pause(backoff_s)
            left, backoff_s = left - 1, backoff_s * 2


class ProducerIdentity:
    """Who sends to a partition, and the number of the next message.

    A batch whose fate is not known ends it: were the next one sent under the same number, it could
    be taken for a copy of the lost one.
    """

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        self.producer_id = own_random.getrandbits(62) + 1
        self.sequence = 0
        self.sent: Batch | None = None
        """The last batch that was stored."""


def _taken_apart(batch: Batch) -> tuple[Batch, dict[str, Any]]:
    """A message without the headers that say what it is known by, and what they say."""
    (message,) = batch.messages()
    headers = {**message.headers}
    name, window = headers.pop(_DEDUP_ID), headers.pop(_DEDUP_WINDOW, None)
    how = {"dedup_ids": [name], "dedup_window": None if window is None else f"{int(window)}ms"}
    return batch.with_headers([headers], instead=True), how


Append: TypeAlias = Callable[[Batch, int, ProducerIdentity], Steps[Appended]]
"""How a batch is stored in a partition."""


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
        sink: Callable[[int, Append], Appendable] | None = None,
    ) -> None:
        """The topic was looked up. `sink` makes where the batches of a partition go: by default
        they are sent by the thread that fills a batch, or by the one that sees to lingering."""
        self._topic = topic
        self._sink = sink or self._sending_sink
        self._config = config
        self._turn = count()
        self._appenders: list[BufferedAppender] = []
        self._apart: dict[tuple[int, bool, bool], BufferedAppender] = {}
        """By partition, for messages that are delayed, and for those that have an id."""
        self._opening = threading.Lock()
        self._is_alone = False
        self._open_appenders()

    def send(
        self,
        value: Value,
        key: bytes | str | None = None,
        *,
        headers: Mapping[str, bytes | str | None] | None = None,
        priority: int | str = 2,
        ttl: Duration | None = None,
        partition: int | None = None,
        delay: Duration | None = None,
        dedup_id: str | bytes | None = None,
        dedup_window: Duration | None = None,
    ) -> Sent:
        """Add a message to the batch of its partition. `result()` of what returns is its offset; of
        a delayed one, where it waits (-1: it is a duplicate). One with a `dedup_id` is sent by
        itself, at once."""
        if key is None and partition is None and self._is_alone:
            number = 0
        else:
            number = self._partition_of(key, partition)
        if type(value) is not bytes and is_json_like(value):
            value, headers = encode_json(value), with_content_type(headers)
        if delay is not None or dedup_id is not None or dedup_window is not None:
            headers = _with_dedup_id(headers, dedup_id, dedup_window)
            has_id = dedup_id is not None
            return self._send_apart(number, value, key, headers, priority, ttl, delay, has_id)
        appender = self._appenders[number]
        if key is None and headers is None and priority == 2 and ttl is None:
            sent = appender.send_value(value)  # type: ignore[arg-type] # told if it is none
        else:
            expires_at_us = None if ttl is None else self._topic.now_us() + parse_ttl_us(ttl)
            sent = appender.send(
                value,  # type: ignore[arg-type]
                key,
                headers=headers,
                priority=priority,
                expires_at_us=expires_at_us,
            )
        if not sent.row:  # the first of a batch: a good moment to look for new partitions
            self._open_appenders()
        return sent

    def flush(self) -> None:
        """Send everything that is waiting. Raises the first error of a batch that failed."""
        errors: list[PenstockError] = []
        for appender in [*self._appenders, *self._apart.values()]:
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
            for appender in [*self._appenders, *self._apart.values()]:
                appender.close()

    def _send_apart(
        self,
        number: int,
        value: Any,
        key: bytes | str | None,
        headers: Mapping[str, bytes | str | None] | None,
        priority: int | str,
        ttl: Duration | None,
        delay: Duration | None,
        has_id: bool,
    ) -> Sent:
        """What is stored otherwise than under the producer's numbers."""
        from_us, due_us = self._topic.now_us(), None
        if delay is not None:
            from_us = due_us = from_us + (parse_ns(delay, "delay") + 999) // 1000
        return self._appender_apart(number, due_us is not None, has_id).send(
            value,
            key,
            headers=headers,
            priority=priority,
            expires_at_us=None if ttl is None else from_us + parse_ttl_us(ttl),
            timestamp_us=due_us,
        )

    def _appender_apart(self, number: int, is_delayed: bool, has_id: bool) -> BufferedAppender:
        with self._opening:
            appender = self._apart.get((number, is_delayed, has_id))
            if appender is None:
                topic = self._topic
                how = topic.append_later if is_delayed else topic.append_known
                if is_delayed and has_id:
                    how = topic.append_known_later
                appender = self._apart[number, is_delayed, has_id] = BufferedAppender(
                    self._sink(number, how),
                    # What has an id may be elsewhere already, each somewhere else.
                    messages_max=1 if has_id else self._config.messages_max,
                    bytes_max=self._config.bytes_max,
                    linger_ms=self._config.linger_ms,
                )
            return appender

    def _partition_of(self, key: bytes | str | None, partition: int | None) -> int:
        self._open_appenders()
        if partition is not None:
            count = len(self._appenders)
            if type(partition) is not int or not 0 <= partition < count:
                raise PartitionNotFound(self._topic.name, partition, count)
            return partition
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
                        self._sink(number, self._topic.append),
                        messages_max=self._config.messages_max,
                        bytes_max=self._config.bytes_max,
                        linger_ms=self._config.linger_ms,
                    )
                )
            self._is_alone = len(self._appenders) == 1

    def _sending_sink(self, number: int, append: Append) -> Appendable:
        return _SendingSink(self, number, append)


def _with_dedup_id(
    headers: Mapping[str, bytes | str | None] | None,
    dedup_id: str | bytes | None,
    dedup_window: Duration | None,
) -> Mapping[str, bytes | str | None] | None:
    """What a message is known by goes through its appender as headers."""
    if dedup_id is None:
        if dedup_window is not None:
            raise InvalidInput(WINDOW_ALONE)
        return headers
    (name,) = dedup_names([dedup_id], 1)
    window = {}
    if dedup_window is not None:
        window[_DEDUP_WINDOW] = str(parse_dedup_window_ms(dedup_window))
    return {**(headers or {}), _DEDUP_ID: name, **window}


class _SendingSink:
    """Sends the batches of one partition at once."""

    def __init__(self, producer: Producer, number: int, append: Append) -> None:
        self.config: LogConfig = producer._topic.settings.log_config()
        self._producer = producer  # the client must find it as long as there is something to send
        self._append = append
        self._number = number
        self._identity = ProducerIdentity()

    def append(self, batch: Batch) -> Appended:
        return run(self._append(batch, self._number, self._identity))
