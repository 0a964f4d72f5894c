"""Waiting for news: a reader at the end sleeps until somebody appends."""

import threading
from concurrent.futures import ThreadPoolExecutor

from penstock.log.log_reader import LogReader
from penstock.record.batch import Batch
from tests.unit.log.conftest import Opener


def test_what_is_there_needs_no_waiting(open_log: Opener) -> None:
    log = open_log()
    log.append(Batch.build(["a", "b"]))
    assert log.wait(0, 0)
    assert log.wait(1, 60)
    assert not log.wait(2, 0)
    assert not log.wait(2, 0.01)


def test_every_waiting_reader_is_woken_by_an_append(open_log: Opener) -> None:
    log = open_log()
    with ThreadPoolExecutor(8) as threads:
        waiting = [threads.submit(log.wait, offset, 60) for offset in [0, 0, 0, 1, 1, 1]]
        log.append(Batch.build(["a"]))
        assert [done.result(60) for done in waiting[:3]] == [True] * 3
        log.append(Batch.build(["b"]))
        assert [done.result(60) for done in waiting[3:]] == [True] * 3


def test_a_reader_that_follows_the_end_misses_nothing(open_log: Opener) -> None:
    log = open_log()
    seen: list[int] = []

    def follow() -> None:
        offset = 0
        while offset < 300:
            assert log.wait(offset, 60)
            batches = log.read(offset)
            seen.extend(m.offset for m in batches.messages())
            offset = batches.next_offset

    follower = threading.Thread(target=follow)
    follower.start()
    for number in range(300):
        log.append(Batch.build([b"%d" % number]))
    follower.join(60)
    assert seen == list(range(300))


def test_closing_the_log_ends_the_waiting(open_log: Opener) -> None:
    log = open_log()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(log.wait, 0, 60)
        log.close()
        assert waiting.result(60) is False
    assert not log.wait(0, 60)


def test_a_reader_outside_waits_for_what_is_durable(open_log: Opener) -> None:
    log = open_log(fsync="never")
    log.append(Batch.build(["a"]))
    reader = LogReader.open(log.folder)
    assert not reader.wait(0, 0.03)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(reader.wait, 0, 60)
        log.sync()
        assert waiting.result(60) is True
    assert reader.end == 1
