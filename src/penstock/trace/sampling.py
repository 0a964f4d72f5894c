"""Which messages are traced: a share of them, by their ids, so that everybody agrees.

The messages of a frame, which were published together, have the same bits in their ids but for the
last 24: they are traced together or not at all, so that one row tells of all of them, and whether
they are takes no look at each. A message whose header `traceparent` says that it is sampled is
traced in any case.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.record import compute as pc
from penstock.record.batch import Batch
from penstock.record.schema import BITS
from penstock.record.single_with_header import SingleWithHeader
from penstock.record.singles import Singles
from penstock.trace.context import TRACEPARENT, parse_traceparent
from penstock.trace.events import ID_BYTES, NO_TRACE

LOOKED_AT = BITS["headers"] | BITS["id"]
"""Only batches with one of these columns may need more than `is_sampled`."""

_HEADERS, _ID = BITS["headers"], BITS["id"]
ROW_BITS = 24
BITS_32 = 0xFFFFFFFF
MIX = 0x9E3779B1
"""`is_sampled`, where a call too many would cost every message: the same in one line."""

_TRACEPARENT = re.compile(TRACEPARENT.encode())
_FIRST = np.zeros(1, np.int64)


def threshold_of(share: float) -> int:
    """What the hash of an id is compared with."""
    return round(share * (1 << 32))


def is_sampled(ulid: int, threshold: int) -> bool:
    """Whether the message of an id, and all of its frame, are traced."""
    return (ulid >> ROW_BITS & BITS_32) * MIX & BITS_32 < threshold


class Chosen(NamedTuple):
    """Messages of a batch that are traced."""

    rows: NDArray[np.int64] | None
    """None: all of them."""
    ids: bytes
    """Of each of them; of the first alone where they are counted on from it."""
    trace_ids: bytes | None
    """What they brought: 16 bytes for all or for each; None: nothing."""


def choose(batch: Batch, ulid: int, threshold: int) -> Chosen | None:
    """The messages of a batch of one frame that are traced; None: none is. `ulid`: of its first
    message, where it has no column of ids."""
    count = len(batch)
    halves = _halves(batch) if batch.columns & _ID else None
    chosen: NDArray[np.bool_] | None = None
    if halves is not None:
        chosen = _hashes(halves[:, 1]) < np.uint64(threshold)
    elif is_sampled(ulid, threshold):
        chosen = np.ones(count, np.bool_)
    contexts = _contexts(batch) if batch.columns & _HEADERS else None
    if contexts is not None:
        chosen = contexts.sampled if chosen is None else chosen | contexts.sampled
    if chosen is None or not chosen.any():
        return None
    rows = None if chosen.all() else np.flatnonzero(chosen)
    if halves is not None:
        ids = (halves if rows is None else halves[rows]).astype(">u8").tobytes()
    else:
        ids = (ulid + (0 if rows is None else int(rows[0]))).to_bytes(ID_BYTES, "big")
    return Chosen(rows, ids, None if contexts is None else contexts.of(rows, count))


class _Contexts(NamedTuple):
    """What the headers of a batch say, by row."""

    sampled: NDArray[np.bool_]
    trace_ids: dict[int, bytes]

    def of(self, rows: NDArray[np.int64] | None, count: int) -> bytes | None:
        numbers = range(count) if rows is None else rows.tolist()
        each = [self.trace_ids.get(row, NO_TRACE) for row in numbers]
        if len(set(each)) == 1:
            return each[0] if each[0] != NO_TRACE else None
        return b"".join(each)


def _contexts(batch: Batch) -> _Contexts | None:
    """None if no message has a valid `traceparent`."""
    found: dict[int, bytes] = {}
    sampled = np.zeros(len(batch), np.bool_)
    for row, value in _values(batch):
        context = parse_traceparent(value)
        if context is not None:
            found[row] = context.trace_id
            sampled[row] |= context.sampled
    return _Contexts(sampled, found) if found else None


def _values(batch: Batch) -> list[tuple[int, bytes | None]]:
    """The header of each row that has one."""
    if isinstance(batch, SingleWithHeader):
        return [(0, batch.header_value)] if batch.header_name == TRACEPARENT else []
    headers = batch.headers
    flat = headers.flatten()
    names = flat.field("key")
    if not _may_have(names):
        return []
    at = pc.indices_nonzero(pc.equal(names, TRACEPARENT))
    ends = np.cumsum(np.asarray(pc.fill_null(pc.list_value_length(headers), 0)))
    rows = np.searchsorted(ends, np.asarray(at), side="right").tolist()
    return list(zip(rows, flat.field("value").take(at).to_pylist(), strict=True))


def _may_have(names: pa.StringArray) -> bool:
    """Whether one of them may be that of a context. Not by Arrow, which imports pandas where it is
    installed: the first message with headers would be late by as much as that takes."""
    if not len(names):
        return False
    ends = np.frombuffer(names.buffers()[1], np.int32, len(names) + 1, 4 * names.offset)
    found = _TRACEPARENT.search(names.buffers()[2], int(ends[0]), int(ends[-1]))
    return found is not None


def sampled_singles(batch: Singles, threshold: int) -> NDArray[np.int64] | None:
    """The rows that are traced among messages that were published one by one; None: no row is."""
    ids = batch.raw_ids
    if len(ids) == ID_BYTES:
        sampled = (int.from_bytes(ids[9:13], "big") * MIX & BITS_32) < threshold
        return _FIRST if sampled else None
    rows = np.flatnonzero(_hashes(np.frombuffer(ids, ">u8")[1::2]) < np.uint64(threshold))
    return rows if len(rows) else None


def _hashes(low: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Of the lower halves of ids."""
    frames = low.astype(np.uint64) >> np.uint64(ROW_BITS) & np.uint64(BITS_32)
    return frames * np.uint64(MIX) & np.uint64(BITS_32)


def _halves(batch: Batch) -> NDArray[np.uint64]:
    """The ids as two numbers each."""
    ids: pa.FixedSizeBinaryArray = batch.ids
    data = np.frombuffer(ids.buffers()[1], ">u8", 2 * len(ids), ID_BYTES * ids.offset)
    return data.astype(np.uint64).reshape(-1, 2)
