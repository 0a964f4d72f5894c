"""Settling what another consumer holds by now, where somebody asks for that; leases of no time."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import LeaseLost
from tests.integration.broker.world import World, values


def test_a_message_whose_lease_ran_out_is_done_if_its_consumer_insists(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", visibility="10s")
    ps.publish("orders", b"x")
    (held,) = ps.receive("orders", "g")
    world.pass_(10)
    assert isinstance(ps.ack("g", held.receipt)[held.receipt], LeaseLost)
    assert ps.ack("g", held.receipt, even_if_lost=True) == {}
    assert ps.receive("orders", "g") == []
    (group,) = ps.stats("orders").groups
    assert (group.depth, group.in_flight, group.retrying) == (0, 0, 0)


@pytest.mark.parametrize("end", ["restart", "kill"])
def test_what_is_done_is_taken_from_whoever_holds_it_now(end: str, world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", visibility="10s")
    ps.publish_batch("orders", [b"1", b"2"])
    old = ps.receive("orders", "g", 2)
    world.pass_(10)
    new = ps.receive("orders", "g", 2)
    assert values(new) == [b"1", b"2"]
    assert ps.ack("g", old[0].receipt, even_if_lost=True) == {}
    refused = ps.ack("g", [message.receipt for message in new])
    assert [type(error).__name__ for error in refused.values()] == ["AlreadySettled"]
    (group,) = ps.stats("orders").groups
    assert (group.depth, group.in_flight) == (0, 0)
    ps = getattr(world, end)(11)
    assert ps.receive("orders", "g") == []


def test_what_is_done_already_is_told_so(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders")
    ps.publish("orders", b"x")
    (held,) = ps.receive("orders", "g")
    held.ack()
    (error,) = ps.ack("g", held.receipt, even_if_lost=True).values()
    assert error.code == "already_settled"


def test_where_keys_are_ordered_a_lost_lease_stays_lost(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", visibility="10s", ordered_by_key=True)
    ps.publish("orders", b"x", key="k")
    (held,) = ps.receive("orders", "g")
    world.pass_(10)
    (error,) = ps.ack("g", held.receipt, even_if_lost=True).values()
    assert isinstance(error, LeaseLost)
    assert values(ps.receive("orders", "g")) == [b"x"]


def test_many_leases_of_others_are_left_as_they_are(sync: World) -> None:
    ps = sync.ps
    ps.create_topic("orders", visibility="10s")
    ps.publish_batch("orders", [b"%d" % n for n in range(3000)])
    old = ps.receive("orders", "g", 3000)
    sync.pass_(10)
    for _ in range(3000):  # enough for leases to be packed
        ps.receive("orders", "g", 1)
    assert ps.ack("g", [m.receipt for m in old[::2]], even_if_lost=True) == {}
    (group,) = ps.stats("orders").groups
    assert (group.depth, group.in_flight) == (1500, 1500)


def test_a_lease_of_no_time_is_over_at_once_and_counts(world: World) -> None:
    ps: Any = world.ps
    ps.create_topic("orders", max_retries=1)
    ps.publish("orders", b"x")
    (first,) = ps.receive("orders", "g", visibility=0)
    (second,) = ps.receive("orders", "g", visibility=0)
    assert (first.delivery_count, second.delivery_count) == (1, 2)
    assert ps.receive("orders", "g") == []
    assert [letter.attempts for letter in ps.dead_letters("orders").list()] == [2]


def test_a_lease_can_be_ended_by_extending_it_by_nothing(world: World) -> None:
    ps: Any = world.ps
    ps.create_topic("orders", visibility=0)
    ps.publish("orders", b"x")
    (held,) = ps.receive("orders", "g", visibility="30s")
    assert ps.receive("orders", "g") == []
    held.extend(0)
    (again,) = ps.receive("orders", "g", visibility="30s")
    assert again.delivery_count == 2
