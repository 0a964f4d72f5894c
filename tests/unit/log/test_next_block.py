"""Priorities in the index: a lane finds its next message without reading what lies between."""

from penstock.log.log_reader import LogReader
from penstock.log.reader import SegmentReader
from penstock.record.batch import Batch
from penstock.record.schema import ALL_PRIORITIES, Priority
from tests.unit.log.conftest import Opener
from tests.unit.log.reading import messages
from tests.unit.log.watched import WatchedFiles

CRITICAL, HIGH, NORMAL, LOW, BACKGROUND = (1 << priority for priority in Priority)


def blocks(log: SegmentReader, offset: int, mask: int) -> list[int]:
    """Every block from an offset on that may hold one of these priorities."""
    found = []
    while (offset := log.next_block(offset, mask)) < log.end:
        found.append(offset)
        offset += 1
    return found


def test_an_empty_log_has_no_blocks(open_log: Opener) -> None:
    assert open_log().next_block(0, ALL_PRIORITIES) == 0


def test_a_critical_message_is_found_behind_a_long_backlog_by_indexes_alone(
    open_log: Opener, files: WatchedFiles
) -> None:
    log = open_log(segment_bytes=16 << 10)
    for number in range(3000):
        urgent = number == 2900
        log.append(Batch.build([b"x" * 100], priority="critical" if urgent else "normal"))
    assert len(log.segments) > 30
    files.forget()
    found = log.next_block(0, CRITICAL)
    assert files.count("map") == 0
    assert files.count("read", ".log") == 0
    assert files.count("read", ".index") <= 1
    assert found <= 2900
    near = log.read(found, 4096).messages()
    assert 2900 in [m.offset for m in near if m.priority == Priority.CRITICAL]
    assert log.next_block(2960, CRITICAL) == log.end


def test_a_priority_that_nobody_sent_is_passed_over_at_once(
    open_log: Opener, files: WatchedFiles
) -> None:
    log = open_log(segment_bytes=4096)
    for _ in range(200):
        log.append(Batch.build([b"x" * 100]))
    files.forget()
    assert log.next_block(0, HIGH | LOW | BACKGROUND) == log.end
    assert files.done == []


def test_no_block_with_a_wanted_message_is_passed_over(open_log: Opener) -> None:
    log = open_log(segment_bytes=8192, index_interval_bytes=700)
    for number in range(400):
        priorities = [(number * 7 + row) % 23 % 5 for row in range(number % 3 + 1)]
        log.append(Batch.build([b"x" * 40] * len(priorities), priority=priorities))
    every = messages(log)
    for mask in (CRITICAL, HIGH | LOW, BACKGROUND, ALL_PRIORITIES):
        for start in range(0, log.end, 13):
            first = next((m.offset for m in every[start:] if mask >> m.priority & 1), log.end)
            block = log.next_block(start, mask)
            assert start <= block <= first
            if start < block < log.end:
                assert any(mask >> m.priority & 1 for m in log.read(block, 900).messages())


def test_the_search_begins_where_the_log_does(open_log: Opener) -> None:
    log = open_log()
    log.append(Batch.build(["a", "b"], priority=["critical", "normal"]))
    log.roll()
    log.append(Batch.build(["c"]))
    log.trim(2)
    assert log.next_block(0, CRITICAL) == 3
    assert log.next_block(0, NORMAL) == 2


def test_a_block_before_the_offset_begins_at_the_offset(open_log: Opener) -> None:
    log = open_log()
    log.append(Batch.build(["a"], priority="critical"))
    log.append(Batch.build(["b"]))
    assert log.next_block(1, CRITICAL) == 1  # the same block: it may hold one
    log.roll()
    log.append(Batch.build(["c"]))
    assert log.next_block(2, CRITICAL) == 3


def test_reopening_and_compacting_keep_the_priorities(open_log: Opener) -> None:
    log = open_log(segment_bytes=4096)
    for number in range(200):
        log.append(Batch.build([b"x" * 100], priority="low" if number in (3, 150) else "normal"))
    log.compact(now_us=0)
    assert [log.next_block(0, LOW) <= 3, log.next_block(4, LOW) <= 150] == [True, True]
    log.close()
    log = open_log(segment_bytes=4096)
    assert [log.next_block(0, LOW) <= 3, log.next_block(4, LOW) <= 150] == [True, True]
    assert log.next_block(151, LOW) >= 151
    assert log.next_block(0, CRITICAL) == log.end


def test_a_reader_outside_finds_the_same_blocks(open_log: Opener) -> None:
    log = open_log(segment_bytes=4096)
    for number in range(200):
        log.append(Batch.build([b"x" * 100], priority="high" if number % 40 == 7 else "normal"))
    log.sync()
    reader = LogReader.open(log.folder)
    assert blocks(reader, 0, HIGH) == blocks(log, 0, HIGH)
