"""Durations counted in buckets, four to an octave of microseconds.

A bucket is at most a quarter as wide as the durations in it, so that a percentile, for which its
middle is taken, is off by an eighth at the most. Buckets that are empty take no room.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from penstock.delivery.offsets import Int64s

_EXACT_MAX = (1 << 53) - 1  # microseconds, 285 years: up to here a float knows the highest bit


class Histogram:
    """One thread at a time adds."""

    __slots__ = ("buckets", "max_us", "sum_us")

    def __init__(
        self, buckets: dict[int, int] | None = None, sum_us: float = 0.0, max_us: int = 0
    ) -> None:
        self.buckets: dict[int, int] = {} if buckets is None else buckets
        self.sum_us = sum_us
        self.max_us = max_us

    @classmethod
    def of(cls, several: Iterable[Histogram]) -> Histogram:
        """All of them together."""
        together = cls()
        for each in several:
            together.merge(each)
        return together

    @property
    def count(self) -> int:
        return sum(self.buckets.values())

    def add(self, took_us: Int64s, counts: Int64s) -> None:
        """So many things took each of these times, none of which is negative."""
        known = np.minimum(took_us, _EXACT_MAX)
        shifts = np.maximum(np.frexp(known)[1].astype(np.int64) - 3, 0)
        found = np.bincount((shifts << 2) + (known >> shifts), counts)
        for bucket in np.flatnonzero(found).tolist():
            self.buckets[bucket] = self.buckets.get(bucket, 0) + int(found[bucket])
        self.sum_us += float(np.dot(took_us.astype(np.float64), counts))
        self.max_us = max(self.max_us, int(took_us.max()))

    def merge(self, other: Histogram) -> None:
        for bucket, count in other.buckets.items():
            self.buckets[bucket] = self.buckets.get(bucket, 0) + count
        self.sum_us += other.sum_us
        self.max_us = max(self.max_us, other.max_us)

    def percentiles_us(self, parts: Sequence[float]) -> list[int]:
        """The percentile of each part, such as 0.95; parts in ascending order."""
        counts = sorted(self.buckets.items())
        total = self.count
        found: list[int] = []
        seen, at = 0, -1
        for part in parts:
            while at < len(counts) - 1 and seen < part * total:
                at += 1
                seen += counts[at][1]
            found.append(min(_middle_us(counts[max(at, 0)][0]), self.max_us) if counts else 0)
        return found

    def below(self, edges_us: Sequence[int]) -> list[int]:
        """How many were below each of the edges, which are powers of two from 4 on."""
        return [
            sum(count for bucket, count in self.buckets.items() if bucket < _bucket(edge_us))
            for edge_us in edges_us
        ]


def _bucket(took_us: int) -> int:
    """The highest bit that is set, and the two below it."""
    shift = took_us.bit_length() - 3
    return (shift << 2) + (took_us >> shift) if shift > 0 else took_us


def _middle_us(bucket: int) -> int:
    if bucket < 8:
        return bucket  # nothing else is in it
    shift = (bucket >> 2) - 1
    first_us = (4 + (bucket & 3)) << shift
    return first_us + (1 << shift) // 2
