"""Frames: the envelope in which a batch lies on disk.

A frame is a header of 96 bytes, the body, and zeros up to the next multiple of 8. The body is one
Arrow IPC record-batch message (encapsulated, without a schema message: the header's column mask
names the schema), possibly compressed as a whole. Integers are little-endian.

A frame covers the offsets [base_offset, base_offset + span). The frames of a log cover it without
a gap, so a missing frame always shows. Compaction may leave fewer rows than the span, or none.

Everything here distrusts its input: whatever the bytes are, the outcome is a frame as it was
written, or FrameCorrupt or FrameTooLarge with the position; no allocation goes beyond the limits.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from crc32c import crc32c

from penstock.errors import FrameCorrupt, FrameTooLarge, FrameTruncated, InvalidInput
from penstock.record.batch import Batch
from penstock.record.columns import headers_are_whole
from penstock.record.layout import is_compressed, layout_of
from penstock.record.plain import (
    COPY_BYTES_MAX,
    Plain,
    Single,
    body_of,
    value_of_body,
    values_of_body,
)
from penstock.record.schema import ALL_PRIORITIES, BITS, FIELDS, ROWS_MAX, Priority, schema_of

MAGIC = b"PNSK"
VERSION = 1

CODECS = ("none", "lz4", "zstd", "gzip")
_LEVELS = {"gzip": 6}  # Arrow would take 9: four times as slow, and a few percent smaller
COMPRESS_BYTES_MIN = 1024
SINGLE_BYTES_MAX = 800  # of a value that is written as it is, whatever the codec
_JOIN_BYTES_MAX = 8192  # of the start of a body that is put into one piece with the header
COMPRESS_RATIO_MAX = 0.95
"""Compression is kept only where it saves at least 5 %."""

BODY_BYTES_MAX = 100 << 20
"""What a body may be, before and after compression: the limit against decompression bombs."""

_CHECKED = struct.Struct(  # what follows the magic and the CRC, and is covered by the CRC
    "<"
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
    "q"  # producer_id      of an idempotent producer; 0 without
    "q"  # base_sequence    of its first row; -1 without
    "I"  # producer_epoch
    "I"  # term             of the leader that wrote it; 0 on one node
    "16s"  # ulid           of the batch, big-endian; row r has the id ulid + r
)
_HEADER = struct.Struct(
    "<"
    "4s"  # magic            b"PNSK"
    "I"  # crc              CRC32C of everything after this field, padding included
    + _CHECKED.format[1:]
)
_SINGLE = struct.Struct(  # the same as _CHECKED, with what never changes for a length in one
    "<"
    "16s"  # version up to raw_bytes
    "q"  # base_offset
    "8s"  # span and row_count
    "q"  # first_timestamp
    "q"  # last_timestamp
    "24s"  # producer_id up to term
    "16s"  # ulid
)
HEADER_BYTES = _HEADER.size
_CHECKED_FROM = HEADER_BYTES - _CHECKED.size

EXPIRES = 1 << 7
"""Among the priorities of a frame, a block or a segment: some message in it expires."""

_KNOWN_COLUMNS = (1 << len(FIELDS)) - 1
_FREE_COLUMNS = BITS["value"] | BITS["key"] | BITS["expires_at"]
_ONE_PRIORITY = (
    int(Priority.NORMAL),
    *(mask.bit_length() - 1 for mask in range(1, 1 << len(Priority))),
)
"""By mask, the priority of every row where there is no column of it."""

_STAMP, _PRIORITY, _EXPIRES_AT = BITS["timestamp"], BITS["priority"], BITS["expires_at"]
_NORMAL = int(Priority.NORMAL)
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


class Writer(NamedTuple):
    """Who wrote a frame, as far as anybody has to know; in the order of the bytes."""

    producer_id: int = 0
    base_sequence: int = -1
    producer_epoch: int = 0
    term: int = 0


NOBODY = Writer()


class EncodedFrame(msgspec.Struct, frozen=True, gc=False):
    """A frame as buffers to be written one after the other, and what its log has to know of it."""

    buffers: list[bytes | pa.Buffer]
    frame_bytes: int
    raw_bytes: int
    base_offset: int
    next_offset: int
    row_count: int
    last_timestamp: int
    priorities: int


class Frame(NamedTuple):
    """A frame as it was read: its header, and its rows without a copy."""

    header: FrameHeader
    batch: Batch


def encode(
    batch: Batch,
    base_offset: int,
    ulid: int,
    stamp_us: int = 0,
    codec: str = "none",
    by: Writer = NOBODY,
    span: int | None = None,
) -> EncodedFrame:
    """Lay a batch down as a frame.

    `stamp_us` is the time of messages that bring none. `span` is given by compaction, where rows
    are missing.
    """
    if (
        type(batch) is Single
        and len(batch.value) <= SINGLE_BYTES_MAX
        and span is None
        and by == NOBODY
    ):
        stamp_us = stamp_us if batch.timestamp_us is None else batch.timestamp_us
        return encode_single(batch.value, base_offset, ulid, stamp_us, batch.priority)
    rows = len(batch)
    if rows > ROWS_MAX:
        raise InvalidInput(f"{rows} messages in one batch; at most {ROWS_MAX}")
    if span is None:
        if not rows:
            raise InvalidInput("an empty batch; append at least one message")
        span = rows
    columns, priorities = _VALUE, 1 << batch.priority
    first = last = stamp_us if batch.timestamp_us is None else batch.timestamp_us
    parts = _values_alone(batch) if rows and batch.columns == _VALUE else None
    if parts is None:
        columns, parts, first, last, priorities = _encode_body(batch, rows, first)
    raw_bytes = stored_bytes = sum(map(len, parts))
    if raw_bytes > BODY_BYTES_MAX:
        raise FrameTooLarge(0, f"a batch of {raw_bytes} bytes; at most {BODY_BYTES_MAX}")
    codec_number = 0
    if codec != "none" and raw_bytes >= COMPRESS_BYTES_MIN:
        parts, codec_number = _compress(parts, codec)
        stored_bytes = sum(map(len, parts))
    next_offset = base_offset + span
    producer_id, base_sequence, producer_epoch, term = by
    try:
        checked = _CHECKED.pack(
            VERSION,
            0,
            codec_number,
            priorities,
            columns,
            0,
            stored_bytes,
            raw_bytes,
            base_offset,
            span,
            rows,
            first,
            last,
            producer_id,
            base_sequence,
            producer_epoch,
            term,
            ulid.to_bytes(16, "big"),
        )
    except struct.error as exc:
        raise InvalidInput(f"a number does not fit into a frame's header: {exc}") from None
    if stored_bytes % 8:
        parts.append(bytes(-stored_bytes % 8))
    if parts and len(parts[0]) <= _JOIN_BYTES_MAX:  # a piece more takes longer than the copy
        parts[0] = checked + parts[0]
    else:
        parts.insert(0, checked)
    crc = 0
    for part in parts:
        crc = crc32c(part, crc)
    parts.insert(0, MAGIC + crc.to_bytes(4, "little"))
    frame_bytes = HEADER_BYTES + (stored_bytes + 7 & ~7)
    return EncodedFrame(
        parts, frame_bytes, raw_bytes, base_offset, next_offset, rows, last, priorities
    )


def encode_single(
    value: bytes, base_offset: int, ulid: int, stamp_us: int, priority: int = _NORMAL
) -> EncodedFrame:
    """What `encode` makes of one message that has a short value and nothing else, but at once."""
    frame_bytes, body_bytes, shape, counts, by, start, end = _single_template(len(value), priority)
    try:
        header = _SINGLE.pack(
            shape, base_offset, counts, stamp_us, stamp_us, by, ulid.to_bytes(16, "big")
        )
    except struct.error as exc:
        raise InvalidInput(f"a number does not fit into a frame's header: {exc}") from None
    checked = b"".join((header, start, value, end))
    buffers = [MAGIC + crc32c(checked).to_bytes(4, "little") + checked]
    return EncodedFrame(
        buffers, frame_bytes, body_bytes, base_offset, base_offset + 1, 1, stamp_us, 1 << priority
    )


@lru_cache(maxsize=1024)  # lengths come again, above all those of a journal's entries
def _single_template(
    value_bytes: int, priority: int
) -> tuple[int, int, bytes, bytes, bytes, bytes, bytes]:
    """How long frame and body are, and what is the same in all with a value of that length."""
    body = Single(bytes(value_bytes)).body()
    fields = (VERSION, 0, 0, 1 << priority, _VALUE, 0, len(body), len(body))
    header = _CHECKED.pack(*fields, 0, 1, 1, 0, 0, 0, -1, 0, 0, b"")
    shape, _, counts, _, _, producer, _ = _SINGLE.unpack(header)
    value_at = len(body) - (value_bytes + 7 & ~7)
    padding = bytes(-value_bytes % 8)
    frame_bytes = HEADER_BYTES + len(body)
    return frame_bytes, len(body), shape, counts, producer, body[:value_at], padding


def read_header(buffer: memoryview, position: int = 0) -> FrameHeader:
    """The header at a position, if it can be one. Its CRC is not checked: `verify` does that."""
    if len(buffer) - position < HEADER_BYTES:
        raise FrameTruncated(position, "the bytes end within the header")
    header = FrameHeader._make(_HEADER.unpack_from(buffer, position))
    if header.magic != MAGIC:
        raise FrameCorrupt(position, "there is no frame here: the magic number is missing")
    if header.stored_bytes > BODY_BYTES_MAX or header.raw_bytes > BODY_BYTES_MAX:
        size = max(header.stored_bytes, header.raw_bytes)
        raise FrameTooLarge(position, f"claims {size} bytes; at most {BODY_BYTES_MAX}")
    return header


def verify(buffer: memoryview, position: int, header: FrameHeader) -> None:
    """Check the frame's bytes against its CRC."""
    end = position + header.frame_bytes
    if end > len(buffer):
        raise FrameTruncated(position, "the bytes end within the body")
    if checksum(buffer, position, end) != header.crc:
        raise FrameCorrupt(position, "the checksum does not match")


