"""The life of a message, as `ps.trace` tells it through every door."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import InvalidInput
from penstock.record.schema import parse_ulid
from penstock.trace.events import TraceBlock
from tests.integration.broker.world import World

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
SAMPLED = {"traceparent": f"00-{TRACE_ID}-00f067aa0ba902b7-01"}
UNSAMPLED = {"traceparent": f"00-{TRACE_ID}-00f067aa0ba902b7-00"}


def story(traces: Any) -> list[str]:
    """What happened to the only message."""
    (trace,) = traces
    return [event.event for event in trace.events]


def test_a_life_is_told_from_publish_to_ack(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", trace_sample=1)
    published = ps.publish("orders", b"paid", key="c-17")
    (message,) = ps.receive("orders", "billing", consumer="worker-1")
    message.extend("1m")
    message.ack()
    (trace,) = ps.trace(message_id=published.id)
    assert [event.event for event in trace.events] == [
        "published",
        "delivered",
        "extended",
        "acked",
    ]
    assert (trace.topic, trace.partition, trace.offset) == ("orders", 0, 0)
    assert trace.id == published.id
    assert trace.trace_id == f"{parse_ulid(published.id):032x}"
    delivered = trace.events[1]
    assert (delivered.group, delivered.consumer) == ("billing", "worker-1")
    assert delivered.delivery_count == 1
    assert delivered.until_us == delivered.at_us + 30_000_000
    assert delivered.lease == trace.events[3].lease != ""


def test_it_is_found_by_every_handle(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", partitions=2, trace_sample=1)
    others = [ps.publish("orders", b"x", key=f"k{n}") for n in range(9)]
    wanted = ps.publish("orders", b"paid", key="c-17")
    ids = {
        trace.id
        for found in (
            ps.trace(message_id=wanted.id),
            ps.trace(trace_id=f"{parse_ulid(wanted.id):032x}"),
            ps.trace("orders", key="c-17"),
            ps.trace("orders", partition=wanted.partition, offset=wanted.offset),
        )
        for trace in found
    }
    assert ids == {wanted.id}
    found = ps.trace("orders")
    assert {trace.id for trace in found} == {wanted.id, *(each.id for each in others)}
    assert not ps.trace("orders", until=1)
    assert not ps.trace(message_id="01ARZ3NDEKTSV4RRFFQ69G5FAV")


def test_one_life_goes_on_through_delay_retry_dead_letter_and_redrive(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", trace_sample=1, max_retries=1)
    published = ps.publish("orders", b"paid", delay="1h")
    world.pass_(3601)
    ps.receive("orders", "billing")[0].nack(error="no ink")
    world.pass_(10)
    ps.receive("orders", "billing")
    world.pass_(31)
    ps.dead_letters("orders").redrive()
    ps.receive("orders", "billing")[0].ack()
    wanted = [
        "scheduled",
        "moved",
        "delivered",
        "nacked",
        "delivered",
        "rejected",
        "dead_lettered",
        "redriven",
        "delivered",
        "acked",
    ]
    (trace,) = ps.trace(message_id=published.id)
    assert [event.event for event in trace.events] == wanted
    assert trace.events[0].until_us == trace.events[1].at_us - 1_000_000
    assert trace.events[3].error == "no ink"
    redriven = trace.events[7]
    # From its end the same life is found, and by the one trace id, too.
    assert story(ps.trace(message_id=redriven.id)) == wanted
    assert story(ps.trace(trace_id=trace.trace_id)) == wanted


def test_who_is_not_sampled_leaves_no_trace_until_it_fails(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", trace_sample=0)
    ids = [ps.publish("orders", b"x", headers=UNSAMPLED).id for _ in range(3)]
    done, nacked, held = ps.receive("orders", "billing", max_messages=3)
    done.ack()
    assert not ps.trace("orders")
    nacked.nack(delay=0, error="no ink")
    ps.receive("orders", "billing")[0].ack()
    world.pass_(31)
    assert not ps.trace(message_id=ids[0])
    assert story(ps.trace(message_id=ids[1])) == ["nacked", "delivered", "acked"]
    assert story(ps.trace(message_id=ids[2])) == ["lease_expired"]
    assert held.id == ids[2]


def test_what_a_client_samples_is_traced(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", trace_sample=0)
    ps.publish_batch("orders", [b"a", b"b", b"c"], headers=[{}, SAMPLED, {}])
    ps.publish("orders", b"d", headers=SAMPLED)
    for message in ps.receive("orders", "billing", max_messages=4):
        message.ack()
    found = ps.trace(trace_id=TRACE_ID)
    assert [trace.offset for trace in found] == [1, 3]
    for trace in found:
        assert trace.trace_id == TRACE_ID
        assert [event.event for event in trace.events] == ["published", "delivered", "acked"]
    assert len(ps.trace("orders")) == 2


def test_a_batch_is_one_row_of_each_event(sync: World) -> None:
    ps = sync.ps
    ps.create_topic("orders", trace_sample=1)
    ps.publish_batch("orders", [b"x"] * 1000)
    batch = ps.receive_batch("orders", "billing", max_messages=1000)
    batch.ack()
    assert len(ps.trace("orders", limit=1000)) == 1000
    finder = sync.broker.tracer.find()
    rows = [row for _, row in finder.topic("orders", 0, 1 << 60, -1) if row is not None]
    assert [each.row.count for each in rows] == [1000, 1000, 1000]


def test_pages_go_on_where_they_ended(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", trace_sample=1)
    ids = [ps.publish("orders", b"x", key="k").id for _ in range(25)]
    for how in ({}, {"key": "k"}):
        found, after = [], None
        while True:
            page = ps.trace("orders", limit=10, after=after, **how)
            found += [trace.id for trace in page]
            if page.next is None:
                break
            after = page.next
        assert found == ids


def test_purged_cancelled_and_expired_are_told(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", trace_sample=1, dead_letter_expired=True)
    cancelled = ps.publish("orders", b"x", delay="1h")
    ps.cancel("orders", cancelled.id)
    expired = ps.publish("orders", b"x", ttl="1s")
    world.pass_(2)
    assert ps.receive("orders", "billing") == []
    purged = ps.publish("orders", b"x")
    ps.purge("orders")
    assert story(ps.trace(message_id=cancelled.id)) == ["scheduled", "cancelled"]
    told = ["published", "expired", "dead_lettered", "purged"]
    assert story(ps.trace(message_id=expired.id)) == told
    assert story(ps.trace(message_id=purged.id)) == ["published", "purged"]


def test_a_topic_that_is_made_again_has_lives_of_its_own(world: World) -> None:
    ps = world.ps
    for _ in range(2):
        ps.create_topic("orders", trace_sample=1)
        published = ps.publish("orders", b"x")
        ps.receive("orders", "billing")[0].ack()
        assert story(ps.trace(message_id=published.id)) == ["published", "delivered", "acked"]
        assert story(ps.trace("orders", partition=0, offset=0)) == [
            "published",
            "delivered",
            "acked",
        ]
        world.pass_(1)
        ps.delete_topic("orders")


def test_traces_outlast_a_restart_and_leases_go_on(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", trace_sample=1)
    published = ps.publish("orders", b"x")
    (message,) = ps.receive("orders", "billing")
    ps = world.restart()
    ps.ack("billing", message.receipt)
    assert story(ps.trace(message_id=published.id)) == ["published", "delivered", "acked"]


def test_another_namespace_sees_nothing(world: World) -> None:
    world.ps.create_topic("orders", trace_sample=1)
    published = world.ps.publish("orders", b"x", headers=SAMPLED)
    other = world.client("shop")
    other.create_topic("orders", trace_sample=1)
    assert not other.trace(message_id=published.id)
    assert not other.trace(trace_id=TRACE_ID)
    assert not other.trace("orders")


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"message_id": "nonsense"},
        {"trace_id": "xyz"},
        {"trace_id": "٣" * 32},
        {"topic": "orders", "message_id": "01ARZ3NDEKTSV4RRFFQ69G5FAV"},
        {"topic": "orders", "partition": 0},
        {"key": "k"},
        {"topic": "orders", "after": "-"},
    ],
)
def test_a_question_that_makes_no_sense_is_refused(world: World, asked: dict[str, Any]) -> None:
    world.ps.create_topic("orders", trace_sample=1)
    world.ps.publish("orders", b"x")
    with pytest.raises(InvalidInput):
        world.ps.trace(**asked)


def test_without_tracing_nothing_is_noted(sync: World) -> None:
    ps = sync.restart(tracing=False)
    ps.create_topic("orders", trace_sample=1)
    ps.publish("orders", b"x")
    ps.receive("orders", "billing")[0].nack()
    assert not ps.trace("orders")
    assert not (sync.folder / "trace").exists()


def test_a_flood_is_dropped_and_counted_never_waited_for(sync: World, monkeypatch: Any) -> None:
    monkeypatch.setattr("penstock.broker.tracer.BUFFER_ROWS_MAX", 10)
    ps = sync.ps
    ps.create_topic("orders", trace_sample=1)
    for _ in range(12):
        ps.publish_batch("orders", [b"x"] * 5)
    page = ps.trace("orders", limit=100)
    assert (len(page), page.dropped) == (50, 10)
    ps.publish("orders", b"x")
    assert len(ps.trace("orders", limit=100)) == 51


def test_an_unsampled_flag_does_not_keep_the_share_from_being_traced(world: World) -> None:
    world.ps.create_topic("orders", trace_sample=1)
    published = world.ps.publish("orders", b"x", headers=UNSAMPLED)
    (trace,) = world.ps.trace(message_id=published.id)
    assert trace.trace_id == TRACE_ID


def test_events_are_read_in_bulk_each_once(world: World) -> None:
    ps, other = world.ps, world.client("other")
    for client in (ps, other):
        client.create_topic("orders", trace_sample=1)
    for number in range(6):  # a block each
        client = other if number == 2 else ps
        client.publish("orders", b"%d" % number)
        if number == 3:
            other.publish("orders", b"beside one of ours")
        assert ps.trace("orders") is not None  # which stores what was noted
        world.pass_(2)

    def read(start: int, stop: int | None, max_bytes: int = 4 << 20) -> list[tuple[str, int]]:
        found: list[tuple[str, int]] = []
        while True:
            page = ps.trace_blocks(start, stop=stop, max_bytes=max_bytes)
            for block in page.blocks:
                found += [(row.topic, row.first) for row in TraceBlock(block).rows()]
            if page.next <= start or (stop is not None and page.next >= stop):
                return found
            start = page.next

    everything = [("orders", offset) for offset in range(5)]
    end = ps.trace_blocks().end
    assert read(0, None) == read(0, None, max_bytes=1) == everything
    assert [row for at in range(end) for row in read(at, at + 1)] == everything
    assert read(end, None) == []
    assert [row.topic for b in other.trace_blocks().blocks for row in TraceBlock(b).rows()] == [
        "other/orders"
    ] * 2
    at_s = world.clock.wall_ns() / 1e9
    since = ps.trace_blocks(since=at_s - 3)
    assert 0 < len(since.blocks) < 5
    assert ps.trace_blocks(since=at_s + 60).blocks == []
