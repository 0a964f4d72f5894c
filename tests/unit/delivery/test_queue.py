"""Stories of a queue: what a consumer sees of receive, ack, nack, reject, extend and time."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from penstock.delivery.backoff import Backoff
from penstock.delivery.ledger import Expired, Leased, Nacked, Rejected
from penstock.delivery.offsets import Offsets
from penstock.delivery.queue import Policy
from penstock.errors import AlreadySettled, InvalidInput, InvalidReceipt, LeaseLost
from tests.simulation.memory_source import MemorySource
from tests.unit.delivery.tiny_broker import MS, SECOND, TinyBroker, must, offsets_of


@pytest.fixture
def broker() -> TinyBroker:
    return TinyBroker()


# Handing out.


def test_an_empty_queue_gives_nothing_and_writes_nothing(broker: TinyBroker) -> None:
    assert broker.receive(10) is None
    assert broker.ledger == []
    assert broker.queue.next_deadline() is None


def test_messages_of_one_priority_come_in_order_as_one_run(broker: TinyBroker) -> None:
    broker.source.publish(1000)

    leased = must(broker.receive(600))

    assert [part.offsets for part in leased.parts] == [Offsets.run(0, 600)]
    assert broker.got(600) == list(range(600, 1000))


def test_a_message_in_flight_is_handed_to_nobody_else(broker: TinyBroker) -> None:
    broker.source.publish(1)

    assert broker.got() == [0]
    assert broker.got() == []


def test_an_acked_message_never_comes_back(broker: TinyBroker) -> None:
    broker.source.publish(1)
    broker.ack(must(broker.receive()))

    broker.wait(3600)

    assert broker.got() == []
    assert broker.queue.next_deadline() is None


def test_a_nonce_in_use_is_refused(broker: TinyBroker) -> None:
    broker.source.publish(2)
    leased = must(broker.receive())

    with pytest.raises(InvalidInput):
        broker.queue.receive(
            broker.now_ns,
            broker.wall_us,
            max_messages=1,
            visibility_ns=SECOND,
            consumer="bob",
            nonce=leased.nonce,
            source=broker.source,
            end=2,
        )


def test_the_limit_on_what_is_in_flight_holds_until_something_is_settled() -> None:
    broker = TinyBroker(Policy(in_flight_max=3))
    broker.source.publish(10)
    leased = must(broker.receive(10))

    assert offsets_of(leased) == [0, 1, 2]
    assert broker.got(10) == []
    broker.ack(leased, 1)
    assert broker.got(10) == [3]


def test_messages_beyond_the_given_end_are_not_handed_out(broker: TinyBroker) -> None:
    broker.source.publish(5)

    decision = broker.queue.receive(
        broker.now_ns,
        broker.wall_us,
        max_messages=10,
        visibility_ns=SECOND,
        consumer="anna",
        nonce=99,
        source=broker.source,
        end=3,
    )

    assert offsets_of(must(decision.leased)) == [0, 1, 2]


@pytest.mark.parametrize("priority", [0, 2], ids=["two-lanes", "one-lane"])
def test_a_decision_that_is_not_applied_changes_nothing(broker: TinyBroker, priority: int) -> None:
    broker.source.publish(3, priority=priority)
    broker.source.publish(3)
    refused = [
        broker.queue.receive(
            broker.now_ns,
            broker.wall_us,
            max_messages=2,
            visibility_ns=SECOND,
            consumer="anna",
            nonce=nonce,
            source=broker.source,
            end=6,
        )
        for nonce in (100, 101)
    ]

    assert refused[0].leased is not None
    assert refused[1].leased is not None
    assert offsets_of(refused[0].leased) == offsets_of(refused[1].leased)
    assert broker.queue.stats(6).in_flight == 0
    assert sorted(broker.got(10)) == [0, 1, 2, 3, 4, 5]


# Settling.


def test_acks_advance_the_committed_offset(broker: TinyBroker) -> None:
    """GoQueue's acks do not."""
    broker.source.publish(5)
    leased = must(broker.receive(5))

    broker.ack(leased, 1, 2)
    assert broker.queue.committed == 0
    broker.ack(leased, 0)
    assert broker.queue.committed == 3
    broker.ack(leased, 4)
    assert broker.queue.committed == 3
    broker.ack(leased, 3)
    assert broker.queue.committed == 5


