"""Segments: when a log starts a new file, what the files are called, and walking through one."""

from pathlib import Path

import pytest

from penstock.clock import ManualClock
from penstock.log.segment import (
    Broken,
    ValidFrame,
    is_index_name,
    parse_segment_name,
    segment_name,
    walk,
)
from penstock.log.segment_header import SEGMENT_HEADER_BYTES
from penstock.record.batch import Batch
from tests.segment_file import salt_of
from tests.unit.log.conftest import Opener
from tests.unit.log.reading import offsets, values


def names(folder: Path, suffix: str = ".log") -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.endswith(suffix))


def test_a_segment_is_named_by_its_first_offset_and_generation() -> None:
    assert segment_name(0) == "00000000000000000000.log"
    assert segment_name(12345, 3) == "00000000000000012345.g3.log"
    assert parse_segment_name("00000000000000012345.g3.log") == (12345, 3)
    assert parse_segment_name(segment_name((1 << 63) - 1)) == ((1 << 63) - 1, 0)
    assert is_index_name("00000000000000000000.index")
    assert is_index_name("00000000000000000000.g12.index")


@pytest.mark.parametrize(
    "name",
    ["LOCK", "durable", "start", "1.log", "00000000000000000000.log.tmp", "x" * 20 + ".log"],
)
def test_other_files_are_no_segments(name: str) -> None:
    assert parse_segment_name(name) is None
    assert not is_index_name(name)


def test_a_segment_is_sealed_before_it_would_grow_too_long(open_log: Opener, folder: Path) -> None:
    log = open_log(segment_bytes=4096)
    for _ in range(50):
        log.append(Batch.build([b"x" * 500]))
    assert len(log.segments) > 5
    for segment in log.segments[:-1]:
        assert 4096 - 1000 < segment.size_bytes <= 4096
        assert (folder / segment.name).stat().st_size == segment.size_bytes
    assert names(folder) == [segment_name(s.base_offset) for s in log.segments]
    bases = [segment.base_offset for segment in log.segments]
    assert bases[1:] == [segment.next_offset for segment in log.segments[:-1]]
    assert log.size_bytes == sum((folder / name).stat().st_size for name in names(folder))


def test_a_segment_is_sealed_when_its_first_message_is_old(
    open_log: Opener, clock: ManualClock
) -> None:
    log = open_log(segment_age_ms=60_000)
    log.append(Batch.build(["a"]))
    clock.advance(59.9)
    log.append(Batch.build(["b"]))
    assert len(log.segments) == 1
    clock.advance(0.1)
    log.append(Batch.build(["c"]))
    assert [segment.base_offset for segment in log.segments] == [0, 2]
    clock.advance(59.9)
    log.append(Batch.build(["d"]))
    assert len(log.segments) == 2


def test_the_age_of_a_segment_survives_a_restart(open_log: Opener, clock: ManualClock) -> None:
    log = open_log(segment_age_ms=60_000)
    log.append(Batch.build(["a"]))
    clock.advance(40)
    log.close()
    log = open_log(segment_age_ms=60_000)
    log.append(Batch.build(["b"]))
    assert len(log.segments) == 1
    clock.advance(20)
    log.append(Batch.build(["c"]))
    assert [segment.base_offset for segment in log.segments] == [0, 2]


def test_an_empty_segment_does_not_grow_old(open_log: Opener, clock: ManualClock) -> None:
    log = open_log(segment_age_ms=60_000)
    clock.advance(3600)
    log.append(Batch.build(["a"]))
    assert len(log.segments) == 1
    clock.advance(30)
    log.append(Batch.build(["b"]))
    assert len(log.segments) == 1


def test_a_wall_clock_that_is_set_back_does_not_roll_or_lose_anything(
    open_log: Opener, clock: ManualClock
) -> None:
    log = open_log(segment_age_ms=60_000)
    log.append(Batch.build(["a"]))
    clock.jump_wall(-3600)
    log.append(Batch.build(["b"]))
    assert len(log.segments) == 1
    assert values(log) == [b"a", b"b"]


