"""Whose the messages of a partition are, in two bytes each, where tenants take turns.

Marks are made of what is published, and read from the log again after a restart, as far as anybody
looks. They are kept in chunks, of which the furthest are dropped when there are too many.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

import mmh3
import numpy as np
import pyarrow as pa

from penstock.delivery.fairness import NO_MESSAGE, NO_TENANT, TENANT_BITS, TENANTS, Marks
from penstock.delivery.offsets import Int64s
from penstock.record import compute as pc
from penstock.record.batch import Batch
from penstock.record.schema import BITS

CHUNK = 1 << 16
CHUNKS_MAX = 256
_UNKNOWN = 0xFFFF
_FEW = 16
_NONE = np.empty(0, np.uint16)
_HEADER = "header:"


class FairMarks:
    """Any thread may call anything."""

    def __init__(self, fair_by: str) -> None:
        self.fair_by = fair_by
        self._header = fair_by.removeprefix(_HEADER) if fair_by != "key" else None
        self._chunks: dict[int, Marks] = {}
        self._lock = threading.Lock()

    def published(self, batch: Batch, first: int) -> None:
        """Messages were appended at an offset and those behind it."""
        marks = self.of(batch)
        with self._lock:
            number = first // CHUNK
            if number in self._chunks or len(self._chunks) < CHUNKS_MAX:
                self._put(marks, first)

    def read(self, batches: Iterable[Batch], start: int, stop: int) -> None:
        """What the log has between two offsets."""
        marks = np.full(stop - start, NO_MESSAGE, np.uint16)
        for batch in batches:
            offsets = batch.offset_numbers()
            inside = (offsets >= start) & (offsets < stop)
            marks[offsets[inside] - start] = self.of(batch)[inside]
        with self._lock:
            self._put(marks, start)
            while len(self._chunks) > CHUNKS_MAX:
                del self._chunks[max(self._chunks, key=lambda each: abs(each - start // CHUNK))]

    def known(self, start: int, end: int) -> Marks:
        """The marks from an offset on, as far as they are known and at hand in one piece."""
        chunk = self._chunks.get(start // CHUNK)
        if chunk is None:
            return _NONE
        at = start % CHUNK
        marks = chunk[at : at + end - start]
        unknown = marks == _UNKNOWN
        return marks[: int(unknown.argmax())] if unknown.any() else marks

    def forget_before(self, offset: int) -> None:
        """Nobody looks there any more."""
        if min(self._chunks, default=offset) < offset // CHUNK:
            with self._lock:
                for number in [each for each in self._chunks if each < offset // CHUNK]:
                    del self._chunks[number]

    def of(self, batch: Batch) -> Marks:
        marks = self._tenants(batch)
        marks |= batch.priority_numbers().astype(np.uint16) << np.uint16(TENANT_BITS)
        return marks

    def _tenants(self, batch: Batch) -> Marks:
        rows = np.full(len(batch), NO_TENANT, np.uint16)
        if self._header is None:
            if batch.columns & BITS["key"]:
                _hash_into(rows, None, batch.keys)
        elif batch.columns & BITS["headers"]:
            headers = batch.headers
            pairs = headers.flatten()
            mine = pc.equal(pairs.field("key"), self._header)
            at = np.asarray(pc.list_parent_indices(headers).filter(mine))
            _hash_into(rows, at, pairs.field("value").filter(mine))
        return rows

    def _put(self, marks: Marks, first: int) -> None:
        while len(marks):
            number, at = divmod(first, CHUNK)
            chunk = self._chunks.get(number)
            if chunk is None:
                chunk = self._chunks[number] = np.full(CHUNK, _UNKNOWN, np.uint16)
            count = min(len(marks), CHUNK - at)
            chunk[at : at + count] = marks[:count]
            marks, first = marks[count:], first + count


def _hash_into(rows: Marks, at: Int64s | None, values: pa.Array) -> None:
    """Tenants by their values; `at`: in which rows these are."""
    if len(values) > _FEW:
        encoded = values.dictionary_encode()
        named = np.array([_tenant(each) for each in encoded.dictionary.to_pylist()], np.uint16)
        codes = np.asarray(encoded.indices.fill_null(len(named)))
        found = np.append(named, np.uint16(NO_TENANT))[codes]
    else:
        found = np.array([_tenant(each) for each in values.to_pylist()], np.uint16)
    if at is None:
        rows[:] = found
    else:
        rows[at] = found


def _tenant(value: bytes | None) -> int:
    """NO_TENANT without a value."""
    return NO_TENANT if value is None else mmh3.hash(value, signed=False) % (TENANTS - 1) + 1
