"""Arrow bodies that strangers send: read without trust.

How large a stream would become is asked before (`wire/stream_sizes.py`), and only types whose size
is that of their bytes are taken: a dictionary or a view can name the same ten megabytes a million
times.
"""

from __future__ import annotations

import struct

import pyarrow as pa

from penstock.errors import InvalidInput, RequestTooLarge
from penstock.record.batch import Batch
from penstock.wire.columns import DEDUP_COLUMN, decode_plain
from penstock.wire.stream_sizes import check_sizes


def decode_new(
    body: bytes, messages_max: int, bytes_max: int
) -> tuple[Batch, list[bytes | None] | None]:
    """Messages to be published, and their deduplication ids if they have any."""
    plain = decode_plain(body)
    if plain is not None and len(plain) <= messages_max:
        return plain, None
    try:
        return _decode(body, messages_max, bytes_max)
    except (pa.ArrowException, struct.error, OSError, ValueError, KeyError, IndexError) as exc:
        if isinstance(exc, InvalidInput):
            raise
        raise InvalidInput(f"body is not an Arrow IPC stream of messages: {exc!s:.300}") from None


def _decode(
    body: bytes, messages_max: int, bytes_max: int
) -> tuple[Batch, list[bytes | None] | None]:
    check_sizes(body, bytes_max)
    batches, rows = [], 0
    with pa.ipc.open_stream(body) as stream:
        schema = stream.schema
        _check_types(schema)
        for data in stream:
            rows += data.num_rows
            batches.append(data)
            if rows > messages_max:
                raise RequestTooLarge(
                    f"more than {messages_max} messages in one request; send them in parts"
                )
    if len(batches) == 1 and DEDUP_COLUMN not in schema.names:
        return Batch.from_arrow(batches[0]), None
    for data in batches:
        data.validate()
    table = pa.Table.from_batches(batches, schema)
    ids = None
    if DEDUP_COLUMN in schema.names:
        column = table.column(DEDUP_COLUMN)
        column.validate(full=True)
        ids = column.cast(pa.binary()).to_pylist()
        table = table.drop_columns([DEDUP_COLUMN])
    return Batch.from_arrow(table), ids


def _check_types(schema: pa.Schema) -> None:
    for field in schema:
        if not _is_allowed(field.type):
            raise InvalidInput(f"column {field.name!r:.100} must not be {field.type!s:.100}")


def _is_allowed(kind: pa.DataType) -> bool:
    if pa.types.is_list(kind):
        inner = kind.value_type
        return bool(pa.types.is_struct(inner)) and all(_is_flat(field.type) for field in inner)
    return _is_flat(kind)


def _is_flat(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_integer(kind)
    )
