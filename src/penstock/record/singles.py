"""Messages that were published one by one: many frames of one value each, read in one pass.

A frame costs the same to take apart whether it holds one message or a thousand. Neighbouring
frames of single values look alike, so their headers are checked and read as columns. Only frames
that are in every way as `writing.encode_single` makes them are taken. A run ends before any other
one, and whoever reads it by itself finds out what it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.record.batch import Batch, Message
from penstock.record.columns import binary_array, number_array
from penstock.record.frame import HEADER_BYTES, HEADER_DTYPE, VERSION, checksum
from penstock.record.plain import COPY_BYTES_MAX, SINGLE_DTYPE, Single, single_heads
from penstock.record.salt import Salt
from penstock.record.schema import (
    ALL_PRIORITIES,
    BITS,
    MESSAGE_ID,
    TIMESTAMP,
    Priority,
    schema_of,
)

RUN_MIN = 4
"""Fewer frames are sooner read one by one."""

_VALUE, _OFFSET, _PRIORITY = BITS["value"], BITS["offset"], BITS["priority"]
_COLUMNS = _VALUE | BITS["timestamp"] | BITS["id"]

_SHAPE = Struct("<12xH2xI")  # columns and stored_bytes of a header
_FRAME = np.dtype([*HEADER_DTYPE.descr, *SINGLE_DTYPE.descr])
"""A frame up to where its value begins."""
_BYTES = np.dtype((np.void, _FRAME.itemsize))
_BODY_BYTES_MIN = SINGLE_DTYPE.itemsize
_ENTRY = np.dtype(
    [
        ("offset", np.int64),
        ("start", np.int64),
        ("end", np.int64),
        ("timestamp", np.int64),
        ("priority", np.uint8),
        ("ulid", "V16"),
    ]
)
_PRIORITY_OF = np.zeros(256, np.uint8)
"""By mask, the only priority in it."""
for _priority in Priority:
    _PRIORITY_OF[1 << _priority] = _priority


class Singles(Batch):
    """A batch of neighbouring single messages, whose values stay where they are mapped.

    Columns are made when somebody asks for them.
    """

    __slots__ = ("_entries", "_window")
    base_offset: int

    def __init__(
        self, window: memoryview, rows: NDArray[Any], columns: int, base_offset: int, priority: int
    ) -> None:
        self._window = window
        self._entries = rows  # of _ENTRY; `start` and `end` say where in the window the value lies
        self.columns = columns
        self.base_offset = base_offset
        self.priority = priority
        self.timestamp_us = None
        self.ulid = 0
        self._data = self._values = None

    @property
    def payloads(self) -> list[bytes]:
        window, rows = self._window, self._entries
        places = zip(rows["start"].tolist(), rows["end"].tolist(), strict=True)
        return [bytes(window[start:end]) for start, end in places]

    @property
    def data(self) -> Any:
        if self._data is None:
            rows, schema = self._entries, schema_of(self.columns)
            arrays = [number_array(rows["timestamp"], TIMESTAMP), binary_array(self.payloads)]
            if self.columns & _PRIORITY:
                arrays.insert(1, number_array(rows["priority"], pa.uint8()))
            if self.columns & _OFFSET:
                arrays.append(number_array(rows["offset"], pa.int64()))
            arrays.append(self.ids)
            self._data = pa.RecordBatch.from_arrays(arrays, schema=schema)
        return self._data

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def ids(self) -> pa.FixedSizeBinaryArray:
        rows = self._entries
        return pa.Array.from_buffers(
            MESSAGE_ID, len(rows), [None, pa.py_buffer(rows["ulid"].tobytes())]
        )

    @property
    def raw_ids(self) -> bytes:
        """16 bytes for each message."""
        return self._entries["ulid"].tobytes()

    @property
    def payload_bytes(self) -> int:
        return int((self._entries["end"] - self._entries["start"]).sum())

    @property
    def frames_bytes(self) -> int:
        """What its frames take in the log."""
        value_bytes = self._entries["end"] - self._entries["start"]
        return len(self._entries) * _FRAME.itemsize + int((value_bytes + 7 & ~7).sum())

    @property
    def priority_mask(self) -> int:
        """A bit for each priority that occurs."""
        if not self.columns & _PRIORITY:
            return 1 << self.priority
        return int(np.bitwise_or.reduce(1 << self._entries["priority"]))

    @property
    def next_offset(self) -> int:
        return int(self._entries["offset"][-1]) + 1

    def timestamps_us(self) -> NDArray[np.int64]:
        stamps: NDArray[np.int64] = self._entries["timestamp"]
        return stamps

    def offset_numbers(self) -> NDArray[np.int64]:
        offsets: NDArray[np.int64] = self._entries["offset"]
        return offsets

    def priority_numbers(self) -> NDArray[np.uint8]:
        priorities: NDArray[np.uint8] = self._entries["priority"]
        return priorities

    def slice(self, start: int, length: int | None = None) -> Batch:
        rows = self._entries[start:] if length is None else self._entries[start : start + length]
        base = int(rows["offset"][0]) if self.columns & _OFFSET else self.base_offset + start
        return Singles(self._window, rows, self.columns, base, self.priority)

    def take(self, rows: Sequence[int] | pa.IntegerArray | NDArray[Any]) -> Batch:
        chosen = self._entries[np.asarray(rows, np.int64)]
        base = int(chosen["offset"][0]) if len(chosen) else self.base_offset
        return Singles(self._window, chosen, self.columns | _OFFSET, base, self.priority)

    def apart(self, start: int, count: int) -> list[Single]:
        """Some of the messages, each by itself."""
        window = self._window
        return [
            Single(
                bytes(window[begin:end]),
                timestamp_us=stamp_us,
                priority=priority,
                base_offset=offset,
                ulid=int.from_bytes(ulid, "big"),
            )
            for offset, begin, end, stamp_us, priority, ulid in self._entries[
                start : start + count
            ].tolist()
        ]

    def messages(self) -> list[Message]:
        window = self._window
        return [
            Message(
                offset,
                stamp_us,
                bytes(window[start:end]),
                None,
                {},
                priority,
                None,
                int.from_bytes(ulid, "big"),
            )
            for offset, start, end, stamp_us, priority, ulid in self._entries.tolist()
        ]


def read_singles(
    window: memoryview,
    position: int,
    salt: Salt,
    first_offset: int,
    skip: int,
    count_max: int,
    bytes_max: int,
) -> tuple[Singles, int] | None:
    """The frames from a position on, while they are single messages from `first_offset` on.

    The first `skip` are left out of what comes back: at most `count_max` messages whose frames
    take at most `bytes_max`, and where the last one ends. All checksums are verified. None if there
    are too few for this to be worth it.
    """
    ends = _walk(window, position, skip, len(window))
    if len(ends) < skip:
        return None
    ends += _walk(window, ends[-1] if ends else position, count_max, bytes_max)
    if len(ends) < skip + RUN_MIN:
        return None
    places = [position, *ends[:-1]]
    sums = [checksum(window, at, end, salt.seed) for at, end in zip(places, ends, strict=True)]
    starts = np.array(places)
    # As if one began at each byte, and then those that do; as mere bytes they are copied faster.
    everywhere = np.ndarray((len(window) - _FRAME.itemsize + 1,), _BYTES, window, strides=(1,))
    frames = everywhere[starts].view(_FRAME)
    right = _are_right(frames, salt, first_offset) & (frames["crc"] == np.array(sums))
    count = len(frames) if right.all() else int(right.argmin())
    if count < skip + RUN_MIN:
        return None
    frames, starts = frames[skip:count], starts[skip:count]
    rows = np.empty(len(frames), _ENTRY)
    rows["offset"] = frames["base_offset"]
    rows["start"] = starts + _FRAME.itemsize
    rows["end"] = rows["start"] + frames["ends"][:, 1]
    rows["timestamp"] = frames["first_timestamp"]
    rows["priority"] = priorities = _PRIORITY_OF[frames["priorities"]]
    rows["ulid"] = frames["ulid"]
    columns = _COLUMNS
    if (priorities != priorities[0]).any():
        columns |= _PRIORITY
    singles = Singles(window, rows, columns, first_offset + skip, int(priorities[0]))
    return singles, ends[count - 1]


def _walk(window: memoryview, position: int, count_max: int, bytes_max: int) -> list[int]:
    """Where frames end that may be single messages, by what they say themselves."""
    ends: list[int] = []
    unpack, last = _SHAPE.unpack_from, len(window) - HEADER_BYTES
    bytes_end = min(position + bytes_max, len(window))
    for _ in range(count_max):
        if position > last:
            break
        columns, stored_bytes = unpack(window, position)
        position += HEADER_BYTES + (stored_bytes + 7 & ~7)
        if columns != _VALUE or not _BODY_BYTES_MIN <= stored_bytes <= COPY_BYTES_MAX:
            break  # a shorter one is compressed
        if position > bytes_end:
            break
        ends.append(position)
    return ends


def _are_right(frames: NDArray[Any], salt: Salt, first_offset: int) -> NDArray[np.bool_]:
    """Which of them are in every way single messages, each at the offset after the one before."""
    value_bytes = frames["ends"][:, 1].astype(np.int64)
    body_bytes = SINGLE_DTYPE.itemsize + (value_bytes + 7 & ~7)
    priorities = frames["priorities"]
    right: NDArray[np.bool_] = (
        (frames["magic"] == np.void(salt.magic))
        & (frames["version"] == VERSION)
        & (frames["flags"] == 0)
        & (frames["codec"] == 0)
        & (frames["reserved"] == 0)
        & (priorities != 0)
        & (priorities & (priorities - 1) == 0)
        & (priorities <= ALL_PRIORITIES)
        & (frames["stored_bytes"] == body_bytes)
        & (frames["raw_bytes"] == body_bytes)
        & (frames["base_offset"] == np.arange(first_offset, first_offset + len(frames)))
        & (frames["span"] == 1)
        & (frames["row_count"] == 1)
        & (frames["first_timestamp"] <= frames["last_timestamp"])
        & (frames["ends"][:, 0] == 0)
        & (value_bytes >= 0)
        & (frames["head"] == single_heads(value_bytes)).all(axis=1)
    )
    return right