def test_the_committed_offset_passes_offsets_that_hold_no_message(broker: TinyBroker) -> None:
    broker.source.publish(2)
    broker.source.gap(10)
    broker.source.publish(2)
    broker.source.gap(3)

    broker.ack(must(broker.receive(100)))

    assert broker.queue.committed == 17
    assert broker.queue.stats(17).depth == 0


def test_gaps_that_are_found_later_are_passed_by_the_next_receive(broker: TinyBroker) -> None:
    broker.source.publish(1)
    broker.ack(must(broker.receive()))
    broker.source.gap(4)

    assert broker.receive() is None
    assert broker.queue.committed == 5
    entries = len(broker.ledger)
    assert broker.receive() is None
    assert len(broker.ledger) == entries, "an idle queue writes nothing"


def test_acking_twice_says_that_it_is_already_settled(broker: TinyBroker) -> None:
    broker.source.publish(2)
    leased = must(broker.receive(2))
    broker.ack(leased, 0)

    assert broker.ack(leased, 0).refused == {0: AlreadySettled}
    assert broker.ack(leased, 0, 1).refused == {0: AlreadySettled}
    assert broker.queue.committed == 2


def test_a_lease_that_is_gone_cannot_be_acked_as_a_whole(broker: TinyBroker) -> None:
    broker.source.publish(1)
    leased = must(broker.receive())
    broker.ack(leased)

    with pytest.raises(LeaseLost):
        broker.queue.ack(broker.now_ns, leased.nonce)


def test_a_batch_settles_what_it_may_and_reports_the_rest(broker: TinyBroker) -> None:
    broker.source.publish(4)
    leased = must(broker.receive(3))
    broker.ack(leased, 0)
    broker.nack(leased, 1)

    decision = broker.ack(leased, 0, 1, 2, 3, 77)

    assert decision.refused == {
        0: AlreadySettled,
        1: LeaseLost,
        3: InvalidReceipt,
        77: InvalidReceipt,
    }
    assert broker.queue.stats(4).in_flight == 0


def test_a_foreign_nonce_settles_nothing(broker: TinyBroker) -> None:
    broker.source.publish(2)
    first, second = must(broker.receive()), must(broker.receive())

    assert broker.ack(first, 1).refused == {1: LeaseLost}
    assert broker.ack(second, 0).refused == {0: LeaseLost}
    assert broker.queue.stats(2).in_flight == 2


# Failing and trying again.


def test_a_nacked_message_is_not_locked(broker: TinyBroker) -> None:
    """In GoQueue it is, under a receipt that nobody got."""
    broker.source.publish(1)
    broker.nack(must(broker.receive()))
    broker.wait(1)

    again = must(broker.receive())

    assert offsets_of(again) == [0]
    assert broker.ack(again, 0).refused == {}
    assert broker.queue.committed == 1


def test_a_nacked_message_waits_out_its_backoff_and_no_longer(broker: TinyBroker) -> None:
    broker.source.publish(1)
    for wait_s in (1, 2, 4):
        broker.nack(must(broker.receive()))
        assert broker.queue.next_deadline() == broker.now_ns + wait_s * SECOND
        broker.now_ns += wait_s * SECOND - 1
        assert broker.receive() is None
        broker.now_ns += 1

    assert must(broker.receive()).parts[0].delivery_count == 4


def test_a_nack_may_bring_its_own_delay(broker: TinyBroker) -> None:
    broker.source.publish(2)
    broker.nack(must(broker.receive()), delay_ns=0)
    broker.nack(must(broker.receive()), delay_ns=5 * SECOND)

    assert broker.got() == [1]
    broker.wait(5)
    assert broker.got() == [0]


def test_attempts_reach_the_dead_letters(broker: TinyBroker) -> None:
    """In EpochQueue the count is read from the immutable log, and never gets there."""
    broker.source.publish(1)
    first_us = broker.wall_us
    for attempt in range(1, 5):
        assert not broker.dead
        leased = must(broker.receive(consumer=f"c{attempt}"))
        assert leased.parts[0].delivery_count == attempt
        broker.nack(leased, error=f"boom {attempt}")
        broker.wait(60)

    [letter] = broker.dead
    assert letter.reason == "max_retries"
    assert letter.attempts == 4
    assert letter.offsets == Offsets.one(0)
    assert letter.first_delivery_us == first_us
    assert letter.last_delivery_us == first_us + 180_000_000
    assert letter.consumer == "c4"
    assert letter.error == "boom 4"
    assert broker.got() == []
    assert broker.queue.committed == 1


