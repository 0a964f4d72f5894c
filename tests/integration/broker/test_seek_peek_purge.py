"""Moving about in a topic: seek, replay by time, peek without consuming, purge."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from penstock.errors import InvalidInput, PartitionNotFound
from tests.integration.broker.world import World, take, values


def now(world: World) -> datetime:
    return datetime.fromtimestamp(world.clock.wall_ns() / 1e9, UTC)


@pytest.fixture
def orders(world: World) -> Any:
    world.ps.create_topic("orders")
    world.ps.publish_batch("orders", [b"%d" % n for n in range(6)])
    return world.ps


def test_a_group_is_set_back_and_forth(orders: Any) -> None:
    assert take(orders) == [b"0", b"1", b"2", b"3", b"4", b"5"]
    orders.seek("orders", "g", "earliest")
    assert take(orders) == [b"0", b"1", b"2", b"3", b"4", b"5"]
    orders.seek("orders", "g", 4)
    assert take(orders) == [b"4", b"5"]
    orders.seek("orders", "g", 2)
    orders.seek("orders", "g", "latest")
    assert take(orders) == []
    orders.publish("orders", b"6")
    assert take(orders) == [b"6"]
    orders.seek("orders", "g", 1000)  # past the end is the end
    assert take(orders) == []


def test_messages_are_replayed_from_a_time_on(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", partitions=2)
    moments = []
    for n in range(5):
        moments.append(now(world))
        ps.publish("orders", b"%d" % n, partition=n % 2)
        world.pass_(60)
    assert len(take(ps)) == 5
    ps.seek("orders", "g", moments[2])
    assert sorted(take(ps)) == [b"2", b"3", b"4"]
    ps.seek("orders", "g", now(world))
    assert take(ps) == []
    ps.seek("orders", "g", moments[0], partition=1)
    assert take(ps) == [b"1", b"3"]


@pytest.mark.parametrize("end", ["restart", "kill"])
def test_a_seek_survives_a_restart(end: str, world: World) -> None:
    world.ps.create_topic("orders")
    world.ps.publish_batch("orders", [b"0", b"1", b"2"])
    take(world.ps)
    world.ps.seek("orders", "g", 1)
    assert take(getattr(world, end)()) == [b"1", b"2"]


def test_a_group_may_be_set_before_it_ever_received(orders: Any) -> None:
    orders.seek("orders", "new", 4)
    assert take(orders, group="new") == [b"4", b"5"]
    orders.seek("orders", "late", "latest")
    assert take(orders, group="late") == []


def test_a_seek_forgets_counts_and_retries(orders: Any, world: World) -> None:
    orders.receive_batch("orders", "g", 3).nack(delay="10s")
    orders.receive("orders", "g", 2)
    orders.seek("orders", "g", "earliest")
    got = orders.receive("orders", "g")
    assert {m.delivery_count for m in got} == {1}
    assert len(got) == 6
    world.pass_(10)
    assert orders.receive("orders", "g") == []


def test_other_groups_and_partitions_stay_where_they_are(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", partitions=2)
    for n in range(4):
        ps.publish("orders", b"%d" % n, partition=n % 2)
    take(ps)
    take(ps, group="other")
    ps.seek("orders", "g", "earliest", partition=0)
    assert take(ps) == [b"0", b"2"]
    assert take(ps, group="other") == []


@pytest.mark.parametrize("to", ["start", -1, 1.5, True, None, "2024-01-01"])
def test_a_wrong_position_says_what_is_allowed(to: Any, orders: Any) -> None:
    for ask in (
        lambda: orders.seek("orders", "g", to),
        lambda: orders.peek("orders", at=to),
    ):
        with pytest.raises(InvalidInput, match='a position is "earliest", "latest", an offset or'):
            ask()
    with pytest.raises(InvalidInput, match="has no time zone"):
        orders.seek("orders", "g", datetime(2024, 1, 1))  # noqa: DTZ001
    with pytest.raises(PartitionNotFound):
        orders.seek("orders", "g", "earliest", partition=1)


# Peek.


def test_a_peek_at_all_partitions_says_where_each_message_lies(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", partitions=3)
    for n in (2, 0, 0, 1, 2):
        ps.publish("orders", b"%d" % n, partition=n)
        world.pass_(1)
    peeked = ps.peek("orders")
    assert [m.partition for m in peeked] == [2, 0, 0, 1, 2]
    assert [m.offset for m in peeked] == [0, 0, 1, 0, 1]
    assert values(peeked) == [b"%d" % m.partition for m in peeked]
    assert [m.partition for m in ps.peek("orders", partition=2)] == [2, 2]


def test_a_peek_consumes_nothing(orders: Any, world: World) -> None:
    orders.receive("orders", "g", 2)[0].ack()
    assert values(orders.peek("orders", limit=3)) == [b"0", b"1", b"2"]
    assert values(orders.peek("orders", at=4)) == [b"4", b"5"]
    assert values(orders.peek("orders", at="latest")) == []
    assert values(orders.peek("orders", at=99)) == []
    assert orders.peek("orders", limit=0) == []
    world.pass_(60)
    assert values(orders.peek("orders", at=now(world))) == []
    stats = orders.stats("orders")
    assert [group.group for group in stats.groups] == ["g"]
    assert stats.in_flight == 0


def test_a_peek_shows_the_whole_message(orders: Any) -> None:
    orders.publish("orders", b"x", key="k", headers={"h": "1"}, priority="high", ttl="1h")
    (message,) = orders.peek("orders", at=6)
    assert (message.key, message.headers, message.priority) == (b"k", {"h": b"1"}, 1)
    assert message.expires_at_us is not None
    assert message.offset == 6


def test_a_peek_without_a_partition_shows_all_in_the_order_of_time(world: World) -> None:
    world.ps.create_topic("orders", partitions=3)
    for number in range(6):
        world.ps.publish("orders", b"%d" % number, partition=number % 3)
        world.pass_(1)
    assert values(world.ps.peek("orders", limit=100)) == [b"%d" % n for n in range(6)]
    assert values(world.ps.peek("orders", limit=4)) == [b"0", b"1", b"2", b"3"]
    assert values(world.ps.peek("orders", at=1)) == [b"3", b"4", b"5"]


def test_a_peek_at_a_partition(world: World) -> None:
    world.ps.create_topic("orders", partitions=2)
    world.ps.publish("orders", b"x", partition=1)
    assert values(world.ps.peek("orders", partition=1)) == [b"x"]
    assert values(world.ps.peek("orders", partition=0)) == []
    with pytest.raises(PartitionNotFound):
        world.ps.peek("orders", partition=2)
    for limit in (-1, "3", 1.0):
        with pytest.raises(InvalidInput, match="limit is"):
            world.ps.peek("orders", limit=limit)


# Purge.


def test_a_purge_drops_every_message_for_everyone(orders: Any, world: World) -> None:
    (held, *_) = orders.receive("orders", "g", 2)
    assert orders.purge("orders") == 6
    assert orders.purge("orders") == 0
    stats = orders.stats("orders")
    assert (stats.messages, stats.depth, stats.in_flight) == (0, 0, 0)
    with pytest.raises(Exception, match="already done"):
        held.ack()
    world.pass_(60)
    assert take(orders, group="other") == []
    orders.publish("orders", b"new")
    assert take(orders) == [b"new"]
    assert take(orders, group="other") == [b"new"]
    assert take(world.kill(), group="third") == [b"new"]


def test_a_purge_for_one_group_only_skips(orders: Any) -> None:
    orders.receive_batch("orders", "g", 2).ack()
    orders.receive("orders", "g", 1)
    assert orders.purge("orders", group="g") == 4
    assert take(orders) == []
    assert orders.stats("orders").messages == 6
    assert len(take(orders, group="other")) == 6


def test_a_purge_of_all_partitions(world: World) -> None:
    world.ps.create_topic("orders", partitions=3)
    for n in range(9):
        world.ps.publish("orders", b"%d" % n)
    assert world.ps.purge("orders") == 9
    assert take(world.ps) == []
