"""A disk that fills up: a clear error at once, reads go on, and so do writes when there is room."""

import errno
from pathlib import Path

import pytest

from penstock.errors import DiskFull
from penstock.record.batch import Batch
from tests.unit.log.conftest import Opener
from tests.unit.log.reading import values
from tests.unit.log.watched import WatchedFiles, failing

MEGABYTE = 1 << 20
NO_ROOM = OSError(errno.ENOSPC, "No space left on device")


def test_writes_are_refused_below_the_floor_and_go_on_above_it(
    open_log: Opener, files: WatchedFiles
) -> None:
    log = open_log(free_bytes_min=100 * MEGABYTE)
    files.free = 99 * MEGABYTE
    with pytest.raises(DiskFull, match=r"99 MB free .* stop below 100 MB\. They go on") as caught:
        log.append(Batch.build(["a"]))
    assert caught.value.retriable
    assert log.end == 0
    files.free = 200 * MEGABYTE
    assert log.append(Batch.build(["b"])).first_offset == 0
    assert values(log) == [b"b"]


def test_every_write_is_refused_until_there_is_room(open_log: Opener, files: WatchedFiles) -> None:
    log = open_log(free_bytes_min=100 * MEGABYTE)
    files.free = 200 * MEGABYTE
    log.append(Batch.build(["a"]))
    files.free = 0
    with pytest.raises(DiskFull):
        log.append(Batch.build([b"x" * MEGABYTE]))
    for _ in range(3):
        with pytest.raises(DiskFull):
            log.append(Batch.build(["b"]))
    assert values(log) == [b"a"]
    log.sync()
    assert log.durable_end == 1


def test_the_room_for_the_message_itself_counts(open_log: Opener, files: WatchedFiles) -> None:
    log = open_log(free_bytes_min=100 * MEGABYTE)
    files.free = 102 * MEGABYTE
    with pytest.raises(DiskFull):
        log.append(Batch.build([b"x" * 3 * MEGABYTE]))
    log.append(Batch.build([b"x" * MEGABYTE]))


@pytest.mark.parametrize(
    ("spare_bytes", "asked"),
    [(10_000 * MEGABYTE, 1), (1000 * MEGABYTE, 4), (100 * MEGABYTE, 32), (MEGABYTE // 2, 40)],
)
def test_the_less_room_there_is_the_sooner_the_disk_is_asked_again(
    open_log: Opener, files: WatchedFiles, spare_bytes: int, asked: int
) -> None:
    log = open_log(free_bytes_min=100 * MEGABYTE)
    files.free = 100 * MEGABYTE + spare_bytes
    for _ in range(40):
        log.append(Batch.build([b"x" * (MEGABYTE // 10)]))
    assert files.count("free_bytes") == pytest.approx(asked, rel=0.3)


def test_however_much_room_there_is_the_disk_is_asked_now_and_then(
    open_log: Opener, files: WatchedFiles
) -> None:
    log = open_log()
    files.free = 1 << 60
    for _ in range(33):
        log.append(Batch.build([b"x" * MEGABYTE]))
    assert files.count("free_bytes") == 3


def test_a_write_that_finds_no_room_is_as_if_it_never_was(
    open_log: Opener, files: WatchedFiles, folder: Path
) -> None:
    log = open_log()
    log.append(Batch.build(["a"]))
    size = log.size_bytes
    files.after = failing("append", NO_ROOM, ".log", times=2)
    for _ in range(2):
        with pytest.raises(DiskFull, match="no room"):
            log.append(Batch.build(["b"]))
        assert (log.end, log.size_bytes) == (1, size)
        assert (folder / "00000000000000000000.log").stat().st_size == size
    assert log.append(Batch.build(["c"])).first_offset == 1
    log.close()
    assert values(open_log()) == [b"a", b"c"]


def test_a_new_segment_that_finds_no_room_can_be_tried_again(
    open_log: Opener, files: WatchedFiles
) -> None:
    log = open_log(segment_bytes=4096)
    log.append(Batch.build([b"x" * 3000]))
    files.before = failing("create", NO_ROOM)
    with pytest.raises(DiskFull, match="no room"):
        log.append(Batch.build([b"y" * 3000]))
    assert log.end == 1
    log.append(Batch.build([b"z" * 3000]))
    log.close()
    assert [(v or b"")[:1] for v in values(open_log())] == [b"x", b"z"]


def test_a_trim_that_finds_no_room_changes_nothing(open_log: Opener, files: WatchedFiles) -> None:
    log = open_log()
    log.append(Batch.build(["a", "b"]))
    log.sync()
    files.before = failing("append", NO_ROOM, "start.tmp")
    with pytest.raises(DiskFull):
        log.trim(1)
    assert values(log) == [b"a", b"b"]
    log.trim(1)
    assert values(log) == [b"b"]


def test_a_log_that_was_trimmed_before_is_trimmed_without_any_room(
    open_log: Opener, files: WatchedFiles
) -> None:
    log = open_log()
    log.append(Batch.build(["a", "b", "c"]))
    log.trim(1)
    files.before = failing("append", NO_ROOM, "start.tmp")
    log.trim(2)
    assert values(log) == [b"c"]
    log.close()
    assert values(open_log()) == [b"c"]


def test_a_compaction_that_finds_no_room_changes_nothing(
    open_log: Opener, files: WatchedFiles, folder: Path
) -> None:
    log = open_log(free_bytes_min=MEGABYTE)
    for _ in range(3):
        log.append(Batch.build(["a"], expires_at_us=1))
        log.append(Batch.build(["b"]))
        log.roll()
    names = sorted(segment.name for segment in log.segments)
    files.free = 0
    with pytest.raises(DiskFull, match="compaction needs"):
        log.compact(now_us=5)
    files.free = None
    files.before = failing("append", NO_ROOM, ".tmp")
    with pytest.raises(DiskFull, match="nothing is lost"):
        log.compact(now_us=5)
    assert sorted(segment.name for segment in log.segments) == names
    assert [path.name for path in folder.iterdir() if path.suffix == ".tmp"] == []
    assert len(values(log)) == 6
    assert log.compact(now_us=5).messages_removed == 3
    assert values(log) == [b"b", b"b", b"b"]
