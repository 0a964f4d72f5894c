"""What a message is made of, as Arrow columns, and how it is named.

A batch holds a subset of `FIELDS`; bit `i` of its column mask says that field `i` is there. A field
that is not there has one value for all rows: null, or for `timestamp` and `priority` the one
that the frame's header states. Fields may be added at the end, never renamed, moved or removed.
"""

from __future__ import annotations

import threading
from enum import IntEnum
from functools import cache, lru_cache

import pyarrow as pa

from penstock.errors import InvalidInput
from penstock.randomness import own_random

TIMESTAMP = pa.timestamp("us", tz="UTC")
HEADERS = pa.list_(
    pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])
)
MESSAGE_ID = pa.binary(16)

FIELDS = (
    pa.field("timestamp", TIMESTAMP, nullable=False),
    pa.field("priority", pa.uint8(), nullable=False),
    pa.field("expires_at", TIMESTAMP),
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("headers", HEADERS),
    pa.field("offset", pa.int64(), nullable=False),  # only where offsets are not base + row
    pa.field("id", MESSAGE_ID, nullable=False),  # only where ids are not batch ULID + row
)
BITS = {field.name: 1 << i for i, field in enumerate(FIELDS)}

SCHEMA = pa.schema(FIELDS[:6])
"""A message as it is published."""

READ_SCHEMA = pa.schema([FIELDS[6], FIELDS[7], *FIELDS[:6]])
"""A message as it is read: with its offset and id."""

ROWS_MAX = 1 << 24
"""Rows of one batch; the low bits of a batch's ULID leave room for that many message ids."""

HEADERS_MAX = 1000
"""Of a message. Whoever reads messages one by one looks at each header, on an event loop too."""


@cache
def schema_of(columns: int) -> pa.Schema:
    """The Arrow schema of a batch with this column mask."""
    return pa.schema([field for i, field in enumerate(FIELDS) if columns >> i & 1])


class Priority(IntEnum):
    """The five lanes; the lower number goes first."""

    CRITICAL = 0
    HIGH = 1
    NORMAL = 2
    LOW = 3
    BACKGROUND = 4


ALL_PRIORITIES = (1 << len(Priority)) - 1
_PRIORITY_NAMES = {priority.name.lower(): priority for priority in Priority}


def parse_priority(value: int | str) -> Priority:
    """A priority by its name (`"high"`) or number (1)."""
    try:
        if isinstance(value, bool):
            raise ValueError  # it would be one of the numbers
        return _PRIORITY_NAMES[value] if isinstance(value, str) else Priority(value)
    except (KeyError, ValueError):
        allowed = ", ".join(f"{p.name.lower()} ({p.value})" for p in Priority)
        raise InvalidInput(f"priority {value!r} is not one of {allowed}") from None


# A ULID has 48 bits of milliseconds and 80 random bits. Ours leave the last 24 bits zero and
# count the rows there, so that each message has an id of its own and none has to be stored.
_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = [first + second for first in _CROCKFORD for second in _CROCKFORD]
_PYTHONS_DIGITS = str.maketrans(_CROCKFORD, "0123456789ABCDEFGHIJKLMNOPQRSTUV")
_30_BITS = (1 << 30) - 1
_50_BITS = (1 << 50) - 1


def new_batch_ulid(wall_ns: int) -> int:
    """A fresh ULID for a batch, as a number; message `row` has the id `ulid + row`."""
    return (wall_ns // 1_000_000 << 80) | (own_random.getrandbits(56) << 24)


class BatchUlids:
    """ULIDs for batches, each above the one before it also within a millisecond. For threads."""

    def __init__(self) -> None:
        self._last = 0
        self._lock = threading.Lock()

    def next(self, wall_ns: int) -> int:
        """Of a batch that is written now."""
        with self._lock:
            if self._last >> 80 == wall_ns // 1_000_000:
                self._last += ROWS_MAX
            else:
                self._last = new_batch_ulid(wall_ns)
            return self._last


def ulid_text(ulid: int) -> str:
    """The usual 26 letters; they sort as the numbers do."""
    low = ulid & _30_BITS
    first, pairs = _first_letters(ulid >> 30), _PAIRS
    return f"{first}{pairs[low >> 20]}{pairs[low >> 10 & 1023]}{pairs[low & 1023]}"


@lru_cache(maxsize=256)
def _first_letters(ulid: int) -> str:
    """All but the last six, which messages of a batch have in common."""
    pairs, mask = _PAIRS, 1023
    a, b = ulid >> 50, ulid & _50_BITS  # a machine word each
    return (
        f"{pairs[a >> 40]}{pairs[a >> 30 & mask]}{pairs[a >> 20 & mask]}{pairs[a >> 10 & mask]}"
        f"{pairs[a & mask]}{pairs[b >> 40]}{pairs[b >> 30 & mask]}{pairs[b >> 20 & mask]}"
        f"{pairs[b >> 10 & mask]}{pairs[b & mask]}"
    )


def parse_ulid(text: str) -> int:
    """The number behind 26 letters."""
    if not isinstance(text, str):
        raise InvalidInput(f"{text!r:.100} is not a message id: a ULID is text")
    letters = text.upper()
    strange = letters.strip(_CROCKFORD)
    if strange:
        raise InvalidInput(f"{text!r} is not a message id: {strange[0]!r} is not a ULID letter")
    ulid = int(letters.translate(_PYTHONS_DIGITS), 32) if len(text) == 26 else 1 << 128
    if ulid >> 128:
        raise InvalidInput(f"{text!r} is not a message id: a ULID has 26 letters, from 0 to 7ZZ…")
    return ulid
