"""Arrow bodies that strangers send: read without trust.

Arrow believes what a stream says about itself. So before anything is unpacked it is asked how large
it would become, and only types whose size is that of their bytes are taken: a dictionary or a view
can name the same ten megabytes a million times.
"""

from __future__ import annotations

import struct

import pyarrow as pa

from penstock.errors import InvalidInput, RequestTooLarge
from penstock.record.batch import Batch
from penstock.wire.columns import DEDUP_COLUMN, decode_plain

_BATCHES_MAX = 10_000
_RECORD_BATCH = 3  # of the union MessageHeader
_CONTINUATION = 0xFFFFFFFF


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
    _check_sizes(body, bytes_max)
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


def _check_sizes(body: bytes, bytes_max: int) -> None:
    """Refuse what would not fit, message by message of the stream, before any is unpacked."""
    view = memoryview(body)
    at, total = 0, 0
    for _ in range(_BATCHES_MAX + 1):
        if at >= len(view):
            return
        (length,) = struct.unpack_from("<I", view, at)
        at += 4
        if length == _CONTINUATION:
            (length,) = struct.unpack_from("<I", view, at)
            at += 4
        if length == 0:
            return
        metadata = view[at : at + length]
        at += length
        if length > len(view) or at > len(view):
            raise InvalidInput("body is not an Arrow IPC stream: it ends too early")
        message = _Table.root(metadata)
        body_length = message.int64(3)
        if body_length < 0 or at + body_length > len(view):
            raise InvalidInput("body is not an Arrow IPC stream: it ends too early")
        if message.uint8(1) == _RECORD_BATCH:
            total += _unpacked_bytes(message.table(2), view[at : at + body_length])
            if total > bytes_max:
                raise RequestTooLarge(f"the body would unpack to more than {bytes_max} bytes")
        at += body_length
    raise RequestTooLarge(f"more than {_BATCHES_MAX} record batches in one request")


def _unpacked_bytes(batch: _Table | None, data: memoryview) -> int:
    """What the buffers of a record batch take; a compressed one starts with its raw length."""
    if batch is None:
        return 0
    compressed = batch.table(3) is not None
    total = 0
    for offset, length in batch.buffers(2):
        if offset < 0 or length < 0 or offset + length > len(data):
            raise InvalidInput("body is not an Arrow IPC stream: a buffer lies outside of it")
        if compressed and length >= 8:
            (raw,) = struct.unpack_from("<q", data, offset)
            total += length if raw == -1 else max(raw, 0)
        else:
            total += length
    return total


class _Table:
    """As much of FlatBuffers as it takes to find the sizes in the metadata of a message."""

    def __init__(self, data: memoryview, position: int) -> None:
        self._data = data
        self._position = position
        (back,) = struct.unpack_from("<i", data, position)
        self._vtable = position - back
        if not 0 <= self._vtable < len(data):
            raise InvalidInput("body is not an Arrow IPC stream: its metadata is damaged")
        (self._vtable_bytes,) = struct.unpack_from("<H", data, self._vtable)

    @classmethod
    def root(cls, data: memoryview) -> _Table:
        (position,) = struct.unpack_from("<I", data, 0)
        return cls(data, position)

    def uint8(self, field: int) -> int:
        at = self._field(field)
        return 0 if at is None else self._data[at]

    def int64(self, field: int) -> int:
        at = self._field(field)
        return 0 if at is None else int(struct.unpack_from("<q", self._data, at)[0])

    def table(self, field: int) -> _Table | None:
        at = self._field(field)
        if at is None:
            return None
        return _Table(self._data, at + struct.unpack_from("<I", self._data, at)[0])

    def buffers(self, field: int) -> list[tuple[int, int]]:
        """A vector of structs of two 64-bit numbers."""
        at = self._field(field)
        if at is None:
            return []
        at += struct.unpack_from("<I", self._data, at)[0]
        (count,) = struct.unpack_from("<I", self._data, at)
        if count * 16 > len(self._data):
            raise InvalidInput("body is not an Arrow IPC stream: its metadata is damaged")
        numbers = struct.unpack_from(f"<{count * 2}q", self._data, at + 4)
        return list(zip(numbers[::2], numbers[1::2], strict=True))

    def _field(self, field: int) -> int | None:
        slot = 4 + 2 * field
        if slot + 2 > self._vtable_bytes:
            return None
        (offset,) = struct.unpack_from("<H", self._data, self._vtable + slot)
        return self._position + offset if offset else None
