"""The four codecs of record batches, with a limit for what comes out: no bomb gets further."""

from __future__ import annotations

import struct
import zlib

import pyarrow as pa

from penstock.server.kafka.codes import Code, Refused

GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4

_GZIP_WINDOW = 31  # the largest window, in a wrapping of gzip
_XERIAL = b"\x82SNAPPY\x00"  # what snappy-java puts before its blocks, with two numbers
_XERIAL_HEADER_BYTES = 16
_BLOCK = struct.Struct(">i")
_READ_BYTES = 1 << 20


def decompress(codec: int, data: memoryview, bytes_max: int) -> bytes:
    """What was compressed, if it is at most so long. Raises Refused."""
    try:
        if codec == GZIP:
            return _gzip(data, bytes_max)
        if codec == SNAPPY:
            return _snappy(data, bytes_max)
        if codec in (LZ4, ZSTD):
            return _stream("lz4" if codec == LZ4 else "zstd", data, bytes_max)
    except (pa.ArrowException, OSError, zlib.error, struct.error, ValueError) as exc:
        raise Refused(Code.CORRUPT_MESSAGE, f"records cannot be decompressed: {exc}") from None
    raise Refused(Code.UNSUPPORTED_COMPRESSION_TYPE, f"codec {codec} is not known")


def _gzip(data: memoryview, bytes_max: int) -> bytes:
    unpacker = zlib.decompressobj(_GZIP_WINDOW)
    found = unpacker.decompress(data, bytes_max + 1)
    _check(len(found), bytes_max)
    if not unpacker.eof:
        raise ValueError("the stream ends too early")
    return found


def _stream(codec: str, data: memoryview, bytes_max: int) -> bytes:
    pieces: list[bytes] = []
    left = bytes_max
    with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(data)), codec) as stream:
        while piece := stream.read(min(left + 1, _READ_BYTES)):
            left -= len(piece)
            _check(bytes_max - left, bytes_max)
            pieces.append(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _snappy(data: memoryview, bytes_max: int) -> bytes:
    if data[: len(_XERIAL)] != _XERIAL:
        return _snappy_block(data, bytes_max)
    pieces: list[bytes] = []
    at, left = _XERIAL_HEADER_BYTES, bytes_max
    while at < len(data):
        (length,) = _BLOCK.unpack_from(data, at)
        at += _BLOCK.size
        if not 0 < length <= len(data) - at:
            raise ValueError(f"a block of {length} bytes")
        pieces.append(_snappy_block(data[at : at + length], left))
        left -= len(pieces[-1])
        at += length
    return b"".join(pieces)


def _snappy_block(block: memoryview, bytes_max: int) -> bytes:
    """Raw snappy begins with the length of what comes out, which the codec checks."""
    size = shift = 0
    for byte in block[:5]:
        size |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
    _check(size, bytes_max)
    if not size:
        return b""
    found: bytes = pa.decompress(block, size, "snappy", asbytes=True)
    return found


def _check(size: int, bytes_max: int) -> None:
    if size > bytes_max:
        raise Refused(
            Code.MESSAGE_TOO_LARGE,
            f"a record batch has more than {bytes_max} bytes when it is decompressed; send fewer "
            "records in a batch",
        )
