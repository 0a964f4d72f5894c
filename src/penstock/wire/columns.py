"""Messages over the wire as columns: Arrow IPC streams.

A table of messages has the columns of `penstock.record.schema`, and leaves out those that none of
its messages uses. What is received has three more: `partition`, `delivery_count` and `lease`; the
receipt of a row is `topic:partition:offset:delivery_count:lease`, the lease in hex with at least
15 digits. What is read carries the JSON of its answer in the metadata of the schema. What is
published may have a column `dedup_id`.

A stream is laid down from its parts: the schema's bytes are always the same, so that only the
batches themselves have to be written.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa

from penstock.errors import InvalidInput, ProtocolError, RequestTooLarge
from penstock.model.deliveries import Delivered
from penstock.model.values import Small, Whole
from penstock.record.batch import Batch
from penstock.record.columns import headers_are_whole
from penstock.record.plain import Laid, Plain, body_of
from penstock.record.schema import BITS, FIELDS, Priority, parse_priority, schema_of
from penstock.wire.stream_sizes import check_sizes

ARROW_TYPE = "application/vnd.apache.arrow.stream"
COMPACT_TYPE = f"{ARROW_TYPE};form=compact"
"""What a client accepts that understands the header `penstock-pieces`."""
PIECES_HEADER = "penstock-pieces"

_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_META = b"penstock"
_PLACED = BITS["offset"] | BITS["id"] | BITS["timestamp"] | BITS["priority"] | BITS["value"]
_NAMES = {
    "timestamp": "timestamps",
    "priority": "priorities",
    "expires_at": "expires_at",
    "key": "keys",
    "value": "values",
    "headers": "headers",
    "offset": "offsets",
    "id": "ids",
}
DEDUP_COLUMN = "dedup_id"
_DEDUP = pa.field(DEDUP_COLUMN, pa.binary())
_LEASE_FIELDS = [
    pa.field("partition", pa.int32(), nullable=False),
    pa.field("delivery_count", pa.int32(), nullable=False),
    pa.field("lease", pa.int64(), nullable=False),
]
_PLACED_FIELDS = schema_of(_PLACED)
_LEASED = [*_PLACED_FIELDS, *_LEASE_FIELDS]
STREAM_BYTES_MAX = 1 << 30
"""What an answer may unpack to."""


def encode_new(batch: Batch, dedup_ids: Sequence[bytes | None] | None = None) -> bytes:
    """Messages to be published; deduplication ids are one more column."""
    columns = batch.columns & ~(BITS["offset"] | BITS["id"])
    if batch.priority != Priority.NORMAL:
        columns |= BITS["priority"]
    if batch.timestamp_us is not None:
        columns |= BITS["timestamp"]
    if dedup_ids is not None:
        data = _columns(batch, columns).append_column(_DEDUP, pa.array(dedup_ids, pa.binary()))
        return b"".join((data.schema.serialize(), data.serialize(), _END))
    return b"".join((_schema_bytes(columns), *_laid(batch, columns), _END))


def encode_delivered(delivered: Sequence[Delivered]) -> bytes:
    """What a receive handed out: a record batch for each piece."""
    columns = _PLACED
    for each in delivered:
        for batch, _ in each.pieces:
            columns |= batch.columns
    parts: list[Any] = [_received_schema_bytes(columns)]
    schema = _received_schema(columns)
    for each in delivered:
        for batch, delivery_count in each.pieces:
            rows = len(batch)
            arrays = [
                *_arrays(batch, columns),
                pa.array(np.full(rows, each.partition, np.int32)),
                pa.array(np.full(rows, delivery_count, np.int32)),
                pa.array(np.full(rows, each.nonce, np.int64)),
            ]
            parts.append(pa.RecordBatch.from_arrays(arrays, schema=schema).serialize())
    parts.append(_END)
    return b"".join(parts)


class Piece(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What all rows of a record batch have in common, and so need no columns for."""

    partition: Small
    lease: Whole
    delivery_count: Small
    base_offset: Whole
    ulid: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{1,32}$")]
    timestamp_us: Annotated[int, msgspec.Meta(ge=-(1 << 62), le=1 << 62)] | None
    priority: Annotated[int, msgspec.Meta(ge=0, lt=len(Priority))]


