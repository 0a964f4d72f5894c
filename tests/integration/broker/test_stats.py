"""What stats say: by topic, partition, group and priority."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.broker.world import World, take


def group(ps: Any, name: str = "g") -> Any:
    return next(each for each in ps.stats("orders").groups if each.group == name)


def test_an_empty_topic(ps: Any) -> None:
    ps.create_topic("orders", partitions=2)
    stats = ps.stats("orders")
    assert stats.topic == "orders"
    assert (stats.messages, stats.depth, stats.in_flight, stats.delayed, stats.dead) == (0,) * 5
    assert stats.next_due_us is None
    assert [p.partition for p in stats.partitions] == [0, 1]
    assert stats.groups == []


def test_a_message_is_counted_wherever_it_is(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", partitions=2, max_retries=None)
    ps.publish_batch("orders", [b"x"] * 6, partition=0)
    ps.publish_batch("orders", [b"x"] * 4, partition=1)
    ps.publish("orders", b"later", delay="1h")
    stats = ps.stats("orders")
    assert (stats.messages, stats.depth, stats.delayed) == (10, 10, 1)
    assert [p.end - p.start for p in stats.partitions] == [6, 4]

    acked, nacked, rejected, *held = ps.receive("orders", "g", 7)
    acked.ack()
    nacked.nack()
    rejected.reject("no")
    mine = group(ps)
    assert (mine.depth, mine.ready, mine.in_flight, mine.retrying) == (8, 3, 4, 1)
    assert sum(mine.depth_by_partition.values()) == 8
    stats = ps.stats("orders")
    assert (stats.depth, stats.in_flight, stats.dead) == (8, 4, 1)
    for message in held:
        message.ack()
    world.pass_(60)
    assert len(take(ps)) == 4
    mine = group(ps)
    assert (mine.depth, mine.ready, mine.in_flight, mine.retrying) == (0, 0, 0, 0)
    assert mine.committed == {0: 6, 1: 4}


def test_each_group_has_its_own_figures(ps: Any) -> None:
    ps.create_topic("orders")
    ps.publish_batch("orders", [b"x"] * 5)
    ps.receive_batch("orders", "a", 5).ack()
    ps.receive("orders", "b", 2)
    assert (group(ps, "a").depth, group(ps, "a").in_flight) == (0, 0)
    assert (group(ps, "b").depth, group(ps, "b").in_flight) == (5, 2)
    stats = ps.stats("orders")
    assert stats.depth == 5  # some group still has to do them
    assert stats.in_flight == 2


def test_priorities_are_counted_apart(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", weights=[1, 1, 1, 1, 1], max_retries=None)
    for number, name in enumerate(["critical", "high", "normal", "low", "background"], start=2):
        ps.publish_batch("orders", [b"x"] * number, priority=name)
    messages = ps.receive("orders", "g", 10)
    for message in messages:
        if message.priority.name == "HIGH":
            message.nack(delay="1h")
        elif message.priority.name == "LOW":
            message.ack()
    names = ["critical", "high", "normal", "low", "background"]
    mine = group(ps)
    assert [mine.in_flight_by_priority[name] for name in names] == [2, 0, 2, 0, 2]
    assert [mine.retrying_by_priority[name] for name in names] == [0, 2, 0, 0, 0]
    assert [mine.ready_by_priority[name] for name in names] == [0, 1, 2, 3, 4]
    ps = world.kill()
    mine = group(ps)
    assert [mine.in_flight_by_priority[name] for name in names] == [2, 0, 2, 0, 2]
    assert [mine.retrying_by_priority[name] for name in names] == [0, 2, 0, 0, 0]
    assert [mine.ready_by_priority[name] for name in names] == [0, 1, 2, 3, 4]


def test_a_long_mixed_backlog_is_counted_by_priority(ps: Any) -> None:
    ps.create_topic("orders", segment_bytes=64 << 10, partitions=2)
    for n in range(30):
        ps.publish_batch("orders", [b"x" * 100] * 200, partition=n % 2)
        ps.publish("orders", b"x", priority="critical", partition=n % 2)
    ps.receive_batch("orders", "g", 1000).ack()
    mine = group(ps)
    assert mine.ready == 5030
    assert sum(mine.ready_by_priority.values()) == 5030
    acked = 30 - mine.ready_by_priority["critical"]
    assert mine.ready_by_priority["normal"] == 6000 - (1000 - acked)


def test_the_age_of_the_oldest_that_is_not_done(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", max_retries=None)
    ps.publish("orders", b"old")
    world.pass_(40)
    ps.publish("orders", b"new")
    assert ps.receive("orders", "g", 1)[0].value == b"old"
    world.pass_(2)
    assert group(ps).oldest_age_us == 42_000_000
    world.pass_(30)
    ps.receive("orders", "g", 1)[0].ack()
    assert group(ps).oldest_age_us == 32_000_000
    take(ps)
    assert group(ps).oldest_age_us is None


def test_a_clock_that_is_set_back_gives_no_negative_age(world: World) -> None:
    world.ps.create_topic("orders")
    world.ps.publish("orders", b"x")
    world.ps.receive("orders", "g")
    world.clock.jump_wall(-3600)
    assert group(world.ps).oldest_age_us == 0


def test_rates_are_over_the_last_ten_seconds(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", partitions=2)
    ps.publish_batch("orders", [b"x"] * 100, partition=0)
    world.pass_(1)
    with ps.producer("orders") as out:
        for _ in range(50):
            out.send(b"x")
    ps.publish("orders", b"x", delay="1s")
    batch = ps.receive_batch("orders", "g", 60)
    world.pass_(1)
    batch.ack()
    stats = ps.stats("orders")
    assert stats.publish_rate == pytest.approx(15.1)
    assert sum(p.publish_rate for p in stats.partitions) == pytest.approx(15.1)
    assert (stats.deliver_rate, stats.ack_rate) == (6.0, 6.0)
    assert (group(ps).deliver_rate, group(ps).ack_rate) == (6.0, 6.0)
    world.pass_(8)
    assert ps.stats("orders").publish_rate == pytest.approx(5.1)
    world.pass_(10)
    stats = ps.stats("orders")
    assert (stats.publish_rate, stats.deliver_rate, stats.ack_rate) == (0, 0, 0)


def test_stats_of_every_group_reach_every_partition(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", partitions=3)
    ps.publish("orders", b"x", partition=2)
    ps.receive("orders", "g", 1, partition=2)
    assert group(ps).depth_by_partition == {0: 0, 1: 0, 2: 1}
