"""Frames: the envelope in which a batch lies on disk.

A frame is a header of 96 bytes, the body, and zeros up to the next multiple of 8. The body is one
Arrow IPC record-batch message (encapsulated, without a schema message: the header's column mask
names the schema), possibly compressed as a whole. Integers are little-endian.

A frame covers the offsets [base_offset, base_offset + span). The frames of a log cover it without
a gap, so a missing frame always shows. Compaction may leave fewer rows than the span, or none.

Its first bytes and its CRC depend on the salt of its segment (`salt.py`).

How one is written is in `writing.py`. Everything here distrusts its input: whatever the bytes are,
the outcome is a frame as it was written, or FrameCorrupt or FrameTooLarge with the position; no
allocation goes beyond the limits.
"""

from __future__ import annotations

import re
import struct
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from penstock.errors import FrameCorrupt, FrameTooLarge, FrameTruncated
from penstock.record.batch import Batch
from penstock.record.columns import headers_are_whole, int64s, uint8s
from penstock.record.layout import is_compressed, layout_of
from penstock.record.plain import COPY_BYTES_MAX, Single, value_of_body, values_of_body
from penstock.record.salt import PLAIN, Salt
from penstock.record.schema import ALL_PRIORITIES, BITS, FIELDS, ROWS_MAX, Priority
from penstock.record.single_with_expiry import SingleWithExpiry, single_of_body

VERSION = 1

CODECS = ("none", "lz4", "zstd", "gzip")

BODY_BYTES_MAX = 100 << 20
"""What a body may be, before and after compression: the limit against decompression bombs."""

_HEADER = struct.Struct(
    "<"
    "4s"  # magic            of the salt; b"PNSK" without one
    "I"  # crc              CRC32C of everything after this field, padding included, salted
    "B"  # version          1
    "B"  # flags            0; reserved
    "B"  # codec            of the body: 0 none, 1 lz4 (frame format), 2 zstd, 3 gzip
    "B"  # priorities       bit p is set when a row has priority p; bit 7 when a row expires
    "H"  # columns          bit i is set when field i of the schema is in the body
    "H"  # reserved         0
    "I"  # stored_bytes     length of the body as it lies here, without the padding
    "I"  # raw_bytes        length of the body when decompressed
    "q"  # base_offset      first offset that the frame covers
    "I"  # span             how many offsets it covers
    "I"  # row_count        how many messages it holds
    "q"  # first_timestamp  the smallest, in microseconds since 1970 UTC
    "q"  # last_timestamp   the largest
    "q"  # producer_id      of an idempotent producer, or a caller's id negated; 0 without
    "q"  # base_sequence    of its first row, or the number of the call; -1 without
    "I"  # producer_epoch
    "I"  # term             of the leader that wrote it; 0 on one node
    "16s"  # ulid           of the batch, big-endian; row r has the id ulid + r
)
HEADER_BYTES = _HEADER.size
CHECKED_FROM = 8
"""The magic number and the CRC itself are not covered by it."""

EXPIRES = 1 << 7
"""Among the priorities of a frame, a block or a segment: some message in it expires."""

_KNOWN_COLUMNS = (1 << len(FIELDS)) - 1
_FREE_COLUMNS = BITS["value"] | BITS["key"] | BITS["expires_at"]
_ONE_PRIORITY = (
    int(Priority.NORMAL),
    *(mask.bit_length() - 1 for mask in range(1, 1 << len(Priority))),
)
"""By mask, the priority of every row where there is no column of it."""

_PRIORITY, _EXPIRES_AT = BITS["priority"], BITS["expires_at"]
_VALUE_WITH_EXPIRY = BITS["value"] | _EXPIRES_AT
_VALUE, _HEADERS, _OFFSET = BITS["value"], BITS["headers"], BITS["offset"]


class FrameHeader(NamedTuple):
    """The header's fields, in the order of the bytes."""

    magic: bytes
    crc: int
    version: int
    flags: int
    codec: int
    priorities: int
    columns: int
    reserved: int
    stored_bytes: int
    raw_bytes: int
    base_offset: int
    span: int
    row_count: int
    first_timestamp: int
    last_timestamp: int
    producer_id: int
    base_sequence: int
    producer_epoch: int
    term: int
    ulid: bytes

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.span

    @property
    def frame_bytes(self) -> int:
        return HEADER_BYTES + (self.stored_bytes + 7 & ~7)


