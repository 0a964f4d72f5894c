"""Messages: publish, look at, read by offset or time, purge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future as ThreadFuture
from typing import Annotated, Any, NamedTuple, TypeAlias

import msgspec
import numpy as np

from penstock.broker.names import TopicName
from penstock.broker.settings import parse_ttl_us
from penstock.broker.structs import Placed, Producer
from penstock.durations import Duration, Moment, parse_ns, parse_us
from penstock.errors import InvalidInput
from penstock.log.base import DONE, Batches, Damage
from penstock.record.batch import Batch
from penstock.record.plain import Single
from penstock.record.schema import parse_priority, ulid_text
from penstock.server.durable import durable
from penstock.server.http.answers import JSON_TYPE, Answer, json_answer
from penstock.server.http.arrow import decode_new
from penstock.server.http.counting import too_many
from penstock.server.http.endpoints import Call, Table
from penstock.server.http.routes.topics import number, positions
from penstock.wire.columns import ARROW_TYPE, encode_read
from penstock.wire.messages import (
    EACH_ROW,
    DamageView,
    MessagePage,
    NewMessage,
    Publish,
    PublishedMessage,
    PublishedMessages,
    PublishedRuns,
    PublishOptions,
    Small,
    run_of,
    view,
)
from penstock.wire.topics import Count
from penstock.wire.values import Place, as_duration, headers_to_bytes, parse_time

table = Table("messages")

RAW_TYPE = "application/octet-stream"
# Longer bodies are worked on beside the event loop.
_LOOP_BYTES = 256 << 10
_LOOP_JSON_BYTES = 32 << 10
_PEEK_BYTES = 64 << 10

Limit = Annotated[int, msgspec.Meta(ge=0, le=100_000)]


class PeekOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    partition: Small = 0
    at: Place = "earliest"
    limit: Limit = 10


class ReadOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    at: Place = "earliest"
    """An offset that is not in the log is an error; a time is always somewhere."""
    max_bytes: Annotated[int, msgspec.Meta(ge=1, le=64 << 20)] = 1 << 20
    """About; at least one batch is read if there is one."""


class PurgeOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    group: str | None = None
    """Only skip them for this group."""


@table.add(
    "POST",
    "/topics/{topic}/messages",
    right="publish",
    options=PublishOptions,
    body=Publish,
    items_in=1,
    other_bodies=(RAW_TYPE, ARROW_TYPE),
    result=PublishedMessage | PublishedMessages | PublishedRuns,
    status=201,
)
def publish(call: Call) -> Any:
    """Publish one message or many. The body is JSON; or the value itself, as
    application/octet-stream, with what belongs to it in the query; or an Arrow stream with the
    columns value, key, headers, priority, expires_at and dedup_id. The answer comes when the
    messages are as safe as the topic's fsync policy says."""
    kind = call.request.content_type()
    store = (
        _store_value if kind == RAW_TYPE else _store_arrow if kind == ARROW_TYPE else _store_json
    )
    if len(call.request.body) > (_LOOP_JSON_BYTES if store is _store_json else _LOOP_BYTES):
        return _publish_aside(call, store)
    return _when_durable(store(call))


@table.add(
    "GET",
    "/topics/{topic}/messages",
    right="look",
    options=PeekOptions,
    result=MessagePage,
    result_types=(ARROW_TYPE,),
)
async def peek(call: Call) -> Answer:
    """Look at messages without consuming them, from a position that is brought within what the
    partition holds."""
    options, name = call.options, call.topic
    ((_, offset),) = positions(call, name, options.at, options.partition)
    log = call.broker.topic(name, create=False).partition(options.partition).log
    offset = min(max(offset, log.start), log.end)

    def read() -> Answer:
        found: list[Batch] = []
        damage: list[Damage] = []
        left, bytes_left, at = options.limit, call.door.config.body_bytes_max, offset
        while at < log.end and left > 0:
            batches = call.broker.read(name, options.partition, at, _PEEK_BYTES)
            for batch in batches:
                rows = min(left, len(batch))
                if batch.payload_bytes > bytes_left:
                    rows = min(rows, max(batch.rows_within(bytes_left), 0 if found else 1))
                if rows:
                    found.append(batch if rows == len(batch) else batch.slice(0, rows))
                    left -= rows
                    bytes_left -= found[-1].payload_bytes
                if rows < len(batch):
                    left = 0  # the answer ends here
            at = found[-1].next_offset if left <= 0 and found else batches.next_offset
            damage += [each for each in batches.damage if each.first_offset < at]
        return _page(call, Batches(found, at, damage), log.start, log.end)

    return await call.door.read_aside(read)