_pieces = msgspec.json.Decoder(list[Piece])
_piece_encoder = msgspec.json.Encoder()
PIECES_MAX = 32
"""At most this many are described in a header; more of them in columns."""


def encode_compact(delivered: Sequence[Delivered]) -> tuple[bytes, bytes] | None:
    """The same for those who understand `Piece`: what is the same for all rows is not repeated.

    The stream, and the JSON of its pieces; None if there are too many.
    """
    pieces: list[Piece] = []
    columns = 0
    for each in delivered:
        for batch, delivery_count in each.pieces:
            columns |= batch.columns
            pieces.append(
                Piece(
                    each.partition,
                    each.nonce,
                    delivery_count,
                    batch.base_offset or 0,
                    f"{batch.ulid:x}",
                    batch.timestamp_us,
                    batch.priority,
                )
            )
    if len(pieces) > PIECES_MAX:
        return None
    parts: list[Any] = [_schema_bytes(columns or BITS["value"])]
    for each in delivered:
        for batch, _ in each.pieces:
            parts += _laid(batch, columns)
    parts.append(_END)
    return b"".join(parts), _piece_encoder.encode(pieces)


def decode_delivered(body: bytes, pieces: bytes = b"") -> list[Delivered]:
    """What either of them made. Without pieces, each record batch is of one lease and count.

    Raises ProtocolError for anything else: a server is not trusted with the client's memory."""
    with _understanding():
        if pieces:
            return _decode_compact(body, _pieces.decode(pieces))
        leases: dict[tuple[int, int], list[tuple[Batch, int]]] = {}
        for data in _CheckedStream(body, _LEASED):
            if data.num_rows:
                lease = data.column("partition")[0].as_py(), data.column("lease")[0].as_py()
                count = data.column("delivery_count")[0].as_py()
                leases.setdefault(lease, []).append((_batch(data), count))
        return _delivered(leases)


def _decode_compact(body: bytes, pieces: list[Piece]) -> list[Delivered]:
    if not pieces:
        return []
    laid = decode_plain(body) if len(pieces) == 1 else None
    batches = [laid] if laid is not None else [_alone(data) for data in _CheckedStream(body, [])]
    leases: dict[tuple[int, int], list[tuple[Batch, int]]] = {}
    for batch, piece in zip(batches, pieces, strict=True):
        batch.base_offset = piece.base_offset
        batch.ulid = int(piece.ulid, 16)
        batch.timestamp_us = piece.timestamp_us
        batch.priority = piece.priority
        lease = piece.partition, piece.lease
        leases.setdefault(lease, []).append((batch, piece.delivery_count))
    return _delivered(leases)


def _delivered(leases: dict[tuple[int, int], list[tuple[Batch, int]]]) -> list[Delivered]:
    return [
        Delivered(partition, nonce, sum(len(batch) for batch, _ in pieces), pieces)
        for (partition, nonce), pieces in leases.items()
    ]


def decode_plain(body: bytes) -> Laid | None:
    """A stream with one batch of few messages that are values alone; None for any other."""
    if not body.startswith(_PLAIN_SCHEMA) or not body.endswith(_END):
        return None
    return Laid.of_body(body[len(_PLAIN_SCHEMA) : -len(_END)])


def decode_batch(body: bytes) -> tuple[Batch, list[bytes | None] | None]:
    """What `encode_new` made, from a sender who is trusted: messages, and deduplication ids."""
    laid = decode_plain(body)
    if laid is not None:
        return laid, None
    (data,) = pa.ipc.open_stream(body)
    ids = None
    if DEDUP_COLUMN in data.schema.names:
        ids = data.column(DEDUP_COLUMN).to_pylist()
        data = data.drop_columns([DEDUP_COLUMN])
    return Batch.from_arrow(data), ids


def encode_read(batches: Iterable[Batch], about: bytes) -> bytes:
    """Messages as they lie in logs, and the JSON of what else there is to say."""
    batches = list(batches)
    columns = _PLACED
    for batch in batches:
        columns |= batch.columns
    schema = schema_of(columns).with_metadata({_META: about})
    parts: list[Any] = [schema.serialize()]
    parts += [_columns(batch, columns).serialize() for batch in batches]
    parts.append(_END)
    return b"".join(parts)


