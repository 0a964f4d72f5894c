"""Committers: when the background work of a log is done."""

import logging
import threading

import pytest

from penstock.clock import ManualClock
from penstock.log.commit import BackgroundCommitter, ManualCommitter


def test_the_manual_committer_does_what_is_due_in_the_order_of_time() -> None:
    clock = ManualClock()
    committer = ManualCommitter(clock)
    done: list[str] = []
    committer.schedule(20, lambda: done.append("later"))
    committer.schedule(10, lambda: done.append("soon"))
    committer.schedule(0, lambda: done.append("now"))
    committer.schedule(0, lambda: done.append("now too"))
    assert committer.run_due() == 2
    assert done == ["now", "now too"]
    clock.advance(0.01)
    assert committer.run_due() == 1
    clock.advance(1)
    assert committer.run_due() == 1
    assert done == ["now", "now too", "soon", "later"]
    assert committer.run_due() == 0


def test_what_a_task_schedules_for_now_is_done_in_the_same_run() -> None:
    committer = ManualCommitter(ManualClock())
    done: list[str] = []

    def first() -> None:
        done.append("first")
        committer.schedule(0, lambda: done.append("second"))

    committer.schedule(0, first)
    assert committer.run_due() == 2
    assert done == ["first", "second"]


def test_a_wall_clock_that_jumps_does_not_move_what_is_scheduled() -> None:
    clock = ManualClock()
    committer = ManualCommitter(clock)
    committer.schedule(1000, lambda: None)
    clock.jump_wall(3600)
    assert committer.run_due() == 0


def test_the_background_committer_runs_tasks_one_at_a_time_in_order() -> None:
    committer = BackgroundCommitter("test")
    done: list[int] = []
    finished = threading.Event()
    for number in range(100):
        committer.schedule(0, lambda n=number: done.append(n))
    committer.schedule(0, finished.set)
    assert finished.wait(60)
    assert done == list(range(100))


def test_an_earlier_task_overtakes_one_that_waits() -> None:
    committer = BackgroundCommitter("test")
    finished = threading.Event()
    committer.schedule(3_600_000, lambda: None)
    committer.schedule(0, finished.set)
    assert finished.wait(60)


def test_a_task_that_fails_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    committer = BackgroundCommitter("test")
    finished = threading.Event()

    def fails() -> None:
        raise RuntimeError("a bug")

    with caplog.at_level(logging.ERROR, "penstock.log"):
        committer.schedule(0, fails)
        committer.schedule(0, finished.set)
        assert finished.wait(60)
    assert "a bug" in caplog.text
