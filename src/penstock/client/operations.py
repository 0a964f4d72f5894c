"""Everything that a client can ask, written once; `Client` and `AsyncClient` give it a face.

A method that waits is a generator (see `waiting.py`); the others are plain.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from penstock.broker.listing import parse_limit
from penstock.broker.names import TopicName, group_name, stream_group
from penstock.broker.settings import TopicSettings, parse_ttl_us
from penstock.broker.stats import LatencyRow, TopicStats
from penstock.broker.structs import DelayedMessage, DelayStats, Delivered, StreamGroup
from penstock.broker.structs import Producer as ProducerOf
from penstock.client.arguments import (
    Messages,
    Position,
    as_batch,
    moments_us,
    parse_receipts,
    parse_start,
)
from penstock.client.base import BaseClient, P, S
from penstock.client.results import Delayed, Published, PublishedBatch, published
from penstock.client.waiting import Signal, Steps, Wait
from penstock.delivery.offsets import Offsets
from penstock.durations import Duration, Moment, parse_ns, parse_us
from penstock.errors import (
    BrokerClosed,
    DeliveryError,
    InvalidInput,
    InvalidReceipt,
    PartitionNotFound,
    TopicNotFound,
)
from penstock.group.assignment import TopicPartition
from penstock.group.offsets import AtOffset, AtTime, Earliest, Latest
from penstock.log.base import DONE, Batches
from penstock.record.batch import Batch, HeaderMap, Message, Payload
from penstock.record.plain import Single

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

Asked: TypeAlias = tuple[TopicName, str, int, int | None, str, int | None]
"""What `Broker.receive` takes."""


class Operations(BaseClient[S, P]):
    def __init__(self, broker: Broker, namespace: str) -> None:
        super().__init__(namespace)
        self._broker = broker

    # Topics.

    def _create_topic(
        self, /, topic: str, *, exist_ok: bool = False, **settings: Any
    ) -> TopicSettings:
        """Make a topic. Settings: partitions, visibility, max_retries, backoff, ttl, retention,
        fsync and more; a wrong one says what is allowed."""
        return self._broker.create_topic(self._name(topic), settings, exist_ok)

    def _alter_topic(self, /, topic: str, **settings: Any) -> TopicSettings:
        """Change settings, or add partitions, while it is in use."""
        return self._broker.alter_topic(self._name(topic), settings)

    def _delete_topic(self, topic: str) -> None:
        """With all its messages. Its dead letters stay until their own topic is deleted."""
        self._broker.delete_topic(self._name(topic))

    def _namespaces(self) -> list[str]:
        """Every namespace that has a topic, and "default"."""
        return self._broker.namespaces()

    def _topics(self) -> list[str]:
        """The topics of this client's namespace, those of dead letters too."""
        return [name.topic for name in self._broker.topics(self._namespace)]

    def _describe_topic(self, topic: str) -> TopicSettings:
        """Its settings, with the defaults where none was given."""
        return self._broker.settings(self._name(topic))

    def _stats(self, topic: str) -> TopicStats:
        return self._broker.stats(self._name(topic))

    def _all_stats(self) -> list[TopicStats]:
        """Of every topic of this client's namespace."""
        return [self._broker.stats(name) for name in self._broker.topics(self._namespace)]

    def _latencies(
        self, topic: str, *, since: Moment | None = None, until: Moment | None = None
    ) -> list[LatencyRow]:
        """How long messages waited for their first hand-out, and were worked on until their ack:
        by minute, queue group and priority. By default of the last hour, the present minute too."""
        since_us = None if since is None else parse_us(since, "since")
        until_us = None if until is None else parse_us(until, "until")
        return self._broker.latency_page(self._name(topic), since_us, until_us)[0]

    # Publishing.

    def _publish(
        self,
        topic: str,
        value: Payload,
        *,
        key: Payload = None,
        headers: HeaderMap | None = None,
        priority: int | str = 2,
        ttl: Duration | None = None,
        delay: Duration | None = None,
        deliver_at: Moment | None = None,
        partition: int | None = None,
        dedup_id: str | bytes | None = None,
    ) -> Steps[Published | Delayed]:
        """Publish a message. It survives what the topic's fsync policy promises on return."""
        if key is None and headers is None:
            batch = Single.build_one(value, priority)
        else:
            batch = Batch.build(
                [value],
                keys=None if key is None else [key],
                headers=None if headers is None else [headers],
                priority=priority,
            )
        name = self._name(topic)
        due_us = self._due_us(delay, deliver_at)
        if due_us is not None:
            if dedup_id is not None:
                raise InvalidInput("a delayed message cannot have a deduplication id")
            batch = self._expiring(batch, ttl, due_us)
            ids, durable = self._broker.delay(name, batch, due_us, partition=partition)
            yield from _durable(durable)
            return Delayed(ids[0], due_us)
        batch = self._expiring(batch, ttl, None)
        (placed,) = self._broker.publish(
            name,
            batch,
            partition=partition,
            dedup_ids=None if dedup_id is None else [dedup_id],
        )
        yield from _durable(placed.durable)
        return published(placed)

    def _publish_batch(
        self,
        topic: str,
        messages: Messages,
        *,
        keys: Sequence[Payload] | None = None,
        headers: Sequence[HeaderMap | None] | None = None,
        priority: int | str | Sequence[int | str] = 2,
        ttl: Duration | None = None,
        partition: int | None = None,
        dedup_ids: Sequence[str | bytes | None] | None = None,
        producer: tuple[int, int, int] | None = None,
    ) -> Steps[PublishedBatch]:
        """Publish many messages at once: lists of values and what goes with them, or Arrow.

        `producer` is for who numbers messages itself, partition by partition, so that what is sent
        again is not stored twice: an id, an epoch, and the number of the first message.
        """
        batch = self._expiring(as_batch(messages, keys, headers, priority), ttl, None)
        placed = self._broker.publish(
            self._name(topic),
            batch,
            partition=partition,
            producer=None if producer is None else ProducerOf(*producer),
            dedup_ids=dedup_ids,
        )
        for each in placed:
            yield from _durable(each.durable)
        return PublishedBatch(placed)

    def _schedule_batch(
        self,
        topic: str,
        messages: Messages,
        *,
        delay: Duration | None = None,
        deliver_at: Moment | Sequence[Moment] | None = None,
        keys: Sequence[Payload] | None = None,
        headers: Sequence[HeaderMap | None] | None = None,
        priority: int | str | Sequence[int | str] = 2,
        ttl: Duration | None = None,
        partition: int | None = None,
    ) -> Steps[Sequence[str]]:
        """Publish many messages to be delivered later, all at once or each at its own time.

        Returns their ids, to cancel them by."""
        batch = as_batch(messages, keys, headers, priority)
        due: Any
        if isinstance(deliver_at, Sequence | np.ndarray):
            if delay is not None:
                raise InvalidInput("give delay or deliver_at, not both")
            due = moments_us(deliver_at)
            if len(due) != len(batch):
                raise InvalidInput(f"{len(batch)} messages, but {len(due)} of deliver_at")
        else:
            due = self._due_us(delay, deliver_at)
            if due is None:
                raise InvalidInput("say when: give delay or deliver_at")
        if not len(batch):
            self._broker.topic(self._name(topic))
            return []
        batch = self._expiring(batch, ttl, due)
        ids, durable = self._broker.delay(self._name(topic), batch, due, partition=partition)
        yield from _durable(durable)
        return ids

    # Delays.

    def _cancel(self, topic: str, id_: str) -> bool:
        """Take back a delayed message; False if it is delivered or cancelled already."""
        return self._broker.cancel(self._name(topic), id_)

    def _delayed(self, topic: str, limit: int | None = None) -> Iterator[DelayedMessage]:
        """Messages that wait, in the order in which they were published."""
        return self._delayed_pages(self._name(topic), parse_limit(limit))

    def _delayed_pages(self, name: TopicName, left: int) -> Iterator[DelayedMessage]:
        after = 0
        while left > 0:
            page = self._broker.delayed(name, after, min(left, 1000))
            if not page:
                return
            for offset, message in page:
                yield message
                after = offset + 1
            left -= len(page)

    def _delay_stats(self, topic: str) -> DelayStats:
        return self._broker.delay_stats(self._name(topic))

    # Queue mode.

    def _asked(
        self,
        topic: str,
        group: str,
        max_messages: int,
        visibility: Duration | None,
        consumer: str,
        partition: int | None,
    ) -> Asked:
        visibility_ns = None if visibility is None else parse_ns(visibility, "visibility")
        return self._name(topic), group, max_messages, visibility_ns, consumer, partition

    def _long_poll(self, asked: Asked, wait_ns: int) -> Steps[list[Delivered]]:
        """Receive as soon as there is something, or nothing when time is up."""
        deadline = time.monotonic() + wait_ns / 1e9
        delivered: list[Delivered] = []
        while not delivered:
            signal = Signal()
            stop = self._broker.on_news(asked[0], signal.fire)
            try:
                delivered = self._broker.receive(*asked)  # what came before we were listening
                left_s = deadline - time.monotonic()
                if delivered or left_s <= 0:
                    break
                yield Wait(signal.future, left_s)
            finally:
                stop()
            if self._broker.closed:
                raise BrokerClosed("the broker was closed while a receive was waiting")
            delivered = self._broker.receive(*asked)
        return delivered

    def _settle_receipts(
        self, verb: str, group: str, receipts: str | Sequence[str], **how: Any
    ) -> Steps[dict[str, DeliveryError]]:
        """Settle messages by their receipts; by receipt, the errors of those that could not be."""
        leases: dict[tuple[TopicName, int, int], dict[int, str]] = {}
        for text, name, receipt in parse_receipts(receipts):
            place = name, receipt.partition, receipt.nonce
            leases.setdefault(place, {})[receipt.offset] = text
        errors: dict[str, DeliveryError] = {}
        settle = getattr(self._broker, verb)
        for (name, number, nonce), texts in leases.items():
            offsets = Offsets.of(list(texts))
            try:
                settled = settle(name, number, group_name(group), nonce, offsets, **how)
            except (TopicNotFound, PartitionNotFound):  # the others are settled all the same
                errors |= {text: InvalidReceipt(text) for text in texts.values()}
                continue
            yield from _durable(settled.durable)
            for offset, refusal in settled.refused.items():
                errors[texts[offset]] = refusal(offset)
        return errors

    def _groups(self, topic: str) -> list[str]:
        """The groups that read a topic as a queue."""
        return self._broker.groups(self._name(topic))

    def _delete_group(self, topic: str, group: str) -> bool:
        return self._broker.delete_group(self._name(topic), group)

    # Stream groups, from outside.

    def _stream_groups(self) -> list[str]:
        """The groups that read as streams."""
        return self._broker.streams.groups(self._namespace)

    def _describe_stream_group(self, group: str) -> StreamGroup:
        """Its members and their partitions, what is committed, and the lag on each partition."""
        return self._broker.streams.describe(stream_group(group, self._namespace))

    def _reset_stream_group(
        self, group: str, topic: str, to: Position, *, partition: int | None = None
    ) -> Steps[None]:
        """Let a stream group start elsewhere: "earliest", "latest", an offset or a time.

        Only while it has no members. It need not exist yet.
        """
        name = self._name(topic)
        positions = self._positions(name, to, partition)
        bounds = {p.number: (p.log.start, p.log.end) for p in self._broker.topic(name).partitions}
        offsets = {
            TopicPartition(str(name), number): min(
                max(offset, bounds[number][0]), bounds[number][1]
            )
            for number, offset in positions.items()
        }
        group = stream_group(group, self._namespace)
        yield from _durable(self._broker.streams.set_offsets(group, offsets))

    def _delete_stream_group(self, group: str) -> None:
        """Forget what a stream group has committed. Only while it has no members."""
        self._broker.streams.delete(stream_group(group, self._namespace))

    # Moving about.

    def _seek(self, topic: str, group: str, to: Position, *, partition: int | None = None) -> None:
        """Let a group start again: at "earliest", "latest", an offset, or a time."""
        name = self._name(topic)
        self._broker.seek(name, group, self._positions(name, to, partition))

    def _peek(
        self, topic: str, *, partition: int = 0, at: Position = "earliest", limit: int = 10
    ) -> list[Message]:
        """Look at messages without consuming them."""
        name = self._name(topic)
        if type(limit) is not int or limit < 0:
            raise InvalidInput(f"limit is {limit!r}; it must be a whole number from 0 up")
        offset = self._positions(name, at, partition)[partition]
        log = self._broker.topic(name, create=False).partition(partition).log
        offset = min(max(offset, log.start), log.end)
        found: list[Message] = []
        while offset < log.end and len(found) < limit:
            read = self._broker.read(name, partition, offset, 64 << 10)
            found += read.messages()
            offset = read.next_offset
        return found[:limit]

    def _read(self, topic: str, partition: int, at: Position, max_bytes: int = 4 << 20) -> Batches:
        """Messages of a partition as columns, as they lie in the log, and where to go on."""
        name = self._name(topic)
        offset = self._positions(name, at, partition)[partition]
        return self._broker.read(name, partition, offset, max_bytes)

    def _purge(self, topic: str, *, group: str | None = None) -> int:
        """Drop every message of a topic, or skip them all for one group; how many there were."""
        return self._broker.purge(self._name(topic), group)

    # Inside.

    def _positions(self, name: TopicName, to: Position, partition: int | None) -> dict[int, int]:
        topic = self._broker.topic(name, create=False)
        partitions = topic.partitions if partition is None else [topic.partition(partition)]
        match parse_start(to):
            case Earliest():
                return {p.number: p.log.start for p in partitions}
            case Latest():
                return {p.number: p.log.end for p in partitions}
            case AtTime(timestamp_us=stamp_us):
                return {p.number: p.log.find(stamp_us) for p in partitions}
            case AtOffset(offset=offset):
                return {p.number: offset for p in partitions}

    def _due_us(self, delay: Duration | None, deliver_at: Any) -> int | None:
        if delay is not None and deliver_at is not None:
            raise InvalidInput("give delay or deliver_at, not both")
        if delay is not None:
            return (self._broker.clock.wall_ns() + parse_ns(delay, "delay") + 999) // 1000
        return None if deliver_at is None else parse_us(deliver_at, "deliver_at")

    def _expiring(self, batch: Batch, ttl: Duration | None, from_us: Any) -> Batch:
        if ttl is None:
            return batch
        if from_us is None:
            from_us = self._broker.clock.wall_ns() // 1000
        return batch.expiring(from_us + parse_ttl_us(ttl))


def _durable(future: Any) -> Steps[None]:
    if future is not DONE:
        if not future.done():
            yield Wait(future)
        future.result()
