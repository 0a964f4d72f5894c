"""Record batches (v2) that a producer sends, as columns.

A batch is a header of 61 bytes and then, perhaps compressed, its records:

    base_offset i64, length i32 (of all that follows), leader_epoch i32, magic i8, crc u32 (of all
    that follows), attributes i16, last_offset_delta i32, base_timestamp i64, max_timestamp i64,
    producer_id i64, producer_epoch i16, base_sequence i32, record_count i32

A record is varints (zigzag) and bytes: its length; attributes (1 byte); the deltas of timestamp and
offset; the lengths of key and value, each before its bytes, -1 for null; the count of headers, and
of each its name and value with their lengths before them.

The positions of all records are found first: those of neighbours of one length by a comparison of
their first bytes, others by a plain loop. Then each field is decoded for all records at once. Below
`_LOOP_RECORDS` a plain loop is faster. Nothing that is said in the bytes is believed before it was
compared with what is there.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from penstock.errors import InvalidInput
from penstock.record.batch import Batch
from penstock.record.schema import (
    BITS,
    HEADERS,
    HEADERS_MAX,
    TIMESTAMP,
    Priority,
    parse_priority,
    schema_of,
)
from penstock.server.kafka.codecs import decompress
from penstock.server.kafka.codes import Code, Refused

Int64s: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
Words: TypeAlias = np.ndarray[Any, np.dtype[np.uint64]]

BATCH_HEADER = struct.Struct(">qiibIhiqqqhii")
PRIORITY_HEADER = b"penstock-priority"
CRC_FROM = 21  # what the checksum covers begins with the attributes
LENGTH_FROM = 12  # what the length counts begins with the leader's epoch
MAGIC_AT = 16
MAGIC = 2

RECORDS_MAX = 200_000
"""In a batch: each becomes a row of numbers ten times as long as the shortest record. Clients that
are told so by MESSAGE_TOO_LARGE send the batch again in parts."""

_CODEC_BITS = 0b111
_TRANSACTIONAL = 1 << 4
_CONTROL = 1 << 5
_RECORD_BYTES_MIN = 7
_LOOP_RECORDS = 64
_TIMESTAMP_MS_MAX = 1 << 52  # in microseconds it still is a timestamp
_VARINT_BYTES_MAX = 10


class ProducedBatch(NamedTuple):
    """A record batch, and who numbered it."""

    batch: Batch
    producer_id: int
    producer_epoch: int
    base_sequence: int
    is_transactional: bool


class DecodingRoom:
    """How much may still come out of the record batches of a request, of which a few bytes can
    become very much."""

    __slots__ = ("headers", "unpacked_bytes")

    def __init__(self, unpacked_bytes: int, headers: int) -> None:
        self.unpacked_bytes = unpacked_bytes
        self.headers = headers

    def unpack(self, codec: int, data: memoryview) -> bytes:
        """Raises Refused with MESSAGE_TOO_LARGE if there is no room for it."""
        unpacked = decompress(codec, data, self.unpacked_bytes)
        self.unpacked_bytes -= len(unpacked)
        return unpacked

    def take_headers(self, counts: Int64s) -> None:
        """The same for the headers of records."""
        most = int(counts.max())
        if most > HEADERS_MAX:
            raise Refused(
                Code.INVALID_RECORD,
                f"a message with {most} headers; at most {HEADERS_MAX} are taken",
            )
        self.headers -= int(counts.sum())
        if self.headers < 0:
            raise Refused(
                Code.MESSAGE_TOO_LARGE, "too many headers in a batch; send fewer records in one"
            )


class BatchHeader(NamedTuple):
    """What is said before the records, and where these are."""

    codec: int
    base_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    is_transactional: bool
    record_count: int
    records: memoryview


def read_headers(data: bytes | memoryview) -> list[BatchHeader]:
    """The batches that a producer sends for one partition, verified. Raises Refused."""
    view = memoryview(data)
    found = []
    while view:
        if len(view) < BATCH_HEADER.size:
            if len(view) > MAGIC_AT and view[MAGIC_AT] in (0, 1):
                raise _outdated()
            raise _corrupt("a record batch ends within its header")
        (
            _,
            length,
            _,
            magic,
            crc,
            attributes,
            last_delta,
            base_timestamp,
            _,
            producer_id,
            producer_epoch,
            base_sequence,
            count,
        ) = BATCH_HEADER.unpack_from(view)
        if magic != MAGIC:
            raise _outdated()
        end = LENGTH_FROM + length
        if not BATCH_HEADER.size <= end <= len(view):
            raise _corrupt(f"a record batch of {length} bytes, and {len(view)} are there")
        if crc32c(view[CRC_FROM:end]) != crc:
            raise _corrupt("the checksum of a record batch does not match")
        if attributes & _CONTROL:
            raise Refused(Code.INVALID_RECORD, "only a broker writes control batches")
        if count < 1 or last_delta != count - 1:
            raise Refused(Code.INVALID_RECORD, f"{count} records, the last one {last_delta}")
        found.append(
            BatchHeader(
                attributes & _CODEC_BITS,
                base_timestamp,
                producer_id,
                producer_epoch,
                base_sequence,
                bool(attributes & _TRANSACTIONAL),
                count,
                view[BATCH_HEADER.size : end],
            )
        )
        view = view[end:]
    if not found:
        raise _corrupt("there is no record batch")
    return found


def decode(header: BatchHeader, room: DecodingRoom) -> ProducedBatch:
    """The records of a batch. Raises Refused."""
    data: bytes | memoryview = header.records
    if header.codec:
        data = room.unpack(header.codec, header.records)
    count = header.record_count
    if count > RECORDS_MAX:
        raise Refused(
            Code.MESSAGE_TOO_LARGE,
            f"a batch of {count} records; at most {RECORDS_MAX} are taken, send fewer in one",
        )
    if count * _RECORD_BYTES_MIN > len(data):
        raise _corrupt(f"{count} records in {len(data)} bytes")
    try:
        batch = _batch_of(_fields(bytes(data), count), header.base_timestamp, room)
    except (IndexError, OverflowError):
        raise _corrupt("a record goes on past the end of its batch") from None
    return ProducedBatch(
        batch,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.is_transactional,
    )


class _Fields(NamedTuple):
    """Where the fields of all records are in the bytes; a length of -1 is null."""

    data: bytes
    timestamps: Int64s  # as deltas
    keys: Int64s
    key_lengths: Int64s
    values: Int64s
    value_lengths: Int64s
    headers: Int64s
    header_counts: Int64s
    ends: Int64s


def _fields(data: bytes, count: int) -> _Fields:
    if count >= _LOOP_RECORDS:
        fields = _fields_at_once(data, count)
        if fields is not None:
            return fields
    return _fields_one_by_one(data, count)


def _batch_of(fields: _Fields, base_timestamp: int, room: DecodingRoom) -> Batch:
    arrays: dict[str, pa.Array] = {
        "value": _taken(fields.data, fields.values, fields.value_lengths)
    }
    if (fields.key_lengths >= 0).any():
        arrays["key"] = _taken(fields.data, fields.keys, fields.key_lengths)
    timestamp_us = None
    stamps = base_timestamp + fields.timestamps
    if (stamps != -1).any():  # else they have none, and get the time of the append
        if (stamps < 0).any() or (stamps > _TIMESTAMP_MS_MAX).any():
            raise Refused(Code.INVALID_TIMESTAMP, "a timestamp is out of range")
        timestamp_us = int(stamps[0]) * 1000
        if (stamps != stamps[0]).any():
            arrays["timestamp"] = pa.array(stamps * 1000).view(TIMESTAMP)
            timestamp_us = None
    priority = int(Priority.NORMAL)
    if fields.header_counts.any():
        room.take_headers(fields.header_counts)
        arrays["headers"], priorities = _headers(fields)
        if arrays["headers"].null_count == len(fields.ends):
            del arrays["headers"]
        if priorities is not None:
            priority = priorities[0]
            if len({*priorities}) > 1:
                arrays["priority"] = pa.array(priorities, pa.uint8())
                priority = int(Priority.NORMAL)
    elif (fields.headers != fields.ends).any():
        raise _corrupt("a record is longer than its fields")
    columns = sum(BITS[name] for name in arrays)
    if columns == BITS["value"]:
        return Batch.of_values(arrays["value"], timestamp_us=timestamp_us, priority=priority)
    schema = schema_of(columns)
    data = pa.RecordBatch.from_arrays([arrays[name] for name in schema.names], schema=schema)
    return Batch(data, columns, timestamp_us=timestamp_us, priority=priority)


def _headers(fields: _Fields) -> tuple[pa.Array, list[int] | None]:
    """All headers in their order, with repetitions, without those of priorities; and these."""
    data = fields.data
    names: list[str] = []
    values: list[bytes | None] = []
    ends = [0]
    empty: list[bool] = []
    priorities: dict[int, int] = {}
    rows = zip(
        fields.headers.tolist(), fields.header_counts.tolist(), fields.ends.tolist(), strict=True
    )
    for row, (at, count, end) in enumerate(rows):
        if not 0 <= count <= end - at:
            raise _corrupt(f"a record with {count} headers")
        for _ in range(count):
            length, at = _varint(data, at)
            name = data[at : at + length]
            at += length
            size, at = _varint(data, at)
            if length < 0 or size < -1 or at + max(size, 0) > end:
                raise _corrupt("a header is longer than its record")
            value = None if size < 0 else data[at : at + size]
            at += max(size, 0)
            if name == PRIORITY_HEADER:
                priorities[row] = _priority(value)
                continue
            try:
                names.append(name.decode())
            except UnicodeDecodeError:
                raise Refused(Code.INVALID_RECORD, "the name of a header is not UTF-8") from None
            values.append(value)
        if at != end:
            raise _corrupt("a record is longer than its fields")
        empty.append(len(names) == ends[-1])
        ends.append(len(names))
    pairs = pa.StructArray.from_arrays(
        [pa.array(names, pa.string()), pa.array(values, pa.binary())],
        fields=[HEADERS.value_type.field(0), HEADERS.value_type.field(1)],
    )
    mask = pa.array(empty, pa.bool_())
    column = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pairs, HEADERS, mask=mask)
    if not priorities:
        return column, None
    return column, [priorities.get(row, int(Priority.NORMAL)) for row in range(len(empty))]


def _priority(value: bytes | None) -> int:
    text = (value or b"").decode(errors="replace")
    try:
        return int(parse_priority(int(text) if text.isascii() and text.isdigit() else text))
    except InvalidInput as exc:
        raise Refused(Code.INVALID_RECORD, f"header {PRIORITY_HEADER.decode()}: {exc}") from None


# One record after the other.


def _fields_one_by_one(data: bytes, count: int) -> _Fields:
    rows: list[Sequence[int]] = []
    at = 0
    for _ in range(count):
        length, at = _varint(data, at)
        end = at + length
        if length < 0 or end > len(data):
            raise _corrupt("a record goes on past the end of its batch")
        timestamp, at = _varint(data, at + 1)  # after its attributes, of which there are none
        _, at = _varint(data, at)
        key_length, at = _varint(data, at)
        key = at
        value_length, at = _varint(data, at + max(key_length, 0))
        value = at
        header_count, at = _varint(data, at + max(value_length, 0))
        if key_length < -1 or value_length < -1 or at > end:
            raise _corrupt("a record is shorter than its fields")
        rows.append((timestamp, key, key_length, value, value_length, at, header_count, end))
        at = end
    if at != len(data):
        raise _corrupt("there are bytes after the last record")
    return _Fields(data, *np.array(rows, np.int64).T)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    at += 1
    found = byte & 127
    shift = 7
    while byte > 127:
        if shift > 7 * _VARINT_BYTES_MAX:
            raise _corrupt("a number of more than ten bytes")
        byte = data[at]
        at += 1
        found |= (byte & 127) << shift
        shift += 7
    return (found >> 1) ^ -(found & 1), at


# All records at once.

_CONTINUED = np.uint64(0x8080808080808080)
_ONE = np.uint64(1)
_LOW_BITS = np.uint64(0x7F)


def _fields_at_once(data: bytes, count: int) -> _Fields | None:
    """None: a number is too long for it."""
    starts = _starts(data, count)
    padded = data + bytes(8)
    words: Words = np.ndarray((len(data),), np.dtype("<u8"), padded, 0, (1,))
    decoded = _varints(words, starts)
    if decoded is None:
        return None
    lengths, at = decoded
    ends = at + lengths
    at = at + 1
    columns: list[Int64s] = []
    for has_bytes in (False, False, True, True, False):
        decoded = _varints(words, at)
        if decoded is None:
            return None
        number, at = decoded
        if has_bytes:
            if (number < -1).any():
                raise _corrupt("a length below -1")
            columns.append(at)
            at = at + np.maximum(number, 0)
        columns.append(number)
    if (at > ends).any() or (ends > len(data)).any():
        raise _corrupt("a record is shorter than its fields")
    timestamps, _, keys, key_lengths, values, value_lengths, header_counts = columns
    return _Fields(
        data, timestamps, keys, key_lengths, values, value_lengths, at, header_counts, ends
    )


def _varints(words: Words, at: Int64s) -> tuple[Int64s, Int64s] | None:
    """A number at each position, and where each ends; None if one has more than eight bytes."""
    word = words[at]
    stop = ~word & _CONTINUED
    stop &= ~stop + _ONE  # the highest bit of each number's last byte
    if not stop.all():
        return None
    word &= stop | (stop - _ONE)
    longest = int(stop.max())
    found = word & _LOW_BITS
    after = at + 1
    for byte in range(1, 8):
        if longest <= 0x80 << 8 * (byte - 1):
            break
        found |= (word >> np.uint64(byte)) & np.uint64(0x7F << 7 * byte)
        after += stop > np.uint64(0x80 << 8 * (byte - 1))
    numbers = found.view(np.int64)
    return (numbers >> 1) ^ -(numbers & 1), after


def _starts(data: bytes, count: int) -> Int64s:
    """Where each record begins. Raises Refused unless they fill the bytes."""
    starts = np.empty(count, np.int64)
    octets = np.frombuffer(data, np.uint8)
    row = at = unequal = 0
    while row < count:
        starts[row] = at
        row += 1
        width, size = _record_size(data, at)
        run = min(count - row, (len(data) - at) // size - 1)
        if run > 2 and data[at + size : at + size + width] == data[at : at + width]:
            # How many neighbours say that they are as long as this one?
            same = np.ones(run, np.bool_)
            for byte in range(width):
                column = octets[at + size + byte : at + size * (run + 1) + byte : size][:run]
                same &= column == octets[at + byte]
            equal = run if same.all() else int(same.argmin())
            starts[row : row + equal] = np.arange(at + size, at + size * (equal + 1), size)
            row += equal
            at += size * equal
        else:
            unequal += 1
        at += size
        if unequal > 8:
            starts[row:], at = _starts_one_by_one(data, at, count - row)
            break
    if at != len(data):
        raise _corrupt("the records do not fill their batch")
    return starts


def _record_size(data: bytes, at: int) -> tuple[int, int]:
    """How long a record's length is, and the record with it."""
    length, after = _varint(data, at)
    if length < 1:
        raise _corrupt(f"a record of {length} bytes")
    return after - at, after - at + length


