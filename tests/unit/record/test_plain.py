"""Values alone take a shorter way into a frame and out of it, and nobody can tell."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidInput
from penstock.record.batch import Batch
from penstock.record.frame import decode
from penstock.record.plain import COPY_BYTES_MAX, Plain, Single, body_of, value_of_body
from penstock.record.schema import BITS, Priority, new_batch_ulid, schema_of
from penstock.record.writing import encode
from tests.unit.record.strategies import QUICK

ULID = new_batch_ulid(1_700_000_000_000_000_000)
LENGTHS = [*range(40), 127, 128, 255, 256, 800, 801, 1000, 4095, 4096, 4660, 4661, 65536, 1 << 20]


def written(batch: Batch, codec: str = "none") -> bytes:
    frame = encode(batch, base_offset=7, ulid=ULID, stamp_us=99, codec=codec)
    return b"".join(map(bytes, frame.buffers))


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_its_frame_is_to_the_byte_what_arrow_writes(codec: str) -> None:
    for length in LENGTHS:
        value = bytes(range(256)) * (length // 256) + bytes(length % 256)
        assert written(Single(value), codec) == written(Batch.build([value]), codec)


@QUICK
@given(st.lists(st.binary(max_size=50), min_size=1, max_size=20))
def test_the_frame_of_several_is_to_the_byte_what_arrow_writes(values: list[bytes]) -> None:
    plain, batch = Plain(values), Batch.build(values)
    assert written(plain) == written(batch)
    assert plain.messages() == batch.messages()
    assert len(plain) == plain.next_offset == len(values)
    assert plain.values.to_pylist() == values


@pytest.mark.parametrize("rows", [1, 2, 999, 1000, 1999, 2000, 2001, 10_000])
def test_a_batch_of_any_length_is_the_same_frame_from_objects_and_from_columns(rows: int) -> None:
    values = [b"%d" % row for row in range(rows)]
    frame = written(Batch.build(values))
    assert frame == written(Plain(values))
    assert decode(memoryview(frame)).batch.values.to_pylist() == values


def serialized(values: pa.BinaryArray) -> bytes:
    schema = schema_of(BITS["value"])
    return bytes(pa.RecordBatch.from_arrays([values], schema=schema).serialize())


@QUICK
@given(st.lists(st.binary(max_size=50), min_size=1, max_size=20))
def test_a_column_in_parts_is_to_the_byte_what_arrow_writes(values: list[bytes]) -> None:
    column = pa.array(values, pa.binary())
    parts = body_of(column)
    assert parts is not None
    assert b"".join(map(bytes, parts)) == serialized(column)


@QUICK
@given(
    st.lists(st.none() | st.binary(max_size=9), min_size=1, max_size=20),
    st.integers(0, 19),
    st.integers(1, 20),
)
def test_a_part_of_a_column_is_laid_down_whole_or_left_to_arrow(
    values: list[bytes | None], start: int, length: int
) -> None:
    column = pa.array(values, pa.binary()).slice(start, length)
    parts = body_of(column) if len(column) else None
    if parts is not None:  # Arrow itself would lay down some bytes behind the last value too
        body = b"".join(map(bytes, parts))
        read = pa.ipc.read_record_batch(body, schema_of(BITS["value"])).column(0)
        assert read.equals(column)
        assert body == serialized(pa.array(column.to_pylist(), pa.binary()))


def test_a_column_with_room_behind_it_is_laid_down_without_the_room() -> None:
    ends = pa.py_buffer(bytes(4) + (3).to_bytes(4, "little") + b"behind the ends ")
    column = pa.BinaryArray.from_buffers(pa.binary(), 1, [None, ends, pa.py_buffer(b"abcdefgh")])
    parts = body_of(column)
    assert parts is not None
    assert b"".join(map(bytes, parts)) == serialized(pa.array([b"abc"], pa.binary()))


def test_a_value_with_something_behind_it_is_left_to_arrow() -> None:
    body = bytearray(Single(b"abc").body())
    assert value_of_body(memoryview(body)) == b"abc"
    body[-1] = 1
    assert value_of_body(memoryview(body)) is None
    assert value_of_body(memoryview(body)[:-8]) is None


@QUICK
@given(st.binary(max_size=300), st.sampled_from(Priority))
def test_it_is_read_like_any_other_batch(value: bytes, priority: Priority) -> None:
    single = decode(memoryview(written(Single.build_one(value, int(priority))))).batch
    batch = Batch.build([value], priority=priority, timestamps_us=99)
    assert single.messages() == [
        type(m)(7, m.timestamp_us, m.value, m.key, m.headers, m.priority, m.expires_at_us, ULID)
        for m in batch.messages()
    ]
    assert len(single) == 1
    assert single.next_offset == 8
    assert single.values.to_pylist() == [value]
    assert single.offsets.to_pylist() == [7]
    assert single.record_batch().slice(0, 1).num_rows == 1
    assert single.message_bytes().tolist() == [len(value)]


def test_short_values_are_copied_and_long_ones_shared() -> None:
    for length in (COPY_BYTES_MAX // 2, COPY_BYTES_MAX * 2):
        frame = written(Single(b"x" * length))
        batch = decode(memoryview(frame)).batch
        assert [m.value for m in batch] == [b"x" * length]
        assert isinstance(batch, Single) == (length < COPY_BYTES_MAX)


def test_it_can_be_sliced_filtered_taken_and_joined_like_any_other() -> None:
    single = decode(memoryview(written(Single(b"a")))).batch
    assert isinstance(single, Single)
    assert [m.value for m in single.slice(0)] == [b"a"]
    assert single.slice(1).messages() == []
    assert single.filter([False]).messages() == []
    assert [(m.offset, m.ulid) for m in single.filter([True])] == [(7, ULID)]
    assert [(m.offset, m.value) for m in single.take([0, 0])] == [(7, b"a"), (7, b"a")]
    other = Batch(Batch.build([b"b"]).data, single.columns, timestamp_us=99, base_offset=8, ulid=5)
    joined = Batch.concat([single, other])
    assert [(m.offset, m.ulid, m.value) for m in joined] == [(7, ULID, b"a"), (8, 5, b"b")]
    assert [m.timestamp_us for m in single.stamped(3)] == [3]
    assert [m.expires_at_us for m in single.expiring(4)] == [4]
    assert [m.headers for m in single.with_headers([{"h": b"1"}])] == [{"h": b"1"}]
    assert single.unplaced().base_offset is None


@pytest.mark.parametrize("value", ["text", b"bytes", None, "größe"])
def test_it_is_made_of_whatever_a_batch_can_be_made_of(value: bytes | str | None) -> None:
    single, batch = Single.build_one(value, "high"), Batch.build([value], priority="high")
    assert single.messages() == batch.messages()
    assert written(single) == written(batch)


@pytest.mark.parametrize(
    ("value", "priority"), [(7, 2), ("\ud800", 2), (b"a", "urgent"), (b"a", 9), (b"a", None)]
)
def test_what_a_batch_refuses_it_refuses_too(value: object, priority: object) -> None:
    with pytest.raises(InvalidInput):
        Single.build_one(value, priority)  # type: ignore[arg-type]
