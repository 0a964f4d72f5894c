"""The bytes of a segment's file, for tests that damage or forge them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from penstock.log.segment_header import SEGMENT_HEADER_BYTES, decode_header
from penstock.record.frame import FrameHeader, read_header
from penstock.record.salt import Salt


class FrameAt(NamedTuple):
    """Where a frame lies in its file."""

    position: int
    end: int
    header: FrameHeader


def salt_of(segment: bytes | bytearray) -> Salt:
    header = decode_header(segment, "a segment")
    assert header is not None
    return header.salt


def frames_of(segment: bytes | bytearray) -> list[FrameAt]:
    return list(_frames(memoryview(segment), salt_of(segment)))


def _frames(segment: memoryview, salt: Salt) -> Iterator[FrameAt]:
    position = SEGMENT_HEADER_BYTES
    while position < len(segment):
        header = read_header(segment, position, salt)
        yield FrameAt(position, position + header.frame_bytes, header)
        position += header.frame_bytes
