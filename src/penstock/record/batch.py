"""Batches: messages as columns. The unit that is written, read, sliced and joined."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from penstock.errors import InvalidInput
from penstock.record import compute as pc
from penstock.record.columns import (
    are_there,
    byte_lengths,
    cast_column,
    check_names,
    check_readable,
    column_of,
    consecutive_ids,
    header_pairs,
    headers_of_one,
    int64s,
    number_array,
    value_or_null,
)
from penstock.record.json_values import ReadablePayload
from penstock.record.schema import (
    BITS,
    FIELDS,
    HEADERS,
    READ_SCHEMA,
    TIMESTAMP,
    Priority,
    parse_priority,
    schema_of,
    ulid_text,
)

Payload: TypeAlias = bytes | str | None
HeaderMap: TypeAlias = Mapping[str, bytes | str | None]

_VALUE = BITS["value"]
_EXPIRES_AT = BITS["expires_at"]
_NORMAL = Priority.NORMAL
_VALUES_ALONE = schema_of(_VALUE)
_PLACE = BITS["offset"] | BITS["id"]
_FEW = 64  # numbers, for which Python itself is quicker than numpy
NEVER_US = np.iinfo(np.int64).max


class Message(msgspec.Struct, ReadablePayload, frozen=True, gc=False):
    """One message, made from its batch when somebody asks for it."""

    offset: int
    timestamp_us: int
    value: bytes | None
    key: bytes | None
    headers: dict[str, bytes | None]
    priority: int
    expires_at_us: int | None
    ulid: int

    @property
    def id(self) -> str:
        """The message's ULID: unique, and sortable by time."""
        return ulid_text(self.ulid)

    @property
    def nbytes(self) -> int:
        """Its value, key and headers together."""
        headers = sum(len(name) + len(value or b"") for name, value in self.headers.items())
        return len(self.value or b"") + len(self.key or b"") + headers


