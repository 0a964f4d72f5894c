"""What became of the messages of a topic since the broker was opened, and what is in its lanes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.model.catalog import CatalogState, TopicChanged, TopicTimes, encode_entry
from penstock.model.names import topic_name
from penstock.model.settings import TopicSettings
from tests.integration.broker.world import World, take

LANES = ["critical", "high", "normal", "low", "background"]


def counted(ps: Any, topic: str = "orders") -> dict[str, int]:
    """The counters that are not 0."""
    return {k: n for k, n in msgspec.structs.asdict(ps.stats(topic).counters).items() if n}


def test_whatever_becomes_of_a_message_is_counted_once(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", partitions=2, max_retries=1)
    assert counted(ps) == {}
    ps.publish_batch("orders", [b"x"] * 6, partition=0)
    ps.publish_batch("orders", [b"x"] * 4, partition=1, priority=["low", "high"] * 2)
    acked, nacked, rejected, *left = ps.receive("orders", "g", 10)
    assert counted(ps) == {"published": 10, "delivered": 10}
    acked.ack()
    nacked.nack()
    rejected.reject("no")
    for message in left:
        message.extend("1h")
    assert counted(ps) == {
        "published": 10,
        "delivered": 10,
        "acked": 1,
        "nacked": 1,
        "rejected": 1,
        "dead_lettered": 1,
    }
    world.pass_(60)
    (again,) = ps.receive("orders", "g", 10)
    again.nack()  # once too often: it is a nack, and a dead letter
    found = counted(ps)
    assert (found["delivered"], found["nacked"], found["rejected"]) == (11, 2, 1)
    assert found["dead_lettered"] == 2
    assert counted(ps, "orders.dlq") == {"published": 2}


def test_a_lease_that_runs_out_is_no_nack(world: World) -> None:
    world.ps.create_topic("orders", max_retries=0)
    world.ps.publish("orders", b"x")
    world.ps.receive("orders", "g")
    world.pass_(31)
    expected = {"published": 1, "delivered": 1, "dead_lettered": 1}
    assert counted(world.ps) == expected


def test_expired_messages_are_counted_when_a_group_would_get_them(world: World) -> None:
    world.ps.create_topic("orders")
    world.ps.publish_batch("orders", [b"x"] * 3, ttl="10s")
    world.ps.publish("orders", b"y")
    world.pass_(11)
    assert len(take(world.ps)) == 1
    assert counted(world.ps) == {"published": 4, "delivered": 1, "acked": 1, "expired": 3}


def test_what_is_dropped_without_a_dead_letter_is_not_counted_as_one(world: World) -> None:
    world.ps.create_topic("orders", dead_letters=False)
    world.ps.publish("orders", b"x")
    world.ps.receive("orders", "g")[0].reject("no")
    assert counted(world.ps) == {"published": 1, "delivered": 1, "rejected": 1}


def test_what_is_sent_twice_is_counted_once(sync: World) -> None:
    sync.ps.create_topic("orders")
    for _ in range(2):
        sync.ps.publish("orders", b"x", dedup_id="a")
    assert counted(sync.ps) == {"published": 1}


def test_what_a_group_was_handed_counts_after_it_is_deleted(sync: World) -> None:
    sync.ps.create_topic("orders")
    sync.ps.publish_batch("orders", [b"x"] * 3)
    take(sync.ps)
    assert sync.ps.delete_group("orders", "g")
    assert counted(sync.ps) == {"published": 3, "delivered": 3, "acked": 3}


def test_a_restart_and_a_new_topic_of_the_name_begin_with_nothing(sync: World) -> None:
    sync.ps.create_topic("orders")
    sync.ps.publish("orders", b"x")
    sync.ps.delete_topic("orders")
    sync.ps.create_topic("orders")
    assert counted(sync.ps) == {}
    sync.ps.publish("orders", b"x")
    assert counted(sync.restart()) == {}


def test_each_priority_has_its_figures(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", partitions=2)
    for number, name in enumerate(LANES, start=1):
        ps.publish_batch("orders", [b"x"] * number, priority=name, partition=0)
    ps.publish_batch("orders", [b"x"] * 2, priority=["low", "high"], partition=1)
    stats = ps.priority_stats("orders")
    assert (stats.topic, list(stats.lanes)) == ("orders", LANES)
    assert [stats.lanes[name].ready for name in LANES] == [1, 3, 3, 5, 5]
    rates = [stats.lanes[name].enqueue_rate for name in LANES]
    assert rates == pytest.approx([0.1, 0.3, 0.3, 0.5, 0.5])
    assert {lane.last_served_us for lane in stats.lanes.values()} == {None}

    world.pass_(1)
    served_us = world.clock.wall_ns() // 1000
    ps.receive("orders", "g", 1, partition=0)
    world.pass_(1)
    stats = ps.priority_stats("orders")
    assert [stats.lanes[name].ready for name in LANES] == [0, 3, 3, 5, 5]
    assert [stats.lanes[name].in_flight for name in LANES] == [1, 0, 0, 0, 0]
    critical = stats.lanes["critical"]
    assert (critical.dequeue_rate, critical.last_served_us) == (0.1, served_us)
    assert stats.lanes["high"].last_served_us is None
    first, second = stats.partitions
    assert [first.lanes[name].ready for name in LANES] == [0, 2, 3, 4, 5]
    assert [second.lanes[name].ready for name in LANES] == [0, 1, 0, 1, 0]
    assert second.lanes["critical"].last_served_us is None


def test_ready_is_what_the_slowest_group_has_left(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders")
    ps.publish_batch("orders", [b"x"] * 5, priority="high")
    ps.receive_batch("orders", "quick", 5).ack()
    ps.receive("orders", "slow", 2)
    high = ps.priority_stats("orders").lanes["high"]
    assert (high.ready, high.in_flight) == (3, 2)
    assert high.dequeue_rate == pytest.approx(0.7)


def test_what_becomes_of_delayed_messages_is_counted(world: World) -> None:
    ps = world.ps
    for topic in ("orders", "mails"):
        ps.create_topic(topic)
    ids = [ps.publish("orders", b"x", delay="10s").id for _ in range(4)]
    ps.publish("mails", b"x", delay="1h")
    assert ps.cancel("orders", ids[0])
    stats = ps.delay_stats("orders")
    assert (stats.pending, stats.delivered, stats.cancelled) == (3, 0, 1)
    world.pass_(11)
    stats = ps.delay_stats("orders")
    assert (stats.pending, stats.delivered, stats.cancelled, stats.expired) == (0, 3, 1, 0)
    assert stats.next_due_us is None
    every = ps.delay_stats()
    assert (every.pending, every.delivered, every.cancelled, every.expired) == (1, 3, 1, 0)
    assert every.next_due_us == ps.delay_stats("mails").next_due_us
    ps.purge("mails")
    assert ps.delay_stats().cancelled == 2


def test_a_delayed_message_can_expire_before_it_is_moved(sync: World) -> None:
    sync.ps.create_topic("orders")
    sync.ps.publish("orders", b"x", delay="10s", ttl="5s")
    sync.ps.publish("orders", b"y", delay="10s")
    sync.restart(down_s=60)
    sync.broker.housekeep()
    stats = sync.ps.delay_stats()
    assert (stats.pending, stats.delivered, stats.expired) == (0, 1, 1)
    assert len(take(sync.ps)) == 1


def test_delays_of_topics_at_rest_are_found_and_the_others_stay_closed(sync: World) -> None:
    for topic in ("orders", "mails"):
        sync.ps.create_topic(topic)
        sync.ps.publish(topic, b"x")
    sync.ps.publish("orders", b"x", delay="1h")
    ps = sync.restart()
    assert ps.delay_stats().pending == 1
    assert [topic.name.topic for topic in sync.broker.open_topics()] == ["orders"]


def test_a_topic_tells_when_it_was_made_and_changed(world: World) -> None:
    ps = world.ps
    made_us = world.clock.wall_ns() // 1000
    ps.create_topic("orders")
    stats = ps.stats("orders")
    assert (stats.created_us, stats.updated_us) == (made_us, made_us)
    world.pass_(5)
    ps.publish("orders", b"x")
    ps.alter_topic("orders", ttl="1h")
    stats = ps.stats("orders")
    assert (stats.created_us, stats.updated_us) == (made_us, made_us + 5_000_000)


def test_a_restart_knows_when_a_topic_was_made(sync: World) -> None:
    made_us = sync.clock.wall_ns() // 1000
    sync.ps.create_topic("orders")
    sync.pass_(5)
    sync.ps.alter_topic("orders", ttl="1h")
    stats = sync.restart(down_s=100).stats("orders")
    assert (stats.created_us, stats.updated_us) == (made_us, made_us + 5_000_000)


def test_a_checkpoint_of_the_catalog_knows_when_a_topic_was_made() -> None:
    made = TopicChanged(topic_name("orders"), TopicSettings(), TopicTimes(1, 2))
    state = CatalogState([encode_entry(made)])
    again = CatalogState([encode_entry(state.snapshot())])
    assert again.times == {topic_name("orders"): TopicTimes(1, 2)}


def test_segments_are_counted(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", partitions=2, segment_bytes=4096)
    for _ in range(10):
        ps.publish("orders", b"x" * 1000, partition=1)
    stats = ps.stats("orders")
    assert stats.partitions[1].segments > 2
    assert stats.segments == sum(p.segments for p in stats.partitions)


def test_a_stream_group_tells_when_its_members_were_last_heard_of(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders")
    joined_us = world.clock.wall_ns() // 1000
    orders = topic_name("orders")
    generation = world.broker.streams.join("audit", "anna", [orders]).generation
    world.broker.streams.join("audit", "bert", [orders])
    world.pass_(5)
    world.broker.streams.heartbeat("audit", "anna", generation)
    world.pass_(2)
    heard = ps.describe_stream_group("audit").heartbeats
    assert heard == {"anna": joined_us + 5_000_000, "bert": joined_us}
