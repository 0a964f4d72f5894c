"""Where readers begin, and how far behind they are."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.group.assignment import TopicPartition
from penstock.group.events import Committed
from penstock.group.offsets import (
    AtOffset,
    AtTime,
    Bounds,
    Earliest,
    Landing,
    Latest,
    lag,
    land,
    starts,
)

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def test_a_reader_goes_on_where_it_committed_and_resets_elsewhere() -> None:
    committed = {T0: Committed(7)}

    assert starts(committed, [T0, T1], AtTime(123)) == {T0: AtOffset(7), T1: AtTime(123)}


def test_a_reset_lands_within_the_log() -> None:
    held = Bounds(10, 20)

    assert land(Earliest(), held) == Landing(10)
    assert land(Latest(), held) == Landing(20)
    assert land(AtOffset(15), held) == Landing(15)
    assert land(AtOffset(20), held) == Landing(20)
    assert land(AtOffset(99), held) == Landing(20)


def test_messages_that_retention_took_are_counted() -> None:
    assert land(AtOffset(4), Bounds(10, 20)) == Landing(10, missed=6)


def test_lag_counts_what_is_there_and_not_done() -> None:
    committed = {T0: Committed(15)}

    assert lag(committed, {T0: Bounds(10, 20), T1: Bounds(10, 20)}) == {T0: 5, T1: 10}
    assert lag(committed, {T0: Bounds(18, 20)}) == {T0: 2}
    assert lag(committed, {T0: Bounds(0, 12)}) == {T0: 0}


@given(wanted=st.integers(0, 100), start=st.integers(0, 100), length=st.integers(0, 100))
def test_a_landing_and_its_lag_agree(wanted: int, start: int, length: int) -> None:
    held = Bounds(start, start + length)

    landing = land(AtOffset(wanted), held)

    assert held.start <= landing.offset <= held.end
    assert lag({T0: Committed(wanted)}, {T0: held})[T0] == held.end - landing.offset
