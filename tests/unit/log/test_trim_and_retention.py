"""Forgetting: by hand, by age, by bytes and by number of segments."""

from pathlib import Path

import pytest

from penstock.clock import ManualClock
from penstock.config import Retention
from penstock.errors import OffsetOutOfRange
from penstock.log.commit import ManualCommitter
from penstock.log.local import LocalLog
from penstock.log.log_reader import LogReader
from penstock.record.batch import Batch
from tests.unit.log.conftest import Opener
from tests.unit.log.reading import offsets, values
from tests.unit.log.watched import WatchedFiles


def with_segments(log: LocalLog, count: int, clock: ManualClock | None = None) -> None:
    """Segments of ten messages each; with a clock, a minute apart."""
    for number in range(count):
        log.append(Batch.build([b"%03d" % (10 * number + row) for row in range(10)]))
        if number + 1 < count:
            log.roll()
            if clock:
                clock.advance(60)


def segment_files(folder: Path) -> list[str]:
    names = (path.name for path in folder.iterdir())
    return sorted(name for name in names if name.endswith((".log", ".index", ".tmp")))


def test_trimmed_offsets_are_gone_and_the_rest_stays(open_log: Opener) -> None:
    log = open_log()
    with_segments(log, 3)
    log.trim(13)
    assert (log.start, log.end) == (13, 30)
    assert offsets(log) == list(range(13, 30))
    assert [segment.base_offset for segment in log.segments] == [10, 20]
    for gone in (0, 12):
        with pytest.raises(OffsetOutOfRange, match="holds 13 up to 30"):
            log.read(gone)


def test_a_trim_survives_a_restart(open_log: Opener, folder: Path) -> None:
    log = open_log()
    with_segments(log, 3)
    log.trim(13)
    log.close()
    log = open_log()
    assert (log.start, log.end) == (13, 30)
    assert values(log, 13)[0] == b"013"
    assert "00000000000000000000.log" not in segment_files(folder)


def test_the_log_never_goes_backwards_or_beyond_its_end(open_log: Opener) -> None:
    log = open_log()
    with_segments(log, 2)
    log.trim(15)
    log.trim(3)
    log.trim(-1)
    assert log.start == 15
    log.trim(1000)
    assert (log.start, log.end) == (20, 20)
    assert log.append(Batch.build(["new"])).first_offset == 20
    assert values(log) == [b"new"]


def test_a_log_that_is_trimmed_to_its_end_leaves_no_file_behind(
    open_log: Opener, folder: Path, committer: ManualCommitter, clock: ManualClock
) -> None:
    log = open_log()
    with_segments(log, 3)
    log.trim(log.end)
    clock.advance(10)
    committer.run_due()
    assert segment_files(folder) == ["00000000000000000030.log"]
    log.close()
    assert segment_files(folder) == ["00000000000000000030.log"]
    log = open_log()
    assert (log.start, log.end) == (30, 30)
    assert log.append(Batch.build(["a"])).first_offset == 30


def test_what_is_trimmed_was_durable_first(open_log: Opener, files: WatchedFiles) -> None:
    log = open_log(fsync="never")
    with_segments(log, 1)
    assert log.durable_end == 0
    log.trim(5)
    assert log.durable_end == 10
    assert files.count("sync", ".log") == 1


def test_the_new_start_is_on_disk_before_a_file_goes(open_log: Opener, files: WatchedFiles) -> None:
    log = open_log()
    with_segments(log, 3)
    log.sync()
    files.forget()
    log.trim(20)
    kinds = [(what, name) for what, name in files.done if what != "create"]
    assert kinds[:4] == [
        ("append", "start.tmp"),
        ("sync", "start.tmp"),
        ("rename", "start"),
        ("sync_folder", "log"),
    ]
    assert {what for what, _ in kinds[4:]} == {"remove"}


