"""Messages that have a value and nothing else, laid down without Arrow's help.

Arrow takes as long for one row as for fifty. A batch with a column of values alone always has the
same layout, so its bytes are made from a template that Arrow itself gave: to the byte what Arrow
would have written, and read by anything that reads a frame.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.errors import InvalidInput
from penstock.record.batch import Batch, Message, Payload
from penstock.record.columns import binary_array
from penstock.record.schema import BITS, Priority, parse_priority, schema_of
from penstock.record.single_with_expiry import SingleWithExpiry

_VALUE = BITS["value"]
_SCHEMA = schema_of(_VALUE)
_BINARY = pa.binary()
_BIG_ENDIAN = sys.byteorder == "big"

WORTH_IT_MAX = 200
"""So many messages are laid down faster this way; Arrow is faster with more."""

COPY_BYTES_MAX = 4096
"""Up to here a value is sooner copied out of a frame than shared with it."""


class Plain(Batch):
    """A batch of values that are Python objects. As columns it is made when somebody asks."""

    __slots__ = ("payloads",)

    def __init__(
        self,
        payloads: Sequence[bytes],
        timestamp_us: int | None = None,
        priority: int = Priority.NORMAL,
        base_offset: int | None = None,
        ulid: int = 0,
    ) -> None:
        self.payloads = payloads
        self.columns = _VALUE
        self.timestamp_us = timestamp_us
        self.priority = priority
        self.base_offset = base_offset
        self.ulid = ulid
        self._data = self._values = None

    @classmethod
    def of(cls, batch: Batch) -> Batch:
        """A batch whose messages are wanted as objects, if it has values alone."""
        if batch.columns != _VALUE or batch.values.null_count:
            return batch
        return cls(
            batch.values.to_pylist(),
            timestamp_us=batch.timestamp_us,
            priority=batch.priority,
            base_offset=batch.base_offset,
            ulid=batch.ulid,
        )

    @property
    def data(self) -> Any:
        if self._data is None:
            self._data = pa.RecordBatch.from_arrays([binary_array(self.payloads)], schema=_SCHEMA)
        return self._data

    def __len__(self) -> int:
        return len(self.payloads)

    @property
    def payload_bytes(self) -> int:
        return sum(map(len, self.payloads))

    @property
    def next_offset(self) -> int:
        return (self.base_offset or 0) + len(self.payloads)

    def slice(self, start: int, length: int | None = None) -> Batch:
        stop = None if length is None else start + length
        base = None if self.base_offset is None else self.base_offset + start
        payloads, ulid = self.payloads[start:stop], self.ulid + start
        return Plain(payloads, self.timestamp_us, self.priority, base, ulid)

    def apart(self, start: int, count: int) -> list[Single]:
        """Some of the messages, each by itself, as a read of it alone would give it."""
        base, stamp_us, ulid = self.base_offset or 0, self.timestamp_us, self.ulid
        some = self.payloads[start : start + count]
        return [
            Single(
                value,
                timestamp_us=stamp_us,
                priority=self.priority,
                base_offset=base + row,
                ulid=ulid + row,
            )
            for row, value in enumerate(some, start)
        ]

    def messages(self) -> list[Message]:
        base, stamp_us = self.base_offset or 0, self.timestamp_us or 0
        priority, ulid = self.priority, self.ulid
        return [
            Message(base + row, stamp_us, value, None, {}, priority, None, ulid + row)
            for row, value in enumerate(self.payloads)
        ]

    def body(self) -> bytes:
        """The Arrow IPC message."""
        return b"".join(self.pieces())

    def pieces(self) -> Sequence[bytes]:
        """What it is made of."""
        payloads = self.payloads
        ends = [*accumulate(map(len, payloads), initial=0)]
        value_bytes = ends[-1]
        if value_bytes >= 1 << 31:
            raise InvalidInput("value: more than 2 GB in one batch; send it in parts")
        head, gap, padding = around(len(payloads), value_bytes)
        return head, struct.pack(f"<{len(ends)}i", *ends), gap, *payloads, padding


class Single(Plain):
    """The same of one message."""

    __slots__ = ()

    def __init__(
        self,
        value: bytes,
        *,
        timestamp_us: int | None = None,
        priority: int = Priority.NORMAL,
        base_offset: int | None = None,
        ulid: int = 0,
    ) -> None:
        self.payloads = (value,)
        self.columns = _VALUE
        self.timestamp_us = timestamp_us
        self.priority = priority
        self.base_offset = base_offset
        self.ulid = ulid
        self._data = self._values = None

    @classmethod
    def build_one(cls, value: Payload, priority: int | str) -> Batch:
        """A message as `Batch.build` would make it of the same arguments."""
        if type(value) is str:
            try:
                value = value.encode()
            except UnicodeEncodeError as exc:
                raise InvalidInput(f"value: {exc}") from None
        if type(value) is not bytes:
            return Batch.build([value], priority=priority)
        if priority != Priority.NORMAL:
            priority = parse_priority(priority)
        return cls(value, priority=int(priority))

    @property
    def value(self) -> bytes:
        return self.payloads[0]

    def stamped(self, timestamps_us: Any) -> Batch:
        if timestamps_us is not None and type(timestamps_us) is not int:
            return super().stamped(timestamps_us)
        return Single(
            self.value,
            timestamp_us=timestamps_us,
            priority=self.priority,
            base_offset=self.base_offset,
            ulid=self.ulid,
        )

    def expiring(self, expires_at_us: Any) -> Batch:
        if type(expires_at_us) is not int or self.base_offset is not None:
            return super().expiring(expires_at_us)
        return SingleWithExpiry(
            self.value, expires_at_us, timestamp_us=self.timestamp_us, priority=self.priority
        )

    def stored_at(self, offset: int, ulid: int, timestamp_us: int) -> Single:
        """The message as a read from there would give it."""
        return Single(
            self.value,
            timestamp_us=timestamp_us,
            priority=self.priority,
            base_offset=offset,
            ulid=ulid,
        )

    def pieces(self) -> Sequence[bytes]:
        (value,) = self.payloads
        length = len(value)
        return _head(1, length), _ENDS.pack(0, length), value, bytes(-length % 8)


def body_of(values: pa.BinaryArray) -> list[bytes | pa.Buffer] | None:
    """The Arrow IPC message of a column of values in parts, the values themselves not copied.

    None for a column that Arrow would lay down otherwise than it lies in memory.
    """
    lying = as_it_lies(values)
    if lying is None:
        return None
    rows, value_bytes, ends, data = lying
    head, gap, padding = around(rows, value_bytes)
    parts: list[bytes | pa.Buffer] = [b"".join((head, ends, gap)), data]
    if padding:
        parts.append(padding)
    return parts


def as_it_lies(values: pa.BinaryArray) -> tuple[int, int, memoryview, pa.Buffer] | None:
    """A column in memory: how many values, of how many bytes, where each ends, and their bytes.

    None for a column that Arrow would lay down otherwise, and for an empty one.
    """
    rows, (validity, ends, data) = len(values), values.buffers()
    if not rows or validity is not None or values.offset or data is None or _BIG_ENDIAN:
        return None
    numbers = memoryview(ends)[: 4 * rows + 4].cast("i")
    if numbers[0]:
        return None
    value_bytes = numbers[rows]
    if data.size != value_bytes:
        data = data.slice(0, value_bytes)
    return rows, value_bytes, numbers, data


def around(rows: int, value_bytes: int) -> tuple[bytes, bytes, bytes]:
    """What an Arrow IPC message has before the ends, after them, and after the values.

    Arrow pads everything to 8 bytes.
    """
    gap = b"" if rows % 2 else bytes(4)
    return _head(rows, value_bytes), gap, bytes(-value_bytes % 8)


class Laid(Plain):
    """The same of messages that came laid down: their bytes go on as they are."""

    __slots__ = ("_body", "_ends", "_found")

    def __init__(self, body: bytes, ends: Sequence[int]) -> None:
        self.columns = _VALUE
        self.timestamp_us = None
        self.priority = int(Priority.NORMAL)
        self.base_offset = None
        self.ulid = 0
        self._data = self._values = None
        self._body = body
        self._ends = ends
        self._found: Sequence[bytes] | None = None

    @classmethod
    def of_body(cls, body: bytes) -> Laid | None:
        """Messages whose bytes are, one by one, what `Plain.body` makes; None for any others."""
        shape = _shape_of(body[: _HEAD.size])
        if shape is None or len(body) != shape.body_bytes:
            return None
        ends = shape.ends.unpack_from(body, _HEAD.size)
        if ends[0] or ends[-1] != shape.value_bytes or sorted(ends) != [*ends]:
            return None
        return cls(body, ends)

    @property
    def payloads(self) -> Sequence[bytes]:  # type: ignore[override]
        if self._found is None:
            values = self._body[_HEAD.size + (4 * len(self._ends) + 7 & ~7) :]
            self._found = [values[start:end] for start, end in pairwise(self._ends)]
        return self._found

    @property
    def data(self) -> Any:
        if self._data is None:
            self._data = pa.ipc.read_record_batch(pa.py_buffer(self._body), _SCHEMA)
        return self._data

    @property
    def values(self) -> pa.BinaryArray:
        if self._values is None:  # not by way of `data`: Arrow takes longer to find it there
            self._values = values_of_body(memoryview(self._body), len(self))
        return super().values if self._values is None else self._values

    def __len__(self) -> int:
        return len(self._ends) - 1

    @property
    def next_offset(self) -> int:
        return (self.base_offset or 0) + len(self)

    def body(self) -> bytes:
        return self._body

    def pieces(self) -> Sequence[bytes]:
        return (self._body,)


def value_of_body(body: memoryview) -> bytes | None:
    """The value in a body that is, to the byte, what `Single.body` makes; None for any other."""
    if len(body) < _VALUE_AT:
        return None
    start, end = _ENDS.unpack_from(body, _HEAD.size)
    if start or end < 0 or len(body) != _VALUE_AT + end + -end % 8:
        return None
    if body[: _HEAD.size] != _head(1, end) or any(body[_VALUE_AT + end :]):
        return None
    return bytes(body[_VALUE_AT : _VALUE_AT + end])


def values_of_body(body: memoryview, rows: int) -> pa.BinaryArray | None:
    """The column in a body that begins, to the byte, as `Plain.body` begins it; None for others.

    It shares the memory of the body. That its ends are in order is still to be checked.
    """
    values_at = _HEAD.size + (4 * rows + 4 + 7 & ~7)
    if len(body) < values_at or sys.byteorder == "big":
        return None
    (value_bytes,) = _END.unpack_from(body, _HEAD.size + 4 * rows)
    if (
        value_bytes < 0
        or len(body) != values_at + (value_bytes + 7 & ~7)
        or bytes(body[: _HEAD.size]) != _head(rows, value_bytes)
    ):
        return None
    whole = pa.py_buffer(body)
    ends, values = whole.slice(_HEAD.size, 4 * rows + 4), whole.slice(values_at, value_bytes)
    return pa.Array.from_buffers(_BINARY, rows, [None, ends, values])


@lru_cache(maxsize=1024)  # lengths come again, above all those of a journal's entries
def _head(rows: int, value_bytes: int) -> bytes:
    """What comes before the ends and the values."""
    end_bytes = 4 * rows + 4
    values_at = end_bytes + -end_bytes % 8
    words = _WORDS.copy()
    words[_BODY_BYTES] = values_at + value_bytes + -value_bytes % 8
    words[_ROWS] = words[_ROWS_AGAIN] = rows
    words[_END_BYTES] = end_bytes
    words[_VALUES_AT] = values_at
    words[_VALUE_BYTES] = value_bytes
    return _HEAD.pack(*words)


def single_heads(value_bytes: NDArray[np.int64]) -> NDArray[np.int64]:
    """The words of `_head(1, n)` for each of many lengths, a row of words for each."""
    words = np.tile(np.frombuffer(_head(1, 0), "<i8"), (len(value_bytes), 1))
    words[:, _VALUE_BYTES] = value_bytes
    words[:, _BODY_BYTES] = _ENDS.size + (value_bytes + 7 & ~7)
    return words


class _Shape(NamedTuple):
    """What a head says."""

    body_bytes: int
    value_bytes: int
    ends: struct.Struct


@lru_cache(maxsize=1024)  # the same ones come again, as with `_head`
def _shape_of(head: bytes) -> _Shape | None:
    """Of a head that is, to the byte, what `_head` makes for few messages; None for any other."""
    if len(head) < _HEAD.size:
        return None
    words = _HEAD.unpack(head)
    rows, value_bytes = words[_ROWS], words[_VALUE_BYTES]
    if not 0 < rows <= WORTH_IT_MAX or not 0 <= value_bytes < 1 << 31:
        return None
    if head != _head(rows, value_bytes):
        return None
    values_at = _HEAD.size + (4 * rows + 4 + 7 & ~7)
    body_bytes = values_at + (value_bytes + 7 & ~7)
    return _Shape(body_bytes, value_bytes, struct.Struct(f"<{rows + 1}i"))


def _sample(rows: int, value_bytes: int) -> bytes:
    # Not by `pa.array`: that imports pandas where it is installed, and a start should be quick.
    ends = pa.py_buffer(array("i", [0, *[value_bytes] * rows]))
    buffers = [None, ends, pa.py_buffer(bytes(value_bytes))]
    values = pa.Array.from_buffers(pa.binary(), rows, buffers)
    return bytes(pa.RecordBatch.from_arrays([values], schema=_SCHEMA).serialize())


# The numbers in Arrow's metadata are 64-bit words. Where they are shows in a sample in which each
# of them occurs nowhere else; all other words are the same in every batch.
_END = struct.Struct("<i")
_ENDS = struct.Struct("<ii")
_HEAD = struct.Struct(f"<{(len(_sample(1, 0)) - _ENDS.size) // 8}q")
_WORDS = list(_HEAD.unpack_from(_sample(1000, 77_777)))
_ROWS = _WORDS.index(1000)
_ROWS_AGAIN = _WORDS.index(1000, _ROWS + 1)
_END_BYTES = _WORDS.index(4004)
_VALUES_AT = _WORDS.index(4008)
_VALUE_BYTES = _WORDS.index(77_777)
_BODY_BYTES = _WORDS.index(4008 + 77_784)
_VALUE_AT = _HEAD.size + _ENDS.size  # of a single message
SINGLE_DTYPE = np.dtype([("head", "<i8", (len(_WORDS),)), ("ends", "<i4", (2,))])
"""What comes before the value of a single message, for numpy."""
