"""Everything that a client can ask of a server, written once for threads and event loops.

The arguments are those of `penstock.client.operations`, and are checked in the same words before
anything is sent.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar
from urllib.parse import urlencode

import msgspec
import numpy as np

from penstock.broker.delays import DelayedIds, DelayedMessage, DelayStats
from penstock.broker.names import TopicName, group_name, parse_topic, topic_name
from penstock.broker.partition import Delivered
from penstock.broker.settings import WAIT_MS_MAX, TopicSettings, parse_settings, parse_ttl_us
from penstock.broker.stats import TopicStats
from penstock.broker.streams import StreamGroup
from penstock.broker.topic import dedup_names
from penstock.client.operations import Messages, Position, as_batch, moments_us
from penstock.client.remote.asking import JSON, Asking, decode, encode
from penstock.client.remote.http import Request, segment
from penstock.client.results import Delayed, Published, PublishedBatch
from penstock.client.waiting import Steps
from penstock.delivery.receipts import Receipt
from penstock.durations import Duration, Moment, parse_ns, parse_us
from penstock.errors import DeliveryError, InvalidInput, PartitionNotFound
from penstock.log.base import Batches, Damage
from penstock.record.batch import Batch, HeaderMap, Message, Payload
from penstock.record.plain import WORTH_IT_MAX, Plain, Single
from penstock.record.schema import parse_ulid
from penstock.wire.columns import (
    ARROW_TYPE,
    COMPACT_TYPE,
    decode_delivered,
    decode_read,
    encode_new,
)
from penstock.wire.groups import Reset, StreamGroups, StreamGroupView, group_of
from penstock.wire.messages import (
    EACH_ROW,
    DelayedPage,
    MessagePage,
    PublishedMessage,
    PublishedRuns,
    Receive,
    Refusal,
    Settled,
    delayed_of,
    placed_of,
)
from penstock.wire.problem import make_error
from penstock.wire.topics import (
    Count,
    Found,
    Groups,
    Namespaces,
    Seek,
    TopicNames,
    TopicTable,
    TopicView,
)
from penstock.wire.values import place_text

T = TypeVar("T")

RAW = "application/octet-stream"
_STATS_PAGE = 500
_DONE_BY_THE_FIRST = {
    "ack": "already_settled",
    "reject": "already_settled",
    "nack": "lease_lost",
    "extend": "",
}
"""How a second attempt is refused if the first one, whose answer was lost, was carried out."""


class RemoteOperations:
    def __init__(self, asking: Asking, namespace: str) -> None:
        topic_name("x", namespace)
        self._asking = asking
        self._namespace = namespace
        self._base = "/v1" if namespace == "default" else f"/v1/namespaces/{namespace}"

    # Topics.

    def ask_create_topic(
        self, /, topic: str, *, exist_ok: bool = False, **settings: Any
    ) -> Steps[TopicSettings]:
        """Make a topic. Settings: partitions, visibility, max_retries, backoff, ttl, retention,
        fsync and more; a wrong one says what is allowed."""
        path = f"{self._topic(topic)}?exist_ok=true" if exist_ok else self._topic(topic)
        body = _settings(settings)
        return (yield from self._tell("PUT", path, body, TopicView, repeat=exist_ok)).settings

    def ask_alter_topic(self, /, topic: str, **settings: Any) -> Steps[TopicSettings]:
        """Change settings, or add partitions, while it is in use."""
        body = _settings(settings)
        view = yield from self._tell("PATCH", self._topic(topic), body, TopicView)
        self._asking.partitions[self._name(topic)] = view.settings.partitions
        return view.settings

    def ask_delete_topic(self, topic: str) -> Steps[None]:
        """With all its messages. Its dead letters stay until their own topic is deleted."""
        yield from self._asking.ask(Request("DELETE", self._topic(topic), repeatable=False))

    def ask_namespaces(self) -> Steps[list[str]]:
        """Every namespace that has a topic, and "default"."""
        return (yield from self._get("/v1/namespaces", Namespaces)).namespaces

    def ask_topics(self) -> Steps[list[str]]:
        """The topics of this client's namespace, those of dead letters too."""
        return (yield from self._get(f"{self._base}/topics", TopicNames)).topics

    def ask_describe_topic(self, topic: str) -> Steps[TopicSettings]:
        """Its settings, with the defaults where none was given."""
        return (yield from self._get(self._topic(topic), TopicView)).settings

    def ask_stats(self, topic: str) -> Steps[TopicStats]:
        return (yield from self._get(f"{self._topic(topic)}/stats", TopicStats))

    def ask_all_stats(self) -> Steps[list[TopicStats]]:
        """Of every topic of this client's namespace."""
        path = f"/v1/namespaces/{self._namespace}/stats/topics?details=true&limit={_STATS_PAGE}"
        found: list[TopicStats] = []
        offset, total = 0, 1
        while offset < total:
            page = yield from self._get(f"{path}&offset={offset}", TopicTable)
            found += page.details
            offset, total = offset + _STATS_PAGE, page.total
        return found

    # Publishing.

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
        if runs.delayed_count:
            return Delayed(_delayed_ids(runs)[0], runs.deliver_at_us or 0)
        (published,) = PublishedBatch([placed_of(run) for run in runs.runs])
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
        numbers = dict(zip(("producer_id", "epoch", "sequence"), producer or (), strict=False))
        path = f"{self._topic(topic)}/messages{_options(ttl, None, None, partition, **numbers)}"
        runs = yield from self._send(path, encode_new(batch, ids))
        return PublishedBatch([placed_of(run) for run in runs.runs])

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
        return _delayed_ids(runs) if runs.delayed_count else []

    # Delays.

    def ask_cancel(self, topic: str, id_: str) -> Steps[bool]:
        """Take back a delayed message; False if it is delivered or cancelled already."""
        path = f"{self._topic(topic)}/delayed/{segment(str(id_) or '-')}"
        reply, again = yield from self._asking.ask_again(Request("DELETE", path))
        return decode(reply, Found).found or again

    def ask_delayed_page(
        self, topic: str, after: int, limit: int
    ) -> Steps[tuple[list[DelayedMessage], int | None]]:
        """Some of the messages that wait, and where to go on."""
        path = f"{self._topic(topic)}/delayed?after={after}&limit={limit}"
        page = yield from self._get(path, DelayedPage)
        return [delayed_of(each) for each in page.delayed], page.next

    def ask_delay_stats(self, topic: str) -> Steps[DelayStats]:
        return (yield from self._get(f"{self._topic(topic)}/delayed/stats", DelayStats))

    # Queue mode.

    def ask_take(
        self,
        name: TopicName,
        group: str,
        max_messages: int,
        wait: Duration,
        visibility: Duration | None,
        consumer: str,
        partition: int | None,
    ) -> Steps[list[Delivered]]:
        wait_ns = parse_ns(wait, "wait")
        if wait_ns > WAIT_MS_MAX * 1_000_000:
            raise InvalidInput(f"wait is {wait!r}; a poll waits 30 seconds at the most")
        visibility_s = None if visibility is None else parse_ns(visibility, "visibility") / 1e9
        if type(max_messages) is not int:
            raise InvalidInput(f"max_messages is {max_messages!r}; give a whole number")
        path = f"{self._topic(name.topic)}/groups/{group_name(group)}/receive"
        deadline = time.monotonic() + wait_ns / 1e9
        left_s = wait_ns / 1e9
        while True:
            body = Receive(
                max_messages=max_messages,
                wait=left_s,
                visibility=visibility_s,
                consumer=consumer,
                partition=partition,
            )
            request = Request("POST", path, encode(body), JSON, COMPACT_TYPE, wait_s=left_s)
            reply = yield from self._asking.ask(request)
            delivered = decode_delivered(reply.body, reply.pieces)
            left_s = deadline - time.monotonic()
            if delivered or left_s <= 0:
                return delivered
            # The server was told to stop, and answered early: there may be another one soon.

    def ask_ack(self, group: str, receipts: str | Sequence[str]) -> Steps[dict[str, DeliveryError]]:
        """Ack messages by their receipts. Returns what could not be acked, by receipt."""
        return (yield from self._settle_receipts("ack", group, receipts))

    def ask_nack(
        self,
        group: str,
        receipts: str | Sequence[str],
        *,
        delay: Duration | None = None,
        error: str = "",
    ) -> Steps[dict[str, DeliveryError]]:
        """Give messages back by their receipts, to be tried again after a delay."""
        delay_ns = None if delay is None else parse_ns(delay, "delay")
        steps = self._settle_receipts("nack", group, receipts, delay_ns=delay_ns, error=error)
        return (yield from steps)

    def ask_reject(
        self, group: str, receipts: str | Sequence[str], *, reason: str = ""
    ) -> Steps[dict[str, DeliveryError]]:
        """Give messages up by their receipts: straight to the dead letters."""
        return (yield from self._settle_receipts("reject", group, receipts, error=reason))

    def ask_extend(
        self, group: str, receipts: str | Sequence[str], *, visibility: Duration
    ) -> Steps[dict[str, DeliveryError]]:
        """Hold messages for longer, by their receipts."""
        visibility_ns = parse_ns(visibility, "visibility")
        steps = self._settle_receipts("extend", group, receipts, visibility_ns=visibility_ns)
        return (yield from steps)

    def ask_settle(
        self, verb: str, name: TopicName, group: str, body: dict[str, Any]
    ) -> Steps[list[Refusal]]:
        """Settle messages of a topic; those that could not be."""
        base = "/v1" if name.namespace == "default" else f"/v1/namespaces/{name.namespace}"
        path = f"{base}/topics/{segment(name.topic)}/groups/{group_name(group)}/{verb}"
        request = Request("POST", path, encode(body), JSON)
        reply, again = yield from self._asking.ask_again(request)
        refused = decode(reply, Settled).refused
        if again and refused:
            refused = [each for each in refused if each.code != _DONE_BY_THE_FIRST[verb]]
        return refused

    def ask_groups(self, topic: str) -> Steps[list[str]]:
        """The groups that read a topic as a queue."""
        return (yield from self._get(f"{self._topic(topic)}/groups", Groups)).groups

    def ask_delete_group(self, topic: str, group: str) -> Steps[bool]:
        path = f"{self._topic(topic)}/groups/{group_name(group)}"
        reply, again = yield from self._asking.ask_again(Request("DELETE", path))
        return decode(reply, Found).found or again

    # Stream groups, from outside.

    def ask_stream_groups(self) -> Steps[list[str]]:
        """The groups that read as streams; in a namespace, those that read its topics."""
        return (yield from self._get(f"{self._base}/stream-groups", StreamGroups)).groups

    def ask_describe_stream_group(self, group: str) -> Steps[StreamGroup]:
        """Its members and their partitions, what is committed, and the lag on each partition."""
        path = f"{self._base}/stream-groups/{segment(group)}"
        return group_of((yield from self._get(path, StreamGroupView)))

    def ask_reset_stream_group(
        self, group: str, topic: str, to: Position, *, partition: int | None = None
    ) -> Steps[None]:
        """Let a stream group start elsewhere: "earliest", "latest", an offset or a time.

        Only while it has no members. It need not exist yet.
        """
        self._name(topic)
        body = Reset(topic=topic, to=_place(to), partition=partition)
        path = f"{self._base}/stream-groups/{group_name(group)}/reset"
        yield from self._asking.ask(Request("POST", path, encode(body), JSON))

    def ask_delete_stream_group(self, group: str) -> Steps[None]:
        """Forget what a stream group has committed. Only while it has no members."""
        path = f"{self._base}/stream-groups/{segment(group)}"
        yield from self._asking.ask(Request("DELETE", path, repeatable=False))

    # Moving about.

    def ask_seek(
        self, topic: str, group: str, to: Position, *, partition: int | None = None
    ) -> Steps[None]:
        """Let a group start again: at "earliest", "latest", an offset, or a time."""
        body = Seek(to=_place(to), partition=partition)
        path = f"{self._topic(topic)}/groups/{group_name(group)}/seek"
        yield from self._asking.ask(Request("POST", path, encode(body), JSON))

    def ask_peek(
        self, topic: str, *, partition: int = 0, at: Position = "earliest", limit: int = 10
    ) -> Steps[list[Message]]:
        """Look at messages without consuming them."""
        if type(limit) is not int or limit < 0:
            raise InvalidInput(f"limit is {limit!r}; it must be a whole number from 0 up")
        options = {"partition": partition, "at": _place(at), "limit": min(limit, 100_000)}
        path = f"{self._topic(topic)}/messages?{urlencode(options)}"
        reply = yield from self._asking.ask(Request("GET", path, accept=ARROW_TYPE))
        batches, _ = decode_read(reply.body)
        return [message for batch in batches for message in batch.messages()]

    def ask_read(
        self, topic: str, partition: int, at: Position, max_bytes: int = 4 << 20
    ) -> Steps[Batches]:
        """Messages of a partition as columns, as they lie in the log, and where to go on."""
        options = {"at": _place(at), "max_bytes": max_bytes}
        path = f"{self._topic(topic)}/partitions/{partition}/messages?{urlencode(options)}"
        reply = yield from self._asking.ask(Request("GET", path, accept=ARROW_TYPE))
        batches, about = decode_read(reply.body)
        page = msgspec.json.decode(about, type=MessagePage)
        damage = [Damage(**msgspec.structs.asdict(each)) for each in page.damage]
        return Batches(batches, page.next_offset, damage)

    def ask_purge(self, topic: str, *, group: str | None = None) -> Steps[int]:
        """Drop every message of a topic, or skip them all for one group; how many there were."""
        path = f"{self._topic(topic)}/messages"
        if group is not None:
            path += f"?group={group_name(group)}"
        reply = yield from self._asking.ask(Request("DELETE", path, repeatable=False))
        return decode(reply, Count).count

    # Inside.

    def _name(self, topic: str) -> TopicName:
        return topic_name(topic, self._namespace)

    def _topic(self, topic: str) -> str:
        return f"{self._base}/topics/{topic_name(topic, self._namespace).topic}"

    def _check_partition(self, topic: str, partition: object) -> Steps[None]:
        """What is no number at all is told of in the words of the broker."""
        if partition is not None and (type(partition) is not int or partition < 0):
            settings = yield from self.ask_describe_topic(topic)
            raise PartitionNotFound(str(self._name(topic)), partition, settings.partitions)

    def _get(self, path: str, kind: type[T]) -> Steps[T]:
        return decode((yield from self._asking.ask(Request("GET", path))), kind)

    def _tell(
        self, method: str, path: str, body: Any, kind: type[T], *, repeat: bool = True
    ) -> Steps[T]:
        request = Request(method, path, encode(body), JSON, repeatable=repeat)
        return decode((yield from self._asking.ask(request)), kind)

    def _send(self, path: str, body: bytes) -> Steps[PublishedRuns]:
        request = Request("POST", path, body, ARROW_TYPE)
        return decode((yield from self._asking.ask(request)), PublishedRuns)

    def _settle_receipts(
        self, verb: str, group: str, receipts: str | Sequence[str], **how: Any
    ) -> Steps[dict[str, DeliveryError]]:
        """Settle messages by their receipts; by receipt, the errors of those that could not be."""
        several = [receipts] if isinstance(receipts, str) else receipts
        if not isinstance(several, Sequence):
            raise InvalidInput(f"a receipt or a list of them is wanted, not {receipts!r:.100}")
        topics: dict[str, list[str]] = {}
        for text in several:
            topics.setdefault(Receipt.parse(text).topic, []).append(text)
        errors: dict[str, DeliveryError] = {}
        for topic, texts in topics.items():
            body = {"receipts": texts, **settle_options(verb, how)}
            refused = yield from self.ask_settle(verb, parse_topic(topic), group, body)
            for refusal in refused:
                errors[refusal.receipt or ""] = refusal_error(refusal)
        return errors


