"""The index: a shortcut into a segment that can be lost at any time and made again."""

import struct
from pathlib import Path

import pytest
from crc32c import crc32c

from penstock.log.index import HEADER_BYTES, IndexDamaged, SegmentIndex, decode
from penstock.record.batch import Batch
from penstock.record.salt import Salt
from penstock.record.schema import Priority
from tests.segment_file import frames_of, salt_of
from tests.unit.log.conftest import Opener
from tests.unit.log.reading import offsets, read_all
from tests.unit.log.watched import WatchedFiles

FIRST = "00000000000000000000"


def three_segments(open_log: Opener) -> None:
    """Sixty messages, ten microseconds apart, twenty a segment; number 33 is critical."""
    log = open_log(index_interval_bytes=600)
    for number in range(60):
        priority = "critical" if number == 33 else "normal"
        log.append(Batch.build([b"x" * 80], timestamps_us=number * 10, priority=priority))
        if number in (19, 39):
            log.roll()
    log.close()


def check(open_log: Opener) -> None:
    log = open_log(index_interval_bytes=600)
    assert offsets(log) == list(range(60))
    assert [log.read(n).messages()[0].offset for n in range(60)] == list(range(60))
    assert [log.find(n * 10) for n in range(60)] == list(range(60))
    assert 20 <= log.next_block(0, 1 << Priority.CRITICAL) <= 33
    assert log.damage == []
    log.close()


def rewrite(path: Path, change: object) -> None:
    data = bytearray(path.read_bytes())
    change(data)  # type: ignore[operator]
    path.write_bytes(data)


def with_right_checksum(data: bytearray) -> None:
    data[4:8] = struct.pack("<I", crc32c(bytes(data[8:])))


def test_an_index_has_an_entry_for_every_block(open_log: Opener, folder: Path) -> None:
    three_segments(open_log)
    header, index = decode((folder / f"{FIRST}.index").read_bytes())
    segment = (folder / f"{FIRST}.log").read_bytes()
    starts = {frame.position: frame.header.base_offset for frame in frames_of(segment)}
    assert (header.base_offset, header.next_offset, header.segment_bytes) == (0, 20, len(segment))
    assert header.last_timestamp == 190
    assert len(index) > 3
    for position, offset in zip(index.positions, index.offsets, strict=True):
        assert starts[position] == offset
    gaps = [b - a for a, b in zip(index.positions, index.positions[1:], strict=False)]
    assert all(600 <= gap < 600 + 300 for gap in gaps)


def test_an_index_file_is_laid_out_as_documented(open_log: Opener, folder: Path) -> None:
    three_segments(open_log)
    data = (folder / "00000000000000000020.index").read_bytes()
    magic, crc, version, priorities, reserved, count, base, after, length, last, *salt = (
        struct.unpack_from("<4sIHBBIqqQq4sI", data)
    )
    assert (magic, version, reserved) == (b"PNSI", 2, 0)
    assert Salt(*salt) == salt_of((folder / "00000000000000000020.log").read_bytes())
    assert priorities == 1 << Priority.CRITICAL | 1 << Priority.NORMAL
    assert (base, after, last) == (20, 40, 390)
    assert length == (folder / "00000000000000000020.log").stat().st_size
    assert crc == crc32c(data[8:])
    assert HEADER_BYTES == 64
    assert len(data) == 64 + count * (8 + 8 + 4 + 1)
    first_offsets = struct.unpack_from(f"<{count}q", data, 64)
    last_timestamps = struct.unpack_from(f"<{count}q", data, 64 + 8 * count)
    positions = struct.unpack_from(f"<{count}I", data, 64 + 16 * count)
    masks = data[64 + 20 * count :]
    assert (first_offsets[0], positions[0]) == (20, 64)
    assert list(last_timestamps) == sorted(last_timestamps)
    assert last_timestamps[-1] == 390
    assert sum(mask & 1 for mask in masks) == 1


