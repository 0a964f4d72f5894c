"""Leases: exclusive, ended by time alone, and by the right clock."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import AlreadySettled, InvalidReceipt, LeaseLost
from tests.integration.broker.world import World, values


@pytest.fixture
def orders(world: World) -> Any:
    world.ps.create_topic("orders", visibility="30s", max_retries=None)
    world.ps.publish("orders", b"x")
    return world.ps


def test_a_message_is_hidden_until_its_lease_runs_out(orders: Any, world: World) -> None:
    (first,) = orders.receive("orders", "g", consumer="alice")
    world.pass_(29.999)
    assert orders.receive("orders", "g") == []
    world.pass_(0.001)
    (second,) = orders.receive("orders", "g", consumer="bob")
    assert (first.delivery_count, second.delivery_count) == (1, 2)
    assert first.receipt != second.receipt


def test_an_expired_lease_is_noticed_without_housekeeping(orders: Any, world: World) -> None:
    orders.receive("orders", "g")
    world.clock.advance(30)
    assert len(orders.receive("orders", "g")) == 1


def test_an_expired_lease_cannot_settle_although_nobody_else_has_the_message(
    orders: Any, world: World
) -> None:
    (message,) = orders.receive("orders", "g")
    world.clock.advance(30)
    for verb, arguments in (("ack", ()), ("nack", ()), ("reject", ()), ("extend", ("1h",))):
        with pytest.raises(LeaseLost, match="it ran out, or the message was given back"):
            getattr(message, verb)(*arguments)
    assert values(orders.receive("orders", "g")) == [b"x"]


def test_the_former_holder_is_fenced(orders: Any, world: World) -> None:
    (late,) = orders.receive("orders", "g")
    world.pass_(31)
    (holder,) = orders.receive("orders", "g")
    for verb in ("ack", "nack", "reject"):
        with pytest.raises(LeaseLost):
            getattr(late, verb)()
    with pytest.raises(LeaseLost):
        late.extend("1h")
    holder.ack()
    with pytest.raises(AlreadySettled, match="already done"):
        late.ack()


def test_a_seek_makes_receipts_void(orders: Any) -> None:
    (message,) = orders.receive("orders", "g")
    orders.seek("orders", "g", "earliest")
    with pytest.raises(InvalidReceipt):
        message.ack()
    assert len(orders.receive("orders", "g")) == 1


@pytest.mark.parametrize("jump_s", [30, -30, 3600, -3600])
def test_a_wall_clock_that_jumps_neither_steals_a_lease_nor_keeps_it_for_ever(
    jump_s: float, orders: Any, world: World
) -> None:
    (message,) = orders.receive("orders", "g")
    world.pass_(10)
    world.clock.jump_wall(jump_s)
    world.pass_(19.9)
    assert orders.receive("orders", "g") == []
    message.extend("30s")
    world.clock.jump_wall(-jump_s / 2)
    world.pass_(29.9)
    assert orders.receive("orders", "g") == []
    world.pass_(0.1)
    assert len(orders.receive("orders", "g")) == 1


@pytest.mark.parametrize("jump_s", [30, -30, 3600, -3600])
def test_a_wall_clock_that_jumps_moves_no_retry(jump_s: float, orders: Any, world: World) -> None:
    orders.receive("orders", "g")[0].nack(delay="10s")
    world.clock.jump_wall(jump_s)
    world.pass_(9.9)
    assert orders.receive("orders", "g") == []
    world.pass_(0.1)
    assert len(orders.receive("orders", "g")) == 1


@pytest.mark.parametrize("end", ["restart", "kill"])
@pytest.mark.parametrize("jump_s", [0, 3600, -3600])
def test_a_restart_gives_a_lease_the_rest_of_its_time(
    end: str, jump_s: float, orders: Any, world: World
) -> None:
    (message,) = orders.receive("orders", "g")
    receipt = message.receipt
    world.pass_(20)
    orders.publish("orders", b"y")
    orders.receive("orders", "g")[0].ack()  # the ledger knows now that 20 s have passed
    world.clock.jump_wall(jump_s)
    world.pass_(1)
    ps = getattr(world, end)(down_s=60)  # not counted: nobody could have acked meanwhile
    assert ps.receive("orders", "g") == []
    world.pass_(8.9)
    assert ps.receive("orders", "g") == []
    assert ps.extend("g", receipt, visibility="5s") == {}
    world.pass_(4.9)
    assert ps.receive("orders", "g") == []
    world.pass_(0.1)
    (again,) = ps.receive("orders", "g")
    assert again.delivery_count == 2
    assert isinstance(ps.ack("g", receipt)[receipt], LeaseLost)


@pytest.mark.parametrize("end", ["restart", "kill"])
def test_a_lease_can_be_settled_after_a_restart(end: str, orders: Any, world: World) -> None:
    receipt = orders.receive("orders", "g")[0].receipt
    ps = getattr(world, end)()
    assert ps.ack("g", receipt) == {}
    world.pass_(3600)
    assert ps.receive("orders", "g") == []


@pytest.mark.parametrize("end", ["restart", "kill"])
def test_after_a_restart_nothing_acked_comes_back_and_nothing_else_is_lost(
    end: str, world: World
) -> None:
    ps = world.ps
    ps.create_topic("orders", partitions=2, max_retries=None)
    ps.publish_batch("orders", [b"%d" % n for n in range(50)], partition=0)
    ps.publish_batch("orders", [b"%d" % n for n in range(50, 100)], partition=1)
    acked, held, retried = [], [], []
    for n, message in enumerate(ps.receive("orders", "g", 60, visibility="1h")):
        if n % 3 == 0:
            message.ack()
            acked.append(message.value)
        elif n % 3 == 1:
            message.nack(delay="10s")
            retried.append(message.value)
        else:
            held.append(message.value)
    ps = getattr(world, end)()
    fresh = ps.receive("orders", "g", 1000)
    assert {m.delivery_count for m in fresh} == {1}
    world.pass_(10)
    again = ps.receive("orders", "g", 1000)
    assert {m.delivery_count for m in again} == {2}
    assert sorted(values(again)) == sorted(retried)
    everything = values(fresh) + values(again) + acked + held
    assert sorted(everything) == sorted(b"%d" % n for n in range(100))
    world.pass_(3600)
    assert set(acked).isdisjoint(values(ps.receive("orders", "g", 1000)))


def test_counts_go_on_over_many_crashes(world: World) -> None:
    world.ps.create_topic("orders", max_retries=None)
    world.ps.publish("orders", b"x")
    for count in range(1, 8):
        (message,) = world.ps.receive("orders", "g")
        assert message.delivery_count == count
        if count % 2:
            message.nack(delay=0)
            world.kill()
        else:
            world.kill()
            world.pass_(30)


def test_a_lease_ends_although_the_broker_is_killed_again_and_again(
    orders: Any, world: World
) -> None:
    orders.receive("orders", "g", visibility="2s")
    ps, up_s = orders, 0.0
    while not ps.receive("orders", "g"):
        for _ in range(3):
            world.pass_(0.3)
            up_s += 0.3
        ps = world.kill(down_s=1)
        assert up_s < 5
    assert up_s >= 2


def test_a_lease_is_over_at_the_start_if_it_ended_a_minute_ago(orders: Any, world: World) -> None:
    (message,) = orders.receive("orders", "g")
    ps = world.kill(down_s=89)
    assert ps.receive("orders", "g") == []
    ps = world.kill(down_s=1)
    (again,) = ps.receive("orders", "g")
    assert again.delivery_count == 2
    assert isinstance(ps.ack("g", message.receipt)[message.receipt], LeaseLost)


@pytest.mark.parametrize("jump_s", [30, -30, 3600, -3600])
def test_a_wall_clock_that_jumped_before_a_kill_steals_nothing(
    jump_s: float, orders: Any, world: World
) -> None:
    orders.receive("orders", "g")
    world.pass_(1)
    world.clock.jump_wall(jump_s)
    world.pass_(1)
    ps = world.kill(down_s=1)
    assert ps.receive("orders", "g") == []
    world.pass_(28)
    assert len(ps.receive("orders", "g")) == 1


def test_what_a_lease_lost_may_wait_for_the_backoff(world: World) -> None:
    world.ps.create_topic("orders", lease_expiry_backoff=True, backoff=("5s", 2.0, "60s"))
    world.ps.publish("orders", b"x")
    world.ps.receive("orders", "g", visibility="10s")
    world.pass_(10)
    assert world.ps.receive("orders", "g") == []
    world.pass_(4.9)
    assert world.ps.receive("orders", "g") == []
    world.pass_(0.1)
    assert len(world.ps.receive("orders", "g")) == 1
