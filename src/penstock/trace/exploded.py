"""Rows that cover runs of messages, as rows of one message each, for programs that count or join.

The columns are made for many messages at a time. A row may stand for millions of messages, so a
block comes out in batches of bounded length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.trace.events import ID_BYTES, NAMES, TraceBlock, TraceRow

UInt64s: TypeAlias = NDArray[np.uint64]
Int64s: TypeAlias = NDArray[np.int64]

ROWS_MAX = 1 << 16

EVENTS = pa.schema(
    [
        pa.field("at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("event", pa.string(), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("id", pa.string()),
        pa.field("trace_id", pa.string()),
        pa.field("group", pa.string()),
        pa.field("consumer", pa.string()),
        pa.field("delivery_count", pa.int32()),
        pa.field("lease", pa.string()),
        pa.field("until", pa.timestamp("us", tz="UTC")),
        pa.field("error", pa.string()),
        pa.field("origin_topic", pa.string()),
        pa.field("origin_partition", pa.int32()),
        pa.field("origin_offset", pa.int64()),
    ]
)

_LETTERS = np.frombuffer(b"0123456789ABCDEFGHJKMNPQRSTVWXYZ", np.uint8)
_ULID_LETTERS = 26


def exploded(
    block: bytes, topics: Sequence[str] = (), since_us: int = 0
) -> Iterator[pa.RecordBatch]:
    """The events of a block, message by message; `topics`: only of these, without a namespace."""
    rows = [row for row in TraceBlock(block).rows() if row.at_us >= since_us]
    if topics:
        rows = [row for row in rows if _short(row.topic) in topics]
    counts = np.array([row.count for row in rows], np.int64)
    ends = np.cumsum(counts)
    total = int(counts.sum())
    for first in range(0, total, ROWS_MAX):
        numbers = np.arange(first, min(first + ROWS_MAX, total), dtype=np.int64)
        of_row = np.searchsorted(ends, numbers, side="right")
        yield _batch(rows, of_row, numbers - (ends - counts)[of_row])


def _batch(rows: Sequence[TraceRow], of_row: Int64s, nths: Int64s) -> pa.RecordBatch:
    """`nths`: which of the messages of its row each is."""
    used = range(int(of_row[0]), int(of_row[-1]) + 1)
    rows, of_row = [rows[nth] for nth in used], of_row - used[0]
    offsets = np.array([row.first for row in rows], np.int64)[of_row] + nths
    origins = np.array([row.origin_first for row in rows], np.int64)[of_row] + nths
    ids, traces = np.zeros((len(nths), 2), np.uint64), np.zeros((len(nths), 2), np.uint64)
    ends = np.searchsorted(of_row, np.arange(1, len(rows) + 1), side="left").tolist()
    begin = 0
    for row, end in zip(rows, ends, strict=True):
        here, nth = slice(begin, end), nths[begin:end]
        begin = end
        if row.holes is not None:
            offsets[here] = [row.holes[each] for each in nth.tolist()]
        if row.origin_holes is not None:
            origins[here] = [row.origin_holes[each] for each in nth.tolist()]
        if row.ids is not None:
            ids[here] = _halves(row.ids, nth, offsets[here] - row.first)
        if row.trace_ids is not None:
            traces[here] = _halves(row.trace_ids, nth, None)
    brought: NDArray[np.bool_] = (traces[:, 0] | traces[:, 1]) != 0
    traces = np.where(brought[:, None], traces, ids)
    known = np.array([row.ids is not None for row in rows])[of_row]
    has_origin = np.array([bool(row.origin_topic) for row in rows])[of_row]
    told = _told(rows).take(pa.array(of_row))
    columns = {
        **dict(zip(told.schema.names, told.columns, strict=True)),
        "offset": pa.array(offsets),
        "id": _texts(_ulid_letters(ids), known),
        "trace_id": _texts(_hex_letters(traces), known | brought),
        "origin_offset": pa.array(origins, mask=~has_origin),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in EVENTS.names], schema=EVENTS)


def _told(rows: Sequence[TraceRow]) -> pa.RecordBatch:
    """What all messages of a row have in common."""
    columns = {
        "at": [row.at_us for row in rows],
        "event": [NAMES[row.kind] for row in rows],
        "topic": [_short(row.topic) for row in rows],
        "partition": [row.partition for row in rows],
        "group": [row.group or None for row in rows],
        "consumer": [row.consumer or None for row in rows],
        "delivery_count": [row.delivery_count or None for row in rows],
        "lease": [f"{row.lease:015x}" if row.lease else None for row in rows],
        "until": [row.until_us or None for row in rows],
        "error": [row.error or None for row in rows],
        "origin_topic": [_short(row.origin_topic) or None for row in rows],
        "origin_partition": [row.origin_partition if row.origin_topic else None for row in rows],
    }
    arrays = [pa.array(values, EVENTS.field(name).type) for name, values in columns.items()]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def _halves(data: bytes, nths: Int64s, steps: Int64s | None) -> UInt64s:
    """Numbers of 128 bits, as two each: one for each message, or that of the first, from which the
    others count on by `steps`."""
    halves = np.frombuffer(data, ">u8").reshape(-1, 2).astype(np.uint64)
    if len(data) > ID_BYTES:
        return halves[nths]
    found = np.repeat(halves, len(nths), axis=0)
    if steps is not None:
        found[:, 1] += steps.astype(np.uint64)
        found[:, 0] += found[:, 1] < halves[0, 1]  # what is carried
    return found


def _ulid_letters(halves: UInt64s) -> NDArray[np.uint8]:
    high, low = halves[:, 0], halves[:, 1]
    letters = np.empty((len(halves), _ULID_LETTERS), np.uint8)
    for place in range(_ULID_LETTERS):
        shift = 5 * (_ULID_LETTERS - 1 - place)
        if shift >= 64:
            digits = high >> np.uint64(shift - 64)
        elif shift > 59:
            digits = low >> np.uint64(shift) | high << np.uint64(64 - shift)
        else:
            digits = low >> np.uint64(shift)
        letters[:, place] = _LETTERS[(digits & np.uint64(31)).astype(np.intp)]
    return letters


def _hex_letters(halves: UInt64s) -> NDArray[np.uint8]:
    digits = halves.astype(">u8").tobytes().hex().encode()
    return np.frombuffer(digits, np.uint8).reshape(-1, 2 * ID_BYTES)


def _texts(letters: NDArray[np.uint8], known: NDArray[np.bool_]) -> pa.StringArray:
    """Texts of one length each; null where nothing is known."""
    count, length = letters.shape
    ends = np.arange(0, (count + 1) * length, length, dtype=np.int32)
    valid = pa.array(known).buffers()[1]
    data = [valid, pa.py_buffer(ends), pa.py_buffer(np.ascontiguousarray(letters))]
    return pa.Array.from_buffers(pa.string(), count, data)


def _short(topic: str) -> str:
    """Without its namespace."""
    return topic.rpartition("/")[2]
