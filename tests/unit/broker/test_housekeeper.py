"""The housekeeper calls each chore at its time, and sleeps in between."""

from __future__ import annotations

import sys
import threading
import time
from types import FrameType
from typing import Any

import pytest

from penstock.broker.housekeeper import Housekeeper
from penstock.clock import ManualClock, SystemClock

SECOND = 1_000_000_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def keeper(clock: ManualClock) -> Housekeeper:
    return Housekeeper(clock)


def test_a_chore_is_done_when_it_is_due_and_not_before(
    keeper: Housekeeper, clock: ManualClock
) -> None:
    done: list[int] = []
    keeper.plan(done.append, 5 * SECOND)
    assert keeper.next_deadline() == 5 * SECOND
    clock.advance(4.9)
    assert keeper.run_due() == 0
    clock.advance(0.1)
    assert keeper.run_due() == 1
    assert done == [5 * SECOND]
    assert keeper.next_deadline() is None


def test_a_chore_says_when_it_wants_to_come_again(keeper: Housekeeper, clock: ManualClock) -> None:
    times: list[int] = []

    def every_two_seconds(now_ns: int) -> int | None:
        times.append(now_ns // SECOND)
        return now_ns + 2 * SECOND if len(times) < 3 else None

    keeper.plan(every_two_seconds, SECOND)
    for _ in range(10):
        clock.advance(1)
        keeper.run_due()
    assert times == [1, 3, 5]


def test_the_earliest_of_several_plans_counts(keeper: Housekeeper, clock: ManualClock) -> None:
    done: list[int] = []
    for seconds in (5, 3, 9, 4):
        keeper.plan(done.append, seconds * SECOND)
    keeper.plan(done.append, None)
    clock.advance(20)
    assert keeper.run_due() == 1
    assert keeper.next_deadline() is None


def test_chores_are_done_in_the_order_of_their_times(
    keeper: Housekeeper, clock: ManualClock
) -> None:
    order: list[str] = []
    keeper.plan(lambda _: order.append("late"), 3 * SECOND)
    keeper.plan(lambda _: order.append("early"), 1 * SECOND)
    keeper.plan(lambda _: order.append("middle"), 2 * SECOND)
    clock.advance(10)
    assert keeper.run_due() == 3
    assert order == ["early", "middle", "late"]


def test_what_is_forgotten_is_not_done(keeper: Housekeeper, clock: ManualClock) -> None:
    done: list[int] = []
    keeper.plan(done.append, SECOND)
    keeper.forget(done.append)
    assert keeper.next_deadline() is None
    clock.advance(5)
    assert keeper.run_due() == 0
    keeper.plan(done.append, 6 * SECOND)
    clock.advance(1)
    assert keeper.run_due() == 1


def test_one_chores_trouble_does_not_stop_the_others(
    keeper: Housekeeper, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    done: list[int] = []
    tries: list[int] = []

    def fails_twice(now_ns: int) -> None:
        tries.append(now_ns)
        if len(tries) < 3:
            raise OSError("no room")

    keeper.plan(fails_twice, SECOND)
    keeper.plan(done.append, 2 * SECOND)
    for _ in range(5):
        clock.advance(1)
        keeper.run_due()
    assert [tried // SECOND for tried in tries] == [1, 2, 3]  # again after a second each time
    assert len(done) == 1
    assert "housekeeping failed; trying again in a second" in caplog.text


def test_a_chore_may_plan_others_and_itself(keeper: Housekeeper, clock: ManualClock) -> None:
    done: list[int] = []

    def first(now_ns: int) -> None:
        keeper.plan(done.append, now_ns)

    keeper.plan(first, 0)
    assert keeper.run_due() == 2
    assert done == [0]


# With its thread.


def test_the_thread_sleeps_until_something_is_due_and_can_be_woken_for_less() -> None:
    keeper = Housekeeper(SystemClock())
    keeper.start()
    try:
        woken = threading.Event()
        keeper.plan(lambda _: None, time.monotonic_ns() + 3600 * SECOND)
        keeper.plan(lambda _: woken.set(), time.monotonic_ns() + 10_000_000)
        assert woken.wait(10)
    finally:
        keeper.stop()


def test_stopping_ends_the_thread_at_once() -> None:
    keeper = Housekeeper(SystemClock())
    keeper.start()
    thread = keeper._thread
    assert thread is not None
    keeper.plan(lambda _: None, time.monotonic_ns() + 3600 * SECOND)
    began = time.monotonic()
    keeper.stop()
    assert not thread.is_alive()
    assert time.monotonic() - began < 5


def test_a_chore_may_stop_the_housekeeper_itself() -> None:
    keeper = Housekeeper(SystemClock())
    done = threading.Event()

    def stop(_: int) -> None:
        keeper.stop()
        done.set()

    keeper.plan(stop, 0)
    keeper.start()
    assert done.wait(10)


@pytest.mark.parametrize("step", range(12))
def test_it_can_be_stopped_after_a_ctrl_c_that_came_while_it_took_its_lock(
    keeper: Housekeeper, step: int
) -> None:
    steps = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal steps
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode" and frame.f_code.co_name == "__enter__":
            steps += 1
            if steps > step:
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        keeper.plan(lambda _: None, SECOND)
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
    stopping = threading.Thread(target=keeper.stop, daemon=True)
    stopping.start()
    stopping.join(10)
    assert not stopping.is_alive()
