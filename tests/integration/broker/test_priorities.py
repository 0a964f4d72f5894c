"""Priority lanes: shares by weight, nothing starves, and what is critical is next."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from penstock.record.schema import Priority
from tests.integration.broker.world import World, values

NAMES = ["critical", "high", "normal", "low", "background"]


def fill(ps: Any, each: int, topic: str = "orders") -> None:
    for name in reversed(NAMES):
        ps.publish_batch(topic, [name.encode()] * each, priority=name)


def test_lanes_share_by_their_weights(ps: Any) -> None:
    ps.create_topic("orders")
    fill(ps, 200)
    got = Counter(values_of(ps.receive_batch("orders", "g", 200)))
    assert got == {b"critical": 100, b"high": 50, b"normal": 30, b"low": 14, b"background": 6}


def values_of(batch: Any) -> list[bytes]:
    return batch.table().column("value").to_pylist()


def test_the_shares_are_the_same_one_by_one(ps: Any) -> None:
    ps.create_topic("orders")
    fill(ps, 60)
    got = [ps.receive("orders", "g", 1)[0].value for _ in range(100)]
    assert Counter(got) == {
        b"critical": 50,
        b"high": 25,
        b"normal": 15,
        b"low": 7,
        b"background": 3,
    }
    assert got[0] == b"critical"


def test_an_idle_lane_leaves_its_share_to_the_others(ps: Any) -> None:
    ps.create_topic("orders")
    ps.publish_batch("orders", [b"n"] * 50, priority="normal")
    ps.publish_batch("orders", [b"b"] * 50, priority="background")
    got = Counter(values_of(ps.receive_batch("orders", "g", 36)))
    assert got == {b"n": 30, b"b": 6}
    assert Counter(values_of(ps.receive_batch("orders", "g", 100))) == {b"n": 20, b"b": 44}


def test_weights_can_be_set(ps: Any) -> None:
    ps.create_topic("orders", weights=[1, 1, 1, 1, 1])
    fill(ps, 20)
    got = Counter(values_of(ps.receive_batch("orders", "g", 50)))
    assert got == {name.encode(): 10 for name in NAMES}


def test_within_a_lane_the_order_is_kept(ps: Any) -> None:
    ps.create_topic("orders")
    for n in range(40):
        ps.publish("orders", b"%d" % n, priority=n % 5)
    got = [int(m.value) for m in ps.receive("orders", "g", 40)]
    for priority in range(5):
        mine = [n for n in got if n % 5 == priority]
        assert mine == sorted(mine)


def test_what_has_waited_long_is_next_and_then_its_lane_waits_again(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", boost_after="30s")
    ps.publish_batch("orders", [b"old"] * 3, priority="background")
    world.pass_(29)
    ps.publish_batch("orders", [b"new"] * 1000, priority="critical")
    assert values_of(ps.receive_batch("orders", "g", 10)) == [b"new"] * 10
    world.pass_(1)
    assert Counter(values_of(ps.receive_batch("orders", "g", 10))) == {b"old": 1, b"new": 9}
    assert values_of(ps.receive_batch("orders", "g", 1)) == [b"new"]
    world.pass_(30)
    assert values_of(ps.receive_batch("orders", "g", 1)) == [b"old"]


def test_what_has_waited_long_is_next_on_whatever_partition_it_is(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", partitions=4, boost_after="30s")
    ps.publish("orders", b"old", priority="background", partition=2)
    world.pass_(30)
    for partition in (0, 1, 3):
        ps.publish_batch("orders", [b"new"] * 100, priority="critical", partition=partition)
    assert [m.value for m in ps.receive("orders", "g", 1)] == [b"old"]


def test_lanes_of_single_messages_are_received_whole_and_in_order(world: World) -> None:
    """Published one by one and in batches, received in pieces, some of them twice."""
    ps = world.ps
    ps.create_topic("orders", visibility="10s", segment_bytes=64 << 10)
    sent: dict[int, list[bytes]] = {priority: [] for priority in range(5)}
    for n in range(1500):
        priority = n * 7 % 5
        if n % 50 == 0:
            values = [b"%d-%d" % (n, row) for row in range(20)]
            ps.publish_batch("orders", values, priority=[row % 5 for row in range(20)])
            for row, value in enumerate(values):
                sent[row % 5].append(value)
        sent[priority].append(b"%d" % n)
        ps.publish("orders", b"%d" % n, priority=priority, key=b"k" if n % 3 else None)
    got: dict[int, list[bytes]] = {priority: [] for priority in range(5)}
    while messages := ps.receive("orders", "g", 7):
        for message in messages:
            got[message.priority].append(message.value)
            message.ack()
    assert got == sent


def test_the_lowest_lane_never_starves(ps: Any) -> None:
    ps.create_topic("orders")
    ps.publish("orders", b"poor", priority="background")
    got: list[bytes] = []
    for _ in range(200):
        ps.publish("orders", b"rich", priority="critical")
        (message,) = ps.receive("orders", "g", 1)
        message.ack()
        got.append(message.value)
    assert b"poor" in got[:101]


@pytest.mark.parametrize("end", ["nothing", "restart", "kill"])
def test_a_critical_message_behind_a_large_backlog_is_next(end: str, world: World) -> None:
    world.ps.create_topic("orders", segment_bytes=64 << 10)
    for _ in range(20):
        world.ps.publish_batch("orders", [b"x" * 50] * 1000)
    world.ps.receive_batch("orders", "g", 10).ack()
    world.ps.publish("orders", b"now", priority="critical")
    ps = world.ps if end == "nothing" else getattr(world, end)()
    (message,) = ps.receive("orders", "g", 1)
    assert (message.value, message.priority) == (b"now", Priority.CRITICAL)


@pytest.mark.parametrize("before", range(6))
def test_a_critical_message_is_next_on_whichever_partition_it_lies(
    before: int, world: World
) -> None:
    ps = world.ps
    ps.create_topic("orders", partitions=4)
    for partition in range(4):
        ps.publish_batch("orders", [b"x"] * 100, partition=partition)
    for _ in range(before):  # whoever's turn it is
        ps.receive("orders", "g", 1)
    for partition in (3, 1):
        ps.publish("orders", b"now", priority="critical", partition=partition)
        assert values(ps.receive("orders", "g", 1)) == [b"now"]


def test_urgent_traffic_on_one_partition_does_not_starve_the_others(ps: Any) -> None:
    ps.create_topic("orders", partitions=2)
    ps.publish_batch("orders", [b"urgent"] * 100, priority="critical", partition=0)
    ps.publish_batch("orders", [b"patient"] * 100, partition=1)
    got = Counter(ps.receive("orders", "g", 1)[0].value for _ in range(80))
    assert got[b"patient"] >= 8
    assert got[b"urgent"] >= 40


def test_partitions_take_turns(ps: Any) -> None:
    ps.create_topic("orders", partitions=4)
    for partition in range(4):
        ps.publish_batch("orders", [b"%d" % partition] * 10, partition=partition)
    got = Counter(ps.receive("orders", "g", 1)[0].value for _ in range(20))
    assert got == {b"%d" % partition: 5 for partition in range(4)}


def test_a_retry_keeps_its_priority(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders")
    ps.publish("orders", b"urgent", priority="critical")
    ps.receive("orders", "g", 1)[0].nack(delay="5s")
    ps.publish_batch("orders", [b"x"] * 100)
    world.pass_(5)
    (message,) = ps.receive("orders", "g", 1)
    assert (message.value, message.priority) == (b"urgent", Priority.CRITICAL)


def test_a_delayed_message_keeps_its_priority(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders")
    ps.publish("orders", b"urgent", priority="critical", delay="5s")
    ps.publish_batch("orders", [b"x"] * 100)
    world.pass_(5)
    assert values(ps.receive("orders", "g", 1)) == [b"urgent"]
