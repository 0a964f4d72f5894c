"""Cutting ranges into pieces, and limiting them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.log.reader import Int64s
from penstock.spark.bounds import Range, cut, cut_to_tasks, limited_by_bytes, limited_by_count


class Even:
    """Every message of partition p is p + 1 bytes long; a mark at every tenth offset."""

    def marks(self, topic: str, partition: int, start: int, end: int) -> tuple[Int64s, Int64s]:
        offsets = np.array([start, *range(start + 10, end, 10), end])
        return offsets, (offsets - start) * (partition + 1)


PLACE = Even()


def covered(pieces: list[Range]) -> set[tuple[int, int]]:
    found = [(p.partition, offset) for p in pieces for offset in range(p.start, p.end)]
    assert len(found) == len(set(found)), "some offset is in two pieces"
    return set(found)


def test_a_hot_partition_is_cut_by_size() -> None:
    pieces = cut([Range("t", 0, 0, 1000), Range("t", 1, 5, 6)], PLACE, 300, None)
    assert [(p.start, p.end) for p in pieces] == [
        (0, 250),
        (250, 500),
        (500, 750),
        (750, 1000),
        (5, 6),
    ]


def test_more_pieces_are_cut_where_they_are_largest() -> None:
    pieces = cut([Range("t", 0, 0, 100), Range("t", 9, 0, 100)], PLACE, 1 << 20, 5)
    assert [p.partition for p in pieces] == [0, 9, 9, 9, 9]


def test_an_empty_range_has_no_piece_and_one_message_only_one() -> None:
    assert cut([Range("t", 0, 7, 7)], PLACE, 10, 4) == []
    assert cut([Range("t", 0, 7, 8)], PLACE, 10, 4) == [Range("t", 0, 7, 8)]


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 500)), min_size=1, max_size=6),
    st.integers(1, 400),
    st.one_of(st.none(), st.integers(1, 40)),
)
def test_pieces_are_the_range_without_gap_or_overlap(
    spans: list[tuple[int, int]], piece_bytes: int, pieces_min: int | None
) -> None:
    ranges = [Range("t", p, start, start + length) for p, (start, length) in enumerate(spans)]
    assert covered(cut(ranges, PLACE, piece_bytes, pieces_min)) == covered(ranges)


def test_a_limit_is_shared_in_proportion() -> None:
    ranges = [Range("t", 0, 0, 900), Range("t", 1, 0, 100)]
    assert [p.end for p in limited_by_count(ranges, 100)] == [90, 10]
    assert limited_by_count(ranges, 1000) == ranges
    # As bytes both have their share of their own: 900 and 200 of 1100.
    assert [p.end for p in limited_by_bytes(ranges, PLACE, 110)] == [90, 10]
    assert limited_by_bytes(ranges, PLACE, 1100) == ranges


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_a_small_limit_still_gets_on_everywhere(limit: int) -> None:
    ranges = [Range("t", p, 10, 10 + 10**p) for p in range(4)]
    for part in [*limited_by_count(ranges, limit), *limited_by_bytes(ranges, PLACE, limit)]:
        assert part.start < part.end <= 10 + 10**part.partition


class Thousand:
    """Every message is a thousand bytes long."""

    def marks(self, topic: str, partition: int, start: int, end: int) -> tuple[Int64s, Int64s]:
        return np.array([start, end]), np.array([0, (end - start) * 1000])


def test_many_small_ranges_are_few_tasks() -> None:
    small = [Range("t", number, 0, 40) for number in range(200)]
    large = Range("t", 999, 0, 100_000)
    tasks = cut_to_tasks([*small, large], Thousand(), 32 << 20, None)
    assert len(tasks) == 3 + 1  # of the large one, and of eight megabytes
    assert sorted(part for task in tasks for part in task)[:200] == small
    assert len(cut_to_tasks(small[:8], Thousand(), 32 << 20, None)) == 8
    assert len(cut_to_tasks(small, Thousand(), 32 << 20, 50)) == 50
    assert len(cut_to_tasks(small, Thousand(), 32 << 20, 200)) == 200
