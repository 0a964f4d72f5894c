"""Golden bytes of a segment: what is on people's disks today has to be readable for ever.

If one of these tests fails, the format changed: that needs a new version beside the old one, and a
conversion, never new golden bytes.
"""

from pathlib import Path

import pytest

from penstock.log.index import SegmentIndex
from penstock.log.index import decode as decode_index
from penstock.log.segment import Segment
from penstock.log.segment_header import SegmentHeader, decode_header, encode_header
from penstock.record.batch import Batch
from penstock.record.salt import Salt
from penstock.record.writing import encode
from tests.unit.log.conftest import Opener
from tests.unit.log.reading import messages

SALT = Salt(bytes.fromhex("d00df00d"), 0x01234567)
ULID = 0x018BCFE56800_0123456789ABCD_000000
STAMP_US = 1_700_000_000_000_000

HEADER = bytes.fromhex(
    "504e5347"  # magic            "PNSG"
    "7fd1d5f2"  # crc              CRC32C of the 24 bytes that follow
    "0200"  # version          2
    "000000000000"  # reserved
    "2a00000000000000"  # base_offset      42
    "d00df00d"  # frame_magic
    "67452301"  # crc_seed         0x01234567
)
FRAME_START = bytes.fromhex(
    "d00df00d"  # magic            frame_magic of the segment
    "a8d13450"  # crc              CRC32C of all that follows, starting from crc_seed
    "01000004"  # version 1, no flags, no codec, normal priority
)
INDEX = bytes.fromhex(
    "504e5349"  # magic            "PNSI"
    "83bc6007"  # crc              CRC32C of all that follows
    "0200"  # version          2
    "04"  # priorities       bit 2: normal
    "00"  # reserved
    "01000000"  # entry_count      1
    "2a00000000000000"  # base_offset      42
    "2c00000000000000"  # next_offset      44
    "5801000000000000"  # segment_bytes    344
    "00401e18240a0600"  # last_timestamp
    "d00df00d"  # frame_magic
    "67452301"  # crc_seed
    "0000000000000000"  # reserved
    "2a00000000000000"  # offsets          42
    "00401e18240a0600"  # last timestamps
    "40000000"  # positions        64
    "04"  # priorities
)


def segment_bytes() -> bytes:
    batch = Batch.build(["paid", "sent"], timestamps_us=STAMP_US)
    frame = encode(batch, base_offset=42, ulid=ULID, salt=SALT)
    return encode_header(42, SALT) + b"".join(map(bytes, frame.buffers))


def test_a_segment_is_written_byte_for_byte_as_ever() -> None:
    data = segment_bytes()
    assert data[:64].hex() == (2 * HEADER).hex()
    assert data[64:76].hex() == FRAME_START.hex()
    assert len(data) == 344


def test_a_header_of_old_is_read() -> None:
    assert decode_header(2 * HEADER, "") == SegmentHeader(42, SALT, is_whole=True)
    for copy in (0, 1):
        damaged = bytearray(2 * HEADER + b"a frame")
        damaged[32 * copy + 20] ^= 1
        assert decode_header(damaged, "") == SegmentHeader(42, SALT, is_whole=False)


@pytest.mark.parametrize("indexed", [True, False])
def test_a_segment_of_old_is_read(open_log: Opener, folder: Path, indexed: bool) -> None:
    folder.mkdir()
    (folder / f"{42:020}.log").write_bytes(segment_bytes())
    if indexed:
        (folder / f"{42:020}.index").write_bytes(INDEX)
    (folder / "start").write_bytes(bytes.fromhex("2a0000000000000087296b51"))
    log = open_log()
    assert [(m.offset, m.value, m.timestamp_us) for m in messages(log)] == [
        (42, b"paid", STAMP_US),
        (43, b"sent", STAMP_US),
    ]
    assert log.damage == []


def test_an_index_is_written_byte_for_byte_as_ever() -> None:
    segment = Segment("", 42)
    segment.index = SegmentIndex(4096)
    batch = Batch.build(["paid", "sent"], timestamps_us=STAMP_US)
    segment.add(encode(batch, base_offset=42, ulid=ULID, salt=SALT))
    assert segment.index.encode(42, 44, 344, SALT).hex() == INDEX.hex()
    header, index = decode_index(INDEX)
    assert (header.salt, header.segment_bytes) == (SALT, 344)
    assert list(index.positions) == [64]
