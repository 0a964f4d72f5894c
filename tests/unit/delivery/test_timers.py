"""The wheel against a plain sorted list: at or after, never before, each once."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.delivery.timers import NEVER, STAGED_MAX, TimerWheel

MS = 1_000_000
DAY = 86_400_000 * MS


def test_an_empty_wheel_has_nothing_to_wait_for() -> None:
    wheel = TimerWheel()

    assert wheel.next_deadline() == NEVER
    assert wheel.pop_due(10**18)[0].size == 0
    assert len(wheel) == 0


def test_a_deadline_is_due_at_its_nanosecond_and_not_before() -> None:
    wheel = TimerWheel()
    wheel.add(5 * MS + 300, 42)

    assert wheel.next_deadline() == 5 * MS + 300
    assert wheel.pop_due(5 * MS + 299)[1].tolist() == []
    assert wheel.pop_due(5 * MS + 300)[1].tolist() == [42]
    assert wheel.pop_due(10**18)[1].tolist() == []


def test_what_was_due_long_ago_is_popped_at_once() -> None:
    wheel = TimerWheel()
    wheel.add(90 * DAY, 1)
    wheel.pop_due(90 * DAY)
    wheel.add(3, 2)

    assert wheel.pop_due(90 * DAY)[1].tolist() == [2]


def test_ninety_days_are_no_further_than_a_minute() -> None:
    wheel = TimerWheel()
    deadlines = np.arange(90, dtype=np.int64) * DAY + 17
    wheel.add_many(deadlines, np.arange(90))

    for day in range(90):
        assert wheel.next_deadline() == day * DAY + 17
        assert wheel.pop_due(day * DAY + 16)[1].tolist() == []
        assert wheel.pop_due(day * DAY + 17)[1].tolist() == [day]


def test_pops_come_by_deadline_whatever_bucket_they_were_in() -> None:
    wheel = TimerWheel()
    deadlines = np.random.default_rng(5).integers(0, 3 * DAY, 5000)
    wheel.add_many(deadlines, np.arange(5000))

    popped, payloads = wheel.pop_due(3 * DAY)

    assert popped.tolist() == sorted(deadlines.tolist())
    assert deadlines[payloads].tolist() == popped.tolist()


def test_a_cancelled_entry_is_never_popped() -> None:
    wheel = TimerWheel()
    wheel.add_many(np.arange(10) * MS, np.arange(10))
    wheel.cancel([0, 3, 9])

    assert len(wheel) == 7
    assert wheel.pop_due(DAY)[1].tolist() == [1, 2, 4, 5, 6, 7, 8]
    assert len(wheel) == 0
    assert wheel.next_deadline() == NEVER


def test_many_cancelled_entries_give_their_memory_back() -> None:
    wheel = TimerWheel()
    wheel.add_many(np.arange(10_000) * DAY // 1000, np.arange(10_000))
    wheel.cancel(range(9000))

    assert len(wheel) == 1000
    assert wheel.count <= 5000
    assert wheel.next_deadline() <= 9000 * DAY // 1000
    assert wheel.pop_due(11 * DAY)[1].tolist() == list(range(9000, 10_000))


def test_a_clock_that_was_set_back_makes_nothing_early() -> None:
    wheel = TimerWheel()
    wheel.add(DAY, 0)
    wheel.pop_due(DAY)  # then the clock is set back by an hour

    hour = 3_600_000 * MS
    deadlines = DAY - hour + np.arange(20_000) * 100 * MS
    wheel.add_many(deadlines, np.arange(20_000))

    for now in range(DAY - hour, DAY, hour // 7):
        popped, _ = wheel.pop_due(now)
        assert popped.size == 0 or popped.max() <= now
        assert wheel.next_deadline() > now
    assert wheel.pop_due(DAY)[0].size + len(wheel) < 20_000


def test_one_deadline_may_serve_many_payloads() -> None:
    wheel = TimerWheel()
    wheel.add_many(7 * MS, np.arange(3))
    wheel.add_many(7 * MS, np.arange(0))

    assert wheel.pop_due(7 * MS)[1].tolist() == [0, 1, 2]


@pytest.mark.parametrize("pending", [0, 1, STAGED_MAX // 2])
def test_an_interrupt_in_the_middle_of_an_add_leaves_a_whole_wheel(pending: int) -> None:
    for steps in range(1000):
        wheel = TimerWheel()
        for payload in range(pending):
            wheel.add(5 * MS, payload)
        interrupted = interrupt_after(steps, wheel.add, 3 * MS, -1)
        for payload in range(pending, pending + 2):
            wheel.add(4 * MS, payload)

        popped = wheel.pop_due(DAY)[1].tolist()

        assert sorted(set(popped) - {-1}) == list(range(pending + 2))
        assert len(popped) == len(set(popped))
        assert len(wheel) == 0
        if not interrupted:
            assert -1 in popped
            return
    pytest.fail("the add never came to its end")


def interrupt_after(steps: int, call: Any, *args: Any) -> bool:
    """Ctrl-C after so many instructions of a call, if it takes that many."""
    left = steps

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if frame.f_code is not call.__code__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left < 0:
                raise KeyboardInterrupt
        return trace

    former = sys.gettrace()
    sys.settrace(trace)
    try:
        call(*args)
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(former)
    return False


@pytest.mark.parametrize("tick_size", [1, 1000, 10 * MS])
def test_the_size_of_a_tick_changes_nothing_that_can_be_seen(tick_size: int) -> None:
    wheel = TimerWheel(tick_size)
    wheel.add_many([5, 1_000_001, 2 * DAY], [1, 2, 3])

    assert wheel.pop_due(4)[1].tolist() == []
    assert wheel.pop_due(5)[1].tolist() == [1]
    assert wheel.pop_due(1_000_000)[1].tolist() == []
    assert wheel.pop_due(2 * DAY)[1].tolist() == [2, 3]


@given(st.lists(st.integers(0, 2**62), max_size=50), st.lists(st.integers(0, 2**62), max_size=8))
def test_any_deadlines_and_any_steps_of_time(deadlines: list[int], steps: list[int]) -> None:
    wheel = TimerWheel(tick_size=3)
    wheel.add_many(np.array(deadlines, dtype=np.int64), np.arange(len(deadlines)))
    pending = sorted(deadlines)

    for now in sorted(steps):
        due = [deadline for deadline in pending if deadline <= now]
        pending = [deadline for deadline in pending if deadline > now]
        assert wheel.pop_due(now)[0].tolist() == due
        assert wheel.next_deadline() == (pending[0] if pending else NEVER)


class WheelLife(RuleBasedStateMachine):
    """Adds, cancels, pops and clocks that go back, beside a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.wheel = TimerWheel(tick_size=10)
        self.pending: dict[int, int] = {}
        self.now = 0
        self.payloads = 0

    @rule(after=st.integers(-50, 10**6))
    def add(self, after: int) -> None:
        deadline = max(0, self.now + after)
        self.wheel.add(deadline, self.payloads)
        self.pending[self.payloads] = deadline
        self.payloads += 1

    @rule(afters=st.lists(st.integers(0, 10**9), max_size=30))
    def add_many(self, afters: list[int]) -> None:
        deadlines = [self.now + after for after in afters]
        payloads = range(self.payloads, self.payloads + len(afters))
        self.wheel.add_many(deadlines, list(payloads))
        self.pending.update(zip(payloads, deadlines, strict=True))
        self.payloads += len(afters)

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        if self.pending:
            payload = data.draw(st.sampled_from(sorted(self.pending)))
            self.wheel.cancel([payload])
            del self.pending[payload]

    @rule(step=st.one_of(st.integers(0, 3000), st.integers(0, 10**9), st.integers(-(10**6), 0)))
    def pop(self, step: int) -> None:
        self.now = max(0, self.now + step)
        due = sorted(d for d in self.pending.values() if d <= self.now)
        deadlines, payloads = self.wheel.pop_due(self.now)
        assert deadlines.tolist() == due
        for deadline, payload in zip(deadlines.tolist(), payloads.tolist(), strict=True):
            assert self.pending.pop(payload) == deadline

    @invariant()
    def agrees(self) -> None:
        assert len(self.wheel) == len(self.pending)
        assert self.wheel.next_deadline() <= min(self.pending.values(), default=NEVER)


TestWheelLife = WheelLife.TestCase
