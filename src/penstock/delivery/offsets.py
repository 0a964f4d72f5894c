"""A set of offsets as one value: a run where it is dense, a compressed bitmap where it has holes.

Leases, events and effects all speak of many messages at once, and nearly always of neighbours.
A run costs three integers however long it is; a bitmap does its set algebra in C, some
nanoseconds a message, and its serialized form (Roaring's portable 64-bit format) is what the
ledger stores.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import Self

import msgspec
import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap64

Int64s = NDArray[np.int64]

NARROW = 1 << 20  # a run up to here is quick to make as a bitmap; beyond, the other one is copied


class Offsets(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Offsets in ascending order. Never changes; equal sets are equal values.

    Built by `one`, `run` and `of`, which take care that a set without holes has no bitmap.
    """

    first: int
    count: int
    bits: BitMap64 | None = None  # only where there are holes; shared, so not to be changed

    @classmethod
    def one(cls, offset: int) -> Self:
        return cls(offset, 1)

    @classmethod
    def run(cls, first: int, stop: int) -> Self:
        return cls(first, stop - first) if stop > first else cls(0, 0)

    @classmethod
    def of(cls, offsets: Iterable[int] | Int64s | BitMap64) -> Self:
        """Any order, duplicates allowed. A bitmap becomes part of the value: hand it over."""
        if isinstance(offsets, range) and offsets.step == 1:
            return cls.run(offsets.start, offsets.stop)
        bits = offsets if isinstance(offsets, BitMap64) else bitmap(offsets)
        count = len(bits)
        if not count:
            return cls(0, 0)
        first = bits.min()
        if bits.max() - first + 1 == count:
            return cls(first, count)
        return cls(first, count, bits)

    @property
    def stop(self) -> int:
        """One past the last."""
        return self.first + self.count if self.bits is None else self.bits.max() + 1

    def __len__(self) -> int:
        return self.count

    def __contains__(self, offset: int) -> bool:
        if self.bits is None:
            return self.first <= offset < self.first + self.count
        return offset in self.bits

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.first, self.stop) if self.bits is None else self.bits)

    def array(self) -> Int64s:
        if self.bits is None:
            return np.arange(self.first, self.first + self.count, dtype=np.int64)
        return np.frombuffer(self.bits.to_array(), dtype=np.int64)

    def bitmap(self) -> BitMap64:
        """As a bitmap of the caller's own."""
        if self.bits is not None:
            return self.bits.copy()
        return BitMap64(range(self.first, self.first + self.count))

    def head(self, count: int) -> Offsets:
        """The first `count` of them, or all."""
        if count >= self.count:
            return self
        if self.bits is None:
            return Offsets(self.first, count) if count > 0 else EMPTY
        return self & Offsets.run(self.first, self.bits[count])

    def next_from(self, offset: int) -> int:
        """The first of them that is not below an offset; one past the last if all are."""
        if self.bits is None:
            return min(max(offset, self.first), self.stop)
        rank = self.bits.rank(offset - 1) if offset else 0
        return self.bits[rank] if rank < self.count else self.stop

    def add_to(self, bits: BitMap64) -> None:
        if self.count == 1:
            bits.add(self.first)
        elif self.bits is not None:
            bits |= self.bits
        elif self.count:
            bits.add_range(self.first, self.first + self.count)

    def remove_from(self, bits: BitMap64) -> None:
        if self.count == 1:
            bits.discard(self.first)
        elif self.bits is not None:
            bits -= self.bits
        elif self.count:
            bits.remove_range(self.first, self.first + self.count)

    def leave(self, bits: BitMap64) -> Offsets:
        """Those that are in a bitmap, which are then no longer."""
        if self.count == 1:
            if self.first not in bits:
                return EMPTY
            bits.discard(self.first)
            return self
        left = self.within(bits)
        left.remove_from(bits)
        return left

    def within(self, bits: BitMap64) -> Offsets:
        """Those that are in a bitmap."""
        if self.count == 1:
            return self if self.first in bits else EMPTY
        if self.bits is None:
            found = bits.range_cardinality(self.first, self.first + self.count)
            if found == self.count:
                return self
            if not found:
                return EMPTY
            return Offsets.of(_cut(bits, self.first, self.first + self.count))
        return Offsets.of(bits & self.bits)

    def __and__(self, other: Offsets) -> Offsets:
        if self.bits is not None:
            return other.within(self.bits)
        if other.bits is not None:
            return self.within(other.bits)
        if other.first >= self.first and other.first + other.count <= self.first + self.count:
            return other
        return Offsets.run(max(self.first, other.first), min(self.stop, other.stop))

    def __or__(self, other: Offsets) -> Offsets:
        if not other.count:
            return self
        if not self.count:
            return other
        union = self.bitmap()
        other.add_to(union)
        return Offsets.of(union)

    def __sub__(self, other: Offsets) -> Offsets:
        if not self.count or not other.count:
            return self
        if self.bits is None and other.bits is None:
            # Acks in order, from either end, leave a run.
            if other.first <= self.first:
                return Offsets.run(max(self.first, other.stop), self.stop)
            if other.stop >= self.stop:
                return Offsets.run(self.first, min(self.stop, other.first))
        rest = self.bitmap()
        other.remove_from(rest)
        return Offsets.of(rest)

    def __repr__(self) -> str:
        return f"Offsets({list(self) if self.bits is not None else range(self.first, self.stop)})"


EMPTY = Offsets(0, 0)


def bitmap(offsets: Iterable[int] | Int64s) -> BitMap64:
    # A bitmap reads an array of machine words four times as fast as it reads Python integers.
    if isinstance(offsets, np.ndarray):
        return BitMap64(array("Q", offsets.astype(np.uint64, copy=False).tobytes()))
    return BitMap64(offsets)


def _cut(bits: BitMap64, first: int, stop: int) -> BitMap64:
    """The part of a bitmap in [first, stop)."""
    if stop - first <= NARROW:
        return bits & BitMap64(range(first, stop))
    part = bits.copy()
    part.remove_range(0, first)
    part.remove_range(stop, max(stop, bits.max() + 1))
    return part


def encode_hook(value: object) -> bytes:
    """How msgspec stores what it does not know."""
    if isinstance(value, BitMap64):
        value.run_optimize()
        return value.serialize()
    raise NotImplementedError(f"{type(value).__name__} has no stored form")


def decode_hook(kind: type, value: object) -> object:
    if kind is BitMap64 and isinstance(value, bytes) and value:
        return BitMap64.deserialize(value)
    raise ValueError(f"not the stored form of a {kind.__name__}")
