"""Rows of a query as messages to be published.

The columns are those that the Kafka sink takes (value, key, headers, topic, partition), and what
only Penstock has: priority, expires_at, and delay or deliver_at.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    MapType,
    NumericType,
    StringType,
    StructType,
    TimestampType,
)

from penstock.durations import parse_ns
from penstock.errors import InvalidInput
from penstock.record.schema import HEADERS, TIMESTAMP, parse_priority

COLUMNS: dict[str, tuple[type[DataType], ...]] = {
    "value": (BinaryType, StringType),
    "key": (BinaryType, StringType),
    "headers": (ArrayType, MapType),
    "priority": (NumericType, StringType),
    "expires_at": (TimestampType,),
    "topic": (StringType,),
    "partition": (NumericType,),
    "delay": (NumericType, StringType),
    "deliver_at": (TimestampType,),
}
PASSED_OVER = ("offset", "timestamp", "timestampType", "id")
"""What a read has and a publish gives anew."""

STAGED = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32()),
        pa.field("deliver_at", TIMESTAMP),
        pa.field("priority", pa.uint8(), nullable=False),
        pa.field("expires_at", TIMESTAMP),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS),
    ]
)
"""Rows as they wait to be published."""


def check_schema(schema: StructType, topic: str) -> None:
    """Refuse a query that cannot be published, before any of it runs."""
    names = schema.fieldNames()
    if "value" not in names:
        raise InvalidInput(f"a column 'value' is needed; the query has {', '.join(names)}")
    if not topic and "topic" not in names:
        raise InvalidInput("say where to: give the option 'topic' or a column of that name")
    if "delay" in names and "deliver_at" in names:
        raise InvalidInput("give a column 'delay' or 'deliver_at', not both")
    for field in schema.fields:
        if field.name in PASSED_OVER:
            continue
        if field.name not in COLUMNS:
            raise InvalidInput(
                f"column {field.name!r} is none of a message: {', '.join(COLUMNS)}. "
                "Select those, or put the others into the value, for example with to_json."
            )
        if not isinstance(field.dataType, COLUMNS[field.name]):
            raise InvalidInput(
                f"column {field.name!r} is of type {field.dataType.simpleString()}; allowed: "
                f"{', '.join(kind.typeName() for kind in COLUMNS[field.name])}. Cast it."
            )


def to_messages(rows: pa.RecordBatch, topic: str, now_us: int) -> pa.RecordBatch:
    """Rows with the columns of `STAGED`; a row that is no message is InvalidInput."""
    count = len(rows)
    given = dict(zip(rows.schema.names, rows.columns, strict=True))
    columns = {field.name: pa.nulls(count, field.type) for field in STAGED}
    columns["topic"] = pa.repeat(topic, count) if topic else given["topic"]
    if columns["topic"].null_count:
        raise InvalidInput("a row has no topic; give the option 'topic', or fill the column")
    for name in ("value", "key", "partition", "expires_at", "deliver_at"):
        if name in given:
            columns[name] = given[name].cast(STAGED.field(name).type)
    columns["priority"] = _priorities(given.get("priority"), count)
    if "headers" in given:
        columns["headers"] = _headers(given["headers"])
    if "delay" in given:
        columns["deliver_at"] = _due(given["delay"], now_us)
    return pa.RecordBatch.from_arrays([columns[name] for name in STAGED.names], schema=STAGED)


def _priorities(given: pa.Array | None, count: int) -> pa.Array:
    if given is None:
        return pa.repeat(pa.scalar(2, pa.uint8()), count)
    if pa.types.is_string(given.type):
        names = {n: int(parse_priority(n)) for n in given.unique().to_pylist() if n is not None}
        given = pa.array([names.get(name) for name in given.to_pylist()], pa.int64())
    given = pc.fill_null(given.cast(pa.int64()), 2)
    for number in given.unique().to_pylist():
        parse_priority(number)
    return given.cast(pa.uint8())


def _headers(given: pa.Array) -> pa.Array:
    """From `array<struct<key, value>>` or a map, whatever its parts are called."""
    if pa.types.is_map(given.type):
        pairs = [each and [{"key": k, "value": v} for k, v in each] for each in given.to_pylist()]
        return pa.array(pairs, HEADERS)
    entries = given.flatten()
    if entries.field(0).null_count:
        raise InvalidInput("a header has no name")
    named = pa.StructArray.from_arrays(
        [entries.field(0).cast(pa.string()), entries.field(1).cast(pa.binary())],
        fields=list(HEADERS.value_type),
    )
    ends = np.cumsum(np.asarray(pc.fill_null(pc.list_value_length(given), 0)), dtype=np.int32)
    starts = pa.array(np.concatenate([np.zeros(1, np.int32), ends]))
    mask = given.is_null() if given.null_count else None
    return pa.ListArray.from_arrays(starts, named, type=HEADERS, mask=mask)


def _due(given: pa.Array, now_us: int) -> pa.Array:
    """A delay is in seconds, or a text such as "30s"; null and nothing mean now."""
    if pa.types.is_string(given.type):
        kinds = {d: parse_ns(d, "delay") // 1000 for d in given.unique().to_pylist() if d}
        given = pa.array([kinds.get(delay) for delay in given.to_pylist()], pa.int64())
    else:
        given = pc.round(pc.multiply(given.cast(pa.float64()), 1e6)).cast(pa.int64())
        if len(given) and (pc.min(given).as_py() or 0) < 0:
            raise InvalidInput("a delay must not be negative")
    due = pc.add(given, now_us)
    return pc.if_else(pc.equal(given, 0), pa.scalar(None, pa.int64()), due).view(TIMESTAMP)
