"""Publishing one message, also one that is delivered later."""

from __future__ import annotations

from typing import overload

from penstock.client.arguments import Value, one_message
from penstock.client.base import AsyncCalls, SyncCalls
from penstock.client.link import Link
from penstock.client.waiting import Steps, until
from penstock.durations import Duration, Moment
from penstock.errors import InvalidInput
from penstock.model.names import TopicName
from penstock.model.published import (
    Delayed,
    Published,
    published,
)
from penstock.record.batch import HeaderMap, Payload
from penstock.record.schema import Priority

_NORMAL = int(Priority.NORMAL)
_NO_MORE = (None,) * 8

WINDOW_ALONE = "dedup_window says how long a dedup_id is remembered: give one, too"


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
    dedup_window: Duration | None,
) -> Steps[Published | Delayed]:
    batch = one_message(value, key, headers, priority)
    dedup_ids = None if dedup_id is None else [dedup_id]
    if dedup_ids is None and dedup_window is not None:
        raise InvalidInput(WINDOW_ALONE)
    if delay is not None or deliver_at is not None:
        ids, at_us = yield from link.delay(
            name,
            batch,
            delay=delay,
            deliver_at=deliver_at,
            partition=partition,
            ttl=ttl,
            dedup_ids=dedup_ids,
            dedup_window=dedup_window,
        )
        placed_alone = ids.placed[0]
        return Delayed(ids[0], at_us, placed_alone.duplicate, placed_alone.dead_letter)
    placed = yield from link.publish(
        name,
        batch,
        partition=partition,
        ttl=ttl,
        dedup_ids=dedup_ids,
        dedup_window=dedup_window,
    )
    return published(placed[0])


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
        dedup_window: Duration | None = None,
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
        dedup_id: str | bytes | None = None,
        dedup_window: Duration | None = None,
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
        dedup_id: str | bytes | None = None,
        dedup_window: Duration | None = None,
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
        dedup_window: Duration | None = None,
    ) -> Published | Delayed:
        """Publish a message. On return it survives what the topic's fsync policy promises.

        The value is bytes or text; a dict, a list, a struct, a dataclass or a pydantic model is
        published as JSON, with the header `content-type: application/json`.
        With `delay` or `deliver_at` it is delivered later; `cancel` takes the id of what returns.
        A second message with the same `dedup_id` within the topic's window, or the `dedup_window`
        that the first one was published with, is not stored: what returns is about the first.
        """
        more = key, headers, ttl, delay, deliver_at, partition, dedup_id, dedup_window
        if type(value) is bytes and type(topic) is str and priority == _NORMAL and more == _NO_MORE:
            stored = self._link.publish_value(self._namespace, topic, value)
            if stored is not None:
                published, durable = stored
                if durable is not None:
                    self._run(until(durable))
                return published
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
                dedup_window,
            )
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
        dedup_window: Duration | None = None,
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
        dedup_id: str | bytes | None = None,
        dedup_window: Duration | None = None,
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
        dedup_id: str | bytes | None = None,
        dedup_window: Duration | None = None,
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
        dedup_window: Duration | None = None,
    ) -> Published | Delayed:
        """Publish a message. On return it survives what the topic's fsync policy promises.

        The value is bytes or text; a dict, a list, a struct, a dataclass or a pydantic model is
        published as JSON, with the header `content-type: application/json`.
        With `delay` or `deliver_at` it is delivered later; `cancel` takes the id of what returns.
        A second message with the same `dedup_id` within the topic's window, or the `dedup_window`
        that the first one was published with, is not stored: what returns is about the first.
        """
        more = key, headers, ttl, delay, deliver_at, partition, dedup_id, dedup_window
        if type(value) is bytes and type(topic) is str and priority == _NORMAL and more == _NO_MORE:
            stored = self._link.publish_value(self._namespace, topic, value)
            if stored is not None:
                published, durable = stored
                if durable is not None:
                    await self._run(until(durable))
                return published
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
                dedup_window,
            )
        )
