"""What a group's hand-outs and acks leave behind is counted, each once, in its minute."""

from __future__ import annotations

import sys
import threading

import pytest

from penstock.broker.group_latencies import LANES, MINUTE_US, GroupLatencies, Minute
from penstock.delivery.leases import Lease
from penstock.delivery.ledger import Part
from penstock.delivery.offsets import Offsets
from penstock.record.batch import Batch
from penstock.record.plain import Single

NORMAL = 2
START_US = 1000 * MINUTE_US
SECOND_NS = 1_000_000_000
NOW_NS = 7 * SECOND_NS


def lease(wall_us: int, count: int = 1) -> tuple[Lease, Offsets]:
    offsets = Offsets.run(0, count)
    return Lease(1, 0, "", wall_us, (Part(NORMAL, offsets),)), offsets


def counts(minutes: list[Minute]) -> dict[tuple[int, int], int]:
    """By minute (from the first on) and slot."""
    return {(m // MINUTE_US - 1000, slot): histogram.count for m, slot, histogram in minutes}


def test_a_minute_is_noted_when_something_is_first_counted_in_it() -> None:
    noted: list[int] = []
    group = GroupLatencies(noted.append)
    for wall_us in (START_US, START_US + 1, START_US + MINUTE_US - 1, START_US + MINUTE_US):
        group.handled(*lease(START_US), wall_us, NOW_NS)
    assert noted == [START_US + MINUTE_US, START_US + 2 * MINUTE_US]
    finished, until_us = group.take_finished(START_US + MINUTE_US)
    assert (counts(finished), until_us) == ({(0, LANES + NORMAL): 3}, START_US + 2 * MINUTE_US)
    assert counts(group.minutes()) == {(1, LANES + NORMAL): 1}
    finished, until_us = group.take_finished(START_US + 2 * MINUTE_US)
    assert (counts(finished), until_us) == ({(1, LANES + NORMAL): 1}, 0)
    group.handled(*lease(START_US), START_US + 2 * MINUTE_US, NOW_NS)
    assert noted[2:] == [START_US + 3 * MINUTE_US]


def test_after_the_clock_was_set_back_the_next_minute_is_noted_again() -> None:
    noted: list[int] = []
    group = GroupLatencies(noted.append)
    group.handled(*lease(START_US), START_US, NOW_NS)
    early_us = START_US - 60 * MINUTE_US
    group.handled(*lease(START_US), early_us, NOW_NS)
    assert len(noted) == 1  # whoever was told comes within a minute, whatever the clock says
    finished, until_us = group.take_finished(early_us)
    assert (counts(finished), until_us) == ({(0, LANES + NORMAL): 1}, early_us + MINUTE_US)
    assert counts(group.minutes()) == {(-60, LANES + NORMAL): 1}


def test_at_the_end_every_minute_is_over() -> None:
    group = GroupLatencies(lambda until_us: None)
    group.waited(NORMAL, Single(b"x", timestamp_us=START_US - 7), 1, START_US)
    finished, until_us = group.take_finished(None)
    assert (counts(finished), until_us) == ({(0, NORMAL): 1}, 0)
    assert finished[0].histogram.buckets == {7: 1}
    assert group.minutes() == []
    assert {slot: total.count for slot, total in group.totals().items()} == {NORMAL: 1}


def test_columns_and_single_times_come_together() -> None:
    group = GroupLatencies(lambda until_us: None)
    column = Batch.build([b"a", b"b"], timestamps_us=[START_US - 1, START_US + 5])
    group.waited(NORMAL, column, 2, START_US)
    group.waited(NORMAL, Single(b"x", timestamp_us=START_US - 3), 1, START_US)
    ((_, histogram),) = group.totals().items()
    assert histogram.buckets == {0: 1, 1: 1, 3: 1}
    assert histogram.sum_us == 4


def test_many_are_counted_before_anybody_asks() -> None:
    group = GroupLatencies(lambda until_us: None)
    for _ in range(10_000):
        group.handled(*lease(START_US, 3), START_US + 100, NOW_NS)
    assert len(group._samples) < 4000 * 40
    assert group.totals()[LANES + NORMAL].count == 30_000


def test_acks_a_second_are_those_of_the_last_ten() -> None:
    group = GroupLatencies(lambda until_us: None)
    group.waited(NORMAL, Single(b"x", timestamp_us=START_US), 1, START_US)  # is no ack
    group.handled(*lease(START_US, 30), START_US, NOW_NS)
    group.handled(*lease(START_US, 20), START_US, NOW_NS + SECOND_NS)
    assert group.acked_per_second(NOW_NS + SECOND_NS) == 5
    group.handled(*lease(START_US, 10), START_US, NOW_NS + 2 * SECOND_NS)
    assert group.acked_per_second(NOW_NS + 9 * SECOND_NS) == 6
    assert group.acked_per_second(NOW_NS + 10 * SECOND_NS) == 3
    assert group.acked_per_second(NOW_NS + 20 * SECOND_NS) == 0


def test_threads_lose_nothing_to_each_other() -> None:
    group = GroupLatencies(lambda until_us: None)
    stored: list[Minute] = []
    done = threading.Event()

    def work(number: int) -> None:
        mine = lease(START_US)
        for turn in range(5000):
            group.handled(*mine, START_US + turn // 1000 * MINUTE_US, NOW_NS)

    def look() -> None:
        while not done.is_set():
            group.totals()
            stored.extend(group.take_finished(START_US)[0])

    switched_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        looker = threading.Thread(target=look)
        for thread in (*workers, looker):
            thread.start()
        for thread in workers:
            thread.join()
        done.set()
        looker.join()
    finally:
        sys.setswitchinterval(switched_s)
    stored += group.take_finished(None)[0]
    assert sum(minute.histogram.count for minute in stored) == 20_000
    assert group.totals()[LANES + NORMAL].count == 20_000
    by_minute = [
        sum(h.count for m, _, h in stored if m == START_US + n * MINUTE_US) for n in range(5)
    ]
    assert by_minute == [4000] * 5


@pytest.mark.parametrize("far", [6, -6])
def test_recent_minutes_are_those_around_the_last_one(far: int) -> None:
    group = GroupLatencies(lambda until_us: None)
    group.handled(*lease(START_US), START_US, NOW_NS)
    later_us = START_US + far * MINUTE_US
    group.handled(*lease(START_US), later_us, NOW_NS)
    group.take_finished(None)
    group.handled(*lease(START_US), later_us, NOW_NS)
    group.take_finished(None)
    assert group.recent("handled", later_us).count == 2
    assert group.recent("waited", later_us).count == 0
    assert len(group._recent) == 2  # the one that is far from it was let go
