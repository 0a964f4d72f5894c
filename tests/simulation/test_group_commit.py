"""When fsyncs come: many threads share one, and what it confirms is on the platter."""

from __future__ import annotations

import threading
from random import Random

from penstock.clock import ManualClock
from penstock.log.commit import BackgroundCommitter, ManualCommitter
from penstock.log.local import LocalLog
from penstock.record.batch import Batch
from tests.simulation.disk import SimulatedFiles
from tests.simulation.life import FOLDER, small_segments
from tests.simulation.model import read_all

THREADS = 8
APPENDS = 15
SYNC_S_MAX = 30


def test_confirmed_append_survives_a_power_cut_at_that_moment() -> None:
    files = SimulatedFiles()
    gate = threading.Condition()
    alive, appending = THREADS, 0

    def wait_for_all(path: str) -> None:
        """A sync takes until every thread is at it, so that appends meet it on its way."""
        with gate:
            assert gate.wait_for(lambda: appending == alive, SYNC_S_MAX)

    def change(threads: int, appends: int) -> None:
        nonlocal alive, appending
        with gate:
            alive, appending = alive + threads, appending + appends
            gate.notify_all()

    config = small_segments("always", segment_bytes=16384)
    log = LocalLog.open(FOLDER, config, files=files, committer=BackgroundCommitter())
    files.during_sync = wait_for_all
    left: list[tuple[int, bytes, SimulatedFiles]] = []

    def produce(thread: int) -> None:
        rng = Random(thread)
        for number in range(APPENDS):
            value = b"%d.%d" % (thread, number)
            change(0, 1)
            appended = log.append(Batch.build([value]))
            appended.durable.result(timeout=SYNC_S_MAX)
            change(0, -1)
            assert log.durable_end >= appended.next_offset
            left.append((appended.first_offset, value, files.crash(rng)))
        change(-1, 0)

    threads = [threading.Thread(target=produce, args=(thread,)) for thread in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.close()

    assert len(left) == THREADS * APPENDS
    for offset, value, after in left:
        with LocalLog.open(FOLDER, config, files=after) as survivor:
            assert survivor.damage == []
            assert read_all(survivor)[offset].value == value
    assert files.counts["sync"] < len(left), "no fsync was shared"


def test_policy_that_becomes_stricter_does_not_wait_for_the_old_interval() -> None:
    clock = ManualClock()
    committer = ManualCommitter(clock)
    log = LocalLog.open(
        FOLDER,
        small_segments("interval"),
        files=SimulatedFiles(),
        clock=clock,
        committer=committer,
    )
    log.append(Batch.build([b"in a second"]))
    log.reconfigure(small_segments("always"))
    appended = log.append(Batch.build([b"now"]))

    committer.run_due()

    assert appended.durable.done()
    assert log.durable_end == log.end
