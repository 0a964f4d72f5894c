"""What survives: restarts, snapshots, lost ends of the log, damaged ledgers."""

from __future__ import annotations

import pytest

from penstock.delivery.ledger import Acked, Expired, Leased, Nacked, Part, decode, encode
from penstock.delivery.offsets import Offsets
from penstock.delivery.queue import GroupQueue, Policy
from penstock.delivery.state import GroupState
from penstock.errors import AlreadySettled, InvalidInput, LeaseLost
from tests.unit.delivery.tiny_broker import SECOND, TinyBroker, must, offsets_of


@pytest.fixture
def broker() -> TinyBroker:
    broker = TinyBroker()
    broker.source.publish(10)
    return broker


def test_after_a_restart_nothing_acked_comes_back_and_nothing_unacked_is_lost(
    broker: TinyBroker,
) -> None:
    leased = must(broker.receive(6))
    broker.ack(leased, 0, 1, 4)
    broker.nack(leased, 2, delay_ns=0)

    broker.restart()

    assert broker.queue.committed == 2
    assert sorted(broker.got(10)) == [2, 6, 7, 8, 9]
    broker.wait(30)
    assert 3 in broker.got(10)


def test_a_lease_outlives_a_restart_with_its_nonce(broker: TinyBroker) -> None:
    leased = must(broker.receive(2))

    broker.restart()

    assert broker.got(10) == [2, 3, 4, 5, 6, 7, 8, 9]
    assert broker.ack(leased, 0, 1).refused == {}
    assert broker.queue.committed == 2


def test_a_lease_gets_the_rest_of_its_time_again(broker: TinyBroker) -> None:
    leased = must(broker.receive(1, visibility_ns=30 * SECOND))
    broker.now_ns += 20 * SECOND
    must(broker.receive(1))  # tells the ledger the time

    broker.restart()

    broker.now_ns += 10 * SECOND - 1
    assert broker.queue.ack(broker.now_ns, leased.nonce, Offsets.one(0)).refused == {}
    broker.now_ns += 1
    assert broker.ack(leased, 0).refused == {0: LeaseLost}


def test_a_snapshot_tells_the_time_that_is_left(broker: TinyBroker) -> None:
    must(broker.receive(1, visibility_ns=30 * SECOND))
    broker.now_ns += 29 * SECOND
    snapshot = broker.queue.snapshot(broker.now_ns)

    broker.restart(snapshot=snapshot, entries=len(broker.ledger))

    assert broker.queue.next_deadline() == broker.now_ns + SECOND


def test_a_broker_that_is_down_for_a_day_steals_no_lease(broker: TinyBroker) -> None:
    leased = must(broker.receive(1, visibility_ns=30 * SECOND))
    broker.restart()
    broker.wall_us += 86_400_000_000

    assert broker.receive(1) is not None
    assert broker.ack(leased, 0).refused == {}


def test_a_snapshot_and_what_came_after_it_are_the_whole(broker: TinyBroker) -> None:
    first = must(broker.receive(4))
    broker.ack(first, 1)
    broker.nack(first, 2, delay_ns=10 * SECOND, error="boom")
    broker.extend(first, 3, visibility_ns=90 * SECOND)
    snapshot, entries = broker.queue.snapshot(broker.now_ns), len(broker.ledger)
    broker.ack(must(broker.receive(1)))

    plain = GroupState()
    for entry in broker.ledger:
        plain.apply(decode(entry))
    broker.restart(snapshot=snapshot, entries=entries)

    plain.lanes = broker.queue.state.lanes  # how far idle lanes have looked is only known alive
    assert broker.queue.state.snapshot() == plain.snapshot()


def test_a_snapshot_of_a_snapshot_is_the_same(broker: TinyBroker) -> None:
    leased = must(broker.receive(4))
    broker.ack(leased, 1)
    broker.nack(leased, 2)
    snapshot = broker.queue.snapshot(broker.now_ns)

    assert GroupState.restore(snapshot).snapshot() == snapshot


def test_a_snapshot_knows_how_often_a_message_was_tried(broker: TinyBroker) -> None:
    for _ in range(2):
        broker.nack(must(broker.receive()), delay_ns=0)
    snapshot = broker.queue.snapshot(broker.now_ns)
    broker.restart(snapshot=snapshot, entries=len(broker.ledger))

    assert must(broker.receive()).parts[0].delivery_count == 3


def test_a_nacked_message_that_is_in_flight_again_is_in_one_place_after_a_restore(
    broker: TinyBroker,
) -> None:
    broker.nack(must(broker.receive()), delay_ns=0)
    again = must(broker.receive())
    assert offsets_of(again) == [0]

    snapshot = broker.queue.snapshot(broker.now_ns)
    broker.restart(snapshot=snapshot, entries=len(broker.ledger))

    stats = broker.queue.stats(10)
    assert (stats.in_flight, stats.retrying) == (1, 0)
    broker.nack(again, delay_ns=0)
    assert must(broker.receive()).parts[0].delivery_count == 3