class Batch:
    """Some messages as an Arrow record batch that holds only the columns in use.

    A batch is immutable: slicing shares its memory, everything else makes a new one. `base_offset`
    and `ulid` are set on batches that were read from a log; without an `offset` (`id`) column the
    row is added to them. `timestamp_us` and `priority` stand for columns that are not there;
    a timestamp of None is filled in by the log that the batch is appended to.
    """

    _payload_bytes: int
    __slots__ = (
        "_data",
        "_payload_bytes",
        "_values",
        "base_offset",
        "columns",
        "priority",
        "timestamp_us",
        "ulid",
    )

    def __init__(
        self,
        data: pa.RecordBatch | None,
        columns: int,
        *,
        timestamp_us: int | None = None,
        priority: int = Priority.NORMAL,
        base_offset: int | None = None,
        ulid: int = 0,
    ) -> None:
        self._data = data
        self._values: pa.BinaryArray | None = None
        self.columns = columns
        self.timestamp_us = timestamp_us
        self.priority = priority
        self.base_offset = base_offset
        self.ulid = ulid

    @classmethod
    def build(
        cls,
        values: Sequence[Payload],
        *,
        keys: Sequence[Payload] | None = None,
        headers: Sequence[HeaderMap | None] | None = None,
        priority: int | str | Sequence[int | str] = Priority.NORMAL,
        timestamps_us: int | Sequence[int] | None = None,
        expires_at_us: int | Sequence[int | None] | None = None,
    ) -> Batch:
        """A batch from Python lists. Text is stored as UTF-8; a single number is for all rows."""
        column = column_of("value", values, pa.binary())
        rows = len(column)
        if keys is headers is expires_at_us is timestamps_us is None and priority is _NORMAL:
            return cls.of_values(column)  # without a look at each of them
        arrays = {"value": column}
        if keys is not None:
            arrays["key"] = column_of("key", keys, pa.binary(), rows)
        if headers is not None:
            if not isinstance(headers, Iterable):
                raise InvalidInput(f"headers: a list with a dict for each, not {headers!r:.100}")
            pairs = [header_pairs(h) if h else None for h in headers]
            arrays["headers"] = column_of("headers", pairs, HEADERS, rows)
        if expires_at_us is not None:
            if isinstance(expires_at_us, int):
                expires_at_us = [expires_at_us] * rows
            arrays["expires_at"] = column_of("expires_at", expires_at_us, TIMESTAMP, rows)
        if isinstance(timestamps_us, int):
            column_of("timestamp", [timestamps_us], TIMESTAMP, 1)  # for its error, if it is no time
        elif timestamps_us is not None:
            arrays["timestamp"] = column_of("timestamp", timestamps_us, TIMESTAMP, rows)
            timestamps_us = None
        if isinstance(priority, str) or not isinstance(priority, Iterable):
            priority = parse_priority(priority)
        else:
            numbers = [int(parse_priority(p)) for p in priority]
            arrays["priority"] = column_of("priority", numbers, pa.uint8(), rows)
            priority = Priority.NORMAL
        return cls._from_arrays(arrays, timestamps_us, priority)

    @classmethod
    def of_one(
        cls,
        value: bytes | None,
        *,
        key: bytes | None,
        headers: Mapping[str, bytes | None],
        priority: int,
    ) -> Batch:
        """One message, as `build` makes it, but without `pa.array`: see `binary_array`."""
        arrays = {"value": value_or_null(value)}
        if key is not None:
            arrays["key"] = value_or_null(key)
        arrays["headers"] = headers_of_one(headers)
        return cls._from_arrays(arrays, None, priority)

    @classmethod
    def from_arrow(cls, data: pa.Table | pa.RecordBatch) -> Batch:
        """A batch from an Arrow table with a `value` column and any others of the schema.

        Columns of the right type are shared, not copied; text and other time units are cast.
        """
        schema = data.schema
        if schema.equals(_VALUES_ALONE) and isinstance(data, pa.RecordBatch):
            values = data.column(0)
            check_readable("value", values)
            return cls.of_values(values)
        check_names(schema.names)
        arrays = {}
        for field in FIELDS[:6]:
            if field.name in schema.names:
                column = data.column(field.name)
                if column.null_count < len(column) or field.name == "value":
                    arrays[field.name] = cast_column(field, column)
        if "priority" in arrays and len(data):
            parse_priority(pc.max(arrays["priority"]).as_py())
        return cls._from_arrays(arrays, None, Priority.NORMAL)

    @classmethod
    def of_values(
        cls,
        values: pa.BinaryArray,
        *,
        timestamp_us: int | None = None,
        priority: int = Priority.NORMAL,
        base_offset: int | None = None,
        ulid: int = 0,
    ) -> Batch:
        """Messages that have a value and nothing else; of a column that is known to be right."""
        batch = cls.__new__(cls)
        batch._data = None
        batch._values = values
        batch.columns = _VALUE
        batch.timestamp_us = timestamp_us
        batch.priority = priority
        batch.base_offset = base_offset
        batch.ulid = ulid
        return batch

    @classmethod
    def concat(cls, batches: Sequence[Batch]) -> Batch:
        """One batch of all rows, in order. Offsets and ids are kept if all of them have some."""
        if len(batches) == 1:
            return batches[0]
        if not batches:
            return cls.build([])
        placed = [batch.base_offset is not None for batch in batches]
        if any(placed) and not all(placed):
            batches = [batch.unplaced() for batch in batches]
        first = batches[0]
        columns = 0
        for batch in batches:
            columns |= batch.columns
        if any(b.timestamp_us != first.timestamp_us for b in batches):
            columns |= BITS["timestamp"]
        if columns & BITS["timestamp"] and any(map(_is_undated, batches)):
            raise InvalidInput("some messages have a time and others none: give it to all or none")
        if any(b.priority != first.priority for b in batches):
            columns |= BITS["priority"]
        if first.base_offset is not None:
            columns |= BITS["id"]
            if not _follow_each_other(batches):
                columns |= BITS["offset"]
        parts = [batch._widened(columns) for batch in batches]
        width = len(schema_of(columns))
        arrays = [pa.concat_arrays([part.column(i) for part in parts]) for i in range(width)]
        data = pa.RecordBatch.from_arrays(arrays, schema=schema_of(columns))
        return first._with(data, columns, first.base_offset, first.ulid)

    @property
    def data(self) -> pa.RecordBatch:
        """The columns in use. Values alone become a record batch only when it is needed."""
        if self._data is None:
            self._data = pa.RecordBatch.from_arrays([self._values], schema=_VALUES_ALONE)
        return self._data

    def __len__(self) -> int:
        return len(self.values if self._values is None else self._values)

    @property
    def nbytes(self) -> int:
        return int(self.data.nbytes)

    @property
    def payload_bytes(self) -> int:
        """About what its messages take, whatever is shared with others; quick to know."""
        try:
            return self._payload_bytes
        except AttributeError:  # asked for the first time: Arrow adds it up anew each time
            counted = self.data if self._values is None or self._data is not None else self._values
            self._payload_bytes = int(counted.nbytes)
            return self._payload_bytes

    def rows_within(self, bytes_max: int) -> int:
        """How many of the first messages have no more than so many bytes together."""
        ends = np.cumsum(self.message_bytes())
        return int(np.searchsorted(ends, bytes_max, side="right"))

    @property
    def values(self) -> pa.BinaryArray:
        if self._values is None:
            number = (self.columns & _VALUE - 1).bit_count()  # by name is slower
            self._values = self.data.column(number)
        return self._values

    @property
    def keys(self) -> pa.BinaryArray:
        return self._column("key")

    @property
    def headers(self) -> pa.ListArray:
        return self._column("headers")

    @property
    def expires_at(self) -> pa.TimestampArray:
        return self._column("expires_at")

    @property
    def timestamps(self) -> pa.TimestampArray:
        return self._column("timestamp")

    @property
    def priorities(self) -> pa.UInt8Array:
        return self._column("priority")

    @property
    def offsets(self) -> pa.Int64Array:
        return self._column("offset")

    @property
    def ids(self) -> pa.FixedSizeBinaryArray:
        """Message ids as 16 big-endian bytes, so that they sort as bytes."""
        return self._column("id")

    @property
    def next_offset(self) -> int:
        """One past the last row's offset."""
        if not self.columns & BITS["offset"]:
            return (self.base_offset or 0) + len(self)
        if not len(self):
            return self.base_offset or 0
        return int(self.data.column("offset")[-1].as_py()) + 1

    def timestamps_us(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The timestamps as numbers, without a copy where there is a column."""
        if self.columns & BITS["timestamp"]:
            return int64s(self.data.column("timestamp"))
        return np.full(len(self), self.timestamp_us or 0, np.int64)

    def expires_us(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """When each message expires; of one that never does, the largest number there is."""
        if not self.columns & BITS["expires_at"]:
            return np.full(len(self), NEVER_US, np.int64)
        column = self.data.column("expires_at")
        moments = int64s(column)
        return np.where(are_there(column), moments, NEVER_US) if column.null_count else moments

    def first_expiry_us(self) -> int:
        """When the first of the messages, of which there is one at least, expires."""
        column = self.data.column("expires_at") if self.columns & _EXPIRES_AT else None
        if column is None or column.null_count or len(column) > _FEW:
            return int(self.expires_us().min())
        moments = memoryview(column.buffers()[1]).cast("q")
        return min(moments[column.offset : column.offset + len(column)])

    def offset_numbers(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The offsets as numbers, without a copy where there is a column."""
        if self.columns & BITS["offset"]:
            return int64s(self.data.column("offset"))
        base = self.base_offset or 0
        return np.arange(base, base + len(self), dtype=np.int64)

    def priority_numbers(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The priorities as numbers, without a copy where there is a column."""
        if self.columns & BITS["priority"]:
            column = self.data.column("priority")
            return np.frombuffer(column.buffers()[1], np.uint8, len(column), column.offset)
        return np.full(len(self), self.priority, np.uint8)

    def slice(self, start: int, length: int | None = None) -> Batch:
        """Some rows in a row, sharing memory."""
        base = None if self.base_offset is None else self.base_offset + start
        if self._data is None and self._values is not None:
            batch = self._with(None, _VALUE, base, self.ulid + start)
            batch._values = self._values.slice(start, length)
            return batch
        data = self.data.slice(start, length)
        if self.columns & BITS["offset"] and len(data):
            base = data.column("offset")[0].as_py()
        return self._with(data, self.columns, base, self.ulid + start)

    def filter(self, mask: Sequence[bool] | pa.BooleanArray | np.ndarray[Any, Any]) -> Batch:
        """The rows where the mask is true."""
        placed = self.placed()
        return placed._rows(placed.data.filter(pa.array(mask, pa.bool_())))

    def take(self, rows: Sequence[int] | pa.IntegerArray | np.ndarray[Any, Any]) -> Batch:
        """These rows, in this order."""
        placed = self.placed()
        return placed._rows(placed.data.take(pa.array(rows, pa.int64())))

    def unplaced(self, *, keep_ids: bool = False) -> Batch:
        """Without offsets and, unless they shall stay with their messages, without ids."""
        columns = self.columns & ~_PLACE
        if keep_ids:
            columns |= BITS["id"]
        return self._with(self._widened(columns), columns, None, 0)

    def stamped(self, timestamps_us: int | Sequence[int] | np.ndarray[Any, Any] | None) -> Batch:
        """With other timestamps; None: those of the moment when it is appended."""
        columns = self.columns & ~BITS["timestamp"]
        if timestamps_us is None or isinstance(timestamps_us, int):
            batch = self._with(self._widened(columns), columns, self.base_offset, self.ulid)
            batch.timestamp_us = timestamps_us
            return batch
        stamps = number_array(np.asarray(timestamps_us, np.int64), TIMESTAMP)
        if len(stamps) != len(self):
            raise InvalidInput(f"{len(self)} messages, but {len(stamps)} timestamps")
        return self._with_column("timestamp", stamps)

    def expiring(self, expires_at_us: int | np.ndarray[Any, Any]) -> Batch:
        """With a moment of expiry for each message that has none."""
        numbers = np.empty(len(self), np.int64)
        numbers[:] = expires_at_us
        ends = pa.Array.from_buffers(TIMESTAMP, len(self), [None, pa.py_buffer(numbers)])
        if self.columns & BITS["expires_at"]:
            ends = pc.coalesce(self.expires_at, ends)
        return self._with_column("expires_at", ends)

    def with_headers(self, headers: Sequence[HeaderMap], *, instead: bool = False) -> Batch:
        """With these headers added to those of each message, or instead of them."""
        mine = [{}] * len(self) if instead else self._header_dicts()
        joined = [list({**old, **new}.items()) for old, new in zip(mine, headers, strict=True)]
        return self._with_column("headers", column_of("headers", joined, HEADERS, len(self)))

    def message_bytes(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """How long each message is: its value, key and headers together."""
        sizes = byte_lengths(self.values)
        if self.columns & BITS["key"]:
            sizes = sizes + byte_lengths(self.keys)
        if self.columns & BITS["headers"]:
            flat = self.headers.flatten()
            parts = np.zeros(len(flat) + 1, np.int64)
            np.cumsum(
                byte_lengths(flat.field("key")) + byte_lengths(flat.field("value")), out=parts[1:]
            )
            ends = np.cumsum(np.asarray(pc.fill_null(pc.list_value_length(self.headers), 0)))
            sizes = sizes + np.diff(parts[ends], prepend=0)
        return sizes

    def record_batch(self) -> pa.RecordBatch:
        """All columns of `READ_SCHEMA`, those in use without a copy."""
        return pa.RecordBatch.from_arrays(
            [self._column(name) for name in READ_SCHEMA.names], schema=READ_SCHEMA
        )

    def messages(self) -> list[Message]:
        """The rows as objects: convenient, and twenty times slower than columns."""
        rows = len(self)
        nones: list[None] = [None] * rows
        has = self.columns
        offsets: Sequence[int]
        ulids: Sequence[int]
        if has & BITS["offset"]:
            offsets = self.data.column("offset").to_pylist()
        else:
            base = self.base_offset or 0
            offsets = range(base, base + rows)
        if has & BITS["id"]:
            ulids = [int.from_bytes(i, "big") for i in self.data.column("id").to_pylist()]
        else:
            ulids = range(self.ulid, self.ulid + rows)
        return list(
            map(
                Message,
                offsets,
                self._numbers("timestamp") or [self.timestamp_us or 0] * rows,
                self.values.to_pylist(),
                self.keys.to_pylist() if has & BITS["key"] else nones,
                self._header_dicts(),
                self._numbers("priority") or [self.priority] * rows,
                self._numbers("expires_at") or nones,
                ulids,
            )
        )

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Batch) and self.record_batch().equals(other.record_batch())

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        place = "" if self.base_offset is None else f" from offset {self.base_offset}"
        return f"<Batch of {len(self)} messages{place}: {', '.join(self.data.schema.names)}>"

    # How columns that are not there come about.

    def _column(self, name: str) -> pa.Array:
        if self.columns & BITS[name]:
            return self.data.column(name)
        rows = len(self)
        if name == "timestamp":
            return number_array(self.timestamps_us(), TIMESTAMP)
        if name == "priority":
            return number_array(np.full(rows, self.priority, np.uint8), pa.uint8())
        if name == "offset":
            return number_array(self.offset_numbers(), pa.int64())
        if name == "id":
            return consecutive_ids(self.ulid, rows)
        return pa.nulls(rows, schema_of(BITS[name]).field(0).type)

    def _numbers(self, name: str) -> list[Any] | None:
        if not self.columns & BITS[name]:
            return None
        column = self.data.column(name)
        if pa.types.is_timestamp(column.type):
            column = column.view(pa.int64())
        numbers: list[Any] = column.to_pylist()
        return numbers

    def _header_dicts(self) -> list[dict[str, bytes | None]]:
        if not self.columns & BITS["headers"]:
            return [{} for _ in range(len(self))]
        return [
            {header["key"]: header["value"] for header in headers or ()}
            for headers in self.data.column("headers").to_pylist()
        ]

    # How one batch becomes another.

    @classmethod
    def _from_arrays(
        cls, arrays: Mapping[str, pa.Array], timestamp_us: int | None, priority: int
    ) -> Batch:
        columns = 0
        for name in arrays:
            columns |= BITS[name]
        if columns == _VALUE:
            return cls.of_values(arrays["value"], timestamp_us=timestamp_us, priority=priority)
        schema = schema_of(columns)
        data = pa.RecordBatch.from_arrays([arrays[name] for name in schema.names], schema=schema)
        return cls(data, columns, timestamp_us=timestamp_us, priority=priority)

    def _with(
        self, data: pa.RecordBatch | None, columns: int, base: int | None, ulid: int
    ) -> Batch:
        return Batch(
            data,
            columns,
            timestamp_us=self.timestamp_us,
            priority=self.priority,
            base_offset=base,
            ulid=ulid,
        )

    def _with_column(self, name: str, column: pa.Array) -> Batch:
        columns = self.columns | BITS[name]
        names = schema_of(columns).names
        arrays = [
            column if n == name else self.values if n == "value" else self._column(n) for n in names
        ]
        data = pa.RecordBatch.from_arrays(arrays, schema=schema_of(columns))
        return self._with(data, columns, self.base_offset, self.ulid)

    def _rows(self, data: pa.RecordBatch) -> Batch:
        base = self.base_offset
        if base is not None and len(data):
            base = data.column("offset")[0].as_py()
        return self._with(data, self.columns, base, self.ulid)

    def placed(self) -> Batch:
        """With offsets and ids as columns, if it has a place in a log, so that rows can move."""
        if self.base_offset is None or self.columns & _PLACE == _PLACE:
            return self
        columns = self.columns | _PLACE
        return self._with(self._widened(columns), columns, self.base_offset, self.ulid)

    def _widened(self, columns: int) -> pa.RecordBatch:
        """With more or fewer columns; those that are new say what was implied."""
        if columns == self.columns:
            return self.data
        schema = schema_of(columns)
        return pa.RecordBatch.from_arrays([self._column(n) for n in schema.names], schema=schema)


def _is_undated(batch: Batch) -> bool:
    """Whether its log is to give it the time, which a joined column of times could not say."""
    return batch.timestamp_us is None and not batch.columns & BITS["timestamp"] and len(batch) > 0


def _follow_each_other(batches: Sequence[Batch]) -> bool:
    """Whether the offsets of the batches make one dense run."""
    if any(batch.columns & BITS["offset"] for batch in batches):
        return False
    ends = [batch.next_offset for batch in batches[:-1]]
    return ends == [batch.base_offset for batch in batches[1:]]
