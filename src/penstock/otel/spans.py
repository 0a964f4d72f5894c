"""Spans by the semantic conventions for messaging, of opentelemetry-api alone.

Without an SDK nothing is recorded, and nothing is injected.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from opentelemetry import context, trace
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from penstock.record.batch import Batch
from penstock.record.schema import BITS
from penstock.trace.context import TRACEPARENT, TRACESTATE

SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"
LINKS_MAX = 128
"""Of one span; more messages are not linked one by one."""

_propagator = TraceContextTextMapPropagator()
_HEADERS = BITS["headers"]


def _tracer() -> trace.Tracer:
    return trace.get_tracer("penstock", schema_url=SCHEMA_URL)


@contextmanager
def sending(topic: str, count: int, body_bytes: int) -> Iterator[Span]:
    """Around a publish: its context is that of the messages."""
    attributes = _attributes("send", "send", topic, count)
    if count == 1:
        attributes["messaging.message.body.size"] = body_bytes
    span = _tracer().start_span(f"send {topic}", kind=SpanKind.PRODUCER, attributes=attributes)
    with ended(span):
        yield span


def received(
    topic: str, group: str, consumer: str, batches: Iterable[Batch], count: int, began_ns: int
) -> None:
    """A receive that brought something; linked to where the messages come from."""
    attributes = _attributes("receive", "receive", topic, count) | _reader(group, consumer)
    span = _tracer().start_span(
        f"receive {topic}",
        kind=SpanKind.CLIENT,
        attributes=attributes,
        links=_links(contexts_of(batches)),
        start_time=began_ns,
    )
    span.end()


@contextmanager
def settling(verb: str, topic: str, group: str, count: int | None) -> Iterator[Span]:
    attributes = _attributes(verb, "settle", topic, count) | _reader(group, "")
    span = _tracer().start_span(f"{verb} {topic}", kind=SpanKind.CLIENT, attributes=attributes)
    with ended(span):
        yield span


@contextmanager
def processing(
    topic: str, group: str, messages: Sequence[Any], *, as_parent: bool
) -> Iterator[None]:
    """Around a handler, whose spans are below this one. `as_parent`: a single message's publish is
    the parent, so that both are one trace; otherwise each publish is a link."""
    is_one = len(messages) == 1
    attributes = _attributes("process", "process", topic, len(messages)) | _reader(group, "")
    if is_one:
        message = messages[0]
        attributes["messaging.message.id"] = message.id
        attributes["messaging.message.body.size"] = len(message.value or b"")
        attributes["messaging.destination.partition.id"] = str(message.partition)
        attributes["penstock.offset"] = message.offset
        attributes["penstock.priority"] = int(message.priority)
        attributes["penstock.delivery_count"] = getattr(message, "delivery_count", 1)
    carriers = [carrier for message in messages if (carrier := _carrier(message.headers))]
    parent = _propagator.extract(carriers[0]) if is_one and as_parent and carriers else None
    span = _tracer().start_span(
        f"process {topic}",
        context=parent,
        kind=SpanKind.CONSUMER,
        attributes=attributes,
        links=() if parent is not None else _links(carriers),
    )
    token = context.attach(trace.set_span_in_context(span, parent))
    try:
        with ended(span):
            yield
    finally:
        context.detach(token)


@contextmanager
def ended(span: Span) -> Iterator[None]:
    """Ends a span, and says in it what went wrong."""
    try:
        yield
    except BaseException as exc:
        kind = getattr(exc, "code", None) or type(exc).__qualname__
        span.set_attribute("error.type", kind)
        if isinstance(exc, Exception):
            span.set_status(Status(StatusCode.ERROR, str(exc)))
        raise
    finally:
        span.end()


def injected(batch: Batch, span: Span) -> Batch:
    """The messages with the context of a span, but for those that bring one."""
    carrier: dict[str, str] = {}
    _propagator.inject(carrier, trace.set_span_in_context(span))
    if not carrier or not len(batch):
        return batch
    if not batch.columns & _HEADERS:
        return batch.with_headers([carrier] * len(batch))
    given = [{} if TRACEPARENT in message.headers else carrier for message in batch.messages()]
    return batch.with_headers(given) if any(given) else batch


def contexts_of(batches: Iterable[Batch]) -> list[dict[str, str]]:
    """What the first messages bring."""
    found: list[dict[str, str]] = []
    for batch in batches:
        if batch.columns & _HEADERS:
            for message in batch.slice(0, LINKS_MAX - len(found)).messages():
                carrier = _carrier(message.headers)
                if carrier:
                    found.append(carrier)
        if len(found) >= LINKS_MAX:
            break
    return found


def now_ns() -> int:
    return time.time_ns()


def _carrier(headers: Mapping[str, bytes | None]) -> dict[str, str]:
    return {
        name: value.decode("latin-1")
        for name in (TRACEPARENT, TRACESTATE)
        if (value := headers.get(name)) is not None
    }


def _links(carriers: Iterable[Mapping[str, str]]) -> list[Link]:
    links: dict[tuple[int, int], Link] = {}
    for carrier in carriers:
        known = trace.get_current_span(_propagator.extract(carrier)).get_span_context()
        if known.is_valid and len(links) < LINKS_MAX:
            links.setdefault((known.trace_id, known.span_id), Link(known))
    return list(links.values())


def _attributes(operation: str, kind: str, topic: str, count: int | None) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "messaging.system": "penstock",
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
        "messaging.destination.name": topic,
    }
    if count is not None and count != 1:
        attributes["messaging.batch.message_count"] = count
    return attributes


def _reader(group: str, consumer: str) -> dict[str, Any]:
    attributes = {"messaging.consumer.group.name": group}
    if consumer:
        attributes["messaging.client.id"] = consumer
    return attributes
