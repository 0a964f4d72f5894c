"""Ranges of offsets: what there is, what is wanted, and how it is cut into pieces."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np

from penstock.log.reader import Int64s


class DurableRange(NamedTuple):
    """The first offset that a partition keeps, and one past its last durable one."""

    start: int
    end: int


class Range(NamedTuple):
    """Some messages of one partition, from an offset up to another."""

    topic: str
    partition: int
    start: int
    end: int


class Sized(Protocol):
    """Whoever knows about how many bytes lie between offsets."""

    def marks(self, topic: str, partition: int, start: int, end: int) -> tuple[Int64s, Int64s]: ...


def cut(
    ranges: Sequence[Range], place: Sized, piece_bytes: int, pieces_min: int | None
) -> list[Range]:
    """Cut ranges into pieces of at most so many bytes, and at least so many pieces if possible."""
    ranges = [each for each in ranges if each.end > each.start]
    marks = [place.marks(*each) for each in ranges]
    sizes = [int(before[-1]) for _, before in marks]
    wanted = [max(1, -(-size // piece_bytes)) for size in sizes]
    while pieces_min and ranges and sum(wanted) < pieces_min:
        each = [size / count for size, count in zip(sizes, wanted, strict=True)]
        wanted[int(np.argmax(each))] += 1
    return [
        piece
        for each, (offsets, before), count in zip(ranges, marks, wanted, strict=True)
        for piece in _pieces(each, offsets, before, count)
    ]


def limited_by_count(ranges: Sequence[Range], offsets_max: int) -> list[Range]:
    """So many offsets of all ranges together, of each in proportion to what is there."""
    total = sum(each.end - each.start for each in ranges)
    if total <= offsets_max:
        return list(ranges)
    shares = [offsets_max * (each.end - each.start) / total for each in ranges]
    return [
        each._replace(end=min(each.end, each.start + int(share if share >= 1 else -(-share // 1))))
        for each, share in zip(ranges, shares, strict=True)
    ]


def limited_by_bytes(ranges: Sequence[Range], place: Sized, bytes_max: int) -> list[Range]:
    """About so many bytes of all ranges together, of each in proportion, and at least a message."""
    marks = [place.marks(*each) if each.end > each.start else None for each in ranges]
    total = sum(int(before[1][-1]) for before in marks if before)
    if total <= bytes_max:
        return list(ranges)
    limited = []
    for each, known in zip(ranges, marks, strict=True):
        if known:
            offsets, before = known
            end = int(np.interp(bytes_max * int(before[-1]) / total, before, offsets))
            each = each._replace(end=min(each.end, max(end, each.start + 1)))
        limited.append(each)
    return limited


def _pieces(whole: Range, offsets: Int64s, before: Int64s, count: int) -> list[Range]:
    """Cut at equal sizes; between two marks as if all messages there were equally long."""
    goals = np.arange(1, count) * (int(before[-1]) / count)
    inner = np.interp(goals, before, offsets).astype(np.int64)
    ends = np.unique(np.concatenate([[whole.start], inner, [whole.end]])).tolist()
    return [whole._replace(start=start, end=end) for start, end in pairwise(ends)]
