"""Retries, and dead letters with the whole story; redrive and purge."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import AlreadySettled, InvalidInput
from penstock.record.schema import Priority
from tests.integration.broker.world import Background, World, values


def fail(world: World, times: int = 4, **how: Any) -> None:
    """Receive and nack until the retries are used up."""
    for n in range(times):
        for message in world.ps.receive("orders", "g", 100, consumer=f"worker-{n}"):
            message.nack(**{"error": f"error {n}"} | how)
        world.pass_(60)


def test_after_three_retries_a_message_is_a_dead_letter_with_its_whole_story(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", partitions=3)
    published_us = world.clock.wall_ns() // 1000
    published = ps.publish(
        "orders", b"payload", key="k", headers={"v": b"1"}, priority="high", partition=2
    )
    world.pass_(5)
    first_us = world.clock.wall_ns() // 1000
    fail(world)
    assert ps.receive("orders", "g") == []

    (letter,) = ps.dead_letters("orders").list()
    assert (letter.value, letter.key, letter.headers) == (b"payload", b"k", {"v": b"1"})
    assert letter.message.priority == Priority.HIGH
    assert (letter.reason, letter.attempts, letter.error) == ("max_retries", 4, "error 3")
    origin = letter.origin
    assert (origin.topic, origin.partition, origin.offset) == ("orders", 2, 0)
    assert (origin.id, origin.group, origin.consumer) == (published.id, "g", "worker-3")
    assert origin.published_at_us == published_us
    assert origin.first_delivery_us == first_us
    assert origin.last_delivery_us == first_us + 180_000_000
    assert ps.stats("orders").dead == 1


def test_a_lease_that_runs_out_counts_as_an_attempt(world: World) -> None:
    world.ps.create_topic("orders", visibility="10s", max_retries=1)
    world.ps.publish("orders", b"x")
    for _ in range(2):
        (held,) = world.ps.receive("orders", "g", consumer="slow")
        world.pass_(10)
    (letter,) = world.ps.dead_letters("orders").list()
    assert (letter.reason, letter.attempts) == ("max_retries", 2)
    assert (letter.error, letter.origin.consumer) == ("the lease ran out", "slow")
    with pytest.raises(AlreadySettled):
        held.ack()


@pytest.mark.parametrize(("max_retries", "deliveries"), [(0, 1), (1, 2), (5, 6)])
def test_the_number_of_retries_is_the_topics_own(
    max_retries: int, deliveries: int, world: World
) -> None:
    world.ps.create_topic("orders", max_retries=max_retries)
    world.ps.publish("orders", b"x")
    fail(world, deliveries - 1)
    assert world.ps.dead_letters("orders").count() == 0
    fail(world, 1)
    (letter,) = world.ps.dead_letters("orders").list()
    assert letter.attempts == deliveries


def test_without_a_limit_a_message_is_tried_for_ever(world: World) -> None:
    world.ps.create_topic("orders", max_retries=None)
    world.ps.publish("orders", b"x")
    fail(world, 30)
    assert world.ps.dead_letters("orders").count() == 0
    assert world.ps.receive("orders", "g")[0].delivery_count == 31


def test_attempts_and_story_survive_restarts(world: World) -> None:
    world.ps.create_topic("orders")
    world.ps.publish("orders", b"x")
    first_us = world.clock.wall_ns() // 1000
    for n in range(4):
        world.ps.receive("orders", "g", consumer=f"life-{n}")[0].nack(error=f"crash {n}")
        world.restart() if n % 2 else world.kill()
        world.pass_(60)
    (letter,) = world.ps.dead_letters("orders").list()
    assert (letter.attempts, letter.error) == (4, "crash 3")
    assert (letter.origin.first_delivery_us, letter.origin.consumer) == (first_us, "life-3")


def test_each_message_of_a_batch_has_its_own_story(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", max_retries=1)
    ps.publish_batch("orders", [b"0", b"1", b"2"])
    first, *others = ps.receive("orders", "g")
    first.nack(delay=0)
    world.pass_(1)
    batch = ps.receive_batch("orders", "g", 10, consumer="last")
    batch.nack(error="again")
    for other in others:
        other.reject("no good")
    letters = {letter.value: letter for letter in ps.dead_letters("orders").list()}
    assert letters[b"0"].attempts == 2
    assert letters[b"0"].reason == "max_retries"
    assert (letters[b"1"].attempts, letters[b"1"].reason) == (1, "rejected")
    assert letters[b"0"].origin.first_delivery_us < letters[b"0"].origin.last_delivery_us


def test_each_group_gives_up_for_itself(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders")
    ps.publish("orders", b"x")
    ps.receive("orders", "strict")[0].reject("no")
    ps.receive("orders", "lax")[0].ack()
    (letter,) = ps.dead_letters("orders").list()
    assert letter.origin.group == "strict"


def test_the_dead_letter_topic_is_made_on_demand_and_kept_for_14_days(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", max_retries=0)
    ps.publish("orders", b"x")
    assert ps.topics() == ["orders"]
    assert list(ps.dead_letters("orders").list()) == []
    fail(world, 1)
    assert ps.topics() == ["orders", "orders.dlq"]
    settings = ps.describe_topic("orders.dlq")
    assert (settings.retention_ms, settings.max_retries) == (14 * 86_400_000, None)
    world.pass_(13 * 86_400)
    assert ps.dead_letters("orders").count() == 1
    world.pass_(86_400 + 120)
    assert ps.dead_letters("orders").count() == 0


def test_dead_letters_can_be_consumed_like_any_topic(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", max_retries=0)
    ps.publish("orders", b"x")
    fail(world, 1)
    (message,) = ps.receive("orders.dlq", "triage")
    assert message.value == b"x"
    message.reject("give up here too")
    world.pass_(60)
    assert ps.receive("orders.dlq", "triage") == []
    assert ps.dead_letters("orders").count() == 1  # the list is no group's business
    assert ps.topics() == ["orders", "orders.dlq"]  # no dead letters of dead letters


def test_a_topic_with_the_name_of_dead_letters_has_their_settings(ps: Any) -> None:
    assert ps.create_topic("orders.dlq").max_retries is None
    assert ps.create_topic("sales.dlq", retention="30d").retention_ms == 30 * 86_400_000


def test_a_foreign_message_among_the_dead_letters_is_shown_for_what_it_is(ps: Any) -> None:
    ps.create_topic("orders")
    ps.create_topic("orders.dlq")
    ps.publish("orders.dlq", b"x")
    ps.publish("orders.dlq", b"y", headers={"penstock-dead-letter": b"{not json"})
    letters = list(ps.dead_letters("orders").list())
    assert [letter.reason for letter in letters] == ["unknown", "unknown"]
    assert ps.dead_letters("orders").redrive() == 2
    assert values(ps.receive("orders", "g")) == [b"x", b"y"]


def test_a_message_of_the_greatest_length_can_be_given_up(ps: Any) -> None:
    ps.create_topic("orders", max_retries=0)
    ps.publish("orders", b"x" * (10 << 20))
    ps.receive("orders", "g")[0].nack(error="too long for us")
    (letter,) = ps.dead_letters("orders").list()
    assert len(letter.value) == 10 << 20


def test_thousands_are_given_up_at_once(ps: Any) -> None:
    ps.create_topic("orders", max_retries=0)
    ps.publish_batch("orders", [b"%d" % n for n in range(3000)])
    ps.receive_batch("orders", "g", 3000).nack(error="x" * 4096)
    letters = list(ps.dead_letters("orders").list())
    assert values(letters) == [b"%d" % n for n in range(3000)]
    assert ps.dead_letters("orders").redrive() == 3000
    assert len(ps.receive_batch("orders", "g", 10_000)) == 3000


# Redrive and purge.


@pytest.fixture
def dead(world: World) -> World:
    world.ps.create_topic("orders", max_retries=0, partitions=2)
    for n in range(6):
        world.ps.publish("orders", b"%d" % n, key=f"k{n}", priority=n % 5, headers={"n": f"{n}"})
    for message in world.ps.receive("orders", "g", 10):
        message.nack(error="even" if int(message.value) % 2 == 0 else "odd")
    assert world.ps.dead_letters("orders").count() == 6
    return world


def test_one_letter_is_redriven(dead: World) -> None:
    letters = dead.ps.dead_letters("orders")
    chosen = next(letter for letter in letters.list() if letter.value == b"3")
    assert letters.redrive(chosen) == 1
    assert letters.redrive(chosen) == 0  # it is gone
    (message,) = dead.ps.receive("orders", "g")
    assert (message.value, message.key, message.headers) == (b"3", b"k3", {"n": b"3"})
    assert (message.priority, message.delivery_count) == (Priority.LOW, 1)
    assert b"3" not in values(letters.list())
    assert dead.ps.stats("orders").dead == 5


def test_some_letters_are_redriven_by_a_filter(dead: World) -> None:
    letters = dead.ps.dead_letters("orders")
    assert letters.redrive(where=lambda letter: letter.error == "odd") == 3
    assert sorted(values(dead.ps.receive("orders", "g", 10))) == [b"1", b"3", b"5"]
    assert sorted(values(letters.list())) == [b"0", b"2", b"4"]
    assert sorted(values(letters.list(where=lambda letter: letter.key > b"k1"))) == [b"2", b"4"]
    assert len(list(letters.list(limit=2))) == 2


def test_some_letters_are_redriven_by_hand(dead: World) -> None:
    letters = dead.ps.dead_letters("orders")
    chosen = [letter for letter in letters.list() if letter.value in (b"0", b"5")]
    assert letters.redrive(chosen) == 2
    assert sorted(values(dead.ps.receive("orders", "g", 10))) == [b"0", b"5"]


@pytest.mark.parametrize("verb", ["redrive", "purge"])
def test_a_letter_of_another_topic_is_refused_and_moves_none(verb: str, dead: World) -> None:
    ps = dead.ps
    ps.create_topic("other", max_retries=0)
    ps.publish_batch("other", [b"a", b"b"])
    ps.receive_batch("other", "g").reject("no")
    mine, others = ps.dead_letters("orders"), ps.dead_letters("other")
    foreign = next(iter(others.list()))
    for chosen in (foreign, [next(iter(mine.list())), foreign]):
        with pytest.raises(InvalidInput, match=f"{foreign.id} is no dead letter of orders"):
            getattr(mine, verb)(chosen)
    beyond = next(letter for letter in mine.list() if letter.message.offset == 2)
    with pytest.raises(InvalidInput, match="is no dead letter of other"):
        getattr(others, verb)(beyond)
    assert (mine.count(), others.count()) == (6, 2)
    assert ps.receive("orders", "g") == ps.receive("other", "g") == []


@pytest.mark.parametrize("verb", ["redrive", "purge"])
def test_a_letter_from_before_its_topic_was_deleted_is_not_taken_for_a_new_one(
    verb: str, ps: Any
) -> None:
    ps.create_topic("orders")
    ps.publish_batch("orders", [b"old", b"new"])
    first, second = ps.receive("orders", "g", 2)
    first.reject("no")
    letters = ps.dead_letters("orders")
    (stale,) = letters.list()
    ps.delete_topic("orders.dlq")
    with pytest.raises(InvalidInput, match="before that topic was deleted"):
        getattr(letters, verb)(stale)
    second.reject("no")
    with pytest.raises(InvalidInput, match="before that topic was deleted"):
        getattr(letters, verb)(stale)
    assert values(letters.list()) == [b"new"]
    assert len(ps.receive("orders", "h", 10)) == 2  # nothing was published again


def test_a_letter_that_retention_took_is_passed_over(dead: World) -> None:
    letters = dead.ps.dead_letters("orders")
    kept = list(letters.list())
    dead.ps.purge("orders.dlq")
    assert letters.redrive(kept) == letters.purge(kept[0]) == 0


def test_the_same_letter_twice_is_redriven_once(dead: World) -> None:
    letters = dead.ps.dead_letters("orders")
    chosen = next(letter for letter in letters.list() if letter.value == b"3")
    again = next(letter for letter in letters.list() if letter.value == b"3")
    assert letters.redrive([chosen, chosen, again]) == 1
    assert values(dead.ps.receive("orders", "g", 10)) == [b"3"]


def test_letters_by_hand_and_a_filter_are_those_that_both_pick(dead: World) -> None:
    letters = dead.ps.dead_letters("orders")
    chosen = [letter for letter in letters.list() if letter.value in (b"0", b"1", b"5")]
    assert letters.redrive(chosen, where=lambda letter: False) == 0
    assert letters.purge(chosen[0], where=lambda letter: False) == 0
    assert letters.redrive(chosen, where=lambda letter: letter.error == "odd") == 2
    assert sorted(values(dead.ps.receive("orders", "g", 10))) == [b"1", b"5"]
    assert letters.count() == 4


def test_letters_in_several_frames_are_found_by_hand(ps: Any) -> None:
    ps.create_topic("orders")
    for start in range(0, 40, 4):
        ps.publish_batch("orders", [b"%d" % n for n in range(start, start + 4)])
        ps.receive_batch("orders", "g").reject("no")
    letters = ps.dead_letters("orders")
    chosen = [letter for letter in letters.list() if int(letter.value) % 7 == 0]
    assert letters.purge(chosen[:2]) == 2
    assert letters.redrive(chosen) == 4
    assert values(ps.receive("orders", "g", 10)) == [b"14", b"21", b"28", b"35"]


@pytest.mark.parametrize("where", [None, lambda letter: letter.error == "no"])
def test_letters_that_are_too_much_for_one_frame_are_redriven(where: Any, ps: Any) -> None:
    ps.create_topic("orders", partitions=2)
    for _ in range(12):
        ps.publish("orders", b"x" * (9 << 20), key="k")
    while messages := ps.receive("orders", "g", 20):  # a server's answer has not room for all
        for message in messages:
            message.reject("no")
    letters = ps.dead_letters("orders")
    assert letters.redrive(where=where) == 12
    assert letters.count() == 0
    assert ps.stats("orders").messages == 24


def test_all_letters_are_redriven_and_may_die_again(dead: World) -> None:
    letters = dead.ps.dead_letters("orders")
    assert letters.redrive() == 6
    assert letters.count() == 0
    again = dead.ps.receive("orders", "g", 10)
    assert len(again) == 6
    for message in again:
        message.nack(error="still broken")
    assert {letter.error for letter in letters.list()} == {"still broken"}
    assert {letter.attempts for letter in letters.list()} == {1}


def test_messages_redriven_to_their_topic_reach_every_group(dead: World) -> None:
    dead.ps.receive_batch("orders", "other", 100).ack()
    dead.ps.dead_letters("orders").redrive(to="topic")
    assert len(dead.ps.receive("orders", "other", 100)) == 6


def test_letters_are_purged_one_some_and_all(dead: World) -> None:
    letters = dead.ps.dead_letters("orders")
    assert letters.purge(next(iter(letters.list()))) == 1
    assert letters.purge(where=lambda letter: letter.key == b"k4") == 1
    assert letters.count() == 4
    assert letters.purge() == 4
    assert list(letters.list()) == []
    assert dead.ps.receive("orders", "g") == []


@pytest.mark.parametrize("end", ["restart", "kill"])
def test_what_was_redriven_or_purged_stays_so(end: str, dead: World) -> None:
    letters = dead.ps.dead_letters("orders")
    letters.redrive(where=lambda letter: letter.value == b"1")
    letters.purge(where=lambda letter: letter.value == b"2")
    ps = getattr(dead, end)()
    assert sorted(values(ps.dead_letters("orders").list())) == [b"0", b"3", b"4", b"5"]
    assert values(ps.receive("orders", "g")) == [b"1"]


def test_a_wake_up_by_redrive(dead: World) -> None:
    poll = Background(lambda: dead.ps.receive("orders", "g", wait="20s"))
    dead.polls("orders")
    dead.ps.dead_letters("orders").redrive(where=lambda letter: letter.value == b"1")
    assert values(poll.result()) == [b"1"]
