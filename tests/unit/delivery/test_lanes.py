"""Lanes find messages by asking the index; turns share out what each lane may send."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from penstock.delivery.lanes import WEIGHTS, DeficitRoundRobin, Lane, Lanes
from penstock.delivery.offsets import EMPTY, Offsets
from penstock.delivery.queue import GroupQueue, Policy
from penstock.delivery.state import GroupState
from tests.simulation.memory_source import MemorySource

HUGE = 100_000_000


def as_it_is(offsets: Offsets) -> Offsets:
    return offsets


class HugeSource:
    """A hundred million normal messages and one critical at the end, without storing any."""

    def __init__(self) -> None:
        self.asked = 0

    def scan(
        self, priority: int, start: int, limit: int, end: int
    ) -> tuple[range | NDArray[np.int64], int]:
        self.asked += 1
        if priority == 0:
            return range(max(start, HUGE), min(end, HUGE + 1)), end
        stop = min(start + limit, end, HUGE)
        return (range(start, stop), stop) if start < HUGE else (range(0), end)

    def priorities(self, start: int, end: int) -> int:
        self.asked += 1
        return (1 << 2 if start < HUGE else 0) | (1 if end > HUGE else 0)

    def arrived_us(self, offset: int) -> int:
        return 0

    def expired(self, offsets: Offsets, wall_us: int) -> Offsets:
        return EMPTY

    def keys(self, offsets: Offsets) -> NDArray[np.uint64]:
        raise AssertionError("nobody ordered keys")


def test_a_critical_message_behind_a_hundred_million_others_is_next() -> None:
    source, queue = HugeSource(), GroupQueue(GroupState(), Policy(), 0, 0)

    def receive(nonce: int, count: int, end: int) -> list[int]:
        decision = queue.receive(
            0,
            0,
            max_messages=count,
            visibility_ns=1,
            consumer="c",
            nonce=nonce,
            source=source,
            end=end,
        )
        queue.apply(decision.events)
        assert decision.leased is not None
        return [part.offsets.first for part in decision.leased.parts]

    assert receive(1, 1000, HUGE) == [0]
    assert receive(2, 1, HUGE + 1) == [HUGE]
    assert receive(3, 1, HUGE + 1) == [1000]
    assert source.asked < 10


# One lane.


def test_a_lane_reads_ahead_and_hands_out_in_order() -> None:
    source, lane = MemorySource(), Lane(2)
    source.publish(3)
    source.publish(2, priority=1)
    source.publish(3)

    lane.look(4, source, source.end, as_it_is)

    assert list(lane.peek(0, 4)) == [0, 1, 2, 5]
    assert list(lane.peek(2, 10)) == [2, 5, 6, 7]
    assert [lane.at(index) for index in range(8)] == [0, 1, 2, 5, 6, 7, 8, 8]
    assert lane.after(3) == 5
    assert lane.after(8) == 8


def test_a_lane_without_read_ahead_goes_on_at_the_cursor() -> None:
    lane = Lane(2)
    lane.take(Offsets.run(0, 5), 5)

    assert lane.at(0) == 5


@given(st.sets(st.integers(0, 60)), st.sets(st.integers(0, 60)), st.integers(0, 70))
def test_taking_and_skipping_leave_the_rest(ahead: set[int], taken: set[int], before: int) -> None:
    source, lane = MemorySource(), Lane(2)
    for offset in range(61):
        source.publish(1, priority=2 if offset in ahead else 3)
    lane.look(100, source, 61, as_it_is)

    lane.take(Offsets.of(taken & ahead), 0)
    left = sorted(ahead - taken)
    assert list(lane.peek(0, 100)) == left
    assert lane.after(before) == next((o for o in left if o >= before), max(61, before))

    lane.back_to(50)
    left = [offset for offset in left if offset < 50]
    assert list(lane.peek(0, 100)) == left

    lane.skip_to(before)
    assert list(lane.peek(0, 100)) == [offset for offset in left if offset >= before]


def test_lanes_without_traffic_are_asked_about_together() -> None:
    source, lanes = MemorySource(), Lanes((0, 0, 0, 0, 0))
    source.publish(10)

    assert lanes.look(source, 10, as_it_is) == 1 << 2
    assert source.scans == 1
    assert lanes.cursors == (10, 10, 0, 10, 10)


# DeficitRoundRobin.


class Backlog:
    """How much each lane has, and what was drawn of it in order."""

    def __init__(self, *counts: int) -> None:
        self.counts = list(counts)
        self.drawn: list[int] = []

    def draw(self, priority: int, want: int) -> int:
        got = min(want, self.counts[priority])
        self.counts[priority] -= got
        self.drawn += [priority] * got
        return got

    @property
    def ready(self) -> int:
        return sum(1 << priority for priority, count in enumerate(self.counts) if count)

    def share(self, turns: DeficitRoundRobin, count: int) -> list[int]:
        self.drawn = []
        turns.share(count, self.ready, self.draw)
        return [self.drawn.count(priority) for priority in range(5)]


def test_singles_are_shared_by_the_weights() -> None:
    turns, backlog = DeficitRoundRobin(), Backlog(*[10_000] * 5)
    for _ in range(1000):
        turns.share(1, backlog.ready, backlog.draw)

    assert [backlog.drawn.count(priority) for priority in range(5)] == [500, 250, 150, 70, 30]


def test_a_large_receive_is_shared_by_the_weights() -> None:
    assert Backlog(*[100_000] * 5).share(DeficitRoundRobin(), 10_000) == [
        5000,
        2500,
        1500,
        700,
        300,
    ]


def test_lanes_that_have_less_leave_their_share_to_the_others() -> None:
    assert Backlog(5, 0, 1000, 0, 1000).share(DeficitRoundRobin(), 100) == [5, 0, 80, 0, 15]
    assert Backlog(5, 0, 3, 0, 0).share(DeficitRoundRobin(), 100) == [5, 0, 3, 0, 0]
    assert Backlog(0, 0, 0, 0, 0).share(DeficitRoundRobin(), 100) == [0, 0, 0, 0, 0]


def test_nothing_starves_under_a_flood_of_critical_messages() -> None:
    turns, backlog = DeficitRoundRobin(), Backlog(10_000, 0, 0, 0, 100)
    for _ in range(530):
        turns.share(1, backlog.ready, backlog.draw)

    assert backlog.drawn.count(4) == 30
    assert max(len(run) for run in "".join(map(str, backlog.drawn)).split("4")) == 50


def test_an_idle_lane_keeps_one_round_and_no_more() -> None:
    turns, backlog = DeficitRoundRobin(), Backlog(0, 0, 100_000, 0, 0)
    backlog.share(turns, 50_000)
    backlog.counts[0] = 10_000

    turns.share(1, backlog.ready, backlog.draw)
    assert backlog.drawn[-1] == 0
    shared = backlog.share(turns, 650)
    assert 499 <= shared[0] <= 550


def test_lanes_that_ran_dry_in_a_large_receive_save_nothing_up() -> None:
    turns, backlog = DeficitRoundRobin(), Backlog(60, 0, 60, 0, 0)
    assert backlog.share(turns, 5000) == [60, 0, 60, 0, 0]
    backlog.counts = [10_000, 0, 10_000, 0, 0]

    assert backlog.share(turns, 650)[0] <= 550


@given(
    st.lists(st.integers(0, 300), min_size=5, max_size=5),
    st.lists(st.integers(1, 400), max_size=20),
)
def test_whatever_is_there_is_handed_out(counts: list[int], asks: list[int]) -> None:
    turns, backlog = DeficitRoundRobin(), Backlog(*counts)
    for ask in asks:
        there = sum(backlog.counts)
        assert sum(backlog.share(turns, ask)) == min(ask, there)


def test_the_weights_are_those_of_the_documentation() -> None:
    assert WEIGHTS == (50, 25, 15, 7, 3)


def test_lanes_that_go_back_find_what_is_there_now() -> None:
    source, lanes = MemorySource(), Lanes((0, 0, 0, 0, 0))
    source.publish(5)
    assert lanes.look(source, 5, as_it_is) == 1 << 2
    lanes.back_to(3)  # the log has lost its end; others came in its place
    source.end = 3
    source.publish(2, priority=0)
    assert lanes.look(source, 5, as_it_is) == 1 << 2 | 1


def test_lanes_that_skip_what_one_had_find_the_others() -> None:
    source, lanes = MemorySource(), Lanes((0, 0, 0, 0, 0))
    source.publish(3)
    assert lanes.look(source, 3, as_it_is) == 1 << 2
    lanes.skip_to(3)
    assert lanes.look(source, 3, as_it_is) == 0
    source.publish(1, priority=4)
    assert lanes.look(source, 4, as_it_is) == 1 << 4
