"""Messages as they come, through every door."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import InvalidInput, TopicNotFound


def test_a_listener_gets_what_is_there_and_what_comes(ps: Any) -> None:
    ps.create_topic("orders")
    ps.publish_batch("orders", [str(n) for n in range(25)])
    with ps.listen("orders", group="g", prefetch=10) as listening:
        listener = iter(listening)
        for number in range(25):
            message = next(listener)
            assert message.text() == str(number)
            message.ack()
        ps.publish("orders", "later")
        late = next(listener)
        assert late.text() == "later"
        late.nack(delay=0)
        again = next(listener)
        assert (again.text(), again.delivery_count) == ("later", 2)
        again.reject("no")
    assert ps.stats("orders").groups[0].depth == 0
    assert ps.dead_letters("orders").count() == 1


def test_a_listener_ends_when_nothing_comes_for_a_while(ps: Any) -> None:
    ps.create_topic("orders")
    ps.publish("orders", "1")
    with ps.listen("orders", group="g", idle="3s") as listener:
        assert [message.text() for message in listener] == ["1"]


def test_at_most_so_many_messages_are_ahead(ps: Any) -> None:
    ps.create_topic("orders")
    ps.publish_batch("orders", ["x"] * 50)
    with ps.listen("orders", group="g", prefetch=8) as listener:
        next(iter(listener)).ack()
        assert ps.stats("orders").groups[0].in_flight <= 8 + 8


def test_what_cannot_be_listened_to_is_told(ps: Any) -> None:
    with ps.listen("nowhere", group="g", idle="10s") as listener, pytest.raises(TopicNotFound):
        next(iter(listener))
    ps.create_topic("orders")
    for prefetch in (0, 1001, True):
        with pytest.raises(InvalidInput, match="prefetch"):
            ps.listen("orders", group="g", prefetch=prefetch)
