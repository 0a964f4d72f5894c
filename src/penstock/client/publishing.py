"""Publishing: one message, many at once, and those that are delivered later."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import numpy as np

from penstock.client.arguments import Messages, Value, as_batch, moments_us, one_message
from penstock.client.base import AsyncCalls, SyncCalls
from penstock.client.link import Link
from penstock.client.waiting import Steps
from penstock.durations import Duration, Moment
from penstock.errors import InvalidInput
from penstock.model.names import TopicName
from penstock.model.published import (
    Delayed,
    ProducerSequence,
    Published,
    PublishedBatch,
    published,
)
from penstock.record.batch import Batch, HeaderMap, Payload


def _publish(
    link: Link,
    name: TopicName,
    value: Value,
    key: Payload,
    headers: HeaderMap | None,
    priority: int | str,
    ttl: Duration | None,
    delay: Duration | None,
    deliver_at: Moment | None,
    partition: int | None,
    dedup_id: str | bytes | None,
) -> Steps[Published | Delayed]:
    batch = one_message(value, key, headers, priority)
    if delay is not None or deliver_at is not None:
        if dedup_id is not None:
            raise InvalidInput("a delayed message cannot have a deduplication id")
        ids, at_us = yield from link.delay(
            name, batch, delay=delay, deliver_at=deliver_at, partition=partition, ttl=ttl
        )
        return Delayed(ids[0], at_us)
    ids_of = None if dedup_id is None else [dedup_id]
    placed = yield from link.publish(name, batch, partition=partition, ttl=ttl, dedup_ids=ids_of)
    return published(placed[0])


def _publish_batch(
    link: Link,
    name: TopicName,
    batch: Batch,
    ttl: Duration | None,
    partition: int | None,
    dedup_ids: Sequence[str | bytes | None] | None,
    producer: tuple[int, int, int] | None,
) -> Steps[PublishedBatch]:
    placed = yield from link.publish(
        name,
        batch,
        partition=partition,
        ttl=ttl,
        dedup_ids=dedup_ids,
        producer=None if producer is None else ProducerSequence(*producer),
    )
    return PublishedBatch(placed)


def _schedule_batch(
    link: Link,
    name: TopicName,
    batch: Batch,
    delay: Duration | None,
    deliver_at: Moment | Sequence[Moment] | None,
    ttl: Duration | None,
    partition: int | None,
) -> Steps[Sequence[str]]:
    due: Any = deliver_at
    if isinstance(deliver_at, Sequence | np.ndarray):
        due = moments_us(deliver_at)
    ids, _ = yield from link.delay(
        name, batch, delay=delay, deliver_at=due, partition=partition, ttl=ttl
    )
    return ids if len(ids) else []


class Publishing(SyncCalls):
    @overload
    def publish(
        self,
        topic: str,
        value: Value,
        *,
        key: Payload = None,
        headers: HeaderMap | None = None,
        priority: int | str = 2,
        ttl: Duration | None = None,
        delay: None = None,
        deliver_at: None = None,
        partition: int | None = None,
        dedup_id: str | bytes | None = None,
    ) -> Published: ...
    @overload
    def publish(
        self,
        topic: str,
        value: Value,
        *,
        key: Payload = None,
        headers: HeaderMap | None = None,
        priority: int | str = 2,
        ttl: Duration | None = None,
        delay: Duration,
        deliver_at: None = None,
        partition: int | None = None,
    ) -> Delayed: ...
    @overload
    def publish(
        self,
        topic: str,
        value: Value,
        *,
        key: Payload = None,
        headers: HeaderMap | None = None,
        priority: int | str = 2,
        ttl: Duration | None = None,
        delay: None = None,
        deliver_at: Moment,
        partition: int | None = None,
    ) -> Delayed: ...
    def publish(
        self,
        topic: str,
        value: Value,
        *,
        key: Payload = None,
        headers: HeaderMap | None = None,
        priority: int | str = 2,
        ttl: Duration | None = None,
        delay: Duration | None = None,
        deliver_at: Moment | None = None,
        partition: int | None = None,
        dedup_id: str | bytes | None = None,
    ) -> Published | Delayed:
        """Publish a message. On return it survives what the topic's fsync policy promises.

        The value is bytes or text; a dict, a list, a struct, a dataclass or a pydantic model is
        published as JSON, with the header `content-type: application/json`.
        With `delay` or `deliver_at` it is delivered later; `cancel` takes the id of what returns.
        """
        return self._run(
            _publish(
                self._link,
                self._name(topic),
                value,
                key,
                headers,
                priority,
                ttl,
                delay,
                deliver_at,
                partition,
                dedup_id,
            )
        )

    @overload
    def publish_batch(
        self,
        topic: str,
        messages: Messages,
        *,
        keys: Sequence[Payload] | None = None,
        headers: Sequence[HeaderMap | None] | None = None,
        priority: int | str | Sequence[int | str] = 2,
        ttl: Duration | None = None,
        delay: None = None,
        deliver_at: None = None,
        partition: int | None = None,
        dedup_ids: Sequence[str | bytes | None] | None = None,
        producer: tuple[int, int, int] | None = None,
    ) -> PublishedBatch: ...
    @overload
    def publish_batch(
        self,
        topic: str,
        messages: Messages,
        *,
        keys: Sequence[Payload] | None = None,
        headers: Sequence[HeaderMap | None] | None = None,
        priority: int | str | Sequence[int | str] = 2,
        ttl: Duration | None = None,
        delay: Duration,
        deliver_at: None = None,
        partition: int | None = None,
    ) -> Sequence[str]: ...
    @overload
    def publish_batch(
        self,
        topic: str,
        messages: Messages,
        *,
        keys: Sequence[Payload] | None = None,
        headers: Sequence[HeaderMap | None] | None = None,
        priority: int | str | Sequence[int | str] = 2,
        ttl: Duration | None = None,
        delay: None = None,
        deliver_at: Moment | Sequence[Moment],
        partition: int | None = None,
    ) -> Sequence[str]: ...
    def publish_batch(
        self,
        topic: str,
        messages: Messages,
        *,
        keys: Sequence[Payload] | None = None,
        headers: Sequence[HeaderMap | None] | None = None,
        priority: int | str | Sequence[int | str] = 2,
        ttl: Duration | None = None,
        delay: Duration | None = None,
        deliver_at: Moment | Sequence[Moment] | None = None,
        partition: int | None = None,
        dedup_ids: Sequence[str | bytes | None] | None = None,
        producer: tuple[int, int, int] | None = None,
    ) -> PublishedBatch | Sequence[str]:
        """Publish many messages at once: lists of values and what goes with them, or Arrow.

        With `delay` or `deliver_at`, one moment or one for each, they are delivered later; what
        returns are their ids, to cancel them by. `producer` is for who numbers messages itself,
        partition by partition, so that what is sent again is not stored twice: an id, an epoch,
        and the number of the first message.
        """
        batch = as_batch(messages, keys, headers, priority)
        name = self._name(topic)
        if delay is not None or deliver_at is not None:
            if dedup_ids is not None or producer is not None:
                raise InvalidInput("delayed messages have neither deduplication ids nor a producer")
            later = _schedule_batch(self._link, name, batch, delay, deliver_at, ttl, partition)
            return self._run(later)
        return self._run(
            _publish_batch(self._link, name, batch, ttl, partition, dedup_ids, producer)
        )

    def schedule_batch(
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
    ) -> Sequence[str]:
        """The older name of `publish_batch` with `delay` or `deliver_at`."""
        batch = as_batch(messages, keys, headers, priority)
        return self._run(
            _schedule_batch(self._link, self._name(topic), batch, delay, deliver_at, ttl, partition)
        )


class AsyncPublishing(AsyncCalls):
    @overload
    async def publish(
        self,
        topic: str,
        value: Value,
        *,
        key: Payload = None,
        headers: HeaderMap | None = None,
        priority: int | str = 2,
        ttl: Duration | None = None,
        delay: None = None,
        deliver_at: None = None,
        partition: int | None = None,
        dedup_id: str | bytes | None = None,
    ) -> Published: ...
    @overload
    async def publish(
        self,
        topic: str,
        value: Value,
        *,
        key: Payload = None,
        headers: HeaderMap | None = None,
        priority: int | str = 2,
        ttl: Duration | None = None,
        delay: Duration,
        deliver_at: None = None,
        partition: int | None = None,
    ) -> Delayed: ...
    @overload
    async def publish(
        self,
        topic: str,
        value: Value,
        *,
        key: Payload = None,
        headers: HeaderMap | None = None,
        priority: int | str = 2,
        ttl: Duration | None = None,
        delay: None = None,
        deliver_at: Moment,
        partition: int | None = None,
    ) -> Delayed: ...
    async def publish(
        self,
        topic: str,
        value: Value,
        *,
        key: Payload = None,
        headers: HeaderMap | None = None,
        priority: int | str = 2,
        ttl: Duration | None = None,
        delay: Duration | None = None,
        deliver_at: Moment | None = None,
        partition: int | None = None,
        dedup_id: str | bytes | None = None,
    ) -> Published | Delayed:
        """Publish a message. On return it survives what the topic's fsync policy promises.

        The value is bytes or text; a dict, a list, a struct, a dataclass or a pydantic model is
        published as JSON, with the header `content-type: application/json`.
        With `delay` or `deliver_at` it is delivered later; `cancel` takes the id of what returns.
        """
        return await self._run(
            _publish(
                self._link,
                self._name(topic),
                value,
                key,
                headers,
                priority,
                ttl,
                delay,
                deliver_at,
                partition,
                dedup_id,
            )
        )

    @overload
    async def publish_batch(
        self,
        topic: str,
        messages: Messages,
        *,
        keys: Sequence[Payload] | None = None,
        headers: Sequence[HeaderMap | None] | None = None,
        priority: int | str | Sequence[int | str] = 2,
        ttl: Duration | None = None,
        delay: None = None,
        deliver_at: None = None,
        partition: int | None = None,
        dedup_ids: Sequence[str | bytes | None] | None = None,
        producer: tuple[int, int, int] | None = None,
    ) -> PublishedBatch: ...
    @overload
    async def publish_batch(
        self,
        topic: str,
        messages: Messages,
        *,
        keys: Sequence[Payload] | None = None,
        headers: Sequence[HeaderMap | None] | None = None,
        priority: int | str | Sequence[int | str] = 2,
        ttl: Duration | None = None,
        delay: Duration,
        deliver_at: None = None,
        partition: int | None = None,
    ) -> Sequence[str]: ...
    @overload
    async def publish_batch(
        self,
        topic: str,
        messages: Messages,
        *,
        keys: Sequence[Payload] | None = None,
        headers: Sequence[HeaderMap | None] | None = None,
        priority: int | str | Sequence[int | str] = 2,
        ttl: Duration | None = None,
        delay: None = None,
        deliver_at: Moment | Sequence[Moment],
        partition: int | None = None,
    ) -> Sequence[str]: ...
    async def publish_batch(
        self,
        topic: str,
        messages: Messages,
        *,
        keys: Sequence[Payload] | None = None,
        headers: Sequence[HeaderMap | None] | None = None,
        priority: int | str | Sequence[int | str] = 2,
        ttl: Duration | None = None,
        delay: Duration | None = None,
        deliver_at: Moment | Sequence[Moment] | None = None,
        partition: int | None = None,
        dedup_ids: Sequence[str | bytes | None] | None = None,
        producer: tuple[int, int, int] | None = None,
    ) -> PublishedBatch | Sequence[str]:
        """Publish many messages at once: lists of values and what goes with them, or Arrow.

        With `delay` or `deliver_at`, one moment or one for each, they are delivered later; what
        returns are their ids, to cancel them by. `producer` is for who numbers messages itself,
        partition by partition, so that what is sent again is not stored twice: an id, an epoch,
        and the number of the first message.
        """
        batch = as_batch(messages, keys, headers, priority)
        name = self._name(topic)
        if delay is not None or deliver_at is not None:
            if dedup_ids is not None or producer is not None:
                raise InvalidInput("delayed messages have neither deduplication ids nor a producer")
            later = _schedule_batch(self._link, name, batch, delay, deliver_at, ttl, partition)
            return await self._run(later)
        return await self._run(
            _publish_batch(self._link, name, batch, ttl, partition, dedup_ids, producer)
        )

    async def schedule_batch(
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
    ) -> Sequence[str]:
        """The older name of `publish_batch` with `delay` or `deliver_at`."""
        batch = as_batch(messages, keys, headers, priority)
        return await self._run(
            _schedule_batch(self._link, self._name(topic), batch, delay, deliver_at, ttl, partition)
        )