def test_a_new_group_may_begin_anywhere() -> None:
    broker = TinyBroker()
    broker.source.publish(10)
    broker.queue = GroupQueue(GroupState(start=7), Policy(), broker.now_ns, broker.wall_us)

    assert broker.queue.committed == 7
    assert broker.got(10) == [7, 8, 9]


# The log lost its end in a power cut, and the ledger did not.


def test_offsets_that_the_log_lost_and_gives_out_anew_are_delivered(broker: TinyBroker) -> None:
    leased = must(broker.receive(10))
    broker.ack(leased, 8, 9)
    broker.nack(leased, 7, delay_ns=0)
    broker.source.truncate(5)

    broker.restart()
    broker.commit(broker.queue.truncate(5))
    broker.source.publish(5)

    assert broker.got(10) == [5, 6, 7, 8, 9]
    assert broker.queue.stats(10).in_flight == 10
    assert broker.ack(leased, 7).refused == {7: LeaseLost}


def test_a_lost_message_that_waited_does_not_mix_with_the_one_that_gets_its_offset(
    broker: TinyBroker,
) -> None:
    broker.nack(must(broker.receive(10)), delay_ns=5 * SECOND)
    broker.source.truncate(5)
    broker.commit(broker.queue.truncate(5))
    broker.source.publish(1, priority=0)
    critical = must(broker.receive())
    assert offsets_of(critical) == [5]
    broker.nack(critical, delay_ns=0)
    broker.wait(5)

    again = must(broker.receive(1))

    assert again.parts == (Part(0, Offsets.one(5), 2),)
    broker.ack(again)
    assert 5 not in broker.got(20)


def test_a_committed_offset_beyond_the_log_goes_back_with_it(broker: TinyBroker) -> None:
    broker.ack(must(broker.receive(10)))
    broker.source.truncate(5)

    broker.restart()
    broker.commit(broker.queue.truncate(5))

    assert broker.queue.committed == 5
    assert broker.queue.truncate(5).events == ()


def test_a_log_that_lost_nothing_needs_no_truncating(broker: TinyBroker) -> None:
    broker.got(10)

    assert broker.queue.truncate(10).events == ()


# A ledger that lost an entry in the middle.


def test_an_ack_counts_although_its_lease_is_unknown(broker: TinyBroker) -> None:
    broker.ack(must(broker.receive(3)), 1)
    del broker.ledger[0]

    broker.restart()

    assert broker.got(10) == [0, 2, 3, 4, 5, 6, 7, 8, 9]


def test_a_nack_of_an_unknown_lease_leaves_the_message_to_be_handed_out(
    broker: TinyBroker,
) -> None:
    broker.nack(must(broker.receive()))
    del broker.ledger[0]

    broker.restart()

    assert broker.got(2) == [0, 1]


def test_a_lost_nack_does_not_bring_back_what_was_acked_later(broker: TinyBroker) -> None:
    broker.nack(must(broker.receive()), delay_ns=0)
    broker.ack(must(broker.receive()), 0)
    del broker.ledger[1]

    broker.restart()
    broker.wait(60)

    assert 0 not in broker.got(20)
    assert broker.queue.stats(10).in_flight == 9


def test_a_retry_without_a_history_is_tried_again(broker: TinyBroker) -> None:
    state = GroupState()
    state.apply([Leased(0, 1, SECOND, "anna", 5, (Part(2, Offsets.one(0), 2),), 1)])
    state.apply([Expired(SECOND, 1, Offsets.one(0))])
    broker.queue = GroupQueue(state, Policy(), broker.now_ns, broker.wall_us)

    assert must(broker.receive()).parts == (Part(2, Offsets.one(0), 3),)


def test_events_about_unknown_leases_are_void() -> None:
    state = GroupState()
    state.apply([Nacked(5, 1, Offsets.one(3), 0), Expired(6, 2, Offsets.one(4))])

    assert not state.outstanding
    assert state.time_ns == 6


# Bytes.


@pytest.mark.parametrize("data", [b"", b"\xc0", b"\x90", encode([Acked(1, Offsets.one(1))])])
def test_what_is_not_a_snapshot_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidInput):
        GroupState.restore(data)


def test_settled_stays_settled_after_a_restore(broker: TinyBroker) -> None:
    leased = must(broker.receive(3))
    broker.ack(leased, 1)
    snapshot = broker.queue.snapshot(broker.now_ns)
    broker.restart(snapshot=snapshot, entries=len(broker.ledger))

    assert broker.ack(leased, 1).refused == {1: AlreadySettled}
    assert broker.ack(leased, 0, 2).refused == {}
    assert broker.queue.committed == 3
