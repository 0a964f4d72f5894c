"""Publishing: JSON, a value by itself, or Arrow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeAlias

import msgspec

from penstock.delivery.offsets import Int64s
from penstock.durations import Duration
from penstock.errors import InvalidInput
from penstock.log.base import DONE
from penstock.model.messages import (
    EACH_ROW,
    NewMessage,
    Publish,
    PublishedMessage,
    PublishedMessages,
    PublishedRuns,
    PublishOptions,
    published_message,
    run_of,
)
from penstock.model.published import CallId, DelayedIds, ProducerSequence
from penstock.model.values import Seconds, as_duration, parse_time
from penstock.record.batch import Batch
from penstock.record.plain import Single
from penstock.server.durable import durable
from penstock.server.http.answers import Answer, json_answer
from penstock.server.http.arrow import decode_new
from penstock.server.http.endpoints import HttpRequest, Table
from penstock.server.http.json_items import too_many
from penstock.wire.columns import ARROW_TYPE
from penstock.wire.routes import CALL_HEADER

table = Table("messages")

DedupIds: TypeAlias = Sequence[str | bytes | None] | None

RAW_TYPE = "application/octet-stream"
_CALL = CALL_HEADER.encode()
# Longer bodies are worked on beside the event loop.
_LOOP_BYTES = 256 << 10
_LOOP_JSON_BYTES = 32 << 10


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
def publish(call: HttpRequest) -> Any:
    """Publish one message or many. The body is JSON; or the value itself, as
    application/octet-stream, with what belongs to it in the query; or an Arrow stream with the
    columns value, key, headers, priority, expires_at and dedup_id. The answer comes when the
    messages are as safe as the topic's fsync policy says."""
    kind = call.request.content_type()
    store = (
        _store_value if kind == RAW_TYPE else _store_arrow if kind == ARROW_TYPE else _store_json
    )
    bytes_max = _LOOP_JSON_BYTES if store is _store_json else _LOOP_BYTES
    if len(call.request.body) > bytes_max or not call.api.is_open(call.topic):
        return _publish_aside(call, store)
    return _when_durable(store(call))


class _Stored(NamedTuple):
    """What to answer, and what has to be durable before."""

    result: Any
    futures: Sequence[Future[None]]


def _store_value(call: HttpRequest) -> _Stored:
    """The body is the value of one message."""
    options: PublishOptions = call.options
    if options.producer_id is not None:
        raise InvalidInput("query: a producer numbers the rows of Arrow bodies")
    value, name = call.request.body, call.topic
    if options is _NO_OPTIONS:
        (placed,) = call.api.publish(name, Single(value), call=_call_id(call))
        return _Stored(published_message(placed), (placed.durable,))
    if options.key is None:
        batch = Single.build_one(value, _priority(options.priority))
    else:
        batch = Batch.build([value], keys=[options.key], priority=_priority(options.priority))
    dedup_ids = None if options.dedup_id is None else [options.dedup_id]
    if options.delay is not None or options.deliver_at is not None:
        ids, at_us, durable = _delay(call, batch, dedup_ids)
        assert isinstance(at_us, int)
        at = ids.placed[0]
        delayed = PublishedMessage(
            id=ids[0], deliver_at_us=at_us, duplicate=at.duplicate, dead_letter=at.dead_letter
        )
        return _Stored(delayed, [durable])
    (placed,) = call.api.publish(
        name,
        batch,
        partition=options.partition,
        ttl=_duration(options.ttl),
        dedup_ids=dedup_ids,
        dedup_window=_duration(options.dedup_window),
        call=_call_id(call),
    )
    return _Stored(published_message(placed), [placed.durable])