_NUMPY_TYPES = {"4s": "V4", "B": "u1", "H": "<u2", "I": "<u4", "q": "<i8", "16s": "V16"}
_CODES = re.findall(r"\d*[A-Za-z]", _HEADER.format)
HEADER_DTYPE = np.dtype(
    [(name, _NUMPY_TYPES[code]) for name, code in zip(FrameHeader._fields, _CODES, strict=True)]
)
"""The same for numpy, which reads many headers at once."""


class Frame(NamedTuple):
    """A frame as it was read: its header, and its rows without a copy."""

    header: FrameHeader
    batch: Batch


def read_header(buffer: memoryview, position: int = 0, salt: Salt = PLAIN) -> FrameHeader:
    """The header at a position, if it can be one. Its CRC is not checked: `verify` does that."""
    if len(buffer) - position < HEADER_BYTES:
        raise FrameTruncated(position, "the bytes end within the header")
    header = FrameHeader._make(_HEADER.unpack_from(buffer, position))
    if header.magic != salt.magic:
        raise FrameCorrupt(position, "there is no frame here: the magic number is missing")
    if header.stored_bytes > BODY_BYTES_MAX or header.raw_bytes > BODY_BYTES_MAX:
        size = max(header.stored_bytes, header.raw_bytes)
        raise FrameTooLarge(position, f"claims {size} bytes; at most {BODY_BYTES_MAX}")
    return header


def verify(buffer: memoryview, position: int, header: FrameHeader, salt: Salt = PLAIN) -> None:
    """Check the frame's bytes against its CRC."""
    end = position + header.frame_bytes
    if end > len(buffer):
        raise FrameTruncated(position, "the bytes end within the body")
    if checksum(buffer, position, end, salt.seed) != header.crc:
        raise FrameCorrupt(position, "the checksum does not match")


def checksum(buffer: memoryview, position: int, end: int, seed: int) -> int:
    """What the CRC in the header of the frame at a position has to be."""
    return crc32c(buffer[position + CHECKED_FROM : end], seed)


def decode(buffer: memoryview, position: int = 0, salt: Salt = PLAIN) -> Frame:
    """Read the frame at a position, with every check. The rows share the buffer's memory."""
    header = read_header(buffer, position, salt)
    verify(buffer, position, header, salt)
    return Frame(header, decode_rows(buffer, position, header))


def decode_rows(buffer: memoryview, position: int, header: FrameHeader) -> Batch:
    """The rows of a frame that was verified, if they are what its header says."""
    _check_fields(header, position)
    start = position + HEADER_BYTES
    body = buffer[start : start + header.stored_bytes]
    if header.codec:
        body = _decompress(body, header, position)
    if header.columns == _VALUE:
        batch = _decode_values(body, header, position)
        if batch is not None:
            return batch
    elif header.columns == _VALUE_WITH_EXPIRY and header.row_count == 1:
        single = _decode_expiring(body, header)
        if single is not None:
            return single
    data = _decode_body(body, header, position)
    batch = Batch(
        data,
        header.columns,
        timestamp_us=header.first_timestamp,
        priority=_ONE_PRIORITY[header.priorities & ALL_PRIORITIES],
        base_offset=header.base_offset,
        ulid=int.from_bytes(header.ulid, "big"),
    )
    if header.columns & ~_FREE_COLUMNS:
        _check_columns(batch, header, position)
    return batch


def _decompress(body: memoryview, header: FrameHeader, position: int) -> memoryview:
    # As a stream, not `pa.decompress`: that one trusts the claimed length, and a body that is
    # shorter would be followed by whatever was in memory before.
    reader = pa.CompressedInputStream(pa.BufferReader(body), CODECS[header.codec])
    try:
        raw = reader.read_buffer(header.raw_bytes + 1)
    except (OSError, pa.ArrowException) as exc:
        raise FrameCorrupt(position, f"the body does not decompress: {exc}") from None
    if len(raw) != header.raw_bytes:
        raise FrameCorrupt(position, "the body has another length than its header says")
    return memoryview(raw)


def _decode_values(body: memoryview, header: FrameHeader, position: int) -> Batch | None:
    """The rows of a body of values alone, if it is one as we write it: Arrow takes longer."""
    priority = _ONE_PRIORITY[header.priorities & ALL_PRIORITIES]
    stamp_us, offset = header.first_timestamp, header.base_offset
    ulid = int.from_bytes(header.ulid, "big")
    if header.row_count == 1 and header.raw_bytes <= COPY_BYTES_MAX:
        value = value_of_body(body)
        if value is None:
            return None
        return Single(
            value, timestamp_us=stamp_us, priority=priority, base_offset=offset, ulid=ulid
        )
    try:
        values = values_of_body(body, header.row_count)
        if values is None:
            return None
        values.validate(full=True)
    except pa.ArrowException as exc:
        raise FrameCorrupt(position, f"the body is not a record batch: {exc}") from None
    return Batch.of_values(
        values, timestamp_us=stamp_us, priority=priority, base_offset=offset, ulid=ulid
    )


