"""Messages as Spark's columns: those of the Kafka source, and what only Penstock has.

The columns that a query asks for are made for many frames at once, so that small frames cost
little more than large ones. Columns that are not asked for are not made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.errors import InvalidInput
from penstock.record.batch import Batch
from penstock.record.schema import BITS, TIMESTAMP

LOG_APPEND_TIME = 1
"""As the Kafka source counts them: the time is the one at which the message was stored."""

HEADERS_TYPE = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)
COLUMNS: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": HEADERS_TYPE,
    "priority": IntegerType(),
    "expires_at": TimestampType(),
    "id": StringType(),
}


def read_schema(include_headers: bool) -> StructType:
    """What a read has when no schema is handed to it."""
    return StructType(
        [
            StructField(name, kind)
            for name, kind in COLUMNS.items()
            if include_headers or name != "headers"
        ]
    )


def arrow_schema(schema: StructType, columns: Mapping[str, DataType] = COLUMNS) -> pa.Schema:
    """The Arrow schema that Spark expects for a schema of ours, or InvalidInput."""
    for field in schema.fields:
        kind = columns.get(field.name)
        if kind is None:
            raise InvalidInput(
                f"there is no column {field.name!r}; a message has {', '.join(columns)}"
            )
        if field.dataType != kind:
            raise InvalidInput(
                f"column {field.name!r} is of type {kind.simpleString()}, not "
                f"{field.dataType.simpleString()}; cast it after reading"
            )
    return to_arrow_schema(schema, timezone="UTC")


class ColumnMaker:
    """Makes record batches of one schema from the frames of one partition."""

    def __init__(self, schema: pa.Schema, topic: str, partition: int) -> None:
        self._schema = schema
        self._constants: dict[str, pa.Array] = {}
        self._scalars = {
            "topic": pa.scalar(topic, pa.string()),
            "partition": pa.scalar(partition, pa.int32()),
            "timestampType": pa.scalar(LOG_APPEND_TIME, pa.int32()),
        }

    def make(self, batches: Sequence[Batch]) -> pa.RecordBatch:
        """One record batch of all rows."""
        rows = sum(map(len, batches))
        arrays = [self._column(field, batches, rows) for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _column(self, field: pa.Field, batches: Sequence[Batch], rows: int) -> pa.Array:
        if field.name in self._scalars:
            return self._constant(field.name, rows)
        array = _MAKERS[field.name](batches)
        return array if array.type == field.type else array.cast(field.type)

    def _constant(self, name: str, rows: int) -> pa.Array:
        known = self._constants.get(name)
        if known is None or len(known) < rows:
            known = self._constants[name] = pa.repeat(self._scalars[name], rows)
        return known.slice(0, rows)


def _keys(batches: Sequence[Batch]) -> pa.Array:
    return pa.concat_arrays([batch.keys for batch in batches])


def _values(batches: Sequence[Batch]) -> pa.Array:
    return pa.concat_arrays([batch.values for batch in batches])


def _headers(batches: Sequence[Batch]) -> pa.Array:
    return pa.concat_arrays([batch.headers for batch in batches])


def _expiries(batches: Sequence[Batch]) -> pa.Array:
    return pa.concat_arrays([batch.expires_at for batch in batches])


def _offsets(batches: Sequence[Batch]) -> pa.Array:
    runs = [
        np.asarray(batch.offsets)
        if batch.columns & BITS["offset"]
        else np.arange(batch.base_offset or 0, batch.next_offset, dtype=np.int64)
        for batch in batches
    ]
    return pa.array(np.concatenate(runs))


def timestamps_us(batches: Sequence[Batch]) -> np.ndarray[Any, np.dtype[np.int64]]:
    if any(batch.columns & BITS["timestamp"] for batch in batches):
        return np.concatenate([batch.timestamps_us() for batch in batches])
    stamps = np.array([batch.timestamp_us or 0 for batch in batches], np.int64)
    return np.repeat(stamps, [len(batch) for batch in batches])


def _timestamps(batches: Sequence[Batch]) -> pa.Array:
    return pa.array(timestamps_us(batches)).view(TIMESTAMP)


def _priorities(batches: Sequence[Batch]) -> pa.Array:
    if any(batch.columns & BITS["priority"] for batch in batches):
        return pa.concat_arrays([batch.priorities for batch in batches]).cast(pa.int32())
    each = np.array([batch.priority for batch in batches], np.int32)
    return pa.array(np.repeat(each, [len(batch) for batch in batches]))


def _ids(batches: Sequence[Batch]) -> pa.Array:
    """The ULIDs as 26 letters of five bits each, made two at a time."""
    ids = pa.concat_arrays([batch.ids for batch in batches])
    raw = np.frombuffer(ids.buffers()[1], ">u8", len(ids) * 2, ids.offset * 16)
    high, low = raw.reshape(-1, 2).astype(np.uint64).T
    letters = np.empty((len(ids), 13), np.uint16)
    for pair in range(13):
        shift = 10 * (12 - pair)
        if shift >= 64:
            bits = high >> np.uint64(shift - 64)
        elif shift == 60:  # the pair that has bits of both halves
            bits = (high << np.uint64(4)) | (low >> np.uint64(60))
        else:
            bits = low >> np.uint64(shift)
        letters[:, pair] = _PAIRS[(bits & np.uint64(1023)).astype(np.int16)]
    ends = np.arange(0, 26 * len(ids) + 1, 26, dtype=np.int32)
    return pa.StringArray.from_buffers(len(ids), pa.py_buffer(ends), pa.py_buffer(letters))


_LETTERS = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = np.frombuffer(bytes(x for a in _LETTERS for b in _LETTERS for x in (a, b)), np.uint16)
_MAKERS: dict[str, Callable[[Sequence[Batch]], pa.Array]] = {
    "key": _keys,
    "value": _values,
    "headers": _headers,
    "expires_at": _expiries,
    "offset": _offsets,
    "timestamp": _timestamps,
    "priority": _priorities,
    "id": _ids,
}
