"""The log in which traces are stored, and where rows of it are found again.

It is `trace/` in the data folder. Its messages are, by the mark that their priority is:

NORMAL     a block of rows (`trace/events.py`). The timestamp is that of its newest row.
LOW        a page of an index: up to `PAGE_KEYS` sorted keys, 8 bytes each, then as many locations.
HIGH       the foot of an index: which blocks it is about, and the first key of each page.

An index is written after some blocks: pages of the keys of places, pages of those of ids, the foot.
In memory are the feet, and the keys of the blocks after the last one; so a row is found by reading
one page of each index, and then its block. What a crash cuts off has no foot, and is indexed anew.
An index is about blocks before it, and goes with them, or a little later, by retention.

One thread at a time appends; any reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from penstock.config import DAY_MS, LogConfig, Retention
from penstock.errors import OffsetOutOfRange
from penstock.log.base import Batches, PartitionLog
from penstock.record.batch import Batch
from penstock.record.schema import Priority
from penstock.trace.events import BLOCK_ROWS_MAX, TraceBlock, TraceRow, encode_block
from penstock.trace.index import (
    LOCATION_ROW_BITS,
    KeyRange,
    RowKeys,
    UInt64s,
    classes_of,
    id_pairs,
    id_range,
    place_pairs,
    place_ranges,
    trace_range,
)
from penstock.trace.lives import LocatedRow, Place

RETENTION = Retention(age_ms=3 * DAY_MS, bytes_max=1 << 30)
PAGE_KEYS = 4096
INDEX_ROWS_MAX = 1 << 20
INDEX_BLOCKS_MAX = 2048
"""An index is written after so many rows or blocks."""

FOUND_MAX = 10_000
"""Rows that are looked at for one key; more of them are one batch that was settled singly."""

_BLOCKS_CACHED = 64
_PAGE, _FOOT = Priority.LOW, Priority.HIGH
_FOOT_MARK = 1 << _FOOT


def trace_log_config(free_bytes_min: int) -> LogConfig:
    return LogConfig(
        segment_bytes=16 << 20,
        segment_age_ms=DAY_MS // 4,
        codec="zstd",
        compress_bytes_min=256,
        free_bytes_min=free_bytes_min,
    )


class _Pages(msgspec.Struct, frozen=True, array_like=True):
    """The sorted keys of an index, in pages."""

    first_page: int
    fences: bytes
    """The first key of each page."""
    last: int
    """The largest key."""


class _Foot(msgspec.Struct, frozen=True, array_like=True):
    """New fields go to the end and need a default."""

    start: int
    stop: int
    """It is about the blocks from one offset on and before another one."""
    newest_us: int
    classes: int
    places: _Pages
    ids: _Pages


class _Index:
    """A foot, at hand."""

    def __init__(self, foot: _Foot) -> None:
        self.foot = foot
        self.places = np.frombuffer(foot.places.fences, np.uint64)
        self.ids = np.frombuffer(foot.ids.fences, np.uint64)


class _Unindexed(NamedTuple):
    """The keys of a block after the last index."""

    offset: int
    rows: int
    newest_us: int
    places: RowKeys
    ids: RowKeys


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Foot).decode


class TraceLog:
    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        self._indexes: tuple[_Index, ...] = tuple(self._feet())
        since = self._indexes[-1].foot.stop if self._indexes else log.start
        self._unindexed: tuple[_Unindexed, ...] = ()
        for offset, block in self._blocks(since, log.end):
            self._note(offset, block.rows())

    @property
    def end(self) -> int:
        return self._log.end

    def append(self, rows: Sequence[TraceRow]) -> None:
        for start in range(0, len(rows), BLOCK_ROWS_MAX):
            some = rows[start : start + BLOCK_ROWS_MAX]
            newest_us = max(row.at_us for row in some)
            batch = Batch.build([encode_block(some)], timestamps_us=newest_us)
            self._note(self._log.append(batch).first_offset, some)
        waiting = self._unindexed
        if sum(each.rows for each in waiting) >= INDEX_ROWS_MAX or len(waiting) >= INDEX_BLOCKS_MAX:
            self._write_index()

    def drop_old(self, wall_us: int) -> None:
        if self._log.retain(RETENTION, wall_us):
            start = self._log.start
            self._indexes = tuple(each for each in self._indexes if each.foot.stop > start)

    def close(self) -> None:
        self._log.close()

    def find(self) -> TraceFinder:
        """What is stored now."""
        return TraceFinder(self._log, self._indexes, self._unindexed)

    def at(self, since_us: int) -> int:
        """Where the first block lies with something from a moment on."""
        return self._log.find(since_us)

    def raw(self, start: int, stop: int, bytes_max: int) -> tuple[list[bytes], int]:
        """Blocks as they are stored, from an offset on and before another, and where to go on."""
        found: list[bytes] = []
        offset = max(start, self._log.start)
        while offset < stop and bytes_max > 0:
            read = _read(self._log, offset, min(bytes_max, 4 << 20))
            for batch in read.batches:
                if batch.priority == Priority.NORMAL:
                    numbers = batch.offset_numbers().tolist()
                    for number, value in zip(numbers, batch.values.to_pylist(), strict=True):
                        if offset <= number < stop and value is not None:
                            found.append(value)
                            bytes_max -= len(value)
            offset = min(read.next_offset, stop)
        return found, max(start, offset)

    def _note(self, offset: int, rows: Sequence[TraceRow]) -> None:
        location = offset << LOCATION_ROW_BITS
        newest_us = max((row.at_us for row in rows), default=0)
        places, ids = RowKeys.of(place_pairs(rows, location)), RowKeys.of(id_pairs(rows, location))
        self._unindexed += (_Unindexed(offset, len(rows), newest_us, places, ids),)

    def _write_index(self) -> None:
        waiting = self._unindexed
        places = RowKeys.joined(each.places for each in waiting)
        foot = _Foot(
            start=waiting[0].offset,
            stop=waiting[-1].offset + 1,
            newest_us=max(each.newest_us for each in waiting),
            classes=classes_of(places.keys),
            places=self._write_pages(places),
            ids=self._write_pages(RowKeys.joined(each.ids for each in waiting)),
        )
        self._append(_encode(foot), _FOOT)
        self._indexes = (*self._indexes, _Index(foot))
        self._unindexed = ()

    def _write_pages(self, keys: RowKeys) -> _Pages:
        count = len(keys.keys)
        first_page, last = self._log.end, int(keys.keys[-1]) if count else 0
        for start in range(0, count, PAGE_KEYS):
            page = slice(start, start + PAGE_KEYS)
            self._append(keys.keys[page].tobytes() + keys.locations[page].tobytes(), _PAGE)
        return _Pages(first_page, keys.keys[::PAGE_KEYS].tobytes(), last)

    def _append(self, data: bytes, mark: Priority) -> None:
        stamp_us = max(self._log.newest_us, 0)  # none that a search by time would find
        self._log.append(Batch.build([data], timestamps_us=stamp_us, priority=mark))

    def _feet(self) -> Iterator[_Index]:
        log = self._log
        offset = log.next_block(log.start, _FOOT_MARK)
        while offset < log.end:
            read = log.read(offset, 1)
            for batch in read.batches:
                if batch.priority == _FOOT:
                    yield from (_Index(_decode(data)) for data in batch.values.to_pylist())
            offset = log.next_block(read.next_offset, _FOOT_MARK)

    def _blocks(self, start: int, stop: int) -> Iterator[tuple[int, TraceBlock]]:
        offset = max(start, self._log.start)
        while offset < stop:
            read = _read(self._log, offset, 4 << 20)
            for batch in read.batches:
                if batch.priority == Priority.NORMAL:
                    for nth, data in zip(
                        batch.offset_numbers().tolist(), batch.values.to_pylist(), strict=True
                    ):
                        yield nth, TraceBlock(data)
            offset = read.next_offset


class TraceFinder:
    """The rows that are stored at a moment. One thread uses it, and keeps it for one question: it
    holds the blocks that it has read."""

    def __init__(
        self, log: PartitionLog, indexes: Sequence[_Index], unindexed: Sequence[_Unindexed]
    ) -> None:
        self._log = log
        self._indexes = indexes
        self._unindexed = unindexed
        self._blocks: dict[int, TraceBlock | None] = {}

    def of_id(self, ulid: int) -> list[LocatedRow]:
        """Rows that may name the id of a message. It begins with a time, before which there is
        none."""
        return self._rows(self._by_id(id_range(ulid), (ulid >> 80) * 1000 - 1_000_000))

    def of_trace(self, trace_id: int) -> list[LocatedRow]:
        """Rows that may name a trace id: one that messages brought, or the id of one."""
        return self._rows(self._by_id(trace_range(trace_id), 0)) + self.of_id(trace_id)

    def of_place(self, place: Place) -> list[LocatedRow]:
        """Rows that may be about what lies, or lay, at a place."""
        found: list[UInt64s] = []
        for index in self._indexes:
            foot = index.foot
            for each in place_ranges(*place, foot.classes):
                found += self._in_pages(foot.places, index.places, each)
        every = place_ranges(*place, (1 << 32) - 1)
        for block in self._unindexed:
            if len(block.places.keys):
                found += [block.places.matching(*each) for each in every]
        return self._rows(found)

    def topic(
        self, topic: str, since_us: int, until_us: int, after: int
    ) -> Iterator[tuple[int, LocatedRow | None]]:
        """Rows about a topic, from a moment on, and past a location. Of each block that is read it
        is told that it was, with None."""
        log = self._log
        offset = max(log.find(since_us), log.start, after >> LOCATION_ROW_BITS)
        while offset < log.end:
            read = _read(log, offset, 1)
            for batch in read.batches:
                if batch.priority == Priority.NORMAL:
                    for number in batch.offset_numbers().tolist():
                        location = number << LOCATION_ROW_BITS
                        yield location, None
                        block = self._block(number)
                        if block is not None:
                            numbers = block.of_topic(topic, since_us, until_us)
                            numbers = [nth for nth in numbers if location + nth > after]
                            for nth, row in zip(numbers, block.rows(numbers), strict=True):
                                yield location + nth, LocatedRow(location + nth, row)
            offset = read.next_offset

    def _by_id(self, wanted: KeyRange, since_us: int) -> list[UInt64s]:
        found: list[UInt64s] = []
        for index in self._indexes:
            if index.foot.newest_us >= since_us:
                found += self._in_pages(index.foot.ids, index.ids, wanted)
        return found + [
            block.ids.matching(*wanted)
            for block in self._unindexed
            if block.newest_us >= since_us and len(block.ids.keys)
        ]

    def _in_pages(self, pages: _Pages, fences: UInt64s, wanted: KeyRange) -> Iterator[UInt64s]:
        if not len(fences) or wanted.first > pages.last or wanted.last < int(fences[0]):
            return
        # A key that is equal to a fence may also be at the end of the page before.
        start = max(int(np.searchsorted(fences, np.uint64(wanted.first), side="left")) - 1, 0)
        stop = int(np.searchsorted(fences, np.uint64(wanted.last), side="right"))
        for number in range(start, stop):
            page = self._page(pages.first_page + number)
            if page is not None:
                yield page.between(*wanted)

    def _page(self, offset: int) -> RowKeys | None:
        """None for one that is damaged or gone."""
        data = self._value(offset)
        if data is None:
            return None
        both = np.frombuffer(data, np.uint64)
        return RowKeys(both[: len(both) // 2], both[len(both) // 2 :])

    def _rows(self, locations: Sequence[UInt64s]) -> list[LocatedRow]:
        if not locations:
            return []
        found: list[LocatedRow] = []
        sorted_ones = np.unique(np.concatenate(locations))[:FOUND_MAX].tolist()
        for offset, some in groupby(sorted_ones, lambda location: location >> LOCATION_ROW_BITS):
            block = self._block(offset)
            if block is not None:
                first = offset << LOCATION_ROW_BITS
                numbers = [each - first for each in some if each - first < len(block)]
                rows = block.rows(numbers)
                found += [LocatedRow(first + n, row) for n, row in zip(numbers, rows, strict=True)]
        return found

    def _block(self, offset: int) -> TraceBlock | None:
        if offset not in self._blocks:
            while len(self._blocks) >= _BLOCKS_CACHED:
                del self._blocks[next(iter(self._blocks))]
            data = self._value(offset)
            try:
                self._blocks[offset] = None if data is None else TraceBlock(data)
            except (pa.ArrowException, OSError):
                self._blocks[offset] = None
        return self._blocks[offset]

    def _value(self, offset: int) -> bytes | None:
        """What lies at an offset; None if it is damaged, or gone by retention."""
        if not self._log.start <= offset < self._log.end:
            return None
        for batch in _read(self._log, offset, 1).batches:
            if batch.base_offset == offset:
                value: bytes | None = batch.values[0].as_py()
                return value
        return None


def _read(log: PartitionLog, offset: int, max_bytes: int) -> Batches:
    while True:
        try:
            return log.read(max(offset, log.start), max_bytes)
        except OffsetOutOfRange:  # retention was quicker
            continue
