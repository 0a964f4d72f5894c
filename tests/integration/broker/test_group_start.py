"""Where a queue group begins."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import InvalidInput
from tests.integration.broker.world import World


def test_a_new_group_may_begin_after_the_newest_message(ps: Any) -> None:
    ps.create_topic("orders", partitions=3)
    for partition in range(3):
        ps.publish("orders", b"old", partition=partition)
    assert ps.receive("orders", "late", start="latest") == []
    assert ps.groups("orders") == ["late"]
    for partition in range(3):
        ps.publish("orders", b"new", partition=partition)
    assert [m.value for m in ps.receive("orders", "late", 10, start="latest")] == [b"new"] * 3
    assert len(ps.receive_batch("orders", "other", 10, start="earliest")) == 6


def test_a_group_that_is_there_goes_on_where_it_is(ps: Any) -> None:
    ps.create_topic("orders", partitions=2)
    ps.publish("orders", b"a", partition=0)
    (message,) = ps.receive("orders", "g", 1)
    message.ack()
    ps.publish("orders", b"b", partition=1)
    assert [m.value for m in ps.receive_batch("orders", "g", 10, start="latest")] == [b"b"]


def test_it_is_where_it_began_after_a_restart(sync: World) -> None:
    sync.ps.create_topic("orders", partitions=2)
    sync.ps.publish_batch("orders", [b"old"] * 4, keys=["a", "b", "c", "d"])
    assert sync.ps.receive("orders", "g", start="latest") == []
    sync.restart()
    sync.ps.publish("orders", b"new")
    assert [m.value for m in sync.ps.receive("orders", "g", 10)] == [b"new"]


def test_what_is_no_start_is_told(ps: Any) -> None:
    ps.create_topic("orders")
    for wrong in ("newest", 5, None):
        with pytest.raises(InvalidInput, match="start"):
            ps.receive("orders", "g", start=wrong)
