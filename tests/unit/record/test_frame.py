"""Frames: what goes in comes out, in as few bytes as the rules say."""

import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import FrameCorrupt, FrameTooLarge, FrameTruncated, InvalidInput
from penstock.record import writing
from penstock.record.batch import Batch
from penstock.record.frame import CODECS, EXPIRES, Frame, decode, read_header, verify
from penstock.record.schema import Priority, new_batch_ulid
from penstock.record.writing import COMPRESS_BYTES_MIN, FrameProducer, encode
from tests.unit.record.forge import dissect, mask_of
from tests.unit.record.strategies import QUICK, Row, batch_of, rows, rows_of

ULID = new_batch_ulid(1_700_000_000_000_000_000)


def written(batch: Batch, **arguments: Any) -> bytes:
    frame = encode(batch, **{"base_offset": 0, "ulid": ULID} | arguments)
    return b"".join(map(bytes, frame.buffers))


def again(batch: Batch, **arguments: Any) -> Frame:
    return decode(memoryview(written(batch, **arguments)))


@QUICK
@given(rows(min_size=1), st.sampled_from(CODECS), st.integers(0, 1 << 62))
def test_messages_survive_being_a_frame(messages: list[Row], codec: str, base_offset: int) -> None:
    header, batch = again(batch_of(messages), codec=codec, base_offset=base_offset)
    assert rows_of(batch) == messages
    assert [m.offset for m in batch] == list(range(base_offset, base_offset + len(messages)))
    assert [m.ulid for m in batch] == list(range(ULID, ULID + len(messages)))
    assert header.first_timestamp == min(row.timestamp_us for row in messages)
    assert header.last_timestamp == max(row.timestamp_us for row in messages)
    expires = any(row.expires_at_us is not None for row in messages)
    assert header.priorities & EXPIRES == EXPIRES * expires
    assert header.priorities & ~EXPIRES == sum(1 << p for p in {row.priority for row in messages})


@QUICK
@given(rows(min_size=1), st.data())
def test_rows_that_are_left_survive_with_offsets_and_ids(
    messages: list[Row], data: st.DataObject
) -> None:
    mask = data.draw(st.lists(st.booleans(), min_size=len(messages), max_size=len(messages)))
    whole = again(batch_of(messages), base_offset=50).batch
    left = whole.filter(mask)
    header, batch = again(left, base_offset=50, span=len(messages), ulid=ULID + (1 << 24))
    assert batch.messages() == left.messages()
    assert (header.base_offset, header.next_offset) == (50, 50 + len(messages))
    assert header.row_count == sum(mask)


@QUICK
@given(
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.integers(0, (1 << 32) - 1),
    st.integers(0, (1 << 32) - 1),
)
def test_what_a_producer_and_a_leader_say_is_kept(
    producer_id: int, base_sequence: int, producer_epoch: int, term: int
) -> None:
    by = FrameProducer(producer_id, base_sequence, producer_epoch, term)
    header = again(Batch.build(["a"]), by=by).header
    assert {name: getattr(header, name) for name in FrameProducer._fields} == by._asdict()