def _store_arrow(call: HttpRequest) -> _Stored:
    options: PublishOptions = call.options
    if options.key is not None or options.dedup_id is not None or options.priority != "normal":
        raise InvalidInput("query: an Arrow body brings its own columns 'key' and 'priority'")
    config, name = call.door.config, call.topic
    batch, dedup_ids = decode_new(
        call.request.body, config.batch_messages_max, config.body_bytes_max
    )
    is_delayed = options.delay is not None or options.deliver_at is not None
    producer = None
    if dedup_ids is not None and options.producer_id is not None:
        raise InvalidInput("a message of a producer cannot have a deduplication id")
    if options.producer_id is not None:
        if is_delayed:
            raise InvalidInput("query: an idempotent producer does not delay")
        producer = ProducerSequence(options.producer_id, options.epoch, options.sequence)
    if is_delayed:
        return _delay_arrow(call, batch, dedup_ids)
    placed = call.api.publish(
        name,
        batch,
        partition=options.partition,
        ttl=_duration(options.ttl),
        producer=producer,
        dedup_ids=dedup_ids,
        dedup_window=_duration(options.dedup_window),
        call=_call_id(call),
    )
    runs = [run_of(each) for each in placed]
    return _Stored(
        PublishedRuns(runs=runs, partitions=call.api.partitions(name)),
        [each.durable for each in placed],
    )


def _delay_arrow(call: HttpRequest, batch: Batch, dedup_ids: DedupIds) -> _Stored:
    ids, at_us, durable = _delay(call, batch, dedup_ids)
    runs = PublishedRuns(partitions=call.api.partitions(call.topic))
    if len(ids):
        runs = msgspec.structs.replace(
            runs,
            delayed=[run_of(each) for each in ids.placed],
            deliver_at_us=at_us if isinstance(at_us, int) else None,
        )
    return _Stored(runs, [durable])


def _delay(
    call: HttpRequest, batch: Batch, dedup_ids: DedupIds
) -> tuple[DelayedIds, int | Int64s, Future[None]]:
    options: PublishOptions = call.options
    deliver_at: Any = options.deliver_at
    if deliver_at == EACH_ROW and options.delay is None:
        deliver_at, batch = batch.timestamps_us(), batch.stamped(None)
    elif deliver_at is not None:
        deliver_at = parse_time(deliver_at, "deliver_at")
    return call.api.delay(
        call.topic,
        batch,
        delay=_duration(options.delay),
        deliver_at=deliver_at,
        partition=options.partition,
        ttl=_duration(options.ttl),
        dedup_ids=dedup_ids,
        dedup_window=_duration(options.dedup_window),
        call=_call_id(call),
    )


def _call_id(call: HttpRequest) -> CallId | None:
    """By which a client's call is known when it is made again."""
    text = call.request.headers.get(_CALL)
    return None if text is None else CallId.parse(text.decode("latin-1"))


def _duration(text: Seconds | None) -> Duration | None:
    return None if text is None else as_duration(text)


def _store_json(call: HttpRequest) -> _Stored:
    if call.request.query:
        raise InvalidInput("query: with a JSON body, what belongs to a message goes into the body")
    body: Publish = call.body
    if body.messages is None:
        (published,), futures = call.api.publish_each(call.topic, [body])
        return _Stored(published, futures)
    limit = call.door.config.batch_messages_max
    if len(body.messages) > limit:
        raise too_many(limit)
    for field in NewMessage.__struct_fields__:
        if getattr(body, field) != getattr(_NOTHING, field):
            raise InvalidInput(f"body: {field!r} belongs to a message, not beside 'messages'")
    several, futures = call.api.publish_each(call.topic, body.messages)
    return _Stored(PublishedMessages(messages=several), futures)


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


async def _publish_aside(call: HttpRequest, store: Callable[[HttpRequest], _Stored]) -> Answer:
    return await _durable(*await call.door.aside(store, call))


async def _durable(result: Any, futures: Sequence[Future[None]]) -> Answer:
    for future in futures:
        await durable(future)
    return json_answer(result, 201)


def _priority(text: str) -> int | str:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 4 else text


_NOTHING = NewMessage()
_NO_OPTIONS = table.endpoints[0].no_options
_ALL_DURABLE = (DONE,)