def test_reading_on_after_a_trim_says_that_the_messages_are_gone(open_log: Opener) -> None:
    log = open_log()
    with_segments(log, 3)
    next_offset = log.read(0).next_offset
    log.trim(25)
    with pytest.raises(OffsetOutOfRange) as caught:
        log.read(next_offset)
    assert caught.value.start == 25


def test_a_reader_outside_sees_the_trim(open_log: Opener) -> None:
    log = open_log()
    with_segments(log, 3)
    log.sync()
    reader = LogReader.open(log.folder)
    assert (reader.start, reader.end) == (0, 30)
    log.trim(13)
    with pytest.raises(OffsetOutOfRange):
        reader.read(0)
    reader.refresh()
    assert offsets(reader) == list(range(13, 30))


# Retention: whole segments, oldest first, as long as a limit asks for it.


def test_what_is_young_enough_stays(open_log: Opener, clock: ManualClock) -> None:
    log = open_log()
    with_segments(log, 4, clock)
    now_us = clock.wall_ns() // 1000
    assert log.retain(Retention(age_ms=180_000), now_us) == 0
    assert log.retain(Retention(age_ms=179_999), now_us) == 1
    assert offsets(log)[0] == log.start == 10
    assert log.retain(Retention(age_ms=60_000), now_us) == 1
    assert log.start == 20


def test_the_newest_message_of_a_segment_decides_its_age(open_log: Opener) -> None:
    log = open_log()
    log.append(Batch.build(["old", "young"], timestamps_us=[0, 10_000_000]))
    log.roll()
    log.append(Batch.build(["old"], timestamps_us=0))
    log.roll()
    assert log.retain(Retention(age_ms=5_000), now_us=12_000_000) == 0
    assert log.retain(Retention(age_ms=5_000), now_us=15_000_001) == 2


def test_a_log_of_which_everything_is_old_becomes_empty(
    open_log: Opener, clock: ManualClock, folder: Path, committer: ManualCommitter
) -> None:
    log = open_log()
    with_segments(log, 3)
    clock.advance(3600)
    assert log.retain(Retention(age_ms=60_000), clock.wall_ns() // 1000) == 3
    assert (log.start, log.end) == (30, 30)
    committer.run_due()
    assert segment_files(folder) == ["00000000000000000030.log"]
    assert log.retain(Retention(age_ms=60_000), clock.wall_ns() // 1000) == 0


def test_the_oldest_segments_go_until_the_rest_is_small_enough(open_log: Opener) -> None:
    log = open_log()
    with_segments(log, 5)
    one = log.segments[0].size_bytes
    assert log.retain(Retention(age_ms=None, bytes_max=5 * one), 0) == 0
    assert log.retain(Retention(age_ms=None, bytes_max=3 * one), 0) == 2
    assert log.start == 20
    assert log.retain(Retention(age_ms=None, bytes_max=0), 0) == 2
    assert offsets(log) == list(range(40, 50))


def test_only_so_many_segments_stay(open_log: Opener) -> None:
    log = open_log()
    with_segments(log, 5)
    assert log.retain(Retention(age_ms=None, segments_max=4), 0) == 1
    assert log.retain(Retention(age_ms=None, segments_max=0), 0) == 3
    assert log.start == 40


@pytest.mark.parametrize("segments_min", [1, 2, 3, 4, 5, 6, 7, 100])
def test_the_newest_segments_stay_whatever_the_limits_say(
    open_log: Opener, segments_min: int
) -> None:
    log = open_log()
    with_segments(log, 4)
    limits = Retention(age_ms=None, bytes_max=0, segments_max=0, segments_min=segments_min)
    assert log.retain(limits, 0) == max(4 - segments_min, 0)
    assert len(log.segments) == min(segments_min, 4)


def test_without_limits_everything_stays(open_log: Opener) -> None:
    log = open_log()
    with_segments(log, 4)
    assert log.retain(Retention(age_ms=None), 1 << 60) == 0
    assert log.start == 0
