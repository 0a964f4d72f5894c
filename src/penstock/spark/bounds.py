"""Ranges of offsets: what there is, what is wanted, and how it is cut into pieces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np

from penstock.log.reader import Int64s

_PIECES_FEW = 8
_SMALL_BYTES = 1 << 20
_TOGETHER_BYTES = 16 << 20


class DurableRange(NamedTuple):
    """The first offset that a partition keeps, and one past its last durable one."""

    start: int
    end: int


class TopicBounds(dict[int, DurableRange]):
    """What the partitions of a topic hold, and which topic of its name it is."""

    def __init__(self, partitions: Mapping[int, DurableRange], incarnation: str = "") -> None:
        super().__init__(partitions)
        self.incarnation = incarnation


class Range(NamedTuple):
    """Some messages of one partition, from an offset up to another."""

    topic: str
    partition: int
    start: int
    end: int


class Sized(Protocol):
    """Whoever knows about how many bytes lie between offsets."""

    def marks(self, topic: str, partition: int, start: int, end: int) -> tuple[Int64s, Int64s]: ...


def cut_to_tasks(
    ranges: Sequence[Range], place: Sized, piece_bytes: int, tasks_min: int | None
) -> list[list[Range]]:
    """Cut ranges into pieces as `cut` does, and put small ones together where there are many."""
    pieces = _cut_and_sized(ranges, place, piece_bytes, tasks_min)
    if len(pieces) <= _PIECES_FEW or (tasks_min or 0) >= len(pieces):
        return [[piece] for piece, _ in pieces]
    large = [[piece] for piece, size in pieces if size >= _SMALL_BYTES]
    small = [(piece, size) for piece, size in pieces if size < _SMALL_BYTES]
    total = sum(size for _, size in small)
    tasks = max(1, -(-total // _TOGETHER_BYTES), (tasks_min or 0) - len(large))
    together: list[list[Range]] = [[] for _ in range(min(int(tasks), len(small)))]
    for number, (piece, _) in enumerate(small):
        together[number % len(together)].append(piece)
    return large + together


def cut(
    ranges: Sequence[Range], place: Sized, piece_bytes: int, pieces_min: int | None
) -> list[Range]:
    """Cut ranges into pieces of at most so many bytes, and at least so many pieces if possible."""
    return [piece for piece, _ in _cut_and_sized(ranges, place, piece_bytes, pieces_min)]


def _cut_and_sized(
    ranges: Sequence[Range], place: Sized, piece_bytes: int, pieces_min: int | None
) -> list[tuple[Range, float]]:
    ranges = [each for each in ranges if each.end > each.start]
    marks = [place.marks(*each) for each in ranges]
    sizes = [int(before[-1]) for _, before in marks]
    wanted = [max(1, -(-size // piece_bytes)) for size in sizes]
    while pieces_min and ranges and sum(wanted) < pieces_min:
        each = [size / count for size, count in zip(sizes, wanted, strict=True)]
        wanted[int(np.argmax(each))] += 1
    return [
        (piece, int(before[-1]) / count)
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
