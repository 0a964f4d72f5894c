"""Several messages of one key in one receive, under one lease, in their order."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.integration.broker.world import World, values


def runs(world: World, **settings: Any) -> Any:
    world.ps.create_topic("orders", ordered_by_key=True, key_run_max=10, **settings)
    return world.ps


def publish(ps: Any, names: str) -> None:
    """Messages `a1`, `a2`, `b1`, each with its letter as the key."""
    some = names.split()
    ps.publish_batch("orders", [name.encode() for name in some], keys=[name[0] for name in some])


def test_a_run_of_a_key_comes_in_one_receive_and_the_next_after_all_of_it(world: World) -> None:
    ps = runs(world)
    publish(ps, "a1 b1 a2 a3 b2")
    first = ps.receive("orders", "g", 4)
    assert values(first) == [b"a1", b"b1", b"a2", b"a3"]
    publish(ps, "a4")
    assert ps.receive("orders", "g", 10) == []
    for message in first[:-1]:
        message.ack()
    assert values(ps.receive("orders", "g", 10)) == [b"b2"]
    first[-1].ack()
    assert values(ps.receive("orders", "g", 10)) == [b"a4"]


def test_a_run_is_no_longer_than_the_setting_says(world: World) -> None:
    world.ps.create_topic("orders", ordered_by_key=True, key_run_max=2)
    publish(world.ps, "a1 a2 a3 b1")
    assert values(world.ps.receive("orders", "g", 10)) == [b"a1", b"a2", b"b1"]


def test_what_was_given_back_waits_while_another_of_its_run_is_in_flight(world: World) -> None:
    ps = runs(world, max_retries=None)
    publish(ps, "a1 a2 a3 a4")
    a1, a2, a3 = ps.receive("orders", "g", 3)
    a1.nack(delay="0s")
    assert ps.receive("orders", "g", 10) == []
    a2.ack()
    assert ps.receive("orders", "g", 10) == []
    a3.nack(delay="0s")
    assert values(ps.receive("orders", "g", 10)) == [b"a1", b"a3"]


def test_a_later_one_of_a_run_waits_for_the_delay_of_an_earlier_one(world: World) -> None:
    ps = runs(world, max_retries=None)
    publish(ps, "a1 a2")
    a1, a2 = ps.receive("orders", "g", 2)
    a2.nack(delay="0s")
    a1.nack(delay="30s")
    assert ps.receive("orders", "g", 10) == []
    world.pass_(30)
    again = ps.receive("orders", "g", 10)
    assert values(again) == [b"a1", b"a2"]
    assert [message.delivery_count for message in again] == [2, 2]


def test_a_run_whose_lease_ran_out_comes_again_in_its_order(world: World) -> None:
    ps = runs(world, visibility="10s", max_retries=None)
    publish(ps, "a1 a2 a3")
    ps.receive("orders", "g", 10)
    world.pass_(10)
    (a1,) = ps.receive("orders", "g", 1)
    assert a1.value == b"a1"
    assert ps.receive("orders", "g", 10) == []
    a1.ack()
    assert values(ps.receive("orders", "g", 10)) == [b"a2", b"a3"]


@pytest.mark.parametrize("end", ["restart", "kill"])
def test_a_run_is_still_locked_after_a_restart(end: str, sync: World) -> None:
    ps = runs(sync)
    publish(ps, "a1 a2 a3")
    receipts = {m.value: m.receipt for m in ps.receive("orders", "g", 2)}
    ps = getattr(sync, end)()
    ps.ack("g", receipts[b"a1"])
    assert ps.receive("orders", "g", 10) == []
    ps.ack("g", receipts[b"a2"])
    assert values(ps.receive("orders", "g", 10)) == [b"a3"]


def test_one_that_outlived_its_ttl_does_not_hold_up_its_run(sync: World) -> None:
    ps = runs(sync)
    ps.publish("orders", b"a1", key="a", ttl="5s")
    ps.publish("orders", b"a2", key="a")
    ps.publish("orders", b"b1", key="b", ttl="5s")
    sync.pass_(6)
    assert values(ps.receive("orders", "g", 10)) == [b"a2"]


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_keys_holds_whatever_becomes_of_runs(seed: int, sync: World) -> None:
    chance = random.Random(seed)
    ps = runs(sync, max_retries=None, visibility="5s")
    numbers = range(120)
    ps.publish_batch("orders", [b"%d" % n for n in numbers], keys=[f"k{n % 5}" for n in numbers])
    done: dict[bytes, list[int]] = {}
    held_until: dict[bytes, int] = {}
    for step in range(3000):
        if sum(map(len, done.values())) == len(numbers):
            break
        got = ps.receive("orders", "g", chance.randint(1, 10))
        by_key: dict[bytes, list[int]] = {}
        for message in got:
            by_key.setdefault(message.key, []).append(int(message.value))
        now_ns = sync.clock.monotonic_ns()
        for key, run in by_key.items():
            assert run == sorted(run), f"seed {seed}"
            assert held_until.get(key, 0) <= now_ns, f"seed {seed}: {key!r} is in other hands"
            assert all(n > max(done.get(key, [-1])) for n in run), f"seed {seed}"
        failed: set[bytes] = set()
        for message in got:
            fate = chance.random()
            if fate < 0.6 and message.key not in failed:
                message.ack()
                done.setdefault(message.key, []).append(int(message.value))
            else:
                failed.add(message.key)  # whoever works in order stops at the first failure
                if fate < 0.9:
                    message.nack(delay=f"{chance.randint(0, 3)}s")
                else:
                    held_until[message.key] = now_ns + 5 * 10**9
        sync.pass_(chance.choice([0, 1, 5]))
        if step % 40 == 39:
            ps = sync.restart()
            held_until = dict.fromkeys(held_until, 0)  # it counts the time only while it is up
    assert {key: sorted(order) for key, order in done.items()} == done
    assert sum(map(len, done.values())) == len(numbers)