@table.add(
    "GET",
    "/topics/{topic}/partitions/{partition}/messages",
    right="look",
    options=ReadOptions,
    result=MessagePage,
    result_types=(ARROW_TYPE,),
)
async def read(call: Call) -> Answer:
    """Read a partition on from an offset or a time, as it lies in the log."""
    options, name, partition = call.options, call.topic, number(call)
    ((_, offset),) = positions(call, name, options.at, partition)
    log = call.broker.topic(name, create=False).partition(partition).log

    def read() -> Answer:
        max_bytes = min(options.max_bytes, call.door.config.body_bytes_max)
        batches = call.broker.read(name, partition, offset, max_bytes)
        return _page(call, batches, log.start, log.end)

    return await call.door.read_aside(read)


@table.add("DELETE", "/topics/{topic}/messages", right="manage", options=PurgeOptions, result=Count)
async def purge(call: Call) -> Count:
    """Drop every message of a topic, or skip them all for one group; how many there were."""
    name = call.topic
    count = await call.door.long_calls.run(name, call.broker.purge, name, call.options.group)
    return Count(count=count)


_Place: TypeAlias = tuple[int | None, bool, bool]
"""The partition that was named, whether there is a delay, and whether a deduplication id."""


class _Stored(NamedTuple):
    """What to answer, and what has to be durable before."""

    result: Any
    futures: Sequence[ThreadFuture[None]]


def _store_value(call: Call) -> _Stored:
    """The body is the value of one message."""
    options: PublishOptions = call.options
    if options.producer_id is not None:
        raise InvalidInput("query: a producer numbers the rows of Arrow bodies")
    value, name = call.request.body, call.topic
    if options is _NO_OPTIONS:
        (placed,) = call.broker.publish(name, Single(value))
        return _Stored(_published(placed, 0), (placed.durable,))
    if options.key is None:
        batch = Single.build_one(value, _priority(options.priority))
    else:
        batch = Batch.build([value], keys=[options.key], priority=_priority(options.priority))
    due_us = _due_us(call, options.delay, options.deliver_at)
    batch = _expiring(call, batch, options.ttl, due_us)
    if due_us is not None:
        if options.dedup_id is not None:
            raise InvalidInput("a delayed message cannot have a deduplication id")
        ids, appended = call.broker.delay(name, batch, due_us, partition=options.partition)
        return _Stored(PublishedMessage(id=ids[0], deliver_at_us=due_us), [appended.durable])
    (placed,) = call.broker.publish(
        name,
        batch,
        partition=options.partition,
        dedup_ids=None if options.dedup_id is None else [options.dedup_id],
    )
    return _Stored(_published(placed, 0), [placed.durable])


def _store_arrow(call: Call) -> _Stored:
    options: PublishOptions = call.options
    if options.key is not None or options.dedup_id is not None or options.priority != "normal":
        raise InvalidInput("query: an Arrow body brings its own columns 'key' and 'priority'")
    config, name = call.door.config, call.topic
    batch, dedup_ids = decode_new(
        call.request.body, config.batch_messages_max, config.body_bytes_max
    )
    due_us = producer = None
    if call.request.query:
        batch, due_us, producer = _as_asked(call, batch, dedup_ids)
    if due_us is not None:
        return _delay_arrow(call, name, batch, due_us)
    placed = call.broker.publish(
        name, batch, partition=options.partition, producer=producer, dedup_ids=dedup_ids
    )
    partitions = len(call.broker.topic(name).partitions)
    runs = PublishedRuns(runs=[run_of(each) for each in placed], partitions=partitions)
    return _Stored(runs, [each.durable for each in placed])


