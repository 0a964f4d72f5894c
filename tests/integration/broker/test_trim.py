"""The start of a partition is moved, and positions of groups with their notes."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import InvalidInput, OffsetOutOfRange
from tests.integration.broker.world import World, take


@pytest.fixture
def orders(world: World) -> Any:
    world.ps.create_topic("orders", partitions=2)
    for n in range(10):
        world.ps.publish("orders", b"%d" % n, partition=0)
    world.ps.publish("orders", b"other", partition=1)
    return world.ps


def test_what_is_before_is_gone_for_every_reader(orders: Any, world: World) -> None:
    assert [m.value for m in orders.receive("orders", group="g", max_messages=2, partition=0)] == [
        b"0",
        b"1",
    ]
    bounds = orders.trim("orders", 0, 7)
    assert (bounds.partition, bounds.start, bounds.end) == (0, 7, 10)
    assert [m.offset for m in orders.peek("orders", partition=0)] == [7, 8, 9]
    assert sorted(take(orders)) == [b"7", b"8", b"9", b"other"]
    assert orders.trim("orders", 0, 3).start == 7  # it never comes back
    assert orders.trim("orders", 1, "latest").start == 1
    ps = world.restart()
    assert [m.offset for m in ps.peek("orders", partition=0)] == [7, 8, 9]


def test_more_than_there_is_cannot_be_dropped(orders: Any) -> None:
    with pytest.raises(OffsetOutOfRange):
        orders.trim("orders", 0, 11)
    with pytest.raises(InvalidInput):
        orders.trim("orders", 0, -1)
    assert len(orders.peek("orders", partition=0)) == 10
