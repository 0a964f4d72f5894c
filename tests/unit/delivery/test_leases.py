from __future__ import annotations

import tracemalloc

import pytest

from penstock.delivery.leases import STALE_MIN, YOUNG_MAX, Lease, Leases
from penstock.delivery.ledger import Part
from penstock.delivery.offsets import EMPTY, Offsets
from penstock.delivery.timers import NEVER
from tests.unit.delivery.tiny_broker import must


def lease(nonce: int, *parts: Part, deadline_ns: int = 100, consumer: str = "anna") -> Lease:
    return Lease(nonce, deadline_ns, consumer, 1_700_000_000_000_000, parts)


def one(nonce: int, offset: int, deadline_ns: int = 100, consumer: str = "anna") -> Lease:
    return lease(nonce, Part(2, Offsets.one(offset)), deadline_ns=deadline_ns, consumer=consumer)


@pytest.fixture
def leases() -> Leases:
    return Leases()


def test_a_single_lease_comes_back_as_it_was(leases: Leases) -> None:
    given = lease(7, Part(4, Offsets.one(10**12), 3), deadline_ns=10**15, consumer="zoë")
    leases.add(given)

    assert leases.get(7) == given
    assert leases.get(8) is None
    assert list(leases) == [given]


def test_many_are_packed_and_nobody_notices(leases: Leases) -> None:
    given = [
        lease(n, Part(n % 5, Offsets.one(10**12 + n), 1 + n % 3), consumer=f"{n % 7}")
        for n in range(YOUNG_MAX)
    ]
    given += [lease(n, Part(2, Offsets.run(n, n + 2))) for n in range(YOUNG_MAX, YOUNG_MAX + 2)]
    for each in given:
        leases.add(each)

    packed = [n for n, kept in leases.by_nonce.items() if isinstance(kept, bytes)]
    assert packed == list(range(YOUNG_MAX))
    assert list(leases) == given
    leases.extend(0, EMPTY, 500)
    assert [each.nonce for each in leases.overdue(100, 10**6)] == list(range(1, YOUNG_MAX + 2))
    third = must(leases.get(3))
    assert (third.parts, third.consumer) == (given[3].parts, "3")
    assert leases.take(third, Offsets.one(10**12 + 3)) == Offsets.one(10**12 + 3)
    assert 3 not in leases


def test_a_lease_ends_with_its_last_message(leases: Leases) -> None:
    leases.add(lease(1, Part(0, Offsets.run(0, 2)), Part(2, Offsets.of([5, 9]), 2)))

    held = must(leases.get(1))
    left = leases.take(held, Offsets.of([1, 9]))
    assert held.parts_of(left) == [Part(0, Offsets.one(1)), Part(2, Offsets.one(9), 2)]
    assert 1 in leases
    leases.take(held, Offsets.of([0, 5]))
    assert 1 not in leases
    assert leases.get(1) is None


def test_what_left_a_lease_cannot_leave_it_again(leases: Leases) -> None:
    leases.add(lease(1, Part(2, Offsets.run(0, 5))))
    held = must(leases.get(1))
    leases.take(held, Offsets.one(2))

    assert list(leases.take(held, Offsets.run(1, 4))) == [1, 3]
    assert leases.take(held, Offsets.one(3)) == EMPTY


def test_a_timer_rings_at_the_deadline(leases: Leases) -> None:
    leases.add(one(1, 10, deadline_ns=100))
    leases.add(one(2, 11, deadline_ns=50))

    assert leases.next_deadline() == 50
    assert leases.overdue(49, 10) == []
    assert [found.nonce for found in leases.overdue(100, 10)] == [2, 1]


def test_an_overdue_lease_comes_again_until_it_is_taken(leases: Leases) -> None:
    leases.add(one(1, 10))

    assert len(leases.overdue(100, 10)) == 1
    assert len(leases.overdue(100, 10)) == 1
    leases.take(must(leases.get(1)), Offsets.one(10))
    assert leases.overdue(100, 10) == []
    assert leases.next_deadline() == NEVER


def test_an_extended_lease_rings_at_its_new_deadline_only(leases: Leases) -> None:
    leases.add(one(1, 10, deadline_ns=100))
    leases.extend(1, EMPTY, 500)

    assert leases.overdue(499, 10) == []
    assert [found.nonce for found in leases.overdue(500, 10)] == [1]


def test_messages_of_one_lease_may_have_deadlines_of_their_own(leases: Leases) -> None:
    leases.add(lease(1, Part(2, Offsets.run(0, 4)), deadline_ns=100))
    leases.extend(1, Offsets.of([1, 2]), 300)
    leases.extend(1, Offsets.one(3), 40)

    held = leases.get(1)
    assert held is not None
    assert list(held.overdue(40)) == [3]
    assert list(held.overdue(100)) == [0, 3]
    assert list(held.overdue(300)) == [0, 1, 2, 3]
    for now_ns in (40, 100, 300):
        assert leases.overdue(now_ns, 10)
        leases.take(must(leases.get(1)), held.overdue(now_ns))
    assert len(leases) == 0


def test_extending_the_whole_lease_takes_back_what_was_extended_singly(leases: Leases) -> None:
    leases.add(lease(1, Part(2, Offsets.run(0, 2)), deadline_ns=100))
    leases.extend(1, Offsets.one(1), 1000)
    leases.extend(1, EMPTY, 200)

    held = leases.get(1)
    assert held is not None
    assert list(held.overdue(200)) == [0, 1]


def test_timers_of_settled_leases_do_not_pile_up(leases: Leases) -> None:
    for nonce in range(5 * STALE_MIN):
        leases.add(one(nonce, nonce, deadline_ns=10**15 + nonce))
        leases.take(must(leases.get(nonce)), Offsets.one(nonce))
    leases.add(one(-1, 7, deadline_ns=10**15))

    assert leases._timers.count <= STALE_MIN + 2
    assert [found.nonce for found in leases.overdue(2 * 10**15, 10)] == [-1]


def test_names_of_consumers_do_not_pile_up(leases: Leases) -> None:
    leases.add(one(-1, 7, consumer="first"))
    for nonce in range(3 * STALE_MIN):
        leases.add(one(nonce, nonce, consumer=f"c{nonce}"))
        leases.take(must(leases.get(nonce)), Offsets.one(nonce))
    leases.add(one(-2, 8, consumer="last"))

    assert len(leases._names) <= STALE_MIN + 5
    assert [held.consumer for held in leases] == ["first", "last"]


def test_a_young_lease_that_is_packed_runs_out_all_the_same(leases: Leases) -> None:
    def name_a_consumer(nonce: int) -> None:
        leases.add(one(nonce, nonce, deadline_ns=10**15, consumer=f"c{nonce}"))
        leases.extend(nonce, EMPTY, 10**15)
        leases.take(must(leases.get(nonce)), Offsets.one(nonce))

    for nonce in range(STALE_MIN):
        name_a_consumer(nonce)
    leases.add(one(-1, 7, deadline_ns=50))
    for nonce in range(STALE_MIN, STALE_MIN + 10):  # on the way all names are dealt out anew
        name_a_consumer(nonce)

    assert isinstance(leases.by_nonce[-1], bytes)
    assert leases.next_deadline() <= 50
    assert [found.nonce for found in leases.overdue(50, 10)] == [-1]


def test_a_hundred_thousand_single_leases_take_less_than_200_bytes_each(leases: Leases) -> None:
    count = 100_000
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(count):
        nonce = (1 << 59) + number * 7919
        leases.add(one(nonce, 10**10 + number, deadline_ns=10**14 + number))
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()

    assert used / count < 200