def _few_values(messages: Any, keys: Any, headers: Any, priority: Any) -> Batch | None:
    """A short list of bytes, which is laid down faster without Arrow's help."""
    if type(messages) is not list or keys is not None or headers is not None or priority != 2:
        return None
    if not 0 < len(messages) <= WORTH_IT_MAX or set(map(type, messages)) != {bytes}:
        return None
    return Plain(messages)


def settle_options(verb: str, how: dict[str, Any]) -> dict[str, Any]:
    """What goes with an ack, nack, reject or extend, as the server calls it."""
    options: dict[str, Any] = {}
    for name, value in how.items():
        if name == "delay_ns":
            options["delay"] = None if value is None else value / 1e9
        elif name == "visibility_ns":
            options["visibility"] = value / 1e9
        else:
            if not isinstance(value, str):
                raise InvalidInput(f"{name} must be text, not {type(value).__name__}")
            options["reason" if verb == "reject" else name] = value
    return options


def refusal_error(refusal: Refusal) -> DeliveryError:
    error = make_error(refusal.code, refusal.detail, {"offset": refusal.offset})
    assert isinstance(error, DeliveryError)
    return error


def _settings(given: dict[str, Any]) -> dict[str, Any]:
    """Settings as JSON has them; wrong ones are told of as embedded, before they are sent."""
    parse_settings({name: value for name, value in given.items() if name != "partitions"})
    return {name: _plain(value) for name, value in given.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, timedelta):
        return value.total_seconds()
    return [_plain(each) for each in value] if isinstance(value, tuple | list) else value


