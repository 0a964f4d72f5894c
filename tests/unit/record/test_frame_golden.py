"""Golden bytes: what is on people's disks today has to be readable for ever.

`VALUES` is a frame spelled out byte by byte. The files in `golden/` hold more shapes; their README
says what is in them. If one of these tests fails, the format changed: that needs a new format
version beside the old one, never new golden bytes.
"""

from pathlib import Path
from typing import Any

import pytest

from penstock.record.batch import Batch
from penstock.record.frame import decode, read_header
from penstock.record.writing import FrameProducer, encode
from tests.unit.record.forge import HEADER_BYTES, dissect
from tests.unit.record.strategies import Row, batch_of, rows_of

GOLDEN = Path(__file__).parent / "golden"
ULID = 0x018BCFE56800_0123456789ABCD_000000  # 2023-11-14T22:13:20Z, random part, row 0

VALUES = bytes.fromhex(
    # The header: 96 bytes, little-endian.
    "504e534b"  # magic            "PNSK"
    "d92ddd1c"  # crc              CRC32C of all that follows
    "01"  # version          1
    "00"  # flags            none
    "00"  # codec            none
    "04"  # priorities       bit 2: normal
    "1000"  # columns          bit 4: value
    "0000"  # reserved
    "c0000000"  # stored_bytes     192
    "c0000000"  # raw_bytes        192
    "0700000000000000"  # base_offset      7
    "03000000"  # span             3
    "03000000"  # row_count        3
    "00401e18240a0600"  # first_timestamp  1_700_000_000_000_000 us
    "00401e18240a0600"  # last_timestamp   the same
    "2a00000000000000"  # producer_id      42
    "0900000000000000"  # base_sequence    9
    "03000000"  # producer_epoch   3
    "05000000"  # term             5
    "018bcfe56800"  # ulid             milliseconds since 1970, big-endian,
    "0123456789abcd"  #                  56 random bits,
    "000000"  #                  room for the row
    # The body: an encapsulated Arrow IPC message.
    "ffffffff"  # continuation
    "98000000"  # metadata_size    152 bytes of flatbuffer, padding included
    "14000000"  # root             the Message table, 20 bytes on
    "00000000"
    "0c00160006000500"  # its vtable       12 bytes; the table has 22; version at 6, type at 5,
    "08000c00"  #                  header at 8, body length at 12
    "0c000000"  # Message          the vtable is 12 bytes back
    "00"
    "03"  # header_type      RecordBatch
    "0400"  # version          V5
    "18000000"  # header           24 bytes on
    "2000000000000000"  # body_length      32
    "0000"
    "0a0018000c000400"  # its vtable       10 bytes; the table has 24; length at 12, nodes at 4,
    "0800"  #                  buffers at 8; no compression
    "0a000000"  # RecordBatch      the vtable is 10 bytes back
    "4c000000"  # nodes            76 bytes on
    "10000000"  # buffers          16 bytes on
    "0300000000000000"  # length           3
    "00000000"
    "03000000"  # buffers          3 of them
    "0000000000000000"  # validity         at 0,
    "0100000000000000"  #                  1 byte
    "0800000000000000"  # offsets          at 8,
    "1000000000000000"  #                  16 bytes
    "1800000000000000"  # data             at 24,
    "0500000000000000"  #                  5 bytes
    "00000000"
    "01000000"  # nodes            1 of them
    "0300000000000000"  # value            3 rows,
    "0100000000000000"  #                  1 null
    # The buffers of the only column.
    "0500000000000000"  # validity         rows 0 and 2 have a value
    "00000000050000000500000005000000"  # offsets          0 5 5 5
    "68656c6c6f000000"  # data             hello
)


def written(batch: Batch, **arguments: Any) -> bytes:
    frame = encode(batch, **arguments)
    data = b"".join(map(bytes, frame.buffers))
    assert len(data) == frame.frame_bytes
    return data


def golden(name: str) -> bytes:
    return (GOLDEN / f"{name}.bin").read_bytes()


FULL = [
    Row(b"v0", b"k", {"trace": b"\x01\x02", "none": None}, 0, 1_700_000_000_000_000, None),
    Row(None, b"", {}, 4, 1_700_000_000_000_001, 1_800_000_000_000_000),
    Row(b"\x00\xff", None, {"\u00fc": b""}, 2, 1_699_999_999_999_999, -1),
]
REPEATED = [Row(b"the same fifty bytes over and over, to be compressed", b"k")] * 40


