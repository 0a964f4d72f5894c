"""One message with a value and one header, laid down without Arrow's help.

As with `plain`, the bytes are to the byte what Arrow would have written: for each pair of lengths
Arrow itself gives a sample, and only the value and the header's value are put into it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.record.batch import Batch
from penstock.record.columns import column_of
from penstock.record.schema import BITS, HEADERS, Priority, schema_of

_COLUMNS = BITS["value"] | BITS["headers"]
_SCHEMA = schema_of(_COLUMNS)
_ENDS_BYTES = 8  # of one value: two numbers


class SingleWithHeader(Batch):
    """A batch of one message, whose columns are made when somebody asks."""

    __slots__ = ("header_name", "header_value", "value")

    def __init__(
        self,
        value: bytes,
        header_name: str,
        header_value: bytes,
        *,
        timestamp_us: int | None = None,
        priority: int = Priority.NORMAL,
    ) -> None:
        self.value = value
        self.header_name = header_name
        self.header_value = header_value
        self.columns = _COLUMNS
        self.timestamp_us = timestamp_us
        self.priority = priority
        self.base_offset = None
        self.ulid = 0
        self._data = self._values = None

    @property
    def data(self) -> pa.RecordBatch:
        if self._data is None:
            self._data = _record_batch(self.value, self.header_name, self.header_value)
        return self._data

    def __len__(self) -> int:
        return 1

    @property
    def payload_bytes(self) -> int:
        return len(self.value) + len(self.header_name) + len(self.header_value)

    def stamped(self, timestamps_us: Any) -> Batch:
        if isinstance(timestamps_us, np.ndarray) and len(timestamps_us) == 1:
            timestamps_us = int(timestamps_us[0])
        if timestamps_us is not None and not isinstance(timestamps_us, int):
            return super().stamped(timestamps_us)
        return SingleWithHeader(
            self.value,
            self.header_name,
            self.header_value,
            timestamp_us=timestamps_us,
            priority=self.priority,
        )

    def body(self) -> bytes:
        """The Arrow IPC message."""
        value, header_value = self.value, self.header_value
        head, between = _template(len(value), self.header_name, len(header_value))
        return b"".join((head, value, between, header_value, bytes(-len(header_value) % 8)))


def _record_batch(value: bytes, header_name: str, header_value: bytes) -> pa.RecordBatch:
    headers = column_of("headers", [[(header_name, header_value)]], HEADERS)
    values = column_of("value", [value], pa.binary())
    by_name = {"value": values, "headers": headers}
    return pa.RecordBatch.from_arrays([by_name[name] for name in _SCHEMA.names], schema=_SCHEMA)


@lru_cache(maxsize=4096)  # lengths come again
def _template(value_bytes: int, header_name: str, header_value_bytes: int) -> tuple[bytes, bytes]:
    """What is before the value, and what between it and the header's value, which is the last."""
    value, header_value = b"v" * value_bytes, b"h" * header_value_bytes
    sample = bytes(_record_batch(value, header_name, header_value).serialize())
    metadata_bytes = 8 + int.from_bytes(sample[4:8], "little")
    value_at = metadata_bytes + _ENDS_BYTES
    header_value_at = len(sample) - (header_value_bytes + 7 & ~7)
    assert sample[value_at : value_at + value_bytes] == value
    assert sample[header_value_at : header_value_at + header_value_bytes] == header_value
    return sample[:value_at], sample[value_at + value_bytes : header_value_at]