@pytest.mark.parametrize(
    "said",
    [
        {"by": FrameProducer(producer_id=1 << 63)},
        {"by": FrameProducer(base_sequence=-(1 << 63) - 1)},
        {"by": FrameProducer(producer_epoch=-1)},
        {"by": FrameProducer(term=1 << 32)},
        {"base_offset": 1 << 63},
    ],
    ids=str,
)
def test_what_does_not_fit_into_a_header_is_wrong_input(said: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        written(Batch.build(["a" * 2000]), **said)


def test_a_frame_without_producer_or_term_says_so() -> None:
    header = again(Batch.build(["a"])).header
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (0, 0, -1)
    assert header.term == 0


def test_messages_without_a_time_get_that_of_the_write() -> None:
    header, batch = again(Batch.build(["a", "b"]), stamp_us=77)
    assert [m.timestamp_us for m in batch] == [77, 77]
    assert (header.first_timestamp, header.last_timestamp) == (77, 77)
    assert [m.timestamp_us for m in again(Batch.build(["a"], timestamps_us=5), stamp_us=77).batch]


def test_times_and_priorities_that_are_all_the_same_take_no_room() -> None:
    lists = Batch.build(["a", "b"], timestamps_us=[5, 5], priority=[1, 1])
    frame = written(lists)
    assert dissect(frame)[0]["columns"] == mask_of("value")
    assert frame == written(Batch.build(["a", "b"], timestamps_us=5, priority="high"))
    batch = decode(memoryview(frame)).batch
    assert [(m.timestamp_us, m.priority) for m in batch] == [(5, 1), (5, 1)]


def test_the_priority_mask_says_which_are_inside() -> None:
    mixed = Batch.build(["a", "b", "c"], priority=["critical", "low", "critical"])
    assert again(mixed).header.priorities == 1 << Priority.CRITICAL | 1 << Priority.LOW
    assert again(Batch.build(["a"])).header.priorities == 1 << Priority.NORMAL


def test_decoded_rows_share_the_memory_of_the_buffer() -> None:
    frame = written(Batch.build([b"x" * 10_000]))
    where = pa.py_buffer(frame).address
    data = decode(memoryview(frame)).batch.values.buffers()[2]
    assert where <= data.address < where + len(frame)


def test_a_frame_ends_on_a_multiple_of_eight_bytes_filled_with_zeros() -> None:
    random_bytes = random.Random(1).randbytes
    for size in range(1, 40):
        values = [random_bytes(20)] * 200 + [random_bytes(size)]
        frame = written(Batch.build(values), codec="zstd")
        header, _ = dissect(frame)
        assert len(frame) == read_header(memoryview(frame)).frame_bytes
        assert len(frame) % 8 == 0
        assert not any(frame[96 + header["stored_bytes"] :])


def test_frames_one_after_the_other_are_read_by_position() -> None:
    first, second = written(Batch.build(["a"])), written(Batch.build(["b"]), base_offset=1)
    buffer = memoryview(first + second)
    assert [m.value for m in decode(buffer, len(first)).batch] == [b"b"]
    with pytest.raises(FrameCorrupt) as caught:
        decode(buffer, 8)
    assert caught.value.position == 8


def text_body(bytes_about: int) -> Batch:
    return Batch.build([b"tell me again " * (bytes_about // 14 + 1)])


@pytest.mark.parametrize("codec", CODECS[1:])
def test_compression_begins_at_one_kilobyte(codec: str) -> None:
    codecs = {}
    for size in range(COMPRESS_BYTES_MIN - 400, COMPRESS_BYTES_MIN + 400, 8):
        header = again(text_body(size), codec=codec).header
        codecs[header.raw_bytes] = header.codec
    assert min(codecs) < COMPRESS_BYTES_MIN <= max(codecs)
    assert {n: bool(c) for n, c in codecs.items()} == {n: n >= 1024 for n in codecs}


@pytest.mark.parametrize("codec", CODECS[1:])
def test_compression_that_saves_less_than_five_percent_is_dropped(codec: str) -> None:
    noise = random.Random(7).randbytes(100_000)
    seen = set()
    for compressible in range(0, 12_000, 1_000):
        value = noise[: 100_000 - compressible] + bytes(compressible)
        header, batch = again(Batch.build([value]), codec=codec)
        assert [m.value for m in batch] == [value]
        assert header.stored_bytes <= header.raw_bytes * (0.95 if header.codec else 1)
        seen.add(bool(header.codec))
        if not header.codec:
            packed = pa.compress(dissect(written(Batch.build([value])))[1], codec, asbytes=True)
            assert len(packed) > header.raw_bytes * 0.95
    assert seen == {True, False}


def test_a_batch_that_would_make_too_large_a_frame_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert writing.BODY_BYTES_MAX == 100 << 20
    monkeypatch.setattr(writing, "BODY_BYTES_MAX", 10_000)
    third = b"x" * 3_000
    assert len(again(Batch.build([third, third, third])).batch) == 3
    with pytest.raises(FrameTooLarge, match="at most 10000"):
        written(Batch.build([third, third, third, third]))


def test_a_number_that_does_not_fit_is_told() -> None:
    for how in ({"span": 1 << 32}, {"base_offset": 1 << 63}, {"stamp_us": 1 << 63}):
        with pytest.raises(InvalidInput, match="does not fit"):
            encode(Batch.build([b"a", b"b"]), **{"base_offset": 0, "ulid": 0} | how)


def test_an_empty_batch_is_no_frame() -> None:
    with pytest.raises(InvalidInput, match="empty batch"):
        written(Batch.build([]))


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_any_cut_frame_is_known_to_be_cut(codec: str) -> None:
    frame = written(Batch.build(["tell me again " * 100] * 2), codec=codec)
    for length in range(0, len(frame), 7):
        with pytest.raises(FrameTruncated) as caught:
            decode(memoryview(frame[:length]))
        assert caught.value.position == 0


def test_any_flipped_bit_is_noticed() -> None:
    frame = written(Batch.build(["a", None], keys=["k", "l"]))
    for bit in range(8 * len(frame)):
        damaged = bytearray(frame)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises((FrameCorrupt, FrameTooLarge)):
            decode(memoryview(damaged))


def test_the_header_alone_can_be_read_and_checked_without_the_rows() -> None:
    frame = memoryview(written(Batch.build(["a"]), base_offset=3))
    header = read_header(frame)
    assert header.next_offset == 4
    verify(frame, 0, header)