def _options(
    ttl: Duration | None,
    delay: Duration | None,
    due: Moment | None,
    partition: int | None,
    **more: Any,
) -> str:
    """How to publish, as a query."""
    if ttl is None and delay is None and due is None and partition is None and not more:
        return ""
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
    return "?" + urlencode(options)


def _decimal(number: int, places: int) -> str:
    """A count of small units as seconds, without rounding."""
    whole, rest = divmod(number, 10**places)
    return f"{whole}.{rest:0{places}d}"


def _place(position: Position) -> str | int:
    good = position in ("earliest", "latest") or isinstance(position, datetime)
    if not good and not (type(position) is int and position >= 0):
        raise InvalidInput(
            f'a position is "earliest", "latest", an offset or a datetime; not {position!r}'
        )
    return place_text(position)


def _published(message: PublishedMessage) -> Published | Delayed:
    if message.deliver_at_us is not None:
        return Delayed(message.id, message.deliver_at_us)
    assert message.partition is not None
    assert message.offset is not None
    return Published(message.partition, message.offset, message.id, message.duplicate)


def _delayed_ids(runs: PublishedRuns) -> DelayedIds:
    return DelayedIds(
        runs.delayed_offset or 0, parse_ulid(runs.delayed_id or ""), runs.delayed_count
    )