def checksum(buffer: memoryview, position: int, end: int) -> int:
    """What the CRC in the header of the frame at a position has to be."""
    return crc32c(buffer[position + _CHECKED_FROM : end])


def decode(buffer: memoryview, position: int = 0) -> Frame:
    """Read the frame at a position, with every check. The rows share the buffer's memory."""
    header = read_header(buffer, position)
    verify(buffer, position, header)
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


def _values_alone(batch: Batch) -> list[bytes | pa.Buffer] | None:
    """Parts of the IPC message of a batch without other columns, if Arrow need not make it."""
    return [batch.body()] if isinstance(batch, Plain) else body_of(batch.values)


def _encode_body(
    batch: Batch, rows: int, stamp_us: int
) -> tuple[int, list[bytes | pa.Buffer], int, int, int]:
    """The columns worth storing, as parts of an IPC message; times from, to; the priority mask."""
    first = last = stamp_us
    if not rows:
        return _VALUE, [], first, last, 0
    columns, priorities, data = batch.columns, 1 << batch.priority, batch.data
    if columns & (_STAMP | _PRIORITY):
        if columns & _STAMP:
            stamps = batch.timestamps_us()
            first, last = int(stamps.min()), int(stamps.max())
        if columns & _PRIORITY:
            counts = np.bincount(np.asarray(data.column("priority")), minlength=len(Priority))
            priorities = sum(1 << p for p, count in enumerate(counts.tolist()) if count)
        same = _STAMP if first == last else 0
        if priorities & (priorities - 1) == 0:
            same |= _PRIORITY
        if columns & same:
            columns &= ~same
            data = data.select(schema_of(columns).names)
    if columns & _EXPIRES_AT:
        priorities |= EXPIRES
    return columns, [data.serialize()], first, last, priorities


def _compress(parts: list[bytes | pa.Buffer], codec: str) -> tuple[list[bytes | pa.Buffer], int]:
    body = parts[0] if len(parts) == 1 else b"".join(parts)
    packed = pa.Codec(codec, compression_level=_LEVELS.get(codec)).compress(body)
    if len(packed) > len(body) * COMPRESS_RATIO_MAX:
        return parts, 0
    return [packed], CODECS.index(codec)


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
        highest = int(np.asarray(data.column("priority")).max())
        if highest >= len(Priority):
            raise FrameCorrupt(position, f"priority {highest} does not exist")
    if columns & _OFFSET:
        offsets = np.asarray(data.column("offset"))
        inside = header.base_offset <= offsets[0] and offsets[-1] < header.next_offset
        if not inside or (offsets[1:] <= offsets[:-1]).any():
            raise FrameCorrupt(position, "offsets out of order or out of range")
