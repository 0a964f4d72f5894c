"""Messages as a record batch (v2), the format of which `records_in` describes.

The numbers before each key and value are laid down as a matrix of bytes with a mask; numbers, keys,
values and headers then become one Arrow array each, and the records are the bytes of a `take` that
brings them into order. Below `_LOOP_RECORDS` a plain loop is faster.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c

from penstock.record.batch import Batch
from penstock.record.schema import BITS, Priority
from penstock.server.kafka.records_in import (
    BATCH_HEADER,
    CRC_FROM,
    LENGTH_FROM,
    MAGIC,
    PRIORITY_HEADER,
)

Int64s: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

_HEAD = struct.Struct(">qiibI")
_CHECKED = struct.Struct(">hiqqqhii")
_LOOP_RECORDS = 64
_NORMAL = int(Priority.NORMAL)
_NO_HEADERS = b"\x00"


def encode(batches: Sequence[Batch], next_offset: int) -> list[bytes | memoryview]:
    """One record batch of the messages of some, whose offsets ascend: as pieces, in order.

    It covers the offsets up to `next_offset`, whether or not there are messages at them.
    """
    base_offset = int(batches[0].offset_numbers()[0])
    stamps = np.concatenate([batch.timestamps_us() for batch in batches]) // 1000
    offsets = np.concatenate([batch.offset_numbers() for batch in batches]) - base_offset
    values = _joined([batch.values for batch in batches])
    keys = None
    if any(batch.columns & BITS["key"] for batch in batches):
        keys = _joined([batch.keys for batch in batches])
    tails = _headers(batches)
    lay_down = _records if len(stamps) >= _LOOP_RECORDS else _few_records
    records = lay_down(stamps - stamps[0], offsets, keys, values, tails)
    head = _head(base_offset, next_offset, int(stamps[0]), int(stamps.max()), len(stamps), records)
    return [head, records]


def empty(offset: int, next_offset: int) -> bytes:
    """A record batch without messages, so that a reader gets over offsets that have none."""
    return _head(offset, next_offset, -1, -1, 0, b"")


def _head(
    base_offset: int,
    next_offset: int,
    first_ms: int,
    newest_ms: int,
    count: int,
    records: bytes | memoryview,
) -> bytes:
    last_delta = next_offset - 1 - base_offset
    checked = _CHECKED.pack(0, last_delta, first_ms, newest_ms, -1, -1, -1, count)
    length = BATCH_HEADER.size - LENGTH_FROM + len(records)
    crc = crc32c(records, crc32c(checked))
    assert _HEAD.size == CRC_FROM
    return _HEAD.pack(base_offset, length, -1, MAGIC, crc) + checked


def _joined(arrays: Sequence[pa.Array]) -> pa.Array:
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


# Headers.


def _headers(batches: Sequence[Batch]) -> list[bytes] | None:
    """What each record ends with: its headers. None if no record has any."""
    wanted = BITS["headers"] | BITS["priority"]
    if not any(batch.columns & wanted or batch.priority != _NORMAL for batch in batches):
        return None
    found: list[bytes] = []
    for batch in batches:
        priorities = batch.priority_numbers().tolist()
        if not batch.columns & BITS["headers"]:
            found += [_NO_HEADERS if p == _NORMAL else b"\x02" + _named(p) for p in priorities]
            continue
        column = batch.headers
        pairs = column.flatten()
        names = pairs.field("key").cast(pa.binary()).to_pylist()
        values = pairs.field("value").to_pylist()
        at = 0
        for count, priority in zip(
            pc.fill_null(pc.list_value_length(column), 0).to_pylist(), priorities, strict=True
        ):
            extra = b"" if priority == _NORMAL else _named(priority)
            parts = [_varint(count + bool(extra))]
            for row in range(at, at + count):
                parts += (_sized(names[row]), _sized(values[row]))
            at += count
            found.append(b"".join((*parts, extra)))
    return found


@cache
def _named(priority: int) -> bytes:
    return _sized(PRIORITY_HEADER) + _sized(Priority(priority).name.lower().encode())


def _sized(data: bytes | None) -> bytes:
    return b"\x01" if data is None else _varint(len(data)) + data


def _varint(number: int) -> bytes:
    rest = (number << 1) ^ (number >> 63)
    if rest < 128:
        return _BYTES[rest]
    found = bytearray()
    while rest > 127:
        found.append(rest & 127 | 128)
        rest >>= 7
    found.append(rest)
    return bytes(found)


_BYTES = [bytes([byte]) for byte in range(128)]


# Records.


def _few_records(
    deltas: Int64s,
    offsets: Int64s,
    keys: pa.Array | None,
    values: pa.Array,
    tails: list[bytes] | None,
) -> bytes:
    rows = len(deltas)
    found: list[bytes] = []
    for delta, offset, key, value, tail in zip(
        deltas.tolist(),
        offsets.tolist(),
        [None] * rows if keys is None else keys.to_pylist(),
        values.to_pylist(),
        [_NO_HEADERS] * rows if tails is None else tails,
        strict=True,
    ):
        record = b"".join(
            (b"\x00", _varint(delta), _varint(offset), _sized(key), _sized(value), tail)
        )
        found += (_varint(len(record)), record)
    return b"".join(found)


def _records(
    deltas: Int64s,
    offsets: Int64s,
    keys: pa.Array | None,
    values: pa.Array,
    tails: list[bytes] | None,
) -> memoryview:
    rows = len(deltas)
    numbers = [_zigzag(deltas), _zigzag(offsets)]
    value_sizes = _lengths(values)
    value_numbers = _zigzag(value_sizes)
    payload = np.maximum(value_sizes, 0) + _widths(value_numbers)
    if keys is None:
        numbers.append(np.ones(rows, np.int64))  # -1
    else:
        key_sizes = _lengths(keys)
        numbers.append(_zigzag(key_sizes))
        payload += np.maximum(key_sizes, 0)
    ends = None if tails is None else pa.array(tails, pa.binary())
    payload += 1 if ends is None else _lengths(ends)
    sizes = payload + 1 + sum(map(_widths, numbers))
    head = [_zigzag(sizes), np.zeros(rows, np.int64), *numbers]
    pieces: list[pa.Array]
    if keys is None:
        pieces = [_laid_down([*head, value_numbers]), values]
    else:
        pieces = [_laid_down(head), keys, _laid_down([value_numbers]), values]
    order = np.empty((rows, len(pieces) + 1), np.int32)
    row_numbers = np.arange(rows, dtype=np.int32)
    for column in range(len(pieces)):
        order[:, column] = row_numbers + rows * column
    last = rows * len(pieces)
    order[:, -1] = last if ends is None else row_numbers + last
    pieces.append(pa.array([_NO_HEADERS], pa.binary()) if ends is None else ends)
    laid_down = pa.concat_arrays(pieces).take(pa.array(order.reshape(-1)))
    total = int(sizes.sum() + _widths(head[0]).sum())
    return memoryview(laid_down.buffers()[2])[:total]


def _laid_down(columns: Sequence[Int64s]) -> pa.Array:
    """The numbers of each row as varints, one after the other, as a column of bytes."""
    rows = len(columns[0])
    octets: list[Any] = []
    used: list[Any] = []
    every = np.ones(rows, np.bool_)
    for rest in columns:
        live = every
        highest = int(rest.max())
        while True:
            after = rest >> 7
            more = after > 0
            octets.append((rest & 127) | (more << 7))
            used.append(live)
            highest >>= 7
            if not highest:
                break
            rest, live = after, more
    matrix = np.stack(octets, 1).astype(np.uint8)
    mask = np.stack(used, 1)
    ends = np.zeros(rows + 1, np.int32)
    np.cumsum(mask.sum(1), out=ends[1:])
    return pa.Array.from_buffers(
        pa.binary(), rows, [None, pa.py_buffer(ends), pa.py_buffer(matrix[mask])]
    )


def _lengths(column: pa.Array) -> Int64s:
    """How long the bytes of each row are; -1 for null."""
    ends = np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, 4 * column.offset)
    sizes = np.diff(ends).astype(np.int64)
    if column.null_count:
        sizes[np.asarray(column.is_null())] = -1
    return sizes


def _zigzag(numbers: Int64s) -> Int64s:
    return (numbers << 1) ^ (numbers >> 63)


def _widths(numbers: Int64s) -> Int64s:
    """How many bytes each of them takes as a varint."""
    widths = np.ones(len(numbers), np.int64)
    rest = numbers >> 7
    while rest.any():
        widths += rest > 0
        rest = rest >> 7
    return widths
