"""The header of a segment: which version of the format it has, and the salt of its frames.

64 bytes before the first frame: the same 32 bytes twice, each with its own checksum, so that no
flipped bit costs a segment. The index of a sealed segment holds the salt a third time.

It is written when the file is made, before the first frame, and synced with it. A crash in between
leaves a file without a whole header, and nothing in it that was confirmed.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from crc32c import crc32c

from penstock.errors import FormatOutdated, FormatUnknown
from penstock.record.salt import PLAIN, Salt

MAGIC = b"PNSG"
VERSION = 2
"""Segments of version 1 had no header, and their frames no salt."""

_COPY = struct.Struct(
    "<"
    "4s"  # magic            b"PNSG"
    "I"  # crc              CRC32C of the rest of these 32 bytes
    "H"  # version          2
    "6s"  # reserved         0
    "q"  # base_offset      first offset of the segment
    "4s"  # frame_magic      with which its frames begin
    "I"  # crc_seed         from which their checksums start
)
_CHECKED_FROM = 8
SEGMENT_HEADER_BYTES = 2 * _COPY.size


class SegmentHeader(NamedTuple):
    """What a header says."""

    base_offset: int
    salt: Salt
    is_whole: bool
    """Whether both of its copies are as they were written."""


def encode_header(base_offset: int, salt: Salt) -> bytes:
    copy = _COPY.pack(MAGIC, 0, VERSION, b"", base_offset, *salt)
    crc = crc32c(copy[_CHECKED_FROM:]).to_bytes(4, "little")
    return 2 * (MAGIC + crc + copy[_CHECKED_FROM:])


def decode_header(data: bytes | memoryview, path: str) -> SegmentHeader | None:
    """The header at the start of a segment's bytes; None if there is none that can be believed.

    Neither of its copies is right then; or only one is, and nothing follows: it was being written.
    Raises FormatOutdated if the segment is of the first version, which had no header, and
    FormatUnknown if it is of a later one than this.
    """
    start = bytes(data[:SEGMENT_HEADER_BYTES])
    for copy in (start[: _COPY.size], start[_COPY.size :]):
        if len(copy) < _COPY.size or copy[:4] != MAGIC:
            continue
        _, crc, version, _, base_offset, *salt = _COPY.unpack(copy)
        if crc == crc32c(copy[_CHECKED_FROM:]):
            if version != VERSION:
                raise FormatUnknown(path, version)
            header = SegmentHeader(base_offset, Salt(*salt), is_whole=start == 2 * copy)
            return header if header.is_whole or len(data) > SEGMENT_HEADER_BYTES else None
    if start.startswith(PLAIN.magic):
        raise FormatOutdated(path)
    return None
