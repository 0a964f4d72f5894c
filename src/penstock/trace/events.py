"""What happened to messages: rows that each cover a run of them, and their form as columns.

A row says that something happened at one moment to messages of one partition: those from `first`
on, `count` of them, or, where there are holes, those of a bitmap. So a lease of a thousand messages
is one row. Rows are stored in blocks, each an Arrow IPC stream of the columns of `SCHEMA`; columns
may be added, never renamed.

What a row says of ids: `ids` is 16 bytes, the id of the message at `first` (the one at `offset` has
`offset - first` more, as messages of one frame do), or 16 bytes for each message, or nothing. A
`trace_id` is 16 bytes for all messages or 16 for each; nothing, or zeros, where a message brought
none: then it is the id of the message.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
from pyroaring import BitMap64

from penstock.record import compute as pc

ID_BYTES = 16
NO_TRACE = bytes(ID_BYTES)
BLOCK_ROWS_MAX = 4096


class TraceKind(IntEnum):
    """What happened. The numbers are stored."""

    PUBLISHED = 0
    SCHEDULED = 1
    """It waits until it falls due, at `until_us`; the offset is one of the delays."""
    MOVED = 2
    """It fell due, and is in its partition from now on."""
    CANCELLED = 3
    """It was taken back before it fell due."""
    DELIVERED = 4
    """Handed out, under a lease that lasts until `until_us`."""
    EXTENDED = 5
    ACKED = 6
    NACKED = 7
    """Given back; it is handed out again at `until_us` or later."""
    LEASE_EXPIRED = 8
    EXPIRED = 9
    """It outlived its TTL."""
    REJECTED = 10
    """Given up: by the consumer or, with the error `max_retries`, for want of retries."""
    DEAD_LETTERED = 11
    """The offset is that of the letter, the origin that of the message."""
    REDRIVEN = 12
    """The offset is that of the new message, the origin that of the letter."""
    PURGED = 13


NAMES = {int(kind): kind.name.lower() for kind in TraceKind}
OUTSIDE = {TraceKind.SCHEDULED, TraceKind.CANCELLED}
"""Their offsets are those of the delays, not of the partition."""


class TraceRow(msgspec.Struct, gc=False):
    """Something that happened to a run of messages."""

    at_us: int
    kind: int
    topic: str
    partition: int
    first: int
    count: int
    holes: BitMap64 | None = None
    ids: bytes | None = None
    trace_ids: bytes | None = None
    group: str = ""
    consumer: str = ""
    delivery_count: int = 0
    lease: int = 0
    until_us: int = 0
    error: str = ""
    origin_topic: str = ""
    origin_partition: int = 0
    origin_first: int = 0
    origin_holes: BitMap64 | None = None

    @property
    def stop(self) -> int:
        """One past the last offset."""
        return self.first + self.count if self.holes is None else self.holes.max() + 1

    def nth(self, offset: int) -> int | None:
        """Which of the messages, from 0 on, lies at an offset; None: none of them."""
        return _nth(offset, self.first, self.count, self.holes)

    def nth_of_origin(self, offset: int) -> int | None:
        """Which of the messages came from an offset of the origin."""
        return _nth(offset, self.origin_first, self.count, self.origin_holes)

    def offset(self, nth: int) -> int:
        return self.first + nth if self.holes is None else self.holes[nth]

    def origin_offset(self, nth: int) -> int:
        return self.origin_first + nth if self.origin_holes is None else self.origin_holes[nth]

    def ulid(self, nth: int) -> int | None:
        """The id of a message; None: not known."""
        ids = self.ids
        if ids is None:
            return None
        if len(ids) == ID_BYTES:
            return int.from_bytes(ids, "big") + self.offset(nth) - self.first
        return int.from_bytes(ids[nth * ID_BYTES : (nth + 1) * ID_BYTES], "big")

    def nth_of_id(self, ulid: int) -> int | None:
        """Which of the messages has an id."""
        ids = self.ids
        if ids is None:
            return None
        if len(ids) == ID_BYTES:
            return self.nth(self.first + ulid - int.from_bytes(ids, "big"))
        wanted = ulid.to_bytes(ID_BYTES, "big")
        return _place_in(ids, wanted)

    def trace_id(self, nth: int) -> int | None:
        """That of a message: what it brought, or its id; None: not known."""
        traces = self.trace_ids
        if traces is not None:
            at = 0 if len(traces) == ID_BYTES else nth * ID_BYTES
            found = traces[at : at + ID_BYTES]
            if found != NO_TRACE:
                return int.from_bytes(found, "big")
        return self.ulid(nth)

    def nths_of_trace(self, trace_id: int, limit: int) -> list[int]:
        """Which of the messages, at most so many, have a trace id."""
        wanted = trace_id.to_bytes(ID_BYTES, "big")
        traces = self.trace_ids
        if traces is not None and len(traces) == ID_BYTES:
            return list(range(min(self.count, limit))) if traces == wanted else []
        found: list[int] = []
        if traces is not None:
            at = -1
            while len(found) < limit and (at := traces.find(wanted, at + 1)) >= 0:
                if not at % ID_BYTES:
                    found.append(at // ID_BYTES)
        own = self.nth_of_id(trace_id)
        if own is not None and self.trace_id(own) == trace_id and own not in found:
            found.append(own)
        return found


def _nth(offset: int, first: int, count: int, holes: BitMap64 | None) -> int | None:
    if holes is None:
        return offset - first if first <= offset < first + count else None
    return holes.rank(offset) - 1 if offset >= 0 and offset in holes else None


def _place_in(ids: bytes, wanted: bytes) -> int | None:
    at = -1
    while (at := ids.find(wanted, at + 1)) >= 0:
        if not at % ID_BYTES:
            return at // ID_BYTES
    return None


_TEXT = pa.dictionary(pa.int32(), pa.string())
SCHEMA = pa.schema(
    [
        pa.field("at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("event", _TEXT, nullable=False),
        pa.field("topic", _TEXT, nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("first", pa.int64(), nullable=False),
        pa.field("count", pa.int64(), nullable=False),
        pa.field("holes", pa.binary()),
        pa.field("ids", pa.binary()),
        pa.field("trace_ids", pa.binary()),
        pa.field("group", _TEXT),
        pa.field("consumer", _TEXT),
        pa.field("delivery_count", pa.int32()),
        pa.field("lease", pa.int64()),
        pa.field("until", pa.timestamp("us", tz="UTC")),
        pa.field("error", _TEXT),
        pa.field("origin_topic", _TEXT),
        pa.field("origin_partition", pa.int32()),
        pa.field("origin_first", pa.int64()),
        pa.field("origin_holes", pa.binary()),
    ]
)
"""The columns of a block. `holes` are 64-bit Roaring bitmaps in the portable format."""

_KINDS = {name: kind for kind, name in NAMES.items()}


class _Column(NamedTuple):
    name: str
    attribute: str
    nothing: object
    """What of a row is stored as null."""


_COLUMNS = [
    _Column("partition", "partition", None),
    _Column("first", "first", None),
    _Column("count", "count", None),
    _Column("ids", "ids", None),
    _Column("trace_ids", "trace_ids", None),
    _Column("delivery_count", "delivery_count", 0),
    _Column("lease", "lease", 0),
]
_TEXTS = [
    _Column("topic", "topic", None),
    _Column("group", "group", ""),
    _Column("consumer", "consumer", ""),
    _Column("error", "error", ""),
    _Column("origin_topic", "origin_topic", ""),
]


def encode_block(rows: Sequence[TraceRow]) -> bytes:
    """Rows as an Arrow IPC stream."""
    columns: dict[str, pa.Array] = {
        "at": pa.array([row.at_us for row in rows], pa.int64()).view(SCHEMA.field("at").type),
        "event": _texts([NAMES[row.kind] for row in rows]),
        "holes": pa.array([_stored(row.holes) for row in rows], pa.binary()),
        "origin_holes": pa.array([_stored(row.origin_holes) for row in rows], pa.binary()),
    }
    for name, attribute, nothing in _COLUMNS:
        values = [getattr(row, attribute) for row in rows]
        if nothing is not None:
            values = [value or None for value in values]
        columns[name] = pa.array(values, SCHEMA.field(name).type)
    for name, attribute, nothing in _TEXTS:
        texts = [getattr(row, attribute) for row in rows]
        columns[name] = _texts(texts if nothing is None else [text or None for text in texts])
    until = pa.array([row.until_us or None for row in rows], pa.int64())
    columns["until"] = until.view(SCHEMA.field("until").type)
    for name in ("origin_partition", "origin_first"):
        numbers = [getattr(row, name) if row.origin_topic else None for row in rows]
        columns[name] = pa.array(numbers, SCHEMA.field(name).type)
    batch = pa.RecordBatch.from_arrays([columns[name] for name in SCHEMA.names], schema=SCHEMA)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


class TraceBlock:
    """Rows that were stored together, as columns; a row is made when somebody wants it."""

    def __init__(self, data: bytes) -> None:
        """Raises pa.ArrowException for what is no block."""
        self._columns: pa.RecordBatch = pa.ipc.open_stream(data).read_next_batch()
        self._at_us: pa.Int64Array = self._columns.column("at").view(pa.int64())
        self._until_us: pa.Int64Array = self._columns.column("until").view(pa.int64())
        self._others = self._columns.drop_columns(["at", "until"])

    def __len__(self) -> int:
        return int(self._columns.num_rows)

    def of_topic(self, topic: str, since_us: int, until_us: int) -> list[int]:
        """The rows that are about a topic, from a moment on and before another one."""
        at_us = self._at_us
        fits = pc.and_(pc.greater_equal(at_us, since_us), pc.less(at_us, until_us))
        fits = pc.and_(fits, pc.equal(self._columns.column("topic").cast(pa.string()), topic))
        return pc.indices_nonzero(fits).to_pylist()  # type: ignore[no-any-return]

    def rows(self, numbers: Sequence[int] | None = None) -> list[TraceRow]:
        """Some of them, or all."""
        others, at_us, until_us = self._others, self._at_us, self._until_us
        if numbers is not None and len(numbers) == 1:
            others, at_us, until_us = (x.slice(numbers[0], 1) for x in (others, at_us, until_us))
        elif numbers is not None:
            wanted = pa.array(numbers, pa.int64())
            others, at_us, until_us = (x.take(wanted) for x in (others, at_us, until_us))
        return list(map(self._made, others.to_pylist(), at_us.to_pylist(), until_us.to_pylist()))

    def record_batch(self) -> pa.RecordBatch:
        return self._columns

    def _made(self, row: dict[str, Any], at_us: int, until_us: int | None) -> TraceRow:
        return TraceRow(
            at_us=at_us,
            kind=_KINDS[row["event"]],
            topic=row["topic"],
            partition=row["partition"],
            first=row["first"],
            count=row["count"],
            holes=_bitmap(row["holes"]),
            ids=row["ids"],
            trace_ids=row["trace_ids"],
            group=row["group"] or "",
            consumer=row["consumer"] or "",
            delivery_count=row["delivery_count"] or 0,
            lease=row["lease"] or 0,
            until_us=until_us or 0,
            error=row["error"] or "",
            origin_topic=row["origin_topic"] or "",
            origin_partition=row["origin_partition"] or 0,
            origin_first=row["origin_first"] or 0,
            origin_holes=_bitmap(row["origin_holes"]),
        )


def _texts(values: Sequence[str | None]) -> pa.DictionaryArray:
    return pa.array(values, pa.string()).dictionary_encode()


def _stored(holes: BitMap64 | None) -> bytes | None:
    return None if holes is None else holes.serialize()


def _bitmap(data: bytes | None) -> BitMap64 | None:
    return None if data is None else BitMap64.deserialize(data)