def test_attempts_reach_the_dead_letters_across_restarts(broker: TinyBroker) -> None:
    broker.source.publish(1)
    for _ in range(4):
        broker.nack(must(broker.receive()))
        broker.restart()
        broker.wait(60)

    assert [letter.attempts for letter in broker.dead] == [4]


def test_lost_leases_reach_the_dead_letters_too(broker: TinyBroker) -> None:
    broker.source.publish(1)
    for _ in range(4):
        must(broker.receive(consumer="gone"))
        broker.wait(30)
    broker.expire()

    [letter] = broker.dead
    assert (letter.reason, letter.attempts, letter.consumer) == ("max_retries", 4, "gone")
    assert letter.error == "the lease ran out"


def test_no_retries_means_dead_at_the_first_failure() -> None:
    broker = TinyBroker(Policy(max_retries=0))
    broker.source.publish(3)
    broker.nack(must(broker.receive(3)))

    assert [letter.offsets for letter in broker.dead] == [Offsets.run(0, 3)]
    assert broker.queue.committed == 3


def test_unlimited_retries_go_on() -> None:
    broker = TinyBroker(Policy(max_retries=None, backoff=Backoff(first_ms=0, max_ms=0)))
    broker.source.publish(1)
    for attempt in range(1, 50):
        leased = must(broker.receive())
        assert leased.parts[0].delivery_count == attempt
        broker.nack(leased)

    assert not broker.dead


def test_a_rejected_message_goes_straight_to_the_dead_letters(broker: TinyBroker) -> None:
    broker.source.publish(2)
    leased = must(broker.receive(2))

    decision = broker.reject(leased, 1, error="not json")

    assert isinstance(decision.events[0], Rejected)
    [letter] = broker.dead
    assert (letter.reason, letter.error, letter.attempts) == ("rejected", "not json", 1)
    assert broker.ack(leased, 1).refused == {1: AlreadySettled}


def test_a_batch_with_different_counts_backs_off_each_by_its_own() -> None:
    broker = TinyBroker()
    broker.source.publish(1)
    broker.nack(must(broker.receive()), delay_ns=0)
    broker.source.publish(1)
    leased = must(broker.receive(2))
    assert sorted(part.delivery_count for part in leased.parts) == [1, 2]

    events = broker.nack(leased).events

    delays = {
        event.offsets.first: event.delay_ns // SECOND
        for event in events
        if isinstance(event, Nacked)
    }
    assert delays == {0: 2, 1: 1}


# Time.


def test_expired_lease_is_redelivered_once(broker: TinyBroker) -> None:
    broker.source.publish(1)
    lost = must(broker.receive(visibility_ns=10 * SECOND))

    broker.now_ns += 10 * SECOND - 1
    assert broker.receive() is None
    broker.now_ns += 1
    again = must(broker.receive())

    assert offsets_of(again) == [0]
    assert again.parts[0].delivery_count == 2
    assert broker.receive() is None
    assert broker.ack(lost, 0).refused == {0: LeaseLost}
    assert broker.ack(again, 0).refused == {}


def test_a_lease_past_its_deadline_is_lost_even_if_nobody_noticed_yet(broker: TinyBroker) -> None:
    broker.source.publish(1)
    leased = must(broker.receive(visibility_ns=SECOND))
    broker.now_ns += SECOND

    for settle in (broker.ack, broker.nack, broker.reject):
        assert settle(leased, 0).refused == {0: LeaseLost}
    assert broker.extend(leased, 0, visibility_ns=SECOND).refused == {0: LeaseLost}


def test_an_expired_lease_brings_back_only_what_was_not_settled(broker: TinyBroker) -> None:
    broker.source.publish(5)
    leased = must(broker.receive(5))
    broker.ack(leased, 1, 3)
    broker.wait(30)

    [event] = broker.expire()

    assert isinstance(event, Expired)
    assert list(event.offsets) == [0, 2, 4]


def test_extending_a_lease_moves_its_deadline(broker: TinyBroker) -> None:
    broker.source.publish(1)
    leased = must(broker.receive(visibility_ns=10 * SECOND))
    broker.now_ns += 9 * SECOND
    broker.extend(leased, visibility_ns=10 * SECOND)

    broker.now_ns += 9 * SECOND
    assert broker.receive() is None
    assert broker.ack(leased, 0).refused == {}


