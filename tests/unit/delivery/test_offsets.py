"""A set of offsets behaves as the plain set it stands for."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from penstock.delivery.offsets import EMPTY, Offsets, decode_hook, encode_hook

BASE = 5_000_000_000  # beyond 32 bits, as an old partition's offsets are

runs = st.builds(lambda first, count: set(range(first, first + count)), *[st.integers(0, 40)] * 2)
sets = st.one_of(st.sets(st.integers(0, 60)), runs).map(lambda found: {BASE + o for o in found})


@given(sets, sets)
def test_set_algebra_is_that_of_sets(a: set[int], b: set[int]) -> None:
    left, right = Offsets.of(a), Offsets.of(b)

    assert set(left & right) == a & b
    assert set(left | right) == a | b
    assert set(left - right) == a - b
    assert set(left.within(BitMap64(b))) == a & b


@given(sets, sets)
def test_equal_sets_are_equal_values_however_they_came_about(a: set[int], b: set[int]) -> None:
    assert (Offsets.of(a) | Offsets.of(b)) == Offsets.of(a | b)
    assert (Offsets.of(a) - Offsets.of(b)) == Offsets.of(a - b)
    assert (Offsets.of(a) & Offsets.of(b)) == Offsets.of(a & b)


@given(sets, st.integers(0, 70))
def test_views_agree_with_the_set(a: set[int], count: int) -> None:
    offsets, ascending = Offsets.of(a), sorted(a)

    assert list(offsets) == ascending
    assert offsets.array().tolist() == ascending
    assert offsets.array().dtype == np.int64
    assert len(offsets) == len(a)
    assert bool(offsets) == bool(a)
    assert list(offsets.head(count)) == ascending[:count]
    assert list(offsets.bitmap()) == ascending
    assert all(offset in offsets for offset in a)
    assert BASE + 1000 not in offsets
    if a:
        assert (offsets.first, offsets.stop) == (ascending[0], ascending[-1] + 1)


@given(sets, sets)
def test_adding_to_and_removing_from_a_bitmap(a: set[int], b: set[int]) -> None:
    bits = BitMap64(b)
    Offsets.of(a).add_to(bits)
    assert set(bits) == a | b
    Offsets.of(a).remove_from(bits)
    assert set(bits) == b - a


@given(sets)
def test_what_is_stored_is_what_comes_back(a: set[int]) -> None:
    offsets = Offsets.of(a)
    stored = msgspec.msgpack.encode(offsets, enc_hook=encode_hook)

    assert msgspec.msgpack.decode(stored, type=Offsets, dec_hook=decode_hook) == offsets


def test_a_set_without_holes_needs_no_bitmap() -> None:
    assert Offsets.of([3, 1, 2]) == Offsets.run(1, 4) == Offsets.of(np.array([1, 2, 3]))
    assert Offsets.of(range(1, 4)).bits is None
    assert Offsets.of(range(0, 6, 2)).bits is not None


def test_there_is_one_empty_set() -> None:
    assert Offsets.of([]) == Offsets.run(7, 7) == Offsets.run(9, 3) == EMPTY
    assert list(EMPTY) == []


def test_a_long_run_costs_nothing_to_compare_with_a_small_bitmap() -> None:
    far = BitMap64([5, 10**15])

    assert list(Offsets.run(0, 10**18).within(far)) == [5, 10**15]
    assert list(Offsets.run(6, 10**18).within(far)) == [10**15]


@pytest.mark.parametrize("stored", [b"", b"abc", BitMap64([1, 5]).serialize()[:-1], 7])
def test_a_damaged_bitmap_is_an_error_and_not_a_set(stored: object) -> None:
    data = msgspec.msgpack.encode([0, 2, stored])

    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(data, type=Offsets, dec_hook=decode_hook)