def _as_asked(
    call: Call, batch: Batch, dedup_ids: Sequence[bytes | None] | None
) -> tuple[Batch, Any, Producer | None]:
    """The messages of an Arrow body with what the query says; when they are due; who sends them."""
    options: PublishOptions = call.options
    due_us: Any
    if options.deliver_at == EACH_ROW and options.delay is None:
        due_us, batch = batch.timestamps_us(), batch.stamped(None)
    else:
        due_us = _due_us(call, options.delay, options.deliver_at)
    producer = None
    if dedup_ids is not None and (due_us is not None or options.producer_id is not None):
        raise InvalidInput("a delayed message, or a producer's, cannot have a deduplication id")
    if options.producer_id is not None:
        if due_us is not None:
            raise InvalidInput("query: an idempotent producer does not delay")
        producer = Producer(options.producer_id, options.epoch, options.sequence)
    return _expiring(call, batch, options.ttl, due_us), due_us, producer


def _delay_arrow(call: Call, name: TopicName, batch: Batch, due_us: Any) -> _Stored:
    if not len(batch):
        return _Stored(PublishedRuns(partitions=len(call.broker.topic(name).partitions)), ())
    _, appended = call.broker.delay(name, batch, due_us, partition=call.options.partition)
    runs = PublishedRuns(
        partitions=len(call.broker.topic(name).partitions),
        delayed_offset=appended.first_offset,
        delayed_id=ulid_text(appended.ulid),
        delayed_count=len(batch),
        deliver_at_us=due_us if isinstance(due_us, int) else None,
    )
    return _Stored(runs, [appended.durable])


def _store_json(call: Call) -> _Stored:
    if call.request.query:
        raise InvalidInput("query: with a JSON body, what belongs to a message goes into the body")
    body: Publish = call.body
    if body.messages is None:
        (published,), futures = _store_several(call, [body])
        return _Stored(published, futures)
    limit = call.door.config.batch_messages_max
    if len(body.messages) > limit:
        raise too_many(limit)
    for field in NewMessage.__struct_fields__:
        if getattr(body, field) != getattr(_NOTHING, field):
            raise InvalidInput(f"body: {field!r} belongs to a message, not beside 'messages'")
    several, futures = _store_several(call, body.messages)
    return _Stored(PublishedMessages(messages=several), futures)


def _store_several(
    call: Call, messages: Sequence[NewMessage]
) -> tuple[list[PublishedMessage], list[ThreadFuture[None]]]:
    """Those that go to the same place together; everything is checked before any is stored."""
    name = call.topic
    now_us = call.broker.clock.wall_ns() // 1000
    rows: dict[_Place, list[int]] = {}
    due: list[int | None] = []
    ends: list[int | None] = []
    for row, message in enumerate(messages):
        due_us = _due_us(call, message.delay, message.deliver_at)
        if due_us is not None and message.dedup_id is not None:
            raise InvalidInput("a delayed message cannot have a deduplication id")
        ttl = message.ttl
        due.append(due_us)
        ends.append(
            None if ttl is None else (now_us if due_us is None else due_us) + parse_ttl_us(ttl)
        )
        place = message.partition, due_us is not None, message.dedup_id is not None
        rows.setdefault(place, []).append(row)
    batches = {
        place: _built([messages[row] for row in some], [ends[row] for row in some])
        for place, some in rows.items()
    }
    dedup_ids = {
        place: [messages[row].dedup_id for row in some] if place[2] else None
        for place, some in rows.items()
    }
    stamps = {
        place: np.array([due[row] for row in some], np.int64) if place[1] else None
        for place, some in rows.items()
    }
    if not rows:
        call.broker.topic(name)
    elif len(rows) > 1:
        for place, batch in batches.items():
            call.broker.check(
                name,
                batch,
                partition=place[0],
                dedup_ids=dedup_ids[place],
                deliver_at_us=stamps[place],
            )
    published: dict[int, PublishedMessage] = {}
    futures: list[ThreadFuture[None]] = []
    for place, some in rows.items():
        partition, batch, deliver_at_us = place[0], batches[place], stamps[place]
        if deliver_at_us is not None:
            ids, appended = call.broker.delay(name, batch, deliver_at_us, partition=partition)
            futures.append(appended.durable)
            for id_, row in zip(ids, some, strict=True):
                published[row] = PublishedMessage(id=id_, deliver_at_us=due[row])
            continue
        for placed in call.broker.publish(
            name, batch, partition=partition, dedup_ids=dedup_ids[place]
        ):
            futures.append(placed.durable)
            for nth, row in enumerate(placed.rows):
                published[some[row]] = _published(placed, nth)
    return [published[row] for row in range(len(messages))], futures