def test_a_lease_can_be_cut_short(broker: TinyBroker) -> None:
    broker.source.publish(2)
    leased = must(broker.receive(2, visibility_ns=3600 * SECOND))

    broker.extend(leased, visibility_ns=0)

    assert sorted(broker.got(2)) == [0, 1]


def test_extending_one_message_leaves_the_others_their_deadline(broker: TinyBroker) -> None:
    broker.source.publish(3)
    leased = must(broker.receive(3, visibility_ns=10 * SECOND))
    broker.extend(leased, 1, visibility_ns=60 * SECOND)

    broker.now_ns += 10 * SECOND
    assert sorted(broker.got(3)) == [0, 2]
    broker.now_ns += 49 * SECOND
    assert broker.ack(leased, 1).refused == {}


def test_an_extended_message_expires_in_its_turn(broker: TinyBroker) -> None:
    broker.source.publish(3)
    leased = must(broker.receive(3, visibility_ns=10 * SECOND))
    broker.ack(leased, 0, 2)
    broker.extend(leased, 1, visibility_ns=20 * SECOND)

    assert broker.queue.next_deadline() is not None
    broker.now_ns += 19 * SECOND
    assert broker.got() == []
    broker.now_ns += SECOND
    assert broker.got() == [1]


@pytest.mark.parametrize("jump_s", [-3600, -30, 30, 3600])
def test_a_wall_clock_that_jumps_neither_steals_a_lease_nor_keeps_it(
    broker: TinyBroker, jump_s: int
) -> None:
    broker.source.publish(1)
    leased = must(broker.receive(visibility_ns=30 * SECOND))

    broker.wall_us += jump_s * 1_000_000
    broker.now_ns += 29 * SECOND
    assert broker.receive() is None
    broker.now_ns += SECOND
    assert broker.got() == [0]
    assert broker.ack(leased, 0).refused == {0: LeaseLost}


def test_an_expiry_that_could_not_be_written_is_tried_again(broker: TinyBroker) -> None:
    broker.source.publish(1)
    must(broker.receive(visibility_ns=SECOND))
    broker.now_ns += SECOND

    lost = broker.queue.expire(broker.now_ns)  # the append fails: it is never applied

    assert lost.events
    next_ns = broker.queue.next_deadline()
    assert next_ns is not None
    assert next_ns <= broker.now_ns
    assert broker.got() == [0]


def test_many_leases_expire_in_portions(broker: TinyBroker) -> None:
    broker.source.publish(2500)
    for _ in range(2500):
        must(broker.receive())
    broker.wait(30)

    assert len(broker.queue.expire(broker.now_ns).events) == 1000
    assert len(broker.expire()) == 2500
    assert len(broker.got(5000)) == 2500


# Groups.


def test_groups_do_not_block_each_other() -> None:
    """In GoQueue they do: its in-flight key forgets the group."""
    source = MemorySource()
    billing, audit = TinyBroker(source=source), TinyBroker(source=source)
    source.publish(3)

    mine = must(billing.receive(3))
    assert audit.got(3) == [0, 1, 2]
    billing.ack(mine)

    assert billing.queue.committed == 3
    assert audit.queue.committed == 0


# Priorities.


def test_a_critical_message_behind_a_large_backlog_is_next(broker: TinyBroker) -> None:
    broker.source.publish(5000)
    broker.got(1000)
    [critical] = broker.source.publish(1, priority=0)

    assert broker.got() == [critical]


def test_one_receive_is_shared_by_the_weights(broker: TinyBroker) -> None:
    for priority in (4, 3, 2, 1, 0):
        broker.source.publish(200, priority=priority)

    leased = must(broker.receive(100))

    assert {part.priority: len(part.offsets) for part in leased.parts} == {
        0: 50,
        1: 25,
        2: 15,
        3: 7,
        4: 3,
    }
    assert [part.priority for part in leased.parts] == [0, 1, 2, 3, 4]


def test_a_due_retry_takes_its_turn_at_its_own_priority(broker: TinyBroker) -> None:
    broker.source.publish(1, priority=0)
    broker.source.publish(100)
    critical = must(broker.receive())
    broker.nack(critical, delay_ns=0)

    assert broker.got() == [0]


# TTL.


