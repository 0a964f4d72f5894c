"""Single columns of a batch: made from Python lists or from Arrow's, checked, and measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import InvalidInput
from penstock.record import compute as pc
from penstock.record.schema import BITS, FIELDS, HEADERS, MESSAGE_ID, schema_of

_BINARY_BYTES_MAX = (1 << 31) - 2  # as many as Arrow puts into one array


def column_of(
    name: str, items: Sequence[Any], type_: pa.DataType, rows: int | None = None
) -> pa.Array:
    """A column from a list with an item for each row; InvalidInput if it cannot be one."""
    if type(items) is not list:
        _check_list(name, items)
    try:
        count = len(items)
    except TypeError:
        raise InvalidInput(
            f"{name}: one for each message or one whole number, not {items!r}"
        ) from None
    if rows is not None and count != rows:
        raise InvalidInput(f"{rows} values, but {count} of {name}: give one for each message")
    try:
        array = pa.array(items, type_)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as exc:
        raise InvalidInput(f"{name}: {exc}") from None
    if isinstance(array, pa.ChunkedArray):
        raise InvalidInput(f"{name}: more than 2 GB in one batch; send it in parts")
    if array.null_count and not schema_of(BITS[name]).field(0).nullable:
        raise InvalidInput(f"{name}: every message needs one, or give none at all")
    if name == "headers" and not headers_are_whole(array):
        raise InvalidInput("headers: a header without a name")
    return array


def _check_list(name: str, items: object) -> None:
    """Refuse what would be taken apart: text into its letters, a dict or a table into its names."""
    if isinstance(items, str | bytes | bytearray):
        raise InvalidInput(f"{name}: a list with one for each message is wanted, not {items!r:.60}")
    if isinstance(items, Mapping):
        raise InvalidInput(
            f"{name}: a list with one for each message is wanted, not a dict; "
            "put it into a list as text or bytes, such as [json.dumps(it)]"
        )
    if hasattr(items, "__dataframe__"):
        raise InvalidInput(
            f"{name}: a list with one for each message is wanted, not a {type(items).__name__}; "
            "give the list of one of its columns, or an Arrow table with a column 'value'"
        )


def cast_column(field: pa.Field, column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """A column that somebody brings, as the schema has it; shared, not copied, if it is so."""
    if isinstance(column, pa.ChunkedArray):
        # A single chunk is taken as it is: joining would copy it.
        column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            raise InvalidInput(f"{field.name}: more than 2 GB in one batch; send it in parts")
    if column.null_count and not field.nullable:
        raise InvalidInput(f"{field.name}: every message needs one, or leave the column out")
    check_readable(field.name, column)
    try:
        column = column if column.type == field.type else column.cast(field.type)
    except pa.ArrowException as exc:
        raise InvalidInput(f"column {field.name} must be {field.type}: {exc}") from None
    if field.name == "headers" and not headers_are_whole(column):
        raise InvalidInput("column headers must be whole: a header without a name")
    return column


def check_readable(name: str, column: pa.Array | pa.RecordBatch) -> None:
    """Refuse data that Arrow takes on trust, and that no reader would ever be given again."""
    try:
        column.validate(full=True)
    except pa.ArrowException as exc:
        raise InvalidInput(f"column {name} is not valid Arrow data: {exc}") from None


def check_names(names: Sequence[str]) -> None:
    """That a table of these columns can be messages."""
    known = [field.name for field in FIELDS[:6]]
    for name in names:
        if name not in known:
            raise InvalidInput(f"unknown column {name!r}; a message has {', '.join(known)}")
    if "value" not in names or len(set(names)) != len(names):
        raise InvalidInput("a table of messages needs one column 'value', and no name twice")


def headers_are_whole(headers: pa.ListArray) -> bool:
    """Whether each header is there and has a name, which Arrow itself does not insist on."""
    flat = headers.flatten()
    return not flat.null_count and not flat.field("key").null_count


def header_pairs(
    headers: Mapping[str, bytes | str | None],
) -> list[tuple[str, bytes | str | None]]:
    """The headers of one message as Arrow takes them."""
    if not isinstance(headers, Mapping):
        raise InvalidInput(f"headers: a dict for each message, not {type(headers).__name__}")
    return list(headers.items())


def byte_lengths(array: pa.Array) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.asarray(pc.fill_null(pc.binary_length(array), 0)).astype(np.int64)


def binary_array(values: Sequence[bytes]) -> pa.BinaryArray:
    """Values as a column, without `pa.array`: that imports pandas where it is installed, and the
    message that is the first to need a column would be late by as much as that takes."""
    ends = np.zeros(len(values) + 1, np.int64)
    np.cumsum(list(map(len, values)), out=ends[1:])
    if ends[-1] > _BINARY_BYTES_MAX:
        raise InvalidInput("value: more than 2 GB in one batch; send it in parts")
    buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers)


def value_or_null(value: bytes | None) -> pa.BinaryArray:
    """A column of one row; without pandas, too."""
    if value is not None:
        return binary_array([value])
    buffers = [pa.py_buffer(b"\0"), pa.py_buffer(bytes(8)), pa.py_buffer(b"")]
    return pa.Array.from_buffers(pa.binary(), 1, buffers)


def headers_of_one(headers: Mapping[str, bytes | None]) -> pa.ListArray:
    """The headers of one message as a column; without pandas, too."""
    count = len(headers)
    names = binary_array([name.encode() for name in headers]).view(pa.string())
    values = binary_array([value or b"" for value in headers.values()]).buffers()
    if None in headers.values():
        there = np.packbits([value is not None for value in headers.values()], bitorder="little")
        values[0] = pa.py_buffer(there)
    values = pa.Array.from_buffers(pa.binary(), count, values)
    pairs = pa.StructArray.from_arrays([names, values], fields=list(HEADERS.value_type))
    ends = pa.py_buffer(np.array([0, count], np.int32))
    return pa.Array.from_buffers(HEADERS, 1, [None, ends], children=[pairs])


def number_array(numbers: np.ndarray[Any, Any], type_: pa.DataType) -> pa.Array:
    """Numbers as a column of a type of as many bits; without pandas, too."""
    assert numbers.itemsize * 8 == type_.bit_width
    data = pa.py_buffer(np.ascontiguousarray(numbers))
    return pa.Array.from_buffers(type_, len(numbers), [None, data])


def int64s(column: pa.Array) -> np.ndarray[Any, np.dtype[np.int64]]:
    """A column without nulls as numbers.

    As `np.asarray` would give it, but for pandas, which Arrow would import on the way."""
    if not len(column):
        return np.empty(0, np.int64)
    return np.frombuffer(column.buffers()[1], np.int64, len(column), 8 * column.offset)


def are_there(column: pa.Array) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """1 where a column with nulls has a value, else 0."""
    bits = np.frombuffer(column.buffers()[0], np.uint8)
    return np.unpackbits(bits, bitorder="little")[column.offset : column.offset + len(column)]


def uint8s(column: pa.Array) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The same of a column of bytes."""
    if not len(column):
        return np.empty(0, np.uint8)
    return np.frombuffer(column.buffers()[1], np.uint8, len(column), column.offset)


def consecutive_ids(ulid: int, rows: int) -> pa.FixedSizeBinaryArray:
    halves = np.empty((rows, 2), ">u8")
    halves[:, 0] = ulid >> 64
    # The low half starts on a multiple of 2**24 at most, so that adding rows cannot carry.
    halves[:, 1] = np.arange(rows, dtype=np.uint64) + np.uint64(ulid & (1 << 64) - 1)
    return pa.Array.from_buffers(MESSAGE_ID, rows, [None, pa.py_buffer(halves)])
