"""A single message on its way to or from a log, laid down without Arrow's help.

Arrow takes as long for one row as for a hundred. A message with a value and nothing else always has
the same layout, so its bytes are made from a template that Arrow itself gave: to the byte what
Arrow would have written, and read by anything that reads a frame.
"""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa

from penstock.errors import InvalidInput
from penstock.record.batch import Batch, Message, Payload
from penstock.record.schema import BITS, Priority, parse_priority, schema_of

_VALUE = BITS["value"]
_SCHEMA = schema_of(_VALUE)
_LENGTH_MAX = (1 << 31) - 1

COPY_BYTES_MAX = 4096
"""Up to here a value is sooner copied out of a frame than shared with it."""


class Single(Batch):
    """A batch of one message that has a value alone. As columns it is made when somebody asks."""

    __slots__ = ("_made", "value")

    def __init__(
        self,
        value: bytes,
        *,
        timestamp_us: int | None = None,
        priority: int = Priority.NORMAL,
        base_offset: int | None = None,
        ulid: int = 0,
    ) -> None:
        self.value = value
        self.columns = _VALUE
        self.timestamp_us = timestamp_us
        self.priority = priority
        self.base_offset = base_offset
        self.ulid = ulid
        self._made: pa.RecordBatch | None = None

    @classmethod
    def of(cls, value: Payload, priority: int | str) -> Batch:
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
    def data(self) -> Any:
        if self._made is None:
            values = pa.array([self.value], pa.binary())
            if isinstance(values, pa.ChunkedArray):
                raise InvalidInput("value: more than 2 GB in one message")
            self._made = pa.RecordBatch.from_arrays([values], schema=_SCHEMA)
        return self._made

    def __len__(self) -> int:
        return 1

    @property
    def next_offset(self) -> int:
        return (self.base_offset or 0) + 1

    def messages(self) -> list[Message]:
        message = Message(
            self.base_offset or 0,
            self.timestamp_us or 0,
            self.value,
            None,
            {},
            self.priority,
            None,
            self.ulid,
        )
        return [message]

    def body(self) -> bytes:
        """The Arrow IPC message."""
        value = self.value
        return _head(len(value)) + value + bytes(-len(value) % 8)


def value_of_body(body: memoryview) -> bytes | None:
    """The value in a body that is, to the byte, what `Single.body` makes; None for any other."""
    if len(body) < _HEAD_BYTES:
        return None
    length = int.from_bytes(body[_HEAD_BYTES - 4 : _HEAD_BYTES], "little")
    if length > _LENGTH_MAX or len(body) != _HEAD_BYTES + length + -length % 8:
        return None
    if body[:_HEAD_BYTES] != _head(length):
        return None
    return bytes(body[_HEAD_BYTES : _HEAD_BYTES + length])


def _head(length: int) -> bytes:
    """All of a body that comes before the value."""
    # Two 4-byte offsets precede the value: where it begins, and where it ends.
    return b"".join(
        (
            _BEFORE,
            _LONG.pack(8 + length + -length % 8),
            _BETWEEN,
            _LONG.pack(length),
            _AFTER,
            _INT.pack(length),
        )
    )


def _template() -> tuple[bytes, bytes, bytes]:
    """What surrounds the two lengths in Arrow's metadata, up to the value's end offset."""
    length = 0x1235  # a number that occurs nowhere else
    sample = pa.RecordBatch.from_arrays([pa.array([bytes(length)], pa.binary())], schema=_SCHEMA)
    message = bytes(sample.serialize())
    head = message[: len(message) - (length + -length % 8) - 4]
    before, body_bytes, rest = head.partition(_LONG.pack(8 + length + -length % 8))
    between, value_bytes, after = rest.partition(_LONG.pack(length))
    assert b"" not in (body_bytes, value_bytes), "Arrow lays a record batch down in another way"
    return before, between, after


_LONG = struct.Struct("<q")
_INT = struct.Struct("<i")
_BEFORE, _BETWEEN, _AFTER = _template()
_HEAD_BYTES = len(_head(0))