def test_rolling_by_hand_seals_what_there_is_and_never_an_empty_segment(open_log: Opener) -> None:
    log = open_log()
    log.roll()
    assert len(log.segments) == 1
    log.append(Batch.build(["a"]))
    log.roll()
    log.roll()
    assert [segment.base_offset for segment in log.segments] == [0, 1]
    log.append(Batch.build(["b"]))
    assert values(log) == [b"a", b"b"]


def test_a_sealed_segment_gets_an_index_once_it_is_synced(open_log: Opener, folder: Path) -> None:
    log = open_log(fsync="never")
    log.append(Batch.build(["a"]))
    log.roll()
    assert names(folder, ".index") == []
    log.sync()
    assert names(folder, ".index") == ["00000000000000000000.index"]
    assert names(folder, ".tmp") == []


def test_many_rolls_without_a_commit_do_not_pile_up_open_files(
    open_log: Opener, folder: Path
) -> None:
    log = open_log(fsync="never", segment_bytes=4096)
    for _ in range(60):
        log.append(Batch.build([b"x" * 3000]))
    assert len(log.segments) == 60
    assert len(names(folder, ".index")) >= 50
    assert log.durable_end >= 50
    assert offsets(log) == list(range(60))


# Walking through the bytes of a segment.


def segment_of(open_log: Opener, folder: Path, *batches: list[str]) -> bytearray:
    log = open_log()
    for batch in batches:
        log.append(Batch.build(batch))
    log.close()
    return bytearray((folder / segment_name(0)).read_bytes())


def walked(data: bytearray | bytes) -> list[ValidFrame | Broken]:
    return list(walk(memoryview(data), salt_of(data), 0))


def test_a_walk_meets_every_frame_in_order(open_log: Opener, folder: Path) -> None:
    data = segment_of(open_log, folder, ["a", "b"], ["c"], ["d"])
    items = walked(data)
    assert [type(item) for item in items] == [ValidFrame] * 3
    assert [item.header.base_offset for item in items if isinstance(item, ValidFrame)] == [0, 2, 3]
    ends = [
        item.position + item.header.frame_bytes for item in items if isinstance(item, ValidFrame)
    ]
    assert ends[-1] == len(data)


@pytest.mark.parametrize("where", ["magic", "length", "body"])
def test_a_walk_goes_on_after_a_damaged_frame(open_log: Opener, folder: Path, where: str) -> None:
    data = segment_of(open_log, folder, ["a", "b"], ["c"], ["d"])
    second = walked(data)[1]
    at = {"magic": 0, "length": 18, "body": 120}[where]
    data[second.position + at] ^= 0xFF
    first, broken, third = walked(data)
    assert isinstance(broken, Broken)
    assert isinstance(third, ValidFrame)
    assert (broken.position, broken.next_position) == (second.position, third.position)
    assert (broken.first_offset, broken.next_offset) == (2, 3)
    assert isinstance(first, ValidFrame)


def test_a_walk_tells_of_a_frame_that_is_not_there(open_log: Opener, folder: Path) -> None:
    data = segment_of(open_log, folder, ["a", "b"], ["c"], ["d"])
    _, second, third = walked(data)
    del data[second.position : third.position]
    _, broken, found = walked(data)
    assert isinstance(broken, Broken)
    assert (broken.first_offset, broken.next_offset, broken.reason) == (2, 3, "frames are missing")
    assert isinstance(found, ValidFrame)


def test_a_frame_that_comes_twice_is_broken_the_second_time(open_log: Opener, folder: Path) -> None:
    data = segment_of(open_log, folder, ["a"], ["b"])
    length = walked(data)[1].position
    items = walked(data + data[length:])
    assert [type(item) for item in items] == [ValidFrame, ValidFrame, Broken]


@pytest.mark.parametrize("tail", [b"\x00" * 7, b"\x00" * 500, b"PNSK", b"PNSK" * 100, b"\xff" * 99])
def test_what_is_no_frame_at_the_end_has_no_known_end(
    open_log: Opener, folder: Path, tail: bytes
) -> None:
    data = segment_of(open_log, folder, ["a"], ["b"])
    broken = walked(data + tail)[-1]
    assert isinstance(broken, Broken)
    assert (broken.position, broken.first_offset, broken.next_offset) == (len(data), 2, None)
    assert walked(data[:SEGMENT_HEADER_BYTES]) == []
