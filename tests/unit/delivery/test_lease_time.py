"""Leases over crashes: which time counts, and what a wall clock that is set can do to them."""

from __future__ import annotations

import pytest

from penstock.delivery.ledger import TimePassed, decode
from tests.unit.delivery.tiny_broker import SECOND, TinyBroker, must


@pytest.fixture
def broker() -> TinyBroker:
    broker = TinyBroker()
    broker.source.publish(2)
    return broker


def down(broker: TinyBroker, seconds: float) -> None:
    """The broker is killed, and another one starts after a while."""
    broker.wall_us += round(seconds * 1_000_000)
    broker.restart()


@pytest.mark.parametrize("up_s", [0.06, 0.1, 0.3, 0.7, 1.9])
def test_the_time_that_a_killed_broker_was_up_counts(broker: TinyBroker, up_s: float) -> None:
    must(broker.receive(visibility_ns=2 * SECOND))
    openings = 0
    while broker.got() != [0]:
        openings += 1
        # Each time it is killed it forgets what it had not noted yet, and no more.
        assert openings <= 2 / up_s * 2 + 1, "the lease is immortal"
        broker.got()  # the other message, so that only the first can come
        broker.live(up_s)
        down(broker, 0)


def test_the_time_is_noted_only_while_something_depends_on_it(broker: TinyBroker) -> None:
    broker.live(1000)
    leased = must(broker.receive())
    broker.live(10)
    noted = [e for entry in broker.ledger for e in decode(entry) if isinstance(e, TimePassed)]
    assert 8 <= len(noted) <= 12

    broker.ack(leased)
    entries = len(broker.ledger)
    broker.live(1000)
    assert len(broker.ledger) == entries
    assert broker.queue.next_look() is None


def test_a_lease_gets_the_rest_of_its_time_after_a_short_absence(broker: TinyBroker) -> None:
    must(broker.receive(2))
    broker.live(10)
    down(broker, 79)  # by the wall clock it ended 59 s ago

    assert broker.got() == []
    broker.live(19)
    assert broker.got() == []
    broker.live(2)  # the last second before it was killed was perhaps not noted
    assert broker.got(2) == [0, 1]


def test_a_lease_that_ended_a_minute_ago_by_the_wall_clock_is_over_at_the_start(
    broker: TinyBroker,
) -> None:
    leased = must(broker.receive(2))
    down(broker, 30 + 60)

    assert broker.ack(leased, 0).refused
    assert broker.got(2) == [0, 1]


def test_repeated_starts_do_not_move_the_end_of_a_lease(broker: TinyBroker) -> None:
    must(broker.receive(2))
    for _ in range(8):
        down(broker, 10)
        assert broker.got() == []
    down(broker, 10)
    assert broker.got(2) == [0, 1]


def test_an_extended_lease_ends_later_by_the_wall_clock_too(broker: TinyBroker) -> None:
    leased = must(broker.receive(2))
    broker.extend(leased, 1, visibility_ns=200 * SECOND)
    down(broker, 250)
    assert broker.got() == []
    down(broker, 10)
    assert broker.got(2) == [0, 1]


@pytest.mark.parametrize("jump_s", [-3600, -30, 30, 3600])
def test_a_wall_clock_that_was_set_while_the_broker_was_up_moves_no_lease(
    broker: TinyBroker, jump_s: int
) -> None:
    must(broker.receive(2))
    broker.live(5)
    broker.wall_us += jump_s * 1_000_000
    broker.live(5)
    down(broker, 1)

    assert broker.got() == []
    down(broker, 78)  # 59 s after its end
    assert broker.got() == []
    down(broker, 1.1)
    assert broker.got(2) == [0, 1]


@pytest.mark.parametrize("jump_s", [-3600, 3600])
def test_a_wall_clock_that_was_set_while_nothing_was_held_moves_no_later_lease(
    broker: TinyBroker, jump_s: int
) -> None:
    broker.live(5)
    broker.wall_us += jump_s * 1_000_000
    must(broker.receive(2))
    down(broker, 1)

    assert broker.got() == []
    down(broker, 90)
    assert broker.got(2) == [0, 1]


@pytest.mark.parametrize("jump_s", [-30, 30])
def test_a_wall_clock_that_was_set_by_little_while_the_broker_was_down_steals_nothing(
    broker: TinyBroker, jump_s: int
) -> None:
    must(broker.receive(2))
    down(broker, 1 + jump_s)

    assert broker.got() == []
    broker.live(30)
    assert broker.got(2) == [0, 1]


def test_the_jumps_of_a_wall_clock_are_in_the_snapshot(broker: TinyBroker) -> None:
    must(broker.receive(2))
    broker.wall_us += 3600 * 1_000_000
    broker.live(2)
    snapshot = broker.queue.snapshot(broker.now_ns)
    broker.restart(snapshot=snapshot, entries=len(broker.ledger))

    assert broker.got() == []


def test_a_lease_of_no_time_at_all_is_over_at_once(broker: TinyBroker) -> None:
    leased = must(broker.receive(visibility_ns=0))

    assert broker.ack(leased, 0).refused
    again = must(broker.receive())
    assert again.parts[0].delivery_count == 2
    assert broker.ack(again, 0).refused == {}


def test_deadlines_of_leases_that_were_settled_cost_no_entries(broker: TinyBroker) -> None:
    broker.source.publish(2000)
    must(broker.receive(visibility_ns=3600 * SECOND))
    for _ in range(1000):
        broker.ack(must(broker.receive(visibility_ns=SECOND)))
        broker.wait(0.001)
    entries = len(broker.ledger)

    broker.live(1)  # a timer rings each millisecond, for nobody
    assert len(broker.ledger) - entries <= 20
