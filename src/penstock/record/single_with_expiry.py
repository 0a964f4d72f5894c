"""One message with a value and a moment of expiry, laid down without Arrow's help.

As with `plain`, the bytes are to the byte what Arrow would have written: for each length of a value
Arrow itself gives a sample, and only the value and the moment are put into it.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.record.batch import Batch, Message
from penstock.record.columns import binary_array, number_array
from penstock.record.schema import BITS, TIMESTAMP, Priority, schema_of

_COLUMNS = BITS["value"] | BITS["expires_at"]
_SCHEMA = schema_of(_COLUMNS)
_MOMENT = Struct("<q")
_ENDS_BYTES = 8  # of one value: two numbers
_MOMENT_AND_ENDS = Struct("<qii")


class SingleWithExpiry(Batch):
    """A batch of one message, whose columns are made when somebody asks."""

    __slots__ = ("expires_at_us", "value")

    def __init__(
        self,
        value: bytes,
        expires_at_us: int,
        *,
        timestamp_us: int | None = None,
        priority: int = Priority.NORMAL,
        base_offset: int | None = None,
        ulid: int = 0,
    ) -> None:
        self.value = value
        self.expires_at_us = expires_at_us
        self.columns = _COLUMNS
        self.timestamp_us = timestamp_us
        self.priority = priority
        self.base_offset = base_offset
        self.ulid = ulid
        self._data = self._values = None

    @property
    def data(self) -> pa.RecordBatch:
        if self._data is None:
            self._data = _record_batch(self.value, self.expires_at_us)
        return self._data

    def __len__(self) -> int:
        return 1

    @property
    def payload_bytes(self) -> int:
        return len(self.value) + _MOMENT.size

    def expires_us(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        return np.array([self.expires_at_us], np.int64)

    def first_expiry_us(self) -> int:
        return self.expires_at_us

    def messages(self) -> list[Message]:
        return [
            Message(
                self.base_offset or 0,
                self.timestamp_us or 0,
                self.value,
                None,
                {},
                self.priority,
                self.expires_at_us,
                self.ulid,
            )
        ]

    def stored_at(self, offset: int, ulid: int, timestamp_us: int) -> SingleWithExpiry:
        """The message as a read from there would give it."""
        return SingleWithExpiry(
            self.value,
            self.expires_at_us,
            timestamp_us=timestamp_us,
            priority=self.priority,
            base_offset=offset,
            ulid=ulid,
        )

    def body(self) -> bytes:
        """The Arrow IPC message."""
        value = self.value
        head, between = _template(len(value))
        moment = _MOMENT.pack(self.expires_at_us)
        return b"".join((head, moment, between, value, bytes(-len(value) % 8)))


def single_of_body(body: memoryview) -> tuple[bytes, int] | None:
    """The value and the moment in a body that is, to the byte, what `SingleWithExpiry.body` makes;
    None for any other."""
    if len(body) < 8:
        return None
    moment_at = 8 + int.from_bytes(body[4:8], "little")
    value_at = moment_at + _MOMENT.size + _ENDS_BYTES
    if len(body) < value_at:
        return None
    expires_at_us, start, length = _MOMENT_AND_ENDS.unpack_from(body, moment_at)
    end = value_at + length
    if start or length < 0 or len(body) != end + -length % 8:
        return None
    head, _ = _template(length)
    if body[:moment_at] != head or any(body[end:]):
        return None
    return bytes(body[value_at:end]), expires_at_us


def _record_batch(value: bytes, expires_at_us: int) -> pa.RecordBatch:
    ends = number_array(np.array([expires_at_us]), TIMESTAMP)
    return pa.RecordBatch.from_arrays([ends, binary_array([value])], schema=_SCHEMA)


@lru_cache(maxsize=1024)  # lengths come again
def _template(value_bytes: int) -> tuple[bytes, bytes]:
    """What is before the moment, and what between it and the value, which is the last."""
    value = b"v" * value_bytes
    sample = bytes(_record_batch(value, -1).serialize())
    moment_at = 8 + int.from_bytes(sample[4:8], "little")
    value_at = moment_at + _MOMENT.size + _ENDS_BYTES
    assert sample[moment_at : moment_at + _MOMENT.size] == _MOMENT.pack(-1)
    assert sample[value_at:] == value + bytes(-value_bytes % 8)
    return sample[:moment_at], sample[moment_at + _MOMENT.size : value_at]
