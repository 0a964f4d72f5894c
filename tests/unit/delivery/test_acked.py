from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.delivery.acked import AckedSet
from penstock.delivery.offsets import EMPTY, Offsets


def test_acks_in_order_need_no_bitmap() -> None:
    acked = AckedSet()
    for offset in range(100):
        acked.add(Offsets.one(offset))
        acked.advance(acked.floor)

    assert acked.floor == 100
    assert not acked.above


def test_the_floor_waits_for_the_first_that_is_missing() -> None:
    acked = AckedSet()
    acked.add(Offsets.run(1, 1000))
    acked.advance(0)
    assert acked.floor == 0

    acked.add(Offsets.one(0))
    acked.advance(0)
    assert acked.floor == 1000


def test_the_floor_goes_over_offsets_that_do_not_exist() -> None:
    acked = AckedSet()
    acked.add(Offsets.run(10, 20))

    acked.advance(10)

    assert acked.floor == 20


def test_a_new_group_begins_with_everything_below_done() -> None:
    acked = AckedSet(floor=50)

    assert 49 in acked
    assert 50 not in acked
    assert acked.among(Offsets.run(40, 60)) == Offsets.run(40, 50)


def test_a_floor_never_sinks_by_an_advance() -> None:
    acked = AckedSet(floor=50)
    acked.advance(3)

    assert acked.floor == 50


def test_forgetting_leaves_what_is_below() -> None:
    acked = AckedSet(floor=5)
    acked.add(Offsets.of([7, 9, 11]))

    acked.forget_from(9)
    assert acked.among(Offsets.run(0, 20)) == Offsets.of([0, 1, 2, 3, 4, 7])
    acked.forget_from(2)
    assert acked.floor == 2
    assert acked.among(Offsets.run(2, 20)) == EMPTY


@given(st.lists(st.sets(st.integers(0, 80), max_size=20), max_size=12), st.integers(0, 80))
def test_it_holds_what_was_added_and_the_floor_is_below_the_first_hole(
    batches: list[set[int]], asked: int
) -> None:
    acked, plain = AckedSet(), set[int]()
    for batch in batches:
        acked.add(Offsets.of(batch))
        acked.advance(0)
        plain |= batch
        floor = next(offset for offset in range(100) if offset not in plain)
        assert acked.floor == floor
        assert set(acked.above) == {offset for offset in plain if offset > floor}
        assert (asked in acked) == (asked in plain)
        assert set(acked.among(Offsets.run(asked, 90))) == {o for o in plain if o >= asked}
