"""Records: what the stream of a shard consists of, one to a message.

A record is a header of 40 bytes and a body. Integers are little-endian.

The first record of an owner is its *term*. Every other record carries the term of who wrote it, and
one whose term is below the highest before it is *void*: it was sent by an owner that had been
replaced, and does not count, although the stream took it. Each record that counts also carries the
checksum of the one before, so that a record which is missing, changed or moved shows.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from crc32c import crc32c

from penstock.errors import ShardDamaged
from penstock.record.writing import Buffer

VERSION = 1
"""The latest that is read here. One that all members read is written: see `placement`."""
ROLL = 1
"""Flag: what comes next in this log begins a file of its own."""
MORE = 2
"""Flag: the body goes on in the next record. Without that one it does not count."""

_HEADER = struct.Struct(
    "<"
    "4s"  # magic     b"PNSR"
    "I"  # crc       CRC32C of everything after this field
    "B"  # version   1
    "B"  # kind
    "H"  # flags
    "I"  # log       its number within the shard; 0 for what concerns no log
    "I"  # previous  crc of the record before that counts, of the same term; 0 in a term record
    "I"  # reserved  0
    "Q"  # term
    "q"  # end       of frames: one past the last offset in them, and in those that go on in others
)
HEADER_BYTES = _HEADER.size
_MAGIC = b"PNSR"
_CHECKED_FROM = 8
_OFFSET = struct.Struct("<q")


class RecordKind(IntEnum):
    TERM = 0
    """Somebody owns the shard from here on. The body is the name of the node."""
    CREATED = 1
    """A log is made. The body is its name."""
    FRAMES = 2
    """Frames of a log, one after the other, as they stand alone."""
    TRIMMED = 3
    """A log forgets what is below an offset."""
    REMOVED = 4
    """Logs are removed, all at once. The body is their numbers, 4 bytes each."""
    RENAMED = 5
    """All logs below a name are below another one. The body is both, with a 0 between."""


class Record(NamedTuple):
    """A record as it was read."""

    kind: RecordKind
    flags: int
    log: int
    term: int
    previous: int
    crc: int
    end: int
    body: memoryview

    @property
    def offset(self) -> int:
        """Of a `TRIMMED`."""
        return int(_OFFSET.unpack(self.body)[0])

    @property
    def text(self) -> str:
        return bytes(self.body).decode()

    @property
    def logs(self) -> list[int]:
        """Of a `REMOVED`."""
        return list(struct.unpack(f"<{len(self.body) // 4}I", self.body))


class Draft(NamedTuple):
    """A record that is not yet numbered."""

    kind: RecordKind
    log: int
    parts: Sequence[Buffer]
    flags: int = 0
    end: int = 0


def created(log: int, name: str) -> Draft:
    return Draft(RecordKind.CREATED, log, [name.encode()])


def trimmed(log: int, before: int) -> Draft:
    return Draft(RecordKind.TRIMMED, log, [_OFFSET.pack(before)])


def removed(logs: Sequence[int]) -> Draft:
    return Draft(RecordKind.REMOVED, 0, [struct.pack(f"<{len(logs)}I", *logs)])


def renamed(old: str, new: str) -> Draft:
    return Draft(RecordKind.RENAMED, 0, [f"{old}\0{new}".encode()])


def encode(draft: Draft, term: int, previous: int, version: int = VERSION) -> tuple[bytes, int]:
    """The bytes of a record, and its checksum."""
    header = _HEADER.pack(
        _MAGIC, 0, version, draft.kind, draft.flags, draft.log, previous, 0, term, draft.end
    )
    header = header[_CHECKED_FROM:]
    crc = crc32c(header)
    for part in draft.parts:
        crc = crc32c(part, crc)
    return b"".join([_MAGIC, crc.to_bytes(4, "little"), header, *draft.parts]), crc


def decode(data: bytes | memoryview, seq: int) -> Record:
    """Raises ShardDamaged if these bytes are not a record as it was written."""
    view = memoryview(data)
    if len(view) < HEADER_BYTES or view[:4] != _MAGIC:
        raise ShardDamaged(seq, "it is no record of Penstock")
    _, crc, version, kind, flags, log, previous, _, term, end = _HEADER.unpack_from(view)
    if crc32c(view[_CHECKED_FROM:]) != crc:
        raise ShardDamaged(seq, "its checksum is wrong")
    if not 1 <= version <= VERSION:
        raise ShardDamaged(seq, f"it is of version {version}; use a later Penstock")
    return Record(RecordKind(kind), flags, log, term, previous, crc, end, view[HEADER_BYTES:])
