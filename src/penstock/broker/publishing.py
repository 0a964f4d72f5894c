"""Publishing messages that come one by one, each with its own delay, TTL and place."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from penstock.delivery.offsets import Int64s
from penstock.durations import Duration, Moment, parse_ns
from penstock.errors import InvalidInput
from penstock.log.base import DONE
from penstock.model.messages import NewMessage, PublishedMessage, published_message
from penstock.model.names import TopicName
from penstock.model.settings import parse_dedup_window_ms, parse_ttl_us
from penstock.model.transactions import NewTransaction, StagedMessages, StagedTransaction
from penstock.model.values import (
    Time,
    as_duration,
    parse_moment_us,
)
from penstock.record.batch import Batch
from penstock.record.plain import Single
from penstock.record.schema import parse_priority

if TYPE_CHECKING:
    from penstock.broker.broker import Broker


def due_us(delay: Duration | None, deliver_at: Time | Moment | None, wall_ns: int) -> int | None:
    """When a message falls due, in microseconds since 1970; None: it is not delayed."""
    if delay is not None:
        if deliver_at is not None:
            raise InvalidInput("give delay or deliver_at, not both")
        return (wall_ns + parse_ns(delay, "delay") + 999) // 1000
    return None if deliver_at is None else parse_moment_us(deliver_at, "deliver_at")


def expiring(batch: Batch, ttl: Duration | None, from_us: int | Int64s) -> Batch:
    """The messages with their TTL, counted from a moment on."""
    return batch if ttl is None else batch.expiring(from_us + parse_ttl_us(ttl))


class _Place(NamedTuple):
    """Messages with the same place can be stored together."""

    partition: int | None
    is_delayed: bool
    has_dedup_id: bool
    dedup_window_ms: int


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
    tenants, pause_ns = broker.tenants, 0
    if tenants.limited and groups:
        pause_ns = tenants.publishing(name.namespace, *(group.batch for group in groups.values()))
        waiting = [group.batch for group in groups.values() if group.deliver_at_us is not None]
        tenants.check(name.namespace, "delayed", sum(map(len, waiting)))
    results: dict[int, PublishedMessage] = {}
    futures: list[Future[None]] = []
    for place, group in groups.items():
        if group.deliver_at_us is not None:
            ids, durable = broker.delay(
                name,
                group.batch,
                group.deliver_at_us,
                partition=place.partition,
                dedup_ids=group.dedup_ids,
                dedup_window_ms=place.dedup_window_ms,
            )
            futures.append(durable)
            for placed in ids.placed:
                for row in placed.rows:
                    at_us = int(group.deliver_at_us[row])
                    results[group.rows[row]] = PublishedMessage(
                        id=ids[row],
                        deliver_at_us=placed.deliver_at_us if placed.duplicate else at_us,
                        duplicate=placed.duplicate,
                        dead_letter=placed.dead_letter,
                    )
            continue
        for placed in broker.publish(
            name,
            group.batch,
            partition=place.partition,
            dedup_ids=group.dedup_ids,
            dedup_window_ms=place.dedup_window_ms,
        ):
            futures.append(placed.durable)
            for nth, row in enumerate(placed.rows):
                results[group.rows[row]] = published_message(placed, nth)
    if pause_ns:
        futures.append(tenants.later_future(DONE, pause_ns))
    return [results[row] for row in range(len(messages))], futures


def staged_of(given: NewTransaction, namespace: str, wall_ns: int) -> StagedTransaction:
    """A transaction whose messages come one by one, each with its own delay, TTL and place."""
    staged = []
    for each in given.publish:
        for place, group in _grouped(each.messages, wall_ns).items():
            window_ms = place.dedup_window_ms
            staged.append(
                StagedMessages(
                    topic=each.topic,
                    batch=group.batch,
                    partition=place.partition,
                    deliver_at=group.deliver_at_us,
                    dedup_ids=group.dedup_ids,
                    dedup_window=f"{window_ms}ms" if window_ms else None,
                )
            )
    return StagedTransaction(
        id=given.id,
        namespace=namespace,
        producer=given.producer,
        epoch=given.epoch,
        messages=staged,
        settle=given.settle,
        offsets=given.offsets,
    )


def _grouped(messages: Sequence[NewMessage], wall_ns: int) -> dict[_Place, _Group]:
    rows: dict[_Place, list[int]] = {}
    due: list[int | None] = []
    ends: list[int | None] = []
    for row, message in enumerate(messages):
        delay = None if message.delay is None else as_duration(message.delay)
        at_us = due_us(delay, message.deliver_at, wall_ns)
        window_ms = 0
        if message.dedup_window is not None:
            if message.dedup_id is None:
                raise InvalidInput("dedup_window says how long a dedup_id is remembered: give one")
            window_ms = parse_dedup_window_ms(as_duration(message.dedup_window))
        ttl, from_us = message.ttl, wall_ns // 1000 if at_us is None else at_us
        due.append(at_us)
        ends.append(None if ttl is None else from_us + parse_ttl_us(ttl))
        has_id = message.dedup_id is not None
        place = _Place(message.partition, at_us is not None, has_id, window_ms)
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
    values = [message.value_bytes() for message in messages]
    priorities = [parse_priority(message.priority) for message in messages]
    # One priority for all needs no column, which readers would have to look at.
    first, is_one = priorities[0], len(set(priorities)) == 1
    if len(messages) == 1 and keys[0] is None and headers[0] is None:
        single = Single.build_one(values[0], first)
        return single if ends[0] is None else single.expiring(ends[0])
    return Batch.build(
        values,
        keys=keys if any(key is not None for key in keys) else None,
        headers=headers if any(headers) else None,
        priority=first if is_one else priorities,
        expires_at_us=ends if any(end is not None for end in ends) else None,
    )