def compacted() -> Batch:
    """Rows 0, 3 and 4 of five, each still with its own offset and id."""
    rows = [FULL[0], Row(b"gone"), Row(b"gone"), *FULL[1:]]
    batch = batch_of(rows)
    whole = Batch(batch.data, batch.columns, base_offset=1000, ulid=ULID)
    return whole.filter([True, False, False, True, True])


def test_a_frame_is_written_byte_for_byte_as_ever() -> None:
    batch = Batch.build(["hello", None, ""], timestamps_us=1_700_000_000_000_000)
    frame = written(
        batch,
        base_offset=7,
        ulid=ULID,
        by=FrameProducer(producer_id=42, producer_epoch=3, base_sequence=9, term=5),
    )
    assert frame.hex() == VALUES.hex()


def test_a_frame_of_old_is_read_field_for_field() -> None:
    header, batch = decode(memoryview(VALUES))
    assert header._asdict() == dissect(VALUES)[0]
    assert header.frame_bytes == len(VALUES)
    assert (header.base_offset, header.next_offset, header.row_count) == (7, 10, 3)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (42, 3, 9)
    assert header.term == 5
    stamp = 1_700_000_000_000_000
    assert rows_of(batch) == [Row(v, timestamp_us=stamp) for v in (b"hello", None, b"")]
    assert [m.offset for m in batch] == [7, 8, 9]
    assert [m.id for m in batch] == [
        "01HF7YAT0004HMASW9NF6G0000",
        "01HF7YAT0004HMASW9NF6G0001",
        "01HF7YAT0004HMASW9NF6G0002",
    ]


def test_every_column_is_written_byte_for_byte_as_ever() -> None:
    assert written(batch_of(FULL), base_offset=0, ulid=ULID) == golden("all_columns")


def test_a_compacted_frame_is_written_byte_for_byte_as_ever() -> None:
    frame = written(
        compacted(), base_offset=1000, span=5, ulid=ULID + (1 << 24), by=FrameProducer(term=2)
    )
    assert frame == golden("compacted")


def test_an_emptied_frame_is_written_byte_for_byte_as_ever() -> None:
    nothing = compacted().filter([False] * 3)
    frame = written(nothing, base_offset=1000, span=5, ulid=ULID, stamp_us=9)
    assert frame == golden("emptied")
    assert len(frame) == HEADER_BYTES


def test_every_column_of_old_is_read() -> None:
    header, batch = decode(memoryview(golden("all_columns")))
    assert rows_of(batch) == FULL
    assert header.columns == 0b00111111
    assert header.priorities == 0b10010101  # bit 7: some expire
    assert (header.first_timestamp, header.last_timestamp) == (
        1_699_999_999_999_999,
        1_700_000_000_000_001,
    )


def test_a_compacted_frame_of_old_is_read_with_its_offsets_and_ids() -> None:
    header, batch = decode(memoryview(golden("compacted")))
    assert header.columns == 0b11111111
    assert (header.base_offset, header.next_offset, header.row_count) == (1000, 1005, 3)
    assert [m.offset for m in batch] == [1000, 1003, 1004]
    assert [int.from_bytes(i, "big") - ULID for i in batch.ids.to_pylist()] == [0, 3, 4]
    assert rows_of(batch) == FULL


def test_an_emptied_frame_of_old_still_covers_its_offsets() -> None:
    header, batch = decode(memoryview(golden("emptied")))
    assert (header.base_offset, header.next_offset, header.row_count) == (1000, 1005, 0)
    assert batch.messages() == []


@pytest.mark.parametrize(("codec", "number"), [("lz4", 1), ("zstd", 2), ("gzip", 3)])
def test_a_compressed_frame_of_old_is_read(codec: str, number: int) -> None:
    data = golden(codec)
    header, batch = decode(memoryview(data))
    assert header.codec == number
    assert header.stored_bytes < header.raw_bytes == 2680
    assert rows_of(batch) == REPEATED
    # The compressed bytes may differ from one version of a library to the next, no more than that.
    again = written(batch_of(REPEATED), base_offset=0, ulid=ULID, codec=codec)
    assert decode(memoryview(again)).batch == batch


@pytest.mark.parametrize("name", ["all_columns", "compacted", "emptied", "lz4", "zstd", "gzip"])
def test_a_golden_file_holds_one_frame_with_a_sound_header(name: str) -> None:
    data = golden(name)
    header = read_header(memoryview(data))
    assert header._asdict() == dissect(data)[0]
    assert header.frame_bytes == len(data)
    assert len(data) % 8 == 0