def test_an_expired_message_is_not_delivered_but_reported(broker: TinyBroker) -> None:
    broker.source.publish(1, expires_us=broker.wall_us)
    broker.source.publish(1, expires_us=broker.wall_us + 1)

    assert broker.got(10) == [1]
    [letter] = broker.dead
    assert (letter.reason, letter.attempts, letter.offsets) == ("expired", 0, Offsets.one(0))
    assert letter.first_delivery_us is None


def test_a_message_that_expires_while_it_waits_for_a_retry_keeps_its_history(
    broker: TinyBroker,
) -> None:
    broker.source.publish(1, expires_us=broker.wall_us + 500_000)
    delivered_us = broker.wall_us
    broker.nack(must(broker.receive(consumer="bob")), error="boom")
    broker.wait(1)

    assert broker.got() == []
    [letter] = broker.dead
    assert (letter.reason, letter.attempts) == ("expired", 1)
    assert (letter.consumer, letter.error) == ("bob", "boom")
    assert letter.first_delivery_us == delivered_us
    assert broker.queue.committed == 1


def test_a_backlog_of_expired_messages_is_passed_in_portions(broker: TinyBroker) -> None:
    broker.source.publish(70_000, expires_us=broker.wall_us)
    [live] = broker.source.publish(1)

    decision = broker.queue.receive(
        broker.now_ns,
        broker.wall_us,
        max_messages=10,
        visibility_ns=SECOND,
        consumer="anna",
        nonce=10**9,
        source=broker.source,
        end=broker.source.end,
    )
    assert decision.leased is None
    assert decision.events
    assert broker.got(10) == [live]
    assert sum(len(letter.offsets) for letter in broker.dead) == 70_000


# Order by key.


@pytest.fixture
def ordered() -> TinyBroker:
    return TinyBroker(Policy(ordered_by_key=True))


def test_a_key_in_flight_holds_back_its_later_messages(ordered: TinyBroker) -> None:
    for key in (7, 7, 8, 7):
        ordered.source.publish(1, key=key)

    leased = must(ordered.receive(10))
    assert offsets_of(leased) == [0, 2]
    assert ordered.got(10) == []
    ordered.ack(leased, 0)
    assert ordered.got(10) == [1]
    assert ordered.queue.committed == 1


def test_a_key_that_waits_for_a_retry_holds_back_its_later_messages(ordered: TinyBroker) -> None:
    ordered.source.publish(2, key=7)
    ordered.nack(must(ordered.receive()))

    assert ordered.got(10) == []
    ordered.wait(1)
    leased = must(ordered.receive(10))
    assert offsets_of(leased) == [0]
    ordered.ack(leased)
    assert ordered.got(10) == [1]


def test_a_dead_letter_releases_its_key(ordered: TinyBroker) -> None:
    ordered.source.publish(2, key=7)
    ordered.reject(must(ordered.receive()))

    assert ordered.got() == [1]


def test_a_message_never_overtakes_one_of_its_key_that_stayed_behind(ordered: TinyBroker) -> None:
    ordered.source.publish(400, priority=1)
    first = ordered.source.end
    for number in range(400):
        ordered.source.publish(1, key=1 + number % 16)

    # Shared by turns, so that the lane is drawn from more than once.
    got = [offset - first for offset in ordered.got(200) if offset >= first]

    assert got
    assert max(got) < 16


def test_messages_without_a_key_wait_for_nobody(ordered: TinyBroker) -> None:
    ordered.source.publish(5)

    assert ordered.got(10) == [0, 1, 2, 3, 4]


def test_a_locked_key_stays_locked_over_a_restart(ordered: TinyBroker) -> None:
    ordered.source.publish(2, key=7)
    ordered.source.publish(1, key=8)
    leased = must(ordered.receive())

    ordered.restart()

    assert ordered.got(10) == [2]
    assert ordered.ack(leased, 0).refused == {}
    assert ordered.got(10) == [1]


def test_what_stayed_behind_is_not_forgotten_if_the_option_is_turned_off(
    ordered: TinyBroker,
) -> None:
    ordered.source.publish(3, key=7)
    ordered.source.publish(1, key=8)
    assert ordered.got(10) == [0, 3]

    ordered.policy = Policy()
    ordered.restart()

    assert ordered.got(10) == [1, 2]


# Purging and seeking.


