"""Publishing messages that come one by one, each with its own delay, TTL and place."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from penstock.delivery.offsets import Int64s
from penstock.durations import Duration, Moment, parse_ns, parse_us
from penstock.errors import InvalidInput
from penstock.model.messages import NewMessage, PublishedMessage, published_message
from penstock.model.names import TopicName
from penstock.model.settings import parse_ttl_us
from penstock.model.values import (
    Time,
    as_duration,
    parse_time,
)
from penstock.record.batch import Batch
from penstock.record.schema import parse_priority

if TYPE_CHECKING:
    from penstock.broker.broker import Broker


def due_us(delay: Duration | None, deliver_at: Time | Moment | None, wall_ns: int) -> int | None:
    """When a message falls due, in microseconds since 1970; None: it is not delayed."""
    if delay is not None:
        if deliver_at is not None:
            raise InvalidInput("give delay or deliver_at, not both")
        return (wall_ns + parse_ns(delay, "delay") + 999) // 1000
    if deliver_at is None:
        return None
    moment = parse_time(deliver_at, "deliver_at") if isinstance(deliver_at, str) else deliver_at
    return parse_us(moment, "deliver_at")


def expiring(batch: Batch, ttl: Duration | None, from_us: int | Int64s) -> Batch:
    """The messages with their TTL, counted from a moment on."""
    return batch if ttl is None else batch.expiring(from_us + parse_ttl_us(ttl))


class _Place(NamedTuple):
    """Messages with the same place can be stored together."""

    partition: int | None
    is_delayed: bool
    has_dedup_id: bool


class _Group(NamedTuple):
    """Messages that are stored together, and their rows in what was given."""

    rows: list[int]
    batch: Batch
    dedup_ids: list[str | None] | None
    deliver_at_us: Int64s | None


def publish_each(
    broker: Broker, name: TopicName, messages: Sequence[NewMessage]
) -> tuple[list[PublishedMessage], list[Future[None]]]:
    """Everything is checked before any of it is stored. Where each message is, and the futures of
    what has to be durable."""
    groups = _grouped(messages, broker.clock.wall_ns())
    if not groups:
        broker.topic(name)
    elif len(groups) > 1:
        for place, group in groups.items():
            broker.check(
                name,
                group.batch,
                partition=place.partition,
                dedup_ids=group.dedup_ids,
                deliver_at_us=group.deliver_at_us,
            )
    results: dict[int, PublishedMessage] = {}
    futures: list[Future[None]] = []
    for place, group in groups.items():
        if group.deliver_at_us is not None:
            ids, durable = broker.delay(
                name, group.batch, group.deliver_at_us, partition=place.partition
            )
            futures.append(durable)
            for id_, row, at_us in zip(ids, group.rows, group.deliver_at_us.tolist(), strict=True):
                results[row] = PublishedMessage(id=id_, deliver_at_us=at_us)
            continue
        for placed in broker.publish(
            name, group.batch, partition=place.partition, dedup_ids=group.dedup_ids
        ):
            futures.append(placed.durable)
            for nth, row in enumerate(placed.rows):
                results[group.rows[row]] = published_message(placed, nth)
    return [results[row] for row in range(len(messages))], futures


def _grouped(messages: Sequence[NewMessage], wall_ns: int) -> dict[_Place, _Group]:
    rows: dict[_Place, list[int]] = {}
    due: list[int | None] = []
    ends: list[int | None] = []
    for row, message in enumerate(messages):
        delay = None if message.delay is None else as_duration(message.delay)
        at_us = due_us(delay, message.deliver_at, wall_ns)
        if at_us is not None and message.dedup_id is not None:
            raise InvalidInput("a delayed message cannot have a deduplication id")
        ttl, from_us = message.ttl, wall_ns // 1000 if at_us is None else at_us
        due.append(at_us)
        ends.append(None if ttl is None else from_us + parse_ttl_us(ttl))
        place = _Place(message.partition, at_us is not None, message.dedup_id is not None)
        rows.setdefault(place, []).append(row)
    return {
        place: _Group(
            some,
            _built([messages[row] for row in some], [ends[row] for row in some]),
            [messages[row].dedup_id for row in some] if place.has_dedup_id else None,
            np.array([due[row] for row in some], np.int64) if place.is_delayed else None,
        )
        for place, some in rows.items()
    }


def _built(messages: Sequence[NewMessage], ends: Sequence[int | None]) -> Batch:
    keys = [message.key_bytes() for message in messages]
    headers = [message.header_bytes() or None for message in messages]
    return Batch.build(
        [message.value_bytes() for message in messages],
        keys=keys if any(key is not None for key in keys) else None,
        headers=headers if any(headers) else None,
        priority=[parse_priority(message.priority) for message in messages],
        expires_at_us=ends if any(end is not None for end in ends) else None,
    )
