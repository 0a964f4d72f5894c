"""Who gets a dead letter again, and who does not: letters that are redriven or purged are gone for
every reader of the dead-letter topic, and come back to the group in which they failed."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import AlreadySettled, InvalidInput, LeaseLost
from tests.integration.broker.world import World, drain, take, values


@pytest.fixture
def dead(world: World) -> World:
    """Three messages failed in "g"; "other" did them."""
    ps = world.ps
    ps.create_topic("orders", max_retries=0)
    ps.publish_batch("orders", [b"0", b"1", b"2"])
    ps.receive_batch("orders", "other", 10).ack()
    ps.receive_batch("orders", "g", 10).nack(error="no")
    return world


def read_stream(ps: Any, topic: str, group: str) -> list[bytes]:
    with ps.stream(topic, group, start="earliest") as stream:
        return drain(stream)


# The letters themselves.


@pytest.mark.parametrize("verb", ["redrive", "purge"])
def test_letters_that_are_gone_are_gone_for_every_reader(verb: str, dead: World) -> None:
    ps = dead.ps
    letters = ps.dead_letters("orders")
    (held,) = ps.receive("orders.dlq", "holds", 1)
    ps.receive("orders.dlq", "waits", 1)[0].nack(delay="1h")
    getattr(letters, verb)(where=lambda letter: letter.value == b"0")
    assert take(ps, "orders.dlq", "new") == [b"1", b"2"]
    assert take(ps, "orders.dlq", "holds") == [b"1", b"2"]
    with pytest.raises((AlreadySettled, LeaseLost)):
        held.ack()
    dead.pass_(7200)
    assert take(ps, "orders.dlq", "waits") == [b"1", b"2"]
    assert values(ps.peek("orders.dlq", limit=10)) == [b"1", b"2"]
    assert read_stream(ps, "orders.dlq", "s") == [b"1", b"2"]
    stats = ps.stats("orders.dlq")
    assert (stats.messages, stats.depth, stats.in_flight) == (2, 0, 0)


@pytest.mark.parametrize("verb", ["redrive", "purge"])
def test_so_many_at_the_most_the_oldest_first(verb: str, dead: World) -> None:
    letters = dead.ps.dead_letters("orders")
    apply = getattr(letters, verb)
    assert apply(limit=0) == 0
    assert apply(limit=1) == 1
    assert values(letters.list()) == [b"1", b"2"]
    assert apply(where=lambda letter: letter.value != b"x", limit=1) == 1
    assert values(letters.list()) == [b"2"]
    assert apply(list(letters.list()), limit=200_000) == 1
    assert (apply(limit=200_000), letters.count()) == (0, 0)
    again = [b"0", b"1", b"2"] if verb == "redrive" else []
    assert take(dead.ps, "orders", "g") == again


def test_letters_that_were_picked_are_limited_too(dead: World) -> None:
    letters = dead.ps.dead_letters("orders")
    picked = list(letters.list())
    assert letters.purge(picked[0]) == 1
    assert letters.purge(picked, limit=1) == 1  # the first is passed over
    assert values(letters.list()) == [b"2"]


def test_the_depth_of_letters_without_a_group_is_what_is_left(dead: World) -> None:
    letters = dead.ps.dead_letters("orders")
    letters.purge(next(iter(letters.list())))
    stats = dead.ps.stats("orders.dlq")
    assert (stats.messages, stats.depth) == (2, 2)


@pytest.mark.parametrize("end", ["restart", "kill"])
def test_letters_that_are_gone_stay_gone(end: str, dead: World) -> None:
    ps = dead.ps
    ps.receive("orders.dlq", "holds", 2, visibility="10s")
    ps.dead_letters("orders").purge(where=lambda letter: letter.value != b"2")
    ps = getattr(dead, end)()
    dead.pass_(60)
    for group in ("holds", "new"):
        assert take(ps, "orders.dlq", group) == [b"2"]
    ps.seek("orders.dlq", "holds", "earliest")
    assert take(ps, "orders.dlq", "holds") == [b"2"]
    assert values(ps.peek("orders.dlq", limit=10)) == [b"2"]


# Who gets the message again.


def test_only_the_group_in_which_it_failed_gets_a_message_again(dead: World) -> None:
    ps = dead.ps
    assert ps.dead_letters("orders").redrive() == 3
    assert ps.stats("orders").groups[1].depth == 0  # of "other"
    assert take(ps, group="other") == []
    assert take(ps, group="g") == [b"0", b"1", b"2"]
    # Others who come later see what was published, once.
    assert take(ps, group="new") == [b"0", b"1", b"2"]
    assert read_stream(ps, "orders", "s") == [b"0", b"1", b"2"]
    ps.seek("orders", "other", "earliest")
    assert take(ps, group="other") == [b"0", b"1", b"2"]


@pytest.mark.parametrize("end", ["restart", "kill"])
def test_that_holds_after_a_restart(end: str, dead: World) -> None:
    dead.ps.dead_letters("orders").redrive()
    ps = getattr(dead, end)()
    assert take(ps, group="other") == []
    assert take(ps, group="new") == [b"0", b"1", b"2"]
    ps = getattr(dead, end)()
    assert take(ps, group="later") == [b"0", b"1", b"2"]
    assert read_stream(ps, "orders", "s") == [b"0", b"1", b"2"]
    assert take(ps, group="g") == [b"0", b"1", b"2"]


def test_a_message_that_fails_again_can_be_redriven_again(dead: World) -> None:
    ps = dead.ps
    letters = ps.dead_letters("orders")
    for _ in range(3):
        assert letters.redrive() == 3
        again = ps.receive("orders", "g", 10)
        assert [dict(message.headers) for message in again] == [{}, {}, {}]
        for message in again:
            message.nack(error="still")
    assert {letter.origin.group for letter in letters.list()} == {"g"}
    assert take(ps, group="other") == []


def test_letters_of_several_groups_go_back_to_their_own(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", max_retries=0, partitions=3)
    for n in range(20):
        ps.publish("orders", b"%d" % n, key=f"k{n}")
    for group, failing in (("a", {b"1", b"7"}), ("b", {b"7", b"9"})):
        for message in ps.receive("orders", group, 100):
            message.nack() if message.value in failing else message.ack()
    assert ps.dead_letters("orders").redrive() == 4
    assert sorted(take(ps, group="a")) == [b"1", b"7"]
    assert sorted(take(ps, group="b")) == [b"7", b"9"]
    assert ps.stats("orders").depth == 0


def test_letters_that_name_no_group_are_for_every_reader(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders")
    ps.create_topic("orders.dlq")
    ps.publish("orders.dlq", b"x")
    assert ps.dead_letters("orders").redrive() == 1
    for group in ("g", "other"):
        assert take(ps, group=group) == [b"x"]


def test_consumed_messages_go_although_a_group_passed_some_over(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", max_retries=0, retention_mode="consumed")
    ps.publish("orders", b"x")
    ps.receive("orders", "other")[0].ack()
    ps.receive("orders", "g")[0].nack()
    ps.dead_letters("orders").redrive()
    assert take(ps) == [b"x"]
    world.pass_(120)
    assert ps.stats("orders").messages == 0


def test_whom_letters_can_be_sent_back_to(dead: World) -> None:
    with pytest.raises(InvalidInput, match="group, topic"):
        dead.ps.dead_letters("orders").redrive(to="everybody")
    assert dead.ps.dead_letters("orders").count() == 3


# Whether there are dead letters, and where.


def test_without_dead_letters_what_is_given_up_is_dropped(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", max_retries=0, dead_letters=False, dead_letter_expired=True)
    ps.publish_batch("orders", [b"0", b"1"])
    first, second = ps.receive("orders", "g")
    first.nack(error="no")
    second.reject("never")
    world.pass_(60)
    assert ps.receive("orders", "g") == []
    assert ps.topics() == ["orders"]
    ps.alter_topic("orders", dead_letters=True)
    ps.publish("orders", b"2")
    ps.receive("orders", "g")[0].reject("now")
    assert values(ps.dead_letters("orders").list()) == [b"2"]


@pytest.mark.parametrize("end", ["restart", "kill"])
def test_dead_letters_have_the_suffix_of_their_topic(end: str, world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", max_retries=0, dead_letter_suffix="-failed")
    ps.publish("orders", b"x")
    ps.receive("orders", "g")[0].nack(error="no")
    assert ps.topics() == ["orders", "orders-failed"]
    ps = getattr(world, end)()
    assert ps.describe_topic("orders-failed").max_retries is None
    assert values(ps.dead_letters("orders").list()) == [b"x"]
    assert ps.stats("orders").dead == 1
    ps.receive("orders-failed", "triage")[0].reject("not here either")
    assert ps.topics() == ["orders", "orders-failed"]  # no dead letters of dead letters
    assert ps.dead_letters("orders").redrive() == 1
    assert take(ps) == [b"x"]


def test_the_suffix_of_dead_letters_makes_a_name_and_stays(ps: Any) -> None:
    ps.create_topic("orders", dead_letter_suffix=".dead")
    with pytest.raises(InvalidInput, match=r"orders\.dead"):
        ps.alter_topic("orders", dead_letter_suffix=".dlq")
    for suffix in ("", "dead", ".DEAD", "/x", "." + "x" * 40):
        with pytest.raises(InvalidInput, match="dead_letter_suffix"):
            ps.create_topic("sales", dead_letter_suffix=suffix)
    with pytest.raises(InvalidInput, match="topic name"):
        ps.create_topic("x" * 245, dead_letter_suffix=".dead")
