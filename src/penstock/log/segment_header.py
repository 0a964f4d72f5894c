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


class HeaderCopy(NamedTuple):
    """The fields of one of the copies, in the order of the bytes."""

    magic: bytes
    crc: int
    version: int
    reserved: bytes
    base_offset: int
    frame_magic: bytes
    crc_seed: int

    @property
    def salt(self) -> Salt:
        return Salt(self.frame_magic, self.crc_seed)


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
    for data_of_copy in (start[: _COPY.size], start[_COPY.size :]):
        if len(data_of_copy) < _COPY.size:
            continue
        copy = HeaderCopy._make(_COPY.unpack(data_of_copy))
        if copy.magic != MAGIC or copy.crc != crc32c(data_of_copy[_CHECKED_FROM:]):
            continue
        if copy.version != VERSION:
            raise FormatUnknown(path, copy.version)
        is_whole = start == 2 * data_of_copy
        if is_whole or len(data) > SEGMENT_HEADER_BYTES:
            return SegmentHeader(copy.base_offset, copy.salt, is_whole)
    if start.startswith(PLAIN.magic):
        raise FormatOutdated(path)
    return None
