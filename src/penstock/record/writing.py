"""Frames as they are written: from a batch to the buffers that go into the file.

Messages that are values alone, the most common, have a way of their own: of a frame of so many rows
and bytes all but a few numbers of the header is known.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
from crc32c import crc32c

from penstock.errors import FrameTooLarge, InvalidInput, MessageTooLarge
from penstock.record import compute as pc
from penstock.record.batch import Batch
from penstock.record.columns import uint8s
from penstock.record.frame import (
    BODY_BYTES_MAX,
    CHECKED_FROM,
    CODECS,
    EXPIRES,
    HEADER_BYTES,
    VERSION,
)
from penstock.record.plain import Plain, Single, around, as_it_lies, body_of
from penstock.record.salt import PLAIN, Salt
from penstock.record.schema import BITS, HEADERS_MAX, ROWS_MAX, Priority, schema_of
from penstock.record.single_with_expiry import SingleWithExpiry
from penstock.record.single_with_header import SingleWithHeader

Buffer: TypeAlias = bytes | memoryview | pa.Buffer
Parts: TypeAlias = list[bytes | pa.Buffer]
Compress: TypeAlias = Callable[[Parts], tuple[Parts, int]]

COMPRESS_BYTES_MIN = 1024
"""Of a body that is worth compressing, unless the log says otherwise."""
SINGLE_BYTES_MAX = 800  # of a value whose body is below that, whatever it is
COMPRESS_RATIO_MAX = 0.95
"""Compression is kept only where it saves at least 5 %."""
_LEVELS = {"gzip": 6}  # Arrow would take 9: four times as slow, and a few percent smaller
_JOIN_BYTES_MAX = 8192  # of the start of a body that is put into one piece with the header

_SHAPE = struct.Struct("<BBBBHHII")  # version up to raw_bytes
_COUNTS = struct.Struct("<II")  # span and row_count
_WRITER = struct.Struct("<qqII")  # producer_id up to term
_ENDS = struct.Struct("<ii")  # of one value
_CHECKED = struct.Struct("<16sq8sqq24s16s")  # the header of frame.py from there on, of these

_NORMAL = int(Priority.NORMAL)
_VALUE, _HEADERS = BITS["value"], BITS["headers"]
_STAMP, _PRIORITY, _EXPIRES_AT = BITS["timestamp"], BITS["priority"], BITS["expires_at"]


class FrameProducer(NamedTuple):
    """Who wrote a frame, as far as anybody has to know; in the order of the bytes."""

    producer_id: int = 0
    base_sequence: int = -1
    producer_epoch: int = 0
    term: int = 0


NOBODY = FrameProducer()
_NOBODY = _WRITER.pack(*NOBODY)


class EncodedFrame(msgspec.Struct, frozen=True, gc=False):
    """A frame as buffers to be written one after the other, and what its log has to know of it."""

    buffers: Sequence[Buffer]
    frame_bytes: int
    raw_bytes: int
    base_offset: int
    next_offset: int
    row_count: int
    last_timestamp: int
    priorities: int


def encode(
    batch: Batch,
    base_offset: int,
    ulid: int,
    stamp_us: int = 0,
    codec: str = "none",
    by: FrameProducer = NOBODY,
    span: int | None = None,
    salt: Salt = PLAIN,
    codec_level: int | None = None,
    compress_bytes_min: int = COMPRESS_BYTES_MIN,
) -> EncodedFrame:
    """Lay a batch down as a frame of the segment with this salt.

    `stamp_us` is the time of messages that bring none. `span` is given by compaction, where rows
    are missing. A body of fewer bytes than `compress_bytes_min` is not compressed.
    """
    if batch.timestamp_us is not None:
        stamp_us = batch.timestamp_us
    try:
        if batch.columns == _VALUE and span is None:
            if type(batch) is Single:
                value = batch.payloads[0]
                if len(value) <= SINGLE_BYTES_MAX and (
                    codec == "none" or compress_bytes_min >= COMPRESS_BYTES_MIN
                ):
                    return encode_single(
                        value, base_offset, ulid, stamp_us, batch.priority, salt, by
                    )
            elif codec == "none" and not isinstance(batch, Plain):
                frame = _encode_values(
                    batch.values, base_offset, ulid, stamp_us, batch.priority, by, salt
                )
                if frame is not None:
                    return frame
        compress = None
        if codec != "none":
            compress = partial(_compress, codec, codec_level, compress_bytes_min)
        return _encode_any(batch, base_offset, ulid, stamp_us, compress, by, span, salt)
    except struct.error as exc:
        raise InvalidInput(f"a number does not fit into a frame's header: {exc}") from None


def resalted(buffers: Sequence[Buffer], salt: Salt) -> list[Buffer]:
    """The bytes of a frame as they have to lie in a segment of another salt."""
    checked = [memoryview(buffers[0])[CHECKED_FROM:], *buffers[1:]]
    crc = salt.seed
    for part in checked:
        crc = crc32c(part, crc)
    return [salt.magic + crc.to_bytes(4, "little"), *checked]


def check_frame(batch: Batch) -> None:
    """Raise what `encode` would of a batch that is too large. A small one costs next to nothing."""
    if batch.nbytes > BODY_BYTES_MAX // 2:  # only who lays it down knows to the byte
        encode(batch, 0, 0)


def check_messages(batch: Batch, bytes_max: int) -> None:
    """Raise if a message of the batch is too long."""
    longest = int(batch.message_bytes().max(initial=0))
    if longest > bytes_max:
        raise MessageTooLarge(f"a message of {longest} bytes; at most {bytes_max} are taken")


def check_headers(batch: Batch) -> None:
    """Raise if a message of the batch has too many headers. Next to nothing if all have few."""
    if not batch.columns & _HEADERS or isinstance(batch, SingleWithHeader):
        return
    headers = batch.headers
    if len(headers.values) <= HEADERS_MAX:
        return
    most = pc.max(pc.list_value_length(headers)).as_py() or 0
    if most > HEADERS_MAX:
        raise InvalidInput(f"a message with {most} headers; at most {HEADERS_MAX} are taken")


def _encode_any(
    batch: Batch,
    base_offset: int,
    ulid: int,
    stamp_us: int,
    compress: Compress | None,
    by: FrameProducer,
    span: int | None,
    salt: Salt,
) -> EncodedFrame:
    """Any batch at all, step by step."""
    rows, columns, priorities = len(batch), batch.columns, 1 << batch.priority
    first = last = stamp_us
    parts = None
    if columns == _VALUE and rows:
        parts = [batch.body()] if isinstance(batch, Plain) else body_of(batch.values)
    elif isinstance(batch, SingleWithHeader):
        parts = [batch.body()]
    elif isinstance(batch, SingleWithExpiry):
        parts, priorities = [batch.body()], priorities | EXPIRES
    if parts is None:
        columns, parts, first, last, priorities = _encode_body(batch, rows, stamp_us)
    raw_bytes = stored_bytes = sum(map(len, parts))
    codec_number = 0
    if compress is not None and raw_bytes <= BODY_BYTES_MAX:
        parts, codec_number = compress(parts)
        stored_bytes = sum(map(len, parts))
    span = rows if span is None else span
    frame_bytes, shape, counts, padding = _known(
        codec_number, priorities, columns, stored_bytes, raw_bytes, span, rows
    )
    writer = _NOBODY if by is NOBODY else _WRITER.pack(*by)
    checked = _CHECKED.pack(
        shape, base_offset, counts, first, last, writer, ulid.to_bytes(16, "big")
    )
    if padding:
        parts.append(padding)
    crc = crc32c(checked, salt.seed)
    for part in parts:
        crc = crc32c(part, crc)
    header = salt.magic + crc.to_bytes(4, "little") + checked
    if parts and len(parts[0]) <= _JOIN_BYTES_MAX:  # a piece more takes longer than the copy
        parts[0] = header + parts[0]
    else:
        parts.insert(0, header)
    return EncodedFrame(
        parts, frame_bytes, raw_bytes, base_offset, base_offset + span, rows, last, priorities
    )


@lru_cache(maxsize=1024)
def _known(
    codec: int,
    priorities: int,
    columns: int,
    stored_bytes: int,
    raw_bytes: int,
    span: int,
    rows: int,
) -> tuple[int, bytes, bytes, bytes]:
    """What all frames of a shape have in common: their length, pieces of the header, the padding.

    Also whether there can be such a frame: batches of the same shape come again and again.
    """
    if rows > ROWS_MAX:
        raise InvalidInput(f"{rows} messages in one batch; at most {ROWS_MAX}")
    if not span:
        raise InvalidInput("an empty batch; append at least one message")
    if raw_bytes > BODY_BYTES_MAX:
        raise FrameTooLarge(0, f"a batch of {raw_bytes} bytes; at most {BODY_BYTES_MAX}")
    frame_bytes = HEADER_BYTES + (stored_bytes + 7 & ~7)
    shape = _SHAPE.pack(VERSION, 0, codec, priorities, columns, 0, stored_bytes, raw_bytes)
    return frame_bytes, shape, _COUNTS.pack(span, rows), bytes(-stored_bytes % 8)


def _encode_values(
    values: pa.BinaryArray,
    base_offset: int,
    ulid: int,
    stamp_us: int,
    priority: int,
    by: FrameProducer,
    salt: Salt,
) -> EncodedFrame | None:
    """What `encode` makes of a column of values and nothing else, if it can be done at once."""
    lying = as_it_lies(values)
    if lying is None:
        return None
    rows, value_bytes, ends, data = lying
    frame_bytes, body_bytes, shape, counts, head, gap, padding = _template(
        rows, value_bytes, priority
    )
    writer = _NOBODY if by is NOBODY else _WRITER.pack(*by)
    header = _CHECKED.pack(
        shape, base_offset, counts, stamp_us, stamp_us, writer, ulid.to_bytes(16, "big")
    )
    checked = b"".join((header, head, ends, gap))
    crc = crc32c(data, crc32c(checked, salt.seed))
    if padding:
        crc = crc32c(padding, crc)
    start = salt.magic + crc.to_bytes(4, "little")
    buffers: list[bytes | pa.Buffer]
    if len(checked) <= _JOIN_BYTES_MAX:
        buffers = [start + checked, data]
    else:
        buffers = [start, checked, data]
    if padding:
        buffers.append(padding)
    return EncodedFrame(
        buffers,
        frame_bytes,
        body_bytes,
        base_offset,
        base_offset + rows,
        rows,
        stamp_us,
        1 << priority,
    )


def encode_single(
    value: bytes,
    base_offset: int,
    ulid: int,
    stamp_us: int,
    priority: int = _NORMAL,
    salt: Salt = PLAIN,
    by: FrameProducer = NOBODY,
) -> EncodedFrame:
    """The same of one message whose value is short."""
    frame_bytes, body_bytes, shape, counts, start, padding = _single_template(len(value), priority)
    writer = _NOBODY if by is NOBODY else _WRITER.pack(*by)
    header = _CHECKED.pack(
        shape, base_offset, counts, stamp_us, stamp_us, writer, ulid.to_bytes(16, "big")
    )
    checked = b"".join((header, start, value, padding))
    buffers = [salt.magic + crc32c(checked, salt.seed).to_bytes(4, "little") + checked]
    return EncodedFrame(
        buffers, frame_bytes, body_bytes, base_offset, base_offset + 1, 1, stamp_us, 1 << priority
    )


@lru_cache(maxsize=1024)
def _template(
    rows: int, value_bytes: int, priority: int
) -> tuple[int, int, bytes, bytes, bytes, bytes, bytes]:
    """How long frame and body are, and what is the same in all with so many values and bytes."""
    head, gap, padding = around(rows, value_bytes)
    body_bytes = len(head) + 4 * (rows + 1) + len(gap) + value_bytes + len(padding)
    frame_bytes, shape, counts, _ = _known(
        0, 1 << priority, _VALUE, body_bytes, body_bytes, rows, rows
    )
    return frame_bytes, body_bytes, shape, counts, head, gap, padding


@lru_cache(maxsize=1024)  # lengths come again, above all those of a journal's entries
def _single_template(
    value_bytes: int, priority: int
) -> tuple[int, int, bytes, bytes, bytes, bytes]:
    """The same for one value; its end is known too."""
    frame_bytes, body_bytes, shape, counts, head, _, padding = _template(1, value_bytes, priority)
    return frame_bytes, body_bytes, shape, counts, head + _ENDS.pack(0, value_bytes), padding


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
            counts = np.bincount(uint8s(data.column("priority")), minlength=len(Priority))
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


def _compress(codec: str, level: int | None, bytes_min: int, parts: Parts) -> tuple[Parts, int]:
    """A body and the number of its codec, 0 where it is not worth it."""
    if sum(map(len, parts)) < bytes_min:
        return parts, 0
    body = parts[0] if len(parts) == 1 else b"".join(parts)
    level = _LEVELS.get(codec) if level is None else level
    packed = pa.Codec(codec, compression_level=level).compress(body)
    if len(packed) > len(body) * COMPRESS_RATIO_MAX:
        return parts, 0
    return [packed], CODECS.index(codec)