def _starts_one_by_one(data: bytes, at: int, count: int) -> tuple[list[int], int]:
    found = []
    for _ in range(count):
        found.append(at)
        byte = data[at]
        if byte < 128:  # the usual lengths, without a call
            if byte & 1:
                raise _corrupt("a record of a negative length")
            at += 1 + (byte >> 1)
        elif (second := data[at + 1]) < 128:
            if byte & 1:
                raise _corrupt("a record of a negative length")
            at += 2 + (((byte & 127) | second << 7) >> 1)
        else:
            at += _record_size(data, at)[1]
    return found, at


# Bytes of the records as columns.


def _taken(data: bytes, starts: Int64s, lengths: Int64s) -> pa.Array:
    """The bytes at some places, one after the other; null where the length is -1."""
    rows = len(starts)
    if rows < _LOOP_RECORDS:
        return pa.array(list(_pieces(data, starts, lengths)), pa.binary())
    # An array of what lies between them and of them, in turn: every second one is wanted.
    ends = np.empty(2 * rows + 2, np.int32)
    ends[0], ends[-1] = 0, len(data)
    ends[1:-1:2] = starts
    ends[2::2] = starts + np.maximum(lengths, 0)
    every = pa.Array.from_buffers(
        pa.binary(), 2 * rows + 1, [None, pa.py_buffer(ends), pa.py_buffer(data)]
    )
    found = every.take(pa.array(np.arange(1, 2 * rows + 1, 2, dtype=np.int32)))
    if (lengths < 0).any():
        valid = pa.py_buffer(np.packbits(lengths >= 0, bitorder="little"))
        _, offsets, payload = found.buffers()
        found = pa.Array.from_buffers(pa.binary(), rows, [valid, offsets, payload])
    return found


def _pieces(data: bytes, starts: Int64s, lengths: Int64s) -> Iterator[bytes | None]:
    for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
        yield None if length < 0 else data[start : start + length]


def _corrupt(what: str) -> Refused:
    return Refused(Code.CORRUPT_MESSAGE, what)


def _outdated() -> Refused:
    return Refused(
        Code.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        "messages of a format before Kafka 0.11 are not taken; use a later client",
    )
