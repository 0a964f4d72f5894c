"""The keys by which rows are found again: sorted numbers, each with where its row lies.

A key of a place says partition, length and offset: `hash(topic, partition) << 44 | class << 39 |
first offset`, where rows of class `c` reach over at most `2**c` offsets. So all rows that may cover
an offset lie, for each class, in one short range. A key of an id is a hash of the frame that the
message was published in, or of a trace id. Two rows may have the same key by chance, so a row
that is found is checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

import mmh3
import numpy as np
from numpy.typing import NDArray

from penstock.trace.events import ID_BYTES, OUTSIDE, TraceRow

UInt64s = NDArray[np.uint64]

CLASSES = 32
_OFFSET_BITS = 39
_CLASS_BITS = 5
_OFFSETS = (1 << _OFFSET_BITS) - 1
_TOPIC_BITS = 20
_BITS_64 = (1 << 64) - 1
_ROW_BITS = 24
_FRAME, _TRACE = 0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93

LOCATION_ROW_BITS = 16
"""A location is the offset of the block in its log, and in the lowest bits the row in it."""


class RowKeys(NamedTuple):
    """What some rows can be found by; `locations` beside each."""

    keys: UInt64s
    locations: UInt64s

    @classmethod
    def of(cls, pairs: Iterable[tuple[int, int]]) -> RowKeys:
        data = np.array(list(pairs), np.uint64).reshape(-1, 2)
        return cls(data[:, 0].copy(), data[:, 1].copy())

    @classmethod
    def joined(cls, several: Iterable[RowKeys]) -> RowKeys:
        """All of them, in order."""
        parts = list(several)
        if not parts:
            return cls(np.empty(0, np.uint64), np.empty(0, np.uint64))
        keys = np.concatenate([part.keys for part in parts])
        order = np.argsort(keys, kind="stable")
        return cls(keys[order], np.concatenate([part.locations for part in parts])[order])

    def between(self, first: int, last: int) -> UInt64s:
        """The locations of keys in a range, both ends included; of sorted keys."""
        start = np.searchsorted(self.keys, np.uint64(first), side="left")
        stop = np.searchsorted(self.keys, np.uint64(last), side="right")
        return self.locations[start:stop]

    def matching(self, first: int, last: int) -> UInt64s:
        """The same of keys in any order."""
        fits = (self.keys >= np.uint64(first)) & (self.keys <= np.uint64(last))
        return self.locations[fits]


class KeyRange(NamedTuple):
    first: int
    last: int


def place_pairs(rows: Iterable[TraceRow], location: int) -> Iterator[tuple[int, int]]:
    """The keys of the places of rows that lie from a location on."""
    for row in rows:
        if row.kind not in OUTSIDE:
            yield _place_key(row.topic, row.partition, row.first, row.stop), location
        if row.origin_topic:
            first = row.origin_first
            holes = row.origin_holes
            stop = first + row.count if holes is None else holes.max() + 1
            yield _place_key(row.origin_topic, row.origin_partition, first, stop), location
        location += 1


def id_pairs(rows: Iterable[TraceRow], location: int) -> Iterator[tuple[int, int]]:
    """The keys of the ids, and of the trace ids, of rows that lie from a location on."""
    for row in rows:
        if row.ids is not None:
            for frame in {ulid >> _ROW_BITS for ulid in _numbers(row.ids)}:
                yield _mixed(frame, _FRAME), location
        if row.trace_ids is not None:
            for trace in set(_numbers(row.trace_ids)):
                if trace:
                    yield _mixed(trace, _TRACE), location
        location += 1


def place_ranges(topic: str, partition: int, offset: int, classes: int) -> list[KeyRange]:
    """Where the keys of rows are that may cover an offset. `classes`: a bit for each there is."""
    base = _topic_key(topic, partition)
    ranges = []
    for number in range(CLASSES):
        if classes >> number & 1:
            first = max(offset - (1 << number) + 1, 0)
            prefix = base | number << _OFFSET_BITS
            ranges.append(KeyRange(prefix | first & _OFFSETS, prefix | offset & _OFFSETS))
    return ranges


def id_range(ulid: int) -> KeyRange:
    """Where the keys of rows are that may name the id of a message."""
    key = _mixed(ulid >> _ROW_BITS, _FRAME)
    return KeyRange(key, key)


def trace_range(trace_id: int) -> KeyRange:
    key = _mixed(trace_id, _TRACE)
    return KeyRange(key, key)


def classes_of(keys: UInt64s) -> int:
    """A bit for each class that occurs among the keys of places."""
    classes = keys >> np.uint64(_OFFSET_BITS) & np.uint64(CLASSES - 1)
    return sum(1 << int(number) for number in np.unique(classes))


def _place_key(topic: str, partition: int, first: int, stop: int) -> int:
    number = min((stop - first - 1).bit_length(), CLASSES - 1)
    return _topic_key(topic, partition) | number << _OFFSET_BITS | first & _OFFSETS


@lru_cache(maxsize=4096)
def _topic_key(topic: str, partition: int) -> int:
    number = mmh3.hash(f"{topic}/{partition}", signed=False) >> 32 - _TOPIC_BITS
    return number << _CLASS_BITS + _OFFSET_BITS


def _mixed(number: int, factor: int) -> int:
    low = (number ^ number >> 64) * factor & _BITS_64
    return (low ^ low >> 29) * _FRAME & _BITS_64


def _numbers(ids: bytes) -> Iterator[int]:
    for at in range(0, len(ids), ID_BYTES):
        yield int.from_bytes(ids[at : at + ID_BYTES], "big")
