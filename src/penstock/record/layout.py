"""What Arrow's record-batch messages look like, as far as it has to be known to trust one."""

from __future__ import annotations

import struct
from functools import cache
from typing import NamedTuple

import pyarrow as pa

from penstock.record.schema import schema_of


class Layout(NamedTuple):
    """How a body of some columns begins: up to the number of rows, but for the buffers' length.

    That is the part of the Arrow message which says what it consists of, and it is the same for
    every uncompressed record batch of a schema that this version of Arrow writes. A message that
    begins so need not be looked at any closer.
    """

    schema: pa.Schema
    start: struct.Struct
    plain: tuple[bytes, bytes]
    """What is before and what is behind the 8 bytes of that length."""

    def is_start_of(self, body: memoryview) -> bool:
        """Whether a body begins as every plain one of these columns does."""
        return len(body) >= self.start.size and self.start.unpack_from(body) == self.plain

    def empty(self) -> pa.RecordBatch:
        """No rows of these columns."""
        arrays = [pa.array([], field.type) for field in self.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


@cache
def layout_of(columns: int) -> Layout:
    schema = schema_of(columns)
    sample = pa.RecordBatch.from_arrays([_one(f.type) for f in schema], schema=schema)
    message = memoryview(sample.serialize())
    top = _table(message, 8)
    body_bytes_at = _slot(message, top, 3)
    rows_at = _slot(message, _table(message, _slot(message, top, 2)), 0)
    assert 0 < body_bytes_at < rows_at - 8
    start = struct.Struct(f"{body_bytes_at}s8x{rows_at - body_bytes_at - 8}s")
    before, behind = start.unpack_from(message)
    return Layout(schema, start, (before, behind))


def is_compressed(body: memoryview) -> bool:
    """Whether Arrow would have to inflate buffers, to lengths that only the message knows.

    We never write such a message, and a hostile one could ask for any amount of memory. What
    cannot be walked counts as one: Arrow would refuse it too.
    """
    if bytes(body[:4]) != b"\xff\xff\xff\xff":  # the mark before the metadata's length
        return True
    try:
        batch = _table(body, _slot(body, _table(body, 8), 2))
        return _slot(body, batch, 3) != 0
    except struct.error:
        return True


def _one(type_: pa.DataType) -> pa.Array:
    """A column of one row, of whatever content."""
    zeros = pa.py_buffer(bytes(16))
    if pa.types.is_list(type_):
        # Not by `pa.array`: see `binary_array`.
        nothing = pa.nulls(0, type_.value_type)
        return pa.Array.from_buffers(type_, 1, [None, zeros], children=[nothing])
    if type_ == pa.binary():
        return pa.Array.from_buffers(type_, 1, [None, zeros, pa.py_buffer(b"")])
    return pa.Array.from_buffers(type_, 1, [None, zeros])


def _table(body: memoryview, at: int) -> int:
    return at + int(struct.unpack_from("<I", body, at)[0])


def _slot(body: memoryview, table: int, field: int) -> int:
    """Where a flatbuffer table keeps a field; 0 when it does not have it."""
    vtable = table - int(struct.unpack_from("<i", body, table)[0])
    if 4 + 2 * field >= int(struct.unpack_from("<H", body, vtable)[0]):
        return 0
    inside = int(struct.unpack_from("<H", body, vtable + 4 + 2 * field)[0])
    return table + inside if inside else 0
