"""Record batches: what an independent implementation writes and reads, and what nobody should."""

from __future__ import annotations

import gzip
import resource
import struct
import zlib
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from aiokafka.record import MemoryRecords
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.record.batch import Batch
from penstock.record.schema import BITS, HEADERS_MAX, Priority
from penstock.server.kafka import records_in, records_out
from penstock.server.kafka.codes import Code, Refused
from penstock.server.kafka.records_in import RECORDS_MAX

UNPACKED_MAX = 16 << 20
NOW_MS = 1_700_000_000_000


class Record(NamedTuple):
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def written(records: list[Record], codec: int = 0) -> bytes:
    """As aiokafka writes them; it has no other codec than gzip here."""
    builder = DefaultRecordBatchBuilder(2, codec, False, -1, -1, -1, 1 << 30)
    for row, record in enumerate(records):
        added = builder.append(row, record.timestamp_ms, record.key, record.value, record.headers)
        assert added is not None
    return bytes(builder.build())


def read_by_others(data: bytes) -> list[Record]:
    found = []
    batches = MemoryRecords(data)
    while (batch := batches.next_batch()) is not None:
        assert batch.validate_crc()
        found += [Record(r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in batch]
    return found


def decoded(data: bytes) -> Batch:
    (header,) = records_in.read_headers(data)
    return records_in.decode(header, room()).batch


def room(unpacked_bytes: int = UNPACKED_MAX, headers: int = 100_000) -> records_in.DecodingRoom:
    return records_in.DecodingRoom(unpacked_bytes, headers)


def placed(batch: Batch, base_offset: int = 0) -> Batch:
    """As a log gives it."""
    return Batch(
        batch.data,
        batch.columns,
        timestamp_us=batch.timestamp_us or 0,
        priority=batch.priority,
        base_offset=base_offset,
    )


def encoded(batch: Batch, next_offset: int) -> bytes:
    return b"".join(records_out.encode([batch], next_offset))


blobs = st.binary(max_size=300) | st.none()
headers = st.lists(st.tuples(st.sampled_from(["a", "b", "ü", "trace"]), blobs), max_size=3)
records = st.builds(
    Record,
    offset=st.just(0),
    timestamp_ms=st.integers(0, 1 << 44),
    key=blobs,
    value=blobs,
    headers=headers,
)


@settings(max_examples=200, deadline=None)
@given(given=st.lists(records, min_size=1, max_size=8), times=st.sampled_from([1, 9, 40]))
def test_what_others_write_is_read_and_what_is_written_others_read(
    given: list[Record], times: int
) -> None:
    given = [each._replace(offset=row) for row, each in enumerate(given * times)]
    batch = decoded(written(given))
    assert batch.values.to_pylist() == [each.value for each in given]
    assert read_by_others(encoded(placed(batch), len(given))) == given


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.sampled_from([0, 1, 50, 63, 64, 127, 8191, 8192]), min_size=64, max_size=80)
)
def test_records_of_any_lengths_side_by_side(sizes: list[int]) -> None:
    given = [Record(n, NOW_MS + n % 3, None, b"x" * size, []) for n, size in enumerate(sizes)]
    assert read_by_others(encoded(placed(decoded(written(given))), len(given))) == given


@settings(max_examples=60, deadline=None)
@given(
    offsets=st.lists(st.integers(0, 1 << 30), min_size=1, max_size=90, unique=True).map(sorted),
    gap=st.integers(0, 1000),
)
def test_gaps_between_and_after_messages_are_covered(offsets: list[int], gap: int) -> None:
    columns = BITS["value"] | BITS["offset"]
    values = [b"%d" % offset for offset in offsets]
    data = pa.RecordBatch.from_arrays(
        [pa.array(values, pa.binary()), pa.array(offsets, pa.int64())], ["value", "offset"]
    )
    batch = Batch(data, columns, timestamp_us=NOW_MS * 1000, base_offset=offsets[0])
    bytes_ = encoded(batch, offsets[-1] + 1 + gap)
    assert [(r.offset, r.value) for r in read_by_others(bytes_)] == list(
        zip(offsets, values, strict=True)
    )
    (last_delta,) = struct.unpack_from(">i", bytes_, 23)
    assert offsets[0] + last_delta == offsets[-1] + gap


def test_offsets_without_any_message_are_covered_by_an_empty_batch() -> None:
    data = records_out.empty(7, 20)
    base_offset, length = struct.unpack_from(">qi", data)
    (last_delta,) = struct.unpack_from(">i", data, 23)
    assert (base_offset, last_delta) == (7, 12)
    assert length == len(data) - 12
    assert read_by_others(data) == []


