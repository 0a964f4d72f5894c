"""Publishing to a topic far away. The arguments are checked in the words of the broker."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from penstock.broker.names import dedup_names
from penstock.broker.settings import parse_ttl_us
from penstock.broker.structs import DelayedIds, Placed
from penstock.client.arguments import Messages, as_batch, moments_us
from penstock.client.base import P, S
from penstock.client.remote.asking import decode
from penstock.client.remote.calls import Calls
from penstock.client.remote.http import Request
from penstock.client.remote.paths import query
from penstock.client.results import Delayed, Published, PublishedBatch
from penstock.client.waiting import Steps
from penstock.durations import Duration, Moment, parse_ns, parse_us
from penstock.errors import InvalidInput, PartitionNotFound
from penstock.record.batch import Batch, HeaderMap, Payload
from penstock.record.plain import WORTH_IT_MAX, Plain, Single
from penstock.wire.columns import ARROW_TYPE, encode_new
from penstock.wire.messages import EACH_ROW, PublishedMessage, PublishedRuns, placed_of
from penstock.wire.topics import TopicView

RAW = "application/octet-stream"


class Publishing(Calls[S, P]):
    def ask_publish(
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
        """Publish a message. It survives what the topic's fsync policy promises on return.

        If the answer is lost it is sent again, and may be stored twice: a `dedup_id` prevents that.
        """
        path = f"{self._topic(topic)}/messages"
        yield from self._check_partition(topic, partition)
        if key is None and headers is None and dedup_id is None:
            batch = Single.build_one(value, priority)
            if isinstance(batch, Single) and batch.priority == 2:
                options = _options(ttl, delay, deliver_at, partition)
                request = Request("POST", path + options, batch.value, RAW)
                reply = yield from self._asking.ask(request)
                return _published(decode(reply, PublishedMessage))
        else:
            batch = Batch.build(
                [value],
                keys=None if key is None else [key],
                headers=None if headers is None else [headers],
                priority=priority,
            )
        if dedup_id is not None and (delay is not None or deliver_at is not None):
            raise InvalidInput("a delayed message cannot have a deduplication id")
        ids = None if dedup_id is None else dedup_names([dedup_id], 1)
        options = _options(ttl, delay, deliver_at, partition)
        runs = yield from self._send(path + options, encode_new(batch, ids))
        if runs.delayed:
            return Delayed(_delayed_ids(runs)[0], runs.deliver_at_us or 0)
        (published,) = _PublishedFarAway(runs)
        return published

    def ask_publish_batch(
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

        If the answer is lost they are sent again, and may be stored twice: `dedup_ids` prevent
        that, and so does a producer.
        """
        yield from self._check_partition(topic, partition)
        batch = _few_values(messages, keys, headers, priority)
        if batch is None:
            batch = as_batch(messages, keys, headers, priority)
        ids = None if dedup_ids is None else dedup_names(dedup_ids, len(batch))
        path = f"{self._topic(topic)}/messages"
        if ttl is not None or partition is not None or producer is not None:
            numbers = dict(zip(("producer_id", "epoch", "sequence"), producer or (), strict=False))
            path += _options(ttl, None, None, partition, **numbers)
        runs = yield from self._send(path, encode_new(batch, ids))
        return _PublishedFarAway(runs)

    def ask_schedule_batch(
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
        yield from self._check_partition(topic, partition)
        batch = as_batch(messages, keys, headers, priority)
        path = f"{self._topic(topic)}/messages"
        if isinstance(deliver_at, Sequence | np.ndarray):
            if delay is not None:
                raise InvalidInput("give delay or deliver_at, not both")
            due = moments_us(deliver_at)
            if len(due) != len(batch):
                raise InvalidInput(f"{len(batch)} messages, but {len(due)} of deliver_at")
            batch = batch.stamped(due)
            path += _options(ttl, None, None, partition, deliver_at=EACH_ROW)
        else:
            if delay is None and deliver_at is None:
                raise InvalidInput("say when: give delay or deliver_at")
            path += _options(ttl, delay, deliver_at, partition)
        runs = yield from self._send(path, encode_new(batch))
        return _delayed_ids(runs) if runs.delayed else []

    def _check_partition(self, topic: str, partition: object) -> Steps[None]:
        """What is no number at all is told of in the words of the broker."""
        if partition is not None and (type(partition) is not int or partition < 0):
            view = yield from self._get(self._topic(topic), TopicView)
            raise PartitionNotFound(str(self._name(topic)), partition, view.settings.partitions)

    def _send(self, path: str, body: bytes) -> Steps[PublishedRuns]:
        request = Request("POST", path, body, ARROW_TYPE)
        return decode((yield from self._asking.ask(request)), PublishedRuns)


class _PublishedFarAway(PublishedBatch):
    """Worked out of the answer when somebody wants to know: most callers do not."""

    def __init__(self, runs: PublishedRuns) -> None:
        self._runs = runs.runs

    @cached_property
    def placed(self) -> list[Placed]:
        return [placed_of(run) for run in self._runs]


def _few_values(messages: Any, keys: Any, headers: Any, priority: Any) -> Batch | None:
    """A short list of bytes, which is laid down faster without Arrow's help."""
    if type(messages) is not list or keys is not None or headers is not None or priority != 2:
        return None
    if not 0 < len(messages) <= WORTH_IT_MAX or set(map(type, messages)) != {bytes}:
        return None
    return Plain(messages)


def _options(
    ttl: Duration | None,
    delay: Duration | None,
    due: Moment | None,
    partition: int | None,
    **more: Any,
) -> str:
    """How to publish, as a query."""
    options = more
    if delay is not None and due is not None:
        raise InvalidInput("give delay or deliver_at, not both")
    if ttl is not None:
        options["ttl"] = f"{parse_ttl_us(ttl)}us"
    if delay is not None:
        options["delay"] = _decimal(parse_ns(delay, "delay"), 9)
    if due is not None:
        options["deliver_at"] = _decimal(max(parse_us(due, "deliver_at"), 0), 6)
    if partition is not None:
        options["partition"] = partition
    return query(options)


def _decimal(number: int, places: int) -> str:
    """A count of small units as seconds, without rounding."""
    whole, rest = divmod(number, 10**places)
    return f"{whole}.{rest:0{places}d}"


def _published(message: PublishedMessage) -> Published | Delayed:
    if message.deliver_at_us is not None:
        return Delayed(message.id, message.deliver_at_us)
    assert message.partition is not None
    assert message.offset is not None
    return Published(message.partition, message.offset, message.id, message.duplicate)


def _delayed_ids(runs: PublishedRuns) -> DelayedIds:
    return DelayedIds([placed_of(run) for run in runs.delayed])