@pytest.mark.parametrize("which", [0, 20])
def test_a_missing_index_is_made_again(open_log: Opener, folder: Path, which: int) -> None:
    three_segments(open_log)
    path = folder / f"{which:020d}.index"
    good = path.read_bytes()
    path.unlink()
    check(open_log)
    assert path.read_bytes() == good


DAMAGES = {
    "empty": lambda data: data.clear(),
    "cut in the header": lambda data: data.__delitem__(slice(40, None)),
    "cut by an entry": lambda data: data.__delitem__(slice(-1, None)),
    "longer": lambda data: data.extend(b"\0" * 21),
    "zeros": lambda data: data.__setitem__(slice(None), bytes(len(data))),
    "a flipped bit in an entry": lambda data: data.__setitem__(70, data[70] ^ 1),
    "a flipped bit in the header": lambda data: data.__setitem__(9, data[9] ^ 1),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_index_is_made_again(open_log: Opener, folder: Path, damage: str) -> None:
    three_segments(open_log)
    path = folder / f"{FIRST}.index"
    good = path.read_bytes()
    rewrite(path, DAMAGES[damage])
    with pytest.raises(IndexDamaged):
        decode(path.read_bytes())
    check(open_log)
    assert path.read_bytes() == good


def test_every_flipped_bit_of_an_index_is_noticed(open_log: Opener, folder: Path) -> None:
    three_segments(open_log)
    good = (folder / f"{FIRST}.index").read_bytes()
    decode(good)
    for bit in range(8 * len(good)):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        with pytest.raises(IndexDamaged):
            decode(bytes(bad))


def test_an_index_of_another_segment_or_another_length_is_made_again(
    open_log: Opener, folder: Path
) -> None:
    three_segments(open_log)
    first, second = folder / f"{FIRST}.index", folder / "00000000000000000020.index"
    good = first.read_bytes()
    first.write_bytes(second.read_bytes())
    check(open_log)
    assert first.read_bytes() == good

    def shorter(data: bytearray) -> None:
        struct.pack_into("<Q", data, 32, 100)
        with_right_checksum(data)

    rewrite(first, shorter)
    check(open_log)
    assert first.read_bytes() == good


def test_an_index_that_is_lost_while_the_log_is_open_is_made_again_in_memory(
    open_log: Opener, folder: Path
) -> None:
    three_segments(open_log)
    log = open_log(index_interval_bytes=600)
    (folder / f"{FIRST}.index").write_bytes(b"rubbish")
    (folder / "00000000000000000020.index").unlink()
    assert [log.read(n).messages()[0].offset for n in range(60)] == list(range(60))
    assert [log.find(n * 10) for n in range(60)] == list(range(60))


def test_an_index_without_its_segment_is_swept_away(open_log: Opener, folder: Path) -> None:
    three_segments(open_log)
    stray = folder / "00000000000000000777.index"
    stray.write_bytes((folder / f"{FIRST}.index").read_bytes())
    check(open_log)
    assert not stray.exists()


def test_opening_reads_only_the_last_segment(open_log: Opener, files: WatchedFiles) -> None:
    three_segments(open_log)
    files.forget()
    log = open_log(index_interval_bytes=600)
    assert {name for what, name in files.done if what == "map"} == {"00000000000000000040.log"}
    assert log.end == 60


def test_an_index_is_loaded_once_however_often_it_is_used(
    open_log: Opener, files: WatchedFiles
) -> None:
    three_segments(open_log)
    log = open_log(index_interval_bytes=600)
    files.forget()
    for _ in range(5):
        read_all(log)
    assert files.count("read", ".index") == 2


def test_an_empty_index_has_no_block_for_anything() -> None:
    index = SegmentIndex(4096)
    assert len(index) == 0
    assert index.block_of(7) == 0
    assert index.block_of_time(7) == 0
    assert index.block_of_priorities(0, 0b11111) == 0
    header, again = decode(index.encode(5, 5, 0, Salt.random()))
    assert (header.base_offset, header.next_offset, len(again)) == (5, 5, 0)