def test_batches_that_are_joined_keep_their_offsets() -> None:
    first = Batch.of_values(pa.array([b"a"], pa.binary()), timestamp_us=5_000_000, base_offset=3)
    second = decoded(written([Record(0, 6000, b"k", b"b", [("h", b"v")])]))
    joined = b"".join(records_out.encode([first, placed(second, 9)], 12))
    assert read_by_others(joined) == [
        Record(3, 5000, None, b"a", []),
        Record(9, 6000, b"k", b"b", [("h", b"v")]),
    ]


# Codecs.

TEXT = [Record(n, NOW_MS, None, b"some text " * 20, []) for n in range(200)]


def packed(codec: int, packed_records: bytes, like: bytes) -> bytes:
    """A batch with the head of another one, and other records."""
    head = bytearray(like[:61])
    struct.pack_into(">i", head, 8, 49 + len(packed_records))
    struct.pack_into(">h", head, 21, codec)
    struct.pack_into(">I", head, 17, crc32c(bytes(head[21:]) + packed_records))
    return bytes(head) + packed_records


def xerial(raw: bytes) -> bytes:
    blocks = [raw[at : at + 32 << 10] for at in range(0, len(raw), 32 << 10)]
    found = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    for block in blocks:
        compressed = pa.compress(block, "snappy", asbytes=True)
        found += struct.pack(">i", len(compressed)) + compressed
    return found


def stream(raw: bytes, codec: str) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as out:
        out.write(raw)
    return sink.getvalue().to_pybytes()


PACKERS: dict[str, tuple[int, Any]] = {
    "gzip": (1, gzip.compress),
    "snappy": (2, lambda raw: pa.compress(raw, "snappy", asbytes=True)),
    "xerial": (2, xerial),
    "lz4": (3, lambda raw: stream(raw, "lz4")),
    "zstd": (4, lambda raw: stream(raw, "zstd")),
}


@pytest.mark.parametrize("name", PACKERS)
def test_each_codec_is_unpacked(name: str) -> None:
    codec, pack = PACKERS[name]
    like = written(TEXT)
    batch = decoded(packed(codec, pack(like[61:]), like))
    assert batch.values.to_pylist() == [each.value for each in TEXT]


def bomb(name: str) -> bytes:
    """What becomes 256 MiB, made without ever having them."""
    piece = bytes(1 << 20)
    if name == "gzip":
        packer = zlib.compressobj(wbits=31)
        return b"".join(packer.compress(piece) for _ in range(256)) + packer.flush()
    if name == "snappy":
        return b"\x80\x80\x80\x80\x01" + pa.compress(piece, "snappy", asbytes=True)
    if name == "xerial":
        block = pa.compress(piece, "snappy", asbytes=True)
        head = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
        return head + (struct.pack(">i", len(block)) + block) * 256
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, name) as out:
        for _ in range(256):
            out.write(piece)
    found: bytes = sink.getvalue().to_pybytes()
    return found


@pytest.mark.parametrize("name", PACKERS)
def test_a_bomb_is_refused_with_bounded_memory(name: str) -> None:
    data = packed(PACKERS[name][0], bomb(name), written(TEXT))
    (header,) = records_in.read_headers(data)
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(Refused) as refused:
        records_in.decode(header, room())
    assert refused.value.code is Code.MESSAGE_TOO_LARGE
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
    assert grown_kib < 40 << 10