def test_a_purge_leaves_nothing_and_old_receipts_say_so(broker: TinyBroker) -> None:
    broker.source.publish(10)
    leased = must(broker.receive(2))
    broker.nack(must(broker.receive(2)), delay_ns=0)

    broker.commit(broker.queue.trim(10))

    assert broker.got(10) == []
    assert broker.queue.committed == 10
    stats = broker.queue.stats(10)
    assert (stats.depth, stats.in_flight, stats.retrying) == (0, 0, 0)
    assert broker.ack(leased, 0).refused == {0: AlreadySettled}


def test_trimming_the_log_leaves_what_is_above(broker: TinyBroker) -> None:
    broker.source.publish(10)
    leased = must(broker.receive(4))

    broker.commit(broker.queue.trim(2))

    assert broker.queue.committed == 2
    assert broker.ack(leased, 1, 2).refused == {1: AlreadySettled}
    assert broker.got(10) == [4, 5, 6, 7, 8, 9]


def test_a_seek_back_replays_with_fresh_counts(broker: TinyBroker) -> None:
    broker.source.publish(4)
    broker.ack(must(broker.receive(2)))
    old = must(broker.receive(2))

    broker.commit(broker.queue.seek(1))

    assert broker.queue.committed == 1
    assert broker.ack(old, 2).refused == {2: InvalidReceipt}
    leased = must(broker.receive(10))
    assert offsets_of(leased) == [1, 2, 3]
    assert leased.parts[0].delivery_count == 1


def test_a_seek_forwards_leaves_out_what_lies_between(broker: TinyBroker) -> None:
    broker.source.publish(10)
    broker.got(2)

    broker.commit(broker.queue.seek(8))

    assert broker.queue.committed == 8
    assert broker.got(10) == [8, 9]


# Numbers.


def test_stats_tell_where_the_messages_are(broker: TinyBroker) -> None:
    broker.source.publish(3, priority=1)
    broker.source.publish(7)
    leased = must(broker.receive(5))
    broker.nack(leased, 0)
    broker.ack(leased, 1)

    stats = broker.queue.stats(broker.source.end)

    assert (stats.depth, stats.ready, stats.in_flight, stats.retrying) == (9, 5, 3, 1)
    assert stats.in_flight_by_priority == (0, 1, 2, 0, 0)
    assert stats.retrying_by_priority == (0, 1, 0, 0, 0)
    assert stats.cursors == (10, 10, 5, 10, 10)


def test_one_lane_is_found_without_asking_for_each_message(broker: TinyBroker) -> None:
    broker.source.publish(4000)
    for _ in range(4000):
        broker.ack(must(broker.receive()))

    assert broker.source.scans <= 2


def test_jitter_is_drawn_once_and_written_down() -> None:
    broker = TinyBroker(Policy(backoff=Backoff(jitter=0.5)))
    broker.queue._random = Random(7)
    broker.source.publish(1)
    [event] = broker.nack(must(broker.receive())).events
    assert isinstance(event, Nacked)
    assert 500 * MS <= event.delay_ns < 1000 * MS

    due_ns = event.delay_ns
    broker.restart()

    assert broker.queue.next_deadline() == broker.now_ns + due_ns


def test_a_receive_says_what_it_handed_out_in_its_event(broker: TinyBroker) -> None:
    broker.source.publish(2)
    leased = must(broker.receive(2, consumer="bob", visibility_ns=5 * SECOND))

    assert isinstance(leased, Leased)
    assert (leased.consumer, leased.visibility_ns, len(leased)) == ("bob", 5 * SECOND, 2)
    assert leased.passed == 2


@pytest.mark.parametrize(
    "wrong", [{"max_retries": -1}, {"in_flight_max": 0}, {"weights": (50, 25, 15, 7, 0)}]
)
def test_a_policy_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        Policy(**wrong)


# What a lost lease waits for.


def test_what_a_lease_lost_comes_back_at_once(broker: TinyBroker) -> None:
    broker.source.publish(1)
    broker.receive(visibility_ns=SECOND)
    broker.wait(1)

    assert broker.got() == [0]


def test_what_a_lease_lost_may_wait_for_the_backoff() -> None:
    broker = TinyBroker(Policy(lease_expiry_backoff=True, backoff=Backoff(first_ms=2000)))
    broker.source.publish(1)
    for delivery, delay_s in ((1, 2), (2, 4)):
        leased = must(broker.receive(visibility_ns=SECOND))
        assert leased.parts[0].delivery_count == delivery
        broker.wait(1)
        assert broker.got() == []
        broker.wait(delay_s - 0.1)
        assert broker.got() == []
        broker.wait(0.1)
    assert broker.got() == [0]
