"""Per-key order, limits on what is in flight, and groups that know nothing of one another."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.broker.world import World, values


def test_a_message_waits_for_an_earlier_one_of_its_key(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", ordered_by_key=True)
    ps.publish_batch("orders", [b"a1", b"b1", b"a2", b"c1", b"b2"], keys=list("abacb"))
    first = ps.receive("orders", "g", 10)
    assert values(first) == [b"a1", b"b1", b"c1"]
    assert ps.receive("orders", "g", 10) == []
    first[0].ack()
    (a2,) = ps.receive("orders", "g", 10)
    assert a2.value == b"a2"
    first[1].nack(delay="10s")
    assert ps.receive("orders", "g", 10) == []  # b2 comes after b1, however long that takes
    world.pass_(10)
    (b1,) = ps.receive("orders", "g", 10)
    assert (b1.value, b1.delivery_count) == (b"b1", 2)
    b1.reject("hopeless")
    assert values(ps.receive("orders", "g", 10)) == [b"b2"]


def test_keyless_messages_wait_for_nobody(ps: Any) -> None:
    ps.create_topic("orders", ordered_by_key=True)
    ps.publish_batch("orders", [b"1", b"2", b"3"])
    ps.publish_batch("orders", [b"k1", b"4", b"k2"], keys=["k", None, "k"])
    assert values(ps.receive("orders", "g", 10)) == [b"1", b"2", b"3", b"k1", b"4"]


def test_a_key_is_locked_for_its_group_only(ps: Any) -> None:
    ps.create_topic("orders", ordered_by_key=True)
    ps.publish_batch("orders", [b"1", b"2"], keys=["k", "k"])
    assert values(ps.receive("orders", "one")) == [b"1"]
    assert values(ps.receive("orders", "two")) == [b"1"]


@pytest.mark.parametrize("end", ["restart", "kill"])
def test_locks_on_keys_survive_a_restart(end: str, world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", ordered_by_key=True)
    ps.publish_batch("orders", [b"a1", b"b1", b"a2", b"b2"], keys=list("abab"))
    receipts = {m.value: m.receipt for m in ps.receive("orders", "g", 10)}
    ps = getattr(world, end)()
    assert ps.receive("orders", "g", 10) == []
    ps.ack("g", receipts[b"a1"])
    assert values(ps.receive("orders", "g", 10)) == [b"a2"]


def test_the_order_of_a_key_holds_through_failures(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", ordered_by_key=True, partitions=2, max_retries=None)
    ps.publish_batch(
        "orders", [b"%d" % n for n in range(60)], keys=[f"k{n % 4}" for n in range(60)]
    )
    done: dict[bytes, list[int]] = {}
    step = 0
    while sum(map(len, done.values())) < 60:
        for message in ps.receive("orders", "g", 3):
            step += 1
            if step % 3 == 0:
                message.nack(delay="1s")
            else:
                message.ack()
                done.setdefault(message.key, []).append(int(message.value))
        world.pass_(1)
        if step % 7 == 0:
            ps = world.restart()
    assert all(order == sorted(order) for order in done.values())


def test_a_group_has_only_so_many_in_flight(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", in_flight_max=3)
    ps.publish_batch("orders", [b"%d" % n for n in range(10)])
    first = ps.receive("orders", "g", 10)
    assert len(first) == 3
    assert ps.receive("orders", "g", 10) == []
    first[0].ack()
    first[1].nack(delay="1h")
    assert len(ps.receive("orders", "g", 10)) == 2
    assert len(ps.receive("orders", "other", 10)) == 3
    world.pass_(30)
    assert len(ps.receive("orders", "g", 10)) == 3  # all leases ran out


def test_the_limit_counts_after_a_restart(world: World) -> None:
    world.ps.create_topic("orders", in_flight_max=2)
    world.ps.publish_batch("orders", [b"a", b"b", b"c"])
    world.ps.receive("orders", "g", 1)
    ps = world.kill()
    assert len(ps.receive("orders", "g", 10)) == 1


def test_the_limit_can_be_altered(ps: Any) -> None:
    ps.create_topic("orders", in_flight_max=1)
    ps.publish_batch("orders", [b"a", b"b", b"c"])
    assert len(ps.receive("orders", "g", 10)) == 1
    ps.alter_topic("orders", in_flight_max=None)
    assert len(ps.receive("orders", "g", 10)) == 2


def test_groups_are_independent(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", max_retries=0)
    ps.publish_batch("orders", [b"0", b"1", b"2"])
    slow = ps.receive("orders", "slow", 3, visibility="1h")
    quick = ps.receive("orders", "quick", 3)
    assert values(slow) == values(quick) == [b"0", b"1", b"2"]
    for message in quick:
        message.ack()
    slow[0].reject("no")
    stats = {group.group: group for group in ps.stats("orders").groups}
    assert (stats["quick"].depth, stats["quick"].committed) == (0, {0: 3})
    assert (stats["slow"].depth, stats["slow"].in_flight, stats["slow"].committed) == (2, 2, {0: 1})
    ps.seek("orders", "quick", "earliest")
    slow[1].ack()  # what another group does is nothing to it
    assert len(ps.receive("orders", "quick", 10)) == 3


def test_a_new_group_begins_with_the_oldest_message(ps: Any) -> None:
    ps.create_topic("orders", partitions=2)
    for n in range(4):
        ps.publish("orders", b"%d" % n)
    ps.receive_batch("orders", "first").ack()
    assert sorted(values(ps.receive("orders", "second"))) == [b"0", b"1", b"2", b"3"]


def test_a_group_can_be_forgotten(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders")
    ps.publish("orders", b"x")
    ps.receive("orders", "g")[0].ack()
    assert ps.groups("orders") == ["g"]
    assert ps.delete_group("orders", "g")
    assert not ps.delete_group("orders", "g")
    ps = world.kill()
    assert ps.groups("orders") == []
    assert values(ps.receive("orders", "g")) == [b"x"]