def decode_read(body: bytes) -> tuple[list[Batch], bytes]:
    """What `encode_read` made; ProtocolError for anything else."""
    with _understanding():
        stream = _CheckedStream(body, _PLACED_FIELDS)
        about = (stream.schema.metadata or {}).get(_META, b"")
        return [_batch(data) for data in stream], about


def _laid(batch: Batch, columns: int) -> Sequence[Any]:
    """The Arrow message of a batch, in parts; of values alone it needs no help from Arrow."""
    if columns == BITS["value"]:
        if isinstance(batch, Plain):
            return batch.pieces()
        parts = body_of(batch.values)
        if parts is not None:
            return parts
    return ((batch.data if columns == batch.columns else _columns(batch, columns)).serialize(),)


def _columns(batch: Batch, columns: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([*_arrays(batch, columns)], schema=schema_of(columns))


def _arrays(batch: Batch, columns: int) -> Iterator[pa.Array]:
    for name in schema_of(columns).names:
        yield getattr(batch, _NAMES[name])


def _batch(data: pa.RecordBatch) -> Batch:
    """A batch of what came; columns that are not ours are left out."""
    names = [field.name for field in FIELDS if field.name in data.schema.names]
    batch = _alone(data.select(names))
    batch.base_offset = data.column("offset")[0].as_py() if data.num_rows else 0
    return batch


def _alone(data: pa.RecordBatch) -> Batch:
    columns = sum(BITS[name] for name in data.schema.names)
    arrays = [data.column(name) for name in schema_of(columns).names]
    return Batch(pa.RecordBatch.from_arrays(arrays, schema=schema_of(columns)), columns)


class _CheckedStream:
    """An Arrow stream from elsewhere, whose record batches are as they should be."""

    def __init__(self, body: bytes, wanted: Sequence[pa.Field]) -> None:
        check_sizes(body, STREAM_BYTES_MAX)
        self._stream = pa.ipc.open_stream(body)
        self.schema = self._stream.schema
        names = self.schema.names
        if len(set(names)) != len(names):
            raise InvalidInput("a column comes twice")
        for field in (*FIELDS, *_LEASE_FIELDS):
            if field.name in names and self.schema.field(field.name).type != field.type:
                raise InvalidInput(f"column {field.name} is not {field.type}")
        for field in wanted:
            if field.name not in names:
                raise InvalidInput(f"column {field.name} is missing")

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for data in self._stream:
            data.validate(full=True)
            for field in (*FIELDS, *_LEASE_FIELDS):
                if field.name in data.schema.names:
                    _check_column(field, data.column(field.name))
            yield data


def _check_column(field: pa.Field, column: pa.Array) -> None:
    """What the rest of a client takes for granted, and Arrow does not insist on."""
    if not field.nullable and column.null_count:
        raise InvalidInput(f"a message without {field.name}")
    if field.name == "headers" and not headers_are_whole(column):
        raise InvalidInput("a header without a name")
    if field.name == "priority" and len(column):
        parse_priority(int(np.asarray(column).max()))


@contextmanager
def _understanding() -> Iterator[None]:
    """Whatever is wrong with an answer, it is the answer that is wrong."""
    try:
        yield
    except (
        pa.ArrowException,
        msgspec.DecodeError,
        struct.error,
        OSError,
        EOFError,
        MemoryError,
        OverflowError,
        TypeError,
        LookupError,
        ValueError,
        RequestTooLarge,
    ) as exc:
        raise ProtocolError(f"the answer cannot be understood: {exc!s:.300}") from None


@cache
def _schema_bytes(columns: int) -> bytes:
    return bytes(schema_of(columns).serialize())


@cache
def _received_schema(columns: int) -> pa.Schema:
    schema = schema_of(columns)
    for field in _LEASE_FIELDS:
        schema = schema.append(field)
    return schema


@cache
def _received_schema_bytes(columns: int) -> bytes:
    return bytes(_received_schema(columns).serialize())


_PLAIN_SCHEMA = _schema_bytes(BITS["value"])