def _built(messages: Sequence[NewMessage], ends: Sequence[int | None]) -> Batch:
    keys = [message.key_bytes() for message in messages]
    headers = [headers_to_bytes(message.headers) or None for message in messages]
    return Batch.build(
        [message.value_bytes() for message in messages],
        keys=keys if any(key is not None for key in keys) else None,
        headers=headers if any(headers) else None,
        priority=[parse_priority(message.priority) for message in messages],
        expires_at_us=ends if any(end is not None for end in ends) else None,
    )


def _published(placed: Placed, place: int) -> PublishedMessage:
    return PublishedMessage(
        id=ulid_text(placed.ulid + place) if placed.ulid else "",
        partition=placed.partition,
        offset=placed.first_offset + place,
        duplicate=placed.duplicate,
    )


def _when_durable(stored: _Stored) -> Any:
    """The answer or, while some of it is not durable yet, something to await."""
    if stored.futures == _ALL_DURABLE:
        return json_answer(stored.result, 201)
    waiting = [future for future in stored.futures if future is not DONE]
    if all(future.done() for future in waiting):
        for future in waiting:
            future.result()
        return json_answer(stored.result, 201)
    return _durable(stored.result, waiting)


async def _publish_aside(call: Call, store: Callable[[Call], _Stored]) -> Answer:
    return await _durable(*await call.door.aside(store, call))


async def _durable(result: Any, futures: Sequence[ThreadFuture[None]]) -> Answer:
    for future in futures:
        await durable(future)
    return json_answer(result, 201)


def _page(call: Call, read: Batches, start: int, end: int) -> Answer:
    arrow = call.request.accepts(ARROW_TYPE)
    page = MessagePage(
        messages=[] if arrow else [view(message) for batch in read for message in batch.messages()],
        next_offset=read.next_offset,
        start=start,
        end=end,
        damage=[DamageView(**each._asdict()) for each in read.damage],
    )
    about = msgspec.json.encode(page)
    if arrow:
        return Answer(200, ARROW_TYPE, encode_read(read.batches, about))
    return Answer(200, JSON_TYPE, about)


def _due_us(call: Call, delay: Duration | None, deliver_at: str | float | None) -> int | None:
    if delay is not None and deliver_at is not None:
        raise InvalidInput("give delay or deliver_at, not both")
    if delay is not None:
        delay_ns = parse_ns(as_duration(delay), "delay")
        return (call.broker.clock.wall_ns() + delay_ns + 999) // 1000
    if deliver_at is None:
        return None
    moment: Moment = parse_time(deliver_at, "deliver_at")
    return parse_us(moment, "deliver_at")


def _expiring(call: Call, batch: Batch, ttl: Duration | None, due_us: Any) -> Batch:
    if ttl is None:
        return batch
    from_us = call.broker.clock.wall_ns() // 1000 if due_us is None else due_us
    return batch.expiring(from_us + parse_ttl_us(as_duration(ttl)))


def _priority(text: str) -> int | str:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 4 else text


_NOTHING = NewMessage()
_NO_OPTIONS = table.endpoints[0].no_options
_ALL_DURABLE = (DONE,)