def _decode_expiring(body: memoryview, header: FrameHeader) -> Batch | None:
    """The same of one value that expires."""
    found = single_of_body(body) if header.raw_bytes <= COPY_BYTES_MAX else None
    if found is None:
        return None
    value, expires_at_us = found
    return SingleWithExpiry(
        value,
        expires_at_us,
        timestamp_us=header.first_timestamp,
        priority=_ONE_PRIORITY[header.priorities & ALL_PRIORITIES],
        base_offset=header.base_offset,
        ulid=int.from_bytes(header.ulid, "big"),
    )


def _decode_body(body: memoryview, header: FrameHeader, position: int) -> pa.RecordBatch:
    layout = layout_of(header.columns)
    if not header.row_count:
        if header.raw_bytes:
            raise FrameCorrupt(position, "a body, but no messages")
        return layout.empty()
    # What begins otherwise is hostile, or of a version of Arrow that lays it out differently.
    if not layout.is_start_of(body) and is_compressed(body):
        raise FrameCorrupt(position, "the body is not a plain record batch")
    try:
        data = pa.ipc.read_record_batch(body, layout.schema)
        data.validate(full=True)
    except (OSError, EOFError, pa.ArrowException, ValueError, MemoryError) as exc:
        raise FrameCorrupt(position, f"the body is not a record batch: {exc}") from None
    if data.num_rows != header.row_count:
        said = f"{data.num_rows} messages; the header says {header.row_count}"
        raise FrameCorrupt(position, said)
    return data


def _check_fields(header: FrameHeader, position: int) -> None:
    """What the CRC cannot tell: fields that no writer of this version sets so."""
    shape = header[2:8]
    if shape not in _known_shapes:
        _check_shape(header, position)
        _known_shapes.add(shape)
    rows, span = header.row_count, header.span
    if (
        not 0 <= header.base_offset < (1 << 63) - span
        or rows > ROWS_MAX
        or (not rows) != (not header.priorities & ALL_PRIORITIES)
        or header.first_timestamp > header.last_timestamp
        or (not header.codec and header.stored_bytes != header.raw_bytes)
    ):
        raise FrameCorrupt(position, "the header has a field that is out of range")
    if rows != span:
        if rows > span:
            raise FrameCorrupt(position, "more messages than offsets")
        if rows and not header.columns & _OFFSET:
            raise FrameCorrupt(position, "messages are missing, and nothing says which")


_known_shapes: set[tuple[int, ...]] = set()  # those that were found right: a few, seen very often


def _check_shape(header: FrameHeader, position: int) -> None:
    if header.version != VERSION:
        raise FrameCorrupt(position, f"format version {header.version}; this reads {VERSION}")
    if (
        header.flags
        or header.reserved
        or header.codec >= len(CODECS)
        or header.columns & ~_KNOWN_COLUMNS
        or not header.columns & _VALUE
        or header.priorities & ~(ALL_PRIORITIES | EXPIRES)
        or bool(header.priorities & EXPIRES) != bool(header.columns & _EXPIRES_AT)
    ):
        raise FrameCorrupt(position, "the header has a field that is out of range")


def _check_columns(batch: Batch, header: FrameHeader, position: int) -> None:
    """That the rows keep what the schema and the header promise, column by column."""
    data, columns = batch.data, header.columns
    if columns & _HEADERS and not headers_are_whole(batch.headers):
        raise FrameCorrupt(position, "a header without a name")
    for field in data.schema:
        if not field.nullable and data.column(field.name).null_count:
            raise FrameCorrupt(position, f"a message without {field.name}")
    if not header.row_count:
        return
    if columns & _PRIORITY:
        highest = int(uint8s(data.column("priority")).max())
        if highest >= len(Priority):
            raise FrameCorrupt(position, f"priority {highest} does not exist")
    if columns & _OFFSET:
        offsets = int64s(data.column("offset"))
        inside = header.base_offset <= offsets[0] and offsets[-1] < header.next_offset
        if not inside or (offsets[1:] <= offsets[:-1]).any():
            raise FrameCorrupt(position, "offsets out of order or out of range")
