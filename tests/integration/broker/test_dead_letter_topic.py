"""Dead letters in a topic of one's choice, which several topics may share."""

from __future__ import annotations

import pytest

from penstock.errors import InvalidInput
from tests.integration.broker.world import World, values


def fail(world: World, topic: str) -> None:
    for message in world.ps.receive(topic, "g", 100):
        message.reject("broken")


def test_letters_go_where_the_setting_says(world: World) -> None:
    ps = world.ps
    ps.create_topic("failed", max_retries=None)
    ps.create_topic("orders", dead_letter_topic="failed", partitions=2)
    ps.publish("orders", b"x", key="k", partition=1)
    fail(world, "orders")
    assert "orders.dlq" not in ps.topics()
    (letter,) = ps.dead_letters("orders").list()
    assert (letter.value, letter.origin.topic, letter.origin.partition) == (b"x", "orders", 1)
    (found,) = ps.receive("failed", "triage")
    assert found.value == b"x"


def test_topics_that_share_one_see_and_redrive_their_own(world: World) -> None:
    ps = world.ps
    for name in ("orders", "bills"):
        ps.create_topic(name, dead_letter_topic="failed")
        ps.publish(name, name.encode())
        fail(world, name)
    assert values(ps.receive("failed", "look", 10)) == [b"orders", b"bills"]
    assert [letter.value for letter in ps.dead_letters("bills").list()] == [b"bills"]
    assert ps.dead_letters("orders").redrive() == 1
    assert [*ps.dead_letters("orders").list()] == []
    assert values(ps.receive("orders", "g")) == [b"orders"]
    assert ps.receive("bills", "g") == []
    assert ps.dead_letters("bills").purge() == 1


@pytest.mark.parametrize("end", ["restart", "kill"])
def test_the_topic_can_be_changed_and_holds_after_a_restart(end: str, world: World) -> None:
    ps = world.ps
    ps.create_topic("orders")
    ps.publish("orders", b"first")
    fail(world, "orders")
    ps.alter_topic("orders", dead_letter_topic="failed")
    ps = getattr(world, end)()
    ps.publish("orders", b"second")
    fail(world, "orders")
    assert values(ps.receive("orders.dlq", "look")) == [b"first"]
    assert values(ps.receive("failed", "look")) == [b"second"]
    ps = getattr(world, end)()
    assert ps.receive("orders", "g") == []
    ps.alter_topic("orders", dead_letter_topic=None)
    ps.publish("orders", b"third")
    fail(world, "orders")
    assert [letter.value for letter in ps.dead_letters("orders").list()] == [b"first", b"third"]


def test_letters_of_letters_follow_the_chain(world: World) -> None:
    ps = world.ps
    ps.create_topic("last")
    ps.create_topic("failed", dead_letter_topic="last")
    ps.create_topic("orders", dead_letter_topic="failed")
    ps.publish("orders", b"x")
    fail(world, "orders")
    world.restart()
    fail(world, "failed")
    assert values(world.ps.receive("last", "look")) == [b"x"]


@pytest.mark.parametrize(
    ("name", "target"), [("a", "a"), ("a", "b"), ("c.dlq", "c"), ("d", "d.dlq")]
)
def test_letters_never_come_back_to_their_topic(name: str, target: str, world: World) -> None:
    ps = world.ps
    ps.create_topic("b", dead_letter_topic="a")
    ps.create_topic("c")
    ps.create_topic("d.dlq", dead_letter_topic="d")
    with pytest.raises(InvalidInput, match="would come back"):
        ps.create_topic(name, dead_letter_topic=target)
    ps.create_topic("e")
    with pytest.raises(InvalidInput, match="would come back"):
        ps.alter_topic("e", dead_letter_topic="e")


def test_consumed_letters_of_a_shared_topic_leave_the_disk(sync: World) -> None:
    ps = sync.ps
    ps.create_topic("failed", retention_mode="consumed", segment_bytes=4096)
    ps.create_topic("orders", dead_letter_topic="failed")
    ps.publish_batch("orders", [b"x" * 1000] * 20)
    fail(sync, "orders")
    ps.dead_letters("orders").list()
    for message in ps.receive("failed", "triage", 100):
        message.ack()
    for _ in range(3):
        sync.pass_(61)
    assert sync.broker.topic(sync.broker.topics()[0]).partitions[0].log.start > 0


def test_attributes_are_kept_with_the_topic(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", attributes={"team": "größer"})
    ps.alter_topic("orders", attributes={"team": "b", "tier": "1"})
    world.restart()
    assert world.ps.describe_topic("orders").attributes == {"team": "b", "tier": "1"}
    with pytest.raises(InvalidInput, match="65536 at most"):
        world.ps.alter_topic("orders", attributes={"x": "y" * 70_000})
