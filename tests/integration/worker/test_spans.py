"""One trace from publish to handler, as the SDK of OpenTelemetry sees it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

import penstock
from penstock.errors import TopicNotFound, TransactionRefused
from penstock.worker.app import App

EXPORTER = InMemorySpanExporter()


@pytest.fixture(scope="module", autouse=True)
def provider() -> Iterator[None]:
    known = trace._TRACER_PROVIDER
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("OTEL_SDK_DISABLED")
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(EXPORTER))
        trace._TRACER_PROVIDER = provider
        yield
        trace._TRACER_PROVIDER = known


@pytest.fixture
def spans() -> InMemorySpanExporter:
    EXPORTER.clear()
    return EXPORTER


def named(name: str) -> Any:
    (span,) = [span for span in EXPORTER.get_finished_spans() if span.name == name]
    return span


def test_a_message_carries_the_context_of_its_publish(
    spans: InMemorySpanExporter, tmp_path: Path
) -> None:
    with penstock.connect(tmp_path) as ps:
        ps.create_topic("orders")
        with trace.get_tracer("shop").start_as_current_span("checkout") as checkout:
            ps.publish("orders", b"paid", headers={"a": "1"})
        (message,) = ps.receive("orders", "billing", consumer="worker-1")
        message.ack()
        send, receive, ack = named("send orders"), named("receive orders"), named("ack orders")
        assert (send.kind, receive.kind, ack.kind) == (
            SpanKind.PRODUCER,
            SpanKind.CLIENT,
            SpanKind.CLIENT,
        )
        assert send.context.trace_id == checkout.get_span_context().trace_id
        flags = int(send.context.trace_flags)
        context = f"00-{send.context.trace_id:032x}-{send.context.span_id:016x}-{flags:02x}"
        assert message.headers == {"a": b"1", "traceparent": context.encode()}
        assert [link.context.span_id for link in receive.links] == [send.context.span_id]
        assert send.attributes["messaging.system"] == "penstock"
        assert send.attributes["messaging.destination.name"] == "orders"
        assert receive.attributes["messaging.consumer.group.name"] == "billing"
        assert ack.attributes["messaging.operation.type"] == "settle"
        # What the broker noted is found by the same trace id, since its flag says sampled.
        (life,) = ps.trace(trace_id=f"{send.context.trace_id:032x}")
        assert [event.event for event in life.events] == ["published", "delivered", "acked"]


def test_one_trace_goes_on_through_a_transaction(
    spans: InMemorySpanExporter, tmp_path: Path
) -> None:
    with penstock.connect(tmp_path) as ps:
        for topic in ("orders", "shipments", "mail"):
            ps.create_topic(topic)
        own = f"00-{7:032x}-{8:016x}-01"
        ps.publish("orders", b"paid", headers={"traceparent": own})
        (first,) = ps.receive("orders", "billing")
        ps.publish("orders", b"2")
        (second,) = ps.receive("orders", "billing")
        spans.clear()
        with (
            trace.get_tracer("shop").start_as_current_span("ship") as ship,
            ps.transaction() as tx,
        ):
            tx.ack(first)
            tx.nack(second.receipt, group="billing", delay="1h")
            tx.publish("shipments", b"a", headers={"a": "1"})
            tx.publish("shipments", b"b", headers={"traceparent": own})
            tx.publish_batch("mail", [b"c", b"d"], delay="1h")
        trace_id = ship.get_span_context().trace_id
        send, mail = named("send shipments"), named("send mail")
        assert [each.context.trace_id for each in (send, mail)] == [trace_id, trace_id]
        assert (send.kind, send.attributes["messaging.batch.message_count"]) == (
            SpanKind.PRODUCER,
            2,
        )
        ack, nack = named("ack orders"), named("nack orders")
        assert (ack.kind, nack.kind) == (SpanKind.CLIENT, SpanKind.CLIENT)
        assert ack.attributes["messaging.consumer.group.name"] == "billing"
        one, other = ps.receive("shipments", "g", max_messages=2)
        context = f"00-{trace_id:032x}-{send.context.span_id:016x}"
        assert one.headers["traceparent"].startswith(context.encode())
        assert (one.headers["a"], other.headers["traceparent"]) == (b"1", own.encode())
        lives = ps.trace(trace_id=f"{trace_id:032x}")
        assert sorted((life.topic, life.events[0].event) for life in lives) == [
            ("mail", "scheduled"),
            ("mail", "scheduled"),
            ("shipments", "published"),
        ]
        spans.clear()
        with pytest.raises(TransactionRefused), ps.transaction() as tx:
            tx.publish("nowhere", b"x")
        assert named("send nowhere").attributes["error.type"] == "transaction_refused"


def test_what_a_transactional_handler_publishes_is_of_its_trace(
    spans: InMemorySpanExporter, tmp_path: Path
) -> None:
    app = App(tmp_path)

    @app.consumer("orders", group="billing", transactional=True)
    async def bill(body: bytes) -> None:
        await app.publish("shipments", body)

    @app.consumer("shipments", group="ship")
    def ship(body: bytes) -> None:
        pass

    with app.test() as bench:
        bench.send("orders", b"paid", headers={"traceparent": f"00-{7:032x}-{8:016x}-01"})
        bench.run()
    assert {named(f"process {topic}").context.trace_id for topic in ("orders", "shipments")} == {7}


def test_a_context_of_the_callers_own_stays(spans: InMemorySpanExporter, tmp_path: Path) -> None:
    own = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
    with penstock.connect(tmp_path) as ps:
        ps.create_topic("orders")
        ps.publish_batch("orders", [b"a", b"b"], headers=[own, {}])
        first, second = ps.receive("orders", "billing", max_messages=2)
        assert first.headers["traceparent"] == own["traceparent"].encode()
        send = named("send orders")
        assert f"{send.context.trace_id:032x}".encode() in second.headers["traceparent"]
        assert send.attributes["messaging.batch.message_count"] == 2
        assert len(named("receive orders").links) == 2


def test_what_fails_is_said_in_the_span(spans: InMemorySpanExporter, tmp_path: Path) -> None:
    with penstock.connect(tmp_path) as ps, pytest.raises(TopicNotFound):
        ps.publish("nowhere", b"x")
    send = named("send nowhere")
    assert send.attributes["error.type"] == "topic_not_found"
    assert not send.status.is_ok


def test_publishing_to_nobody_who_records_adds_nothing(tmp_path: Path) -> None:
    known, trace._TRACER_PROVIDER = trace._TRACER_PROVIDER, trace.NoOpTracerProvider()
    try:
        with penstock.connect(tmp_path) as ps:
            ps.create_topic("orders")
            ps.publish("orders", b"x")
            assert ps.receive("orders", "billing")[0].headers == {}
    finally:
        trace._TRACER_PROVIDER = known


@pytest.mark.parametrize("mode", ["parent", "link"])
def test_a_handler_goes_on_with_the_trace_of_its_message(
    spans: InMemorySpanExporter, tmp_path: Path, mode: str
) -> None:
    app = App(tmp_path)
    seen: list[int] = []

    @app.consumer("orders", group="billing", trace=mode)
    def bill(body: bytes) -> None:
        seen.append(trace.get_current_span().get_span_context().trace_id)

    with app.test() as bench:
        bench.send("orders", b"paid", headers={"traceparent": f"00-{7:032x}-{8:016x}-01"})
        bench.run()
    process = named("process orders")
    assert process.kind is SpanKind.CONSUMER
    assert seen == [process.context.trace_id]
    if mode == "parent":
        assert (process.context.trace_id, process.parent.span_id) == (7, 8)
    else:
        assert process.parent is None
        assert [link.context.trace_id for link in process.links] == [7]


def test_a_handler_of_batches_has_links(spans: InMemorySpanExporter, tmp_path: Path) -> None:
    app = App(tmp_path)

    @app.consumer("orders", group="billing", batch=10)
    async def bill(bodies: list[bytes]) -> None:
        pass

    with app.test() as bench:
        for number in (7, 8):
            context = f"00-{number:032x}-{number:016x}-01"
            bench.send("orders", b"paid", headers={"traceparent": context})
        bench.run()
    process = named("process orders")
    assert process.parent is None
    assert sorted(link.context.trace_id for link in process.links) == [7, 8]
    assert process.attributes["messaging.batch.message_count"] == 2
