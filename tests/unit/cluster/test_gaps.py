"""Which numbers may be missing in what a stream gave."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.cluster.gaps import first_not_dropped, missing_in


def test_what_was_dropped_may_be_missing() -> None:
    assert missing_in([5, 6, 9], 5) == [range(7, 9)]
    assert missing_in([5, 6], 3) == [range(3, 5)]
    assert missing_in([], 3) == []
    assert first_not_dropped([range(7, 9)], 1, [8, 7]) is None
    assert first_not_dropped([range(1, 5)], 5, []) is None


def test_what_is_still_there_may_not() -> None:
    assert first_not_dropped([range(7, 9)], 1, [7]) == 8
    assert first_not_dropped([range(7, 8)], 7, []) == 7
    assert first_not_dropped([range(1, 5), range(7, 9)], 4, [4, 8]) == 7


@given(st.sets(st.integers(1, 60)), st.sets(st.integers(1, 60)), st.integers(1, 30))
def test_it_is_what_sets_say(dropped: set[int], unreadable: set[int], begin: int) -> None:
    there = set(range(1, 61)) - dropped
    first = min(there, default=61)
    came = sorted(seq for seq in there - unreadable if seq >= begin)
    wrong = [seq for seq in there & unreadable if begin <= seq < max(came, default=0)]
    deleted = [seq for seq in dropped if seq > first]
    assert first_not_dropped(missing_in(came, begin), first, deleted) == min(wrong, default=None)
