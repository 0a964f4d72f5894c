"""A name that nothing has is told so: it may be a typo, and an empty answer would hide it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.errors import NotFound, TopicNotFound
from tests.integration.broker.world import World


@pytest.mark.parametrize(
    "look",
    [
        lambda ps: list(ps.dead_letters("order").list()),
        lambda ps: ps.dead_letters("order").count(),
        lambda ps: ps.dead_letters("order").groups(),
        lambda ps: ps.dead_letters("order").redrive(),
        lambda ps: ps.dead_letters("order").purge(),
        lambda ps: ps.trace("order"),
        lambda ps: ps.trace("order", key="k"),
        lambda ps: ps.trace("order", partition=0, offset=0),
    ],
)
def test_a_topic_that_is_not_there(look: Callable[[Any], object], ps: Any) -> None:
    ps.create_topic("orders")
    with pytest.raises(TopicNotFound, match="orders"):
        look(ps)


def test_a_topic_without_letters_or_traces_has_none(ps: Any) -> None:
    ps.create_topic("orders")
    assert list(ps.dead_letters("orders").list()) == []
    assert ps.dead_letters("orders").redrive() == ps.dead_letters("orders").purge() == 0
    assert ps.trace("orders").traces == []


def test_letters_and_traces_outlive_their_topic(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders")
    ps.publish("orders", b"x")
    ps.receive("orders", "g")[0].reject("broken")
    ps.delete_topic("orders")
    (letter,) = ps.dead_letters("orders").list()
    assert letter.value == b"x"
    assert ps.trace("orders").traces


def test_a_namespace_that_is_not_there(world: World) -> None:
    ps = world.ps
    with pytest.raises(NotFound, match="there is no namespace 'shop'"):
        ps.describe_namespace("shop")
    assert ps.describe_namespace("default").usage.topics == 0
    ps.create_namespace("shop")
    assert ps.describe_namespace("shop").namespace == "shop"
    world.client("used").create_topic("orders")
    assert ps.describe_namespace("used").usage.topics == 1
