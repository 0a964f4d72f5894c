"""Publishing many messages at once, also those that are delivered later."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import numpy as np

from penstock.client.arguments import Messages, as_batch, moments_us
from penstock.client.base import AsyncCalls, SyncCalls
from penstock.client.link import Link
from penstock.client.publishing import WINDOW_ALONE
from penstock.client.waiting import Steps
from penstock.durations import Duration, Moment
from penstock.errors import InvalidInput
from penstock.model.names import TopicName
from penstock.model.published import ProducerSequence, PublishedBatch
from penstock.record.batch import Batch, HeaderMap, Payload


def _publish_batch(
    link: Link,
    name: TopicName,
    batch: Batch,
    ttl: Duration | None,
    partition: int | None,
    dedup_ids: Sequence[str | bytes | None] | None,
    dedup_window: Duration | None,
    producer: tuple[int, int, int] | None,
) -> Steps[PublishedBatch]:
    if dedup_ids is None and dedup_window is not None:
        raise InvalidInput(WINDOW_ALONE)
    placed = yield from link.publish(
        name,
        batch,
        partition=partition,
        ttl=ttl,
        dedup_ids=dedup_ids,
        dedup_window=dedup_window,
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
    dedup_ids: Sequence[str | bytes | None] | None = None,
    dedup_window: Duration | None = None,
) -> Steps[Sequence[str]]:
    if dedup_ids is None and dedup_window is not None:
        raise InvalidInput(WINDOW_ALONE)
    due: Any = deliver_at
    if isinstance(deliver_at, Sequence | np.ndarray):
        due = moments_us(deliver_at)
    ids, _ = yield from link.delay(
        name,
        batch,
        delay=delay,
        deliver_at=due,
        partition=partition,
        ttl=ttl,
        dedup_ids=dedup_ids,
        dedup_window=dedup_window,
    )
    return ids if len(ids) else []


class BatchPublishing(SyncCalls):
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
        dedup_window: Duration | None = None,
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
        dedup_ids: Sequence[str | bytes | None] | None = None,
        dedup_window: Duration | None = None,
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
        dedup_ids: Sequence[str | bytes | None] | None = None,
        dedup_window: Duration | None = None,
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
        dedup_window: Duration | None = None,
        producer: tuple[int, int, int] | None = None,
    ) -> PublishedBatch | Sequence[str]:
        """Publish many messages at once: lists of values and what goes with them, or Arrow.

        With `delay` or `deliver_at`, one moment or one for each, they are delivered later; what
        returns are their ids, to cancel them by. `producer` is for who numbers messages itself,
        partition by partition, so that what is sent again is not stored twice: an id, an epoch,
        and the number of the first message. `dedup_ids` are as with `publish`.
        """
        batch = as_batch(messages, keys, headers, priority)
        name = self._name(topic)
        if delay is not None or deliver_at is not None:
            if producer is not None:
                raise InvalidInput("delayed messages have no producer; give them dedup_ids")
            later = _schedule_batch(
                self._link,
                name,
                batch,
                delay,
                deliver_at,
                ttl,
                partition,
                dedup_ids,
                dedup_window,
            )
            return self._run(later)
        return self._run(
            _publish_batch(
                self._link, name, batch, ttl, partition, dedup_ids, dedup_window, producer
            )
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


class AsyncBatchPublishing(AsyncCalls):
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
        dedup_window: Duration | None = None,
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
        dedup_ids: Sequence[str | bytes | None] | None = None,
        dedup_window: Duration | None = None,
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
        dedup_ids: Sequence[str | bytes | None] | None = None,
        dedup_window: Duration | None = None,
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
        dedup_window: Duration | None = None,
        producer: tuple[int, int, int] | None = None,
    ) -> PublishedBatch | Sequence[str]:
        """Publish many messages at once: lists of values and what goes with them, or Arrow.

        With `delay` or `deliver_at`, one moment or one for each, they are delivered later; what
        returns are their ids, to cancel them by. `producer` is for who numbers messages itself,
        partition by partition, so that what is sent again is not stored twice: an id, an epoch,
        and the number of the first message. `dedup_ids` are as with `publish`.
        """
        batch = as_batch(messages, keys, headers, priority)
        name = self._name(topic)
        if delay is not None or deliver_at is not None:
            if producer is not None:
                raise InvalidInput("delayed messages have no producer; give them dedup_ids")
            later = _schedule_batch(
                self._link,
                name,
                batch,
                delay,
                deliver_at,
                ttl,
                partition,
                dedup_ids,
                dedup_window,
            )
            return await self._run(later)
        return await self._run(
            _publish_batch(
                self._link, name, batch, ttl, partition, dedup_ids, dedup_window, producer
            )
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