@pytest.mark.parametrize("name", PACKERS)
def test_a_damaged_stream_is_refused(name: str) -> None:
    codec, pack = PACKERS[name]
    like = written(TEXT)
    whole = pack(like[61:])
    for damaged in (b"", whole[: len(whole) // 2], b"\xff" * 40, whole[:20] + b"\x55" * 30):
        with pytest.raises(Refused):
            decoded(packed(codec, damaged, like))


# Hostile bytes.


@pytest.mark.parametrize("count", [3, 100])
def test_every_cut_and_every_wrong_bit_is_refused(count: int) -> None:
    data = written([Record(n, NOW_MS, b"k", b"value", [("h", b"x")]) for n in range(count)])
    for end in range(1, len(data)):
        with pytest.raises(Refused):
            records_in.read_headers(data[:end])
    for at in range(16, min(len(data), 200)):  # what is before is not the sender's to say
        if at == 16 or 12 <= at < 16:
            continue
        wrong = bytearray(data)
        wrong[at] ^= 1 << at % 8
        with pytest.raises(Refused):
            records_in.read_headers(bytes(wrong))


@settings(max_examples=500, deadline=None)
@given(
    count=st.sampled_from([3, 70]),
    at=st.integers(0, 3000),
    junk=st.binary(min_size=1, max_size=12),
    claimed=st.integers(-5, (1 << 31) - 1) | st.none(),
)
def test_junk_under_a_right_checksum_is_refused_or_read_but_never_crashes(
    count: int, at: int, junk: bytes, claimed: int | None
) -> None:
    like = written([Record(n, NOW_MS, b"k", b"value", [("h", b"x")]) for n in range(count)])
    body = bytearray(like[61:])
    at %= len(body)
    body[at : at + len(junk)] = junk
    data = bytearray(packed(0, bytes(body), like))
    if claimed is not None:
        struct.pack_into(">i", data, 57, claimed)
        struct.pack_into(">i", data, 23, max(claimed, 1) - 1)
        struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    try:
        batch = decoded(bytes(data))
    except Refused:
        return
    batch.data.validate(full=True)
    assert len(batch) == (count if claimed is None else claimed)


@pytest.mark.parametrize("magic", [0, 1, 3])
def test_other_formats_are_named(magic: int) -> None:
    data = bytearray(written(TEXT[:1]))
    data[16] = magic
    with pytest.raises(Refused) as refused:
        records_in.read_headers(bytes(data))
    assert refused.value.code is Code.UNSUPPORTED_FOR_MESSAGE_FORMAT


@pytest.mark.parametrize("stamp", [-2, 1 << 60])
def test_times_that_are_none_are_refused(stamp: int) -> None:
    data = bytearray(written(TEXT[:1]))
    struct.pack_into(">q", data, 27, stamp)
    struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    with pytest.raises(Refused) as refused:
        decoded(bytes(data))
    assert refused.value.code is Code.INVALID_TIMESTAMP


# Priorities.


@pytest.mark.parametrize("count", [2, 100])
def test_a_priority_goes_as_a_header(count: int) -> None:
    given = [
        Record(n, NOW_MS, None, b"v", [("penstock-priority", b"high")] if n % 2 else [])
        for n in range(count)
    ]
    batch = decoded(written(given))
    assert batch.priority_numbers().tolist() == [
        Priority.HIGH if n % 2 else Priority.NORMAL for n in range(count)
    ]
    assert not batch.columns & BITS["headers"]
    assert read_by_others(encoded(placed(batch), count)) == given


def test_a_priority_that_is_none_is_refused() -> None:
    with pytest.raises(Refused) as refused:
        decoded(written([Record(0, NOW_MS, None, b"v", [("penstock-priority", b"urgent")])]))
    assert refused.value.code is Code.INVALID_RECORD


def with_headers(count: int) -> list[Record]:
    return [Record(0, NOW_MS, None, b"v", [("h", None)] * count)]


def test_a_message_has_so_many_headers_and_no_more() -> None:
    assert len(decoded(written(with_headers(HEADERS_MAX))).headers[0]) == HEADERS_MAX
    with pytest.raises(Refused, match="at most 1000") as refused:
        decoded(written(with_headers(HEADERS_MAX + 1)))
    assert refused.value.code is Code.INVALID_RECORD


def test_a_batch_has_so_many_records_and_no_more() -> None:
    like = written(TEXT[:1])
    record = b"\x0c\0\0\0\1\1\0"  # without a key and a value
    for count, is_taken in ((RECORDS_MAX, True), (RECORDS_MAX + 1, False)):
        data = bytearray(packed(4, pa.compress(record * count, "zstd", asbytes=True), like))
        struct.pack_into(">i", data, 23, count - 1)
        struct.pack_into(">i", data, 57, count)
        struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
        if is_taken:
            assert len(decoded(bytes(data))) == count
            continue
        with pytest.raises(Refused) as refused:
            decoded(bytes(data))
        assert refused.value.code is Code.MESSAGE_TOO_LARGE


def test_the_headers_of_all_batches_of_a_request_share_a_room() -> None:
    (header,) = records_in.read_headers(written(with_headers(3)))
    left = room(headers=8)
    records_in.decode(header, left)
    records_in.decode(header, left)
    with pytest.raises(Refused) as refused:
        records_in.decode(header, left)
    assert refused.value.code is Code.MESSAGE_TOO_LARGE


def test_the_time_of_the_append_stands_for_none() -> None:
    data = bytearray(written(TEXT[:1]))
    struct.pack_into(">q", data, 27, -1)
    struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    assert decoded(bytes(data)).timestamp_us is None


def test_sequences_and_producers_are_told() -> None:
    builder = DefaultRecordBatchBuilder(2, 0, False, 77, 3, 2**31 - 1, 1 << 20)
    builder.append(0, NOW_MS, None, b"v", [])
    (header,) = records_in.read_headers(bytes(builder.build()))
    produced = records_in.decode(header, room())
    assert (produced.producer_id, produced.producer_epoch) == (77, 3)
    assert produced.base_sequence == 2**31 - 1
    assert not produced.is_transactional


def test_decoding_shares_no_memory_with_the_request() -> None:
    data = bytearray(written(TEXT))
    batch = decoded(bytes(data))
    before = batch.values.to_pylist()
    data[:] = bytes(len(data))
    assert batch.values.to_pylist() == before
    assert np.all(batch.timestamps_us() == NOW_MS * 1000)
