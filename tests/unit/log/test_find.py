"""Finding by time: the first message at or after a moment, wherever it lies."""

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.clock import ManualClock
from penstock.config import LogConfig
from penstock.log.commit import ManualCommitter
from penstock.log.local import LocalLog
from penstock.log.log_reader import LogReader
from penstock.record.batch import Batch
from tests.unit.log.conftest import Opener
from tests.unit.log.reading import messages
from tests.unit.log.watched import WatchedFiles
from tests.unit.record.strategies import QUICK


def stamped(*times_us: int) -> Batch:
    return Batch.build([b"x" * 50] * len(times_us), timestamps_us=list(times_us))


def test_an_empty_log_has_nothing_at_any_time(open_log: Opener) -> None:
    assert open_log().find(0) == 0


def test_the_first_message_at_or_after_a_time_is_found_in_any_segment(open_log: Opener) -> None:
    log = open_log(segment_bytes=4096, index_interval_bytes=500)
    for number in range(100):
        log.append(stamped(number * 10, number * 10 + 5))
    assert len(log.segments) > 3
    for number in range(100):
        assert log.find(number * 10) == 2 * number
        assert log.find(number * 10 + 1) == log.find(number * 10 + 5) == 2 * number + 1
    assert log.find(-(1 << 63)) == 0
    assert log.find(996) == log.find(1 << 60) == log.end == 200


def test_times_out_of_order_are_found_by_the_lowest_offset(open_log: Opener) -> None:
    log = open_log()
    log.append(stamped(100, 50, 300))
    log.append(stamped(10, 200))
    log.roll()
    log.append(stamped(5, 400, 20))
    assert log.find(0) == 0
    assert log.find(101) == 2
    assert log.find(301) == log.find(400) == 6
    assert log.find(401) == 8


def test_what_was_trimmed_is_not_found(open_log: Opener) -> None:
    log = open_log()
    log.append(stamped(10, 20, 30))
    log.trim(2)
    assert log.find(0) == log.find(30) == 2
    log.roll()
    log.append(stamped(40))
    log.trim(3)
    assert log.find(0) == 3


def test_a_find_in_a_long_log_reads_one_block_of_one_segment(
    open_log: Opener, files: WatchedFiles
) -> None:
    log = open_log(segment_bytes=4096)
    for number in range(500):
        log.append(stamped(number * 10))
    assert len(log.segments) > 20
    files.forget()
    assert log.find(2345) == 235
    assert files.count("map", ".log") <= 2


counter = itertools.count()


@QUICK
@given(
    st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=6), max_size=25),
    st.integers(0, 20),
    st.booleans(),
)
def test_find_agrees_with_a_search_through_all_messages(
    tmp_path_factory: pytest.TempPathFactory,
    batches: list[list[int]],
    trimmed: int,
    compacted: bool,
) -> None:
    folder = tmp_path_factory.mktemp(f"find{next(counter)}")
    clock = ManualClock()
    config = LogConfig(segment_bytes=4096, index_interval_bytes=400, free_bytes_min=0)
    committer = ManualCommitter(clock)
    with LocalLog.open(
        folder, config, clock=clock, committer=committer, files=WatchedFiles()
    ) as log:
        for batch in batches:
            expires = [stamp if stamp % 3 else None for stamp in batch]
            values = [b"x" * 300] * len(batch)
            log.append(Batch.build(values, timestamps_us=batch, expires_at_us=expires))
        log.trim(trimmed)
        if compacted:
            log.compact(now_us=40)
        left = messages(log)
        reader = LogReader.open(folder)
        log.sync()
        reader.refresh()
        for time_us in range(62):
            expected = next((m.offset for m in left if m.timestamp_us >= time_us), log.end)
            assert log.find(time_us) == expected
            assert reader.find(time_us) == expected


def test_a_reader_outside_finds_the_same(open_log: Opener, folder: Path) -> None:
    log = open_log(segment_bytes=4096)
    for number in range(100):
        log.append(stamped(number * 10))
    log.sync()
    reader = LogReader.open(folder)
    assert [reader.find(time_us) for time_us in range(0, 1010, 7)] == [
        log.find(time_us) for time_us in range(0, 1010, 7)
    ]
