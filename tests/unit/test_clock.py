"""Time that tests own, and the machine's."""

import time

import pytest

from penstock.clock import ManualClock, SystemClock


def test_the_manual_clock_stands_still_until_it_is_told_to_move() -> None:
    clock = ManualClock(wall_ns=1_000, monotonic_ns=7)
    assert [clock.wall_ns() for _ in range(3)] == [1_000] * 3
    assert [clock.monotonic_ns() for _ in range(3)] == [7] * 3


def test_time_that_passes_moves_both_clocks_alike() -> None:
    clock = ManualClock(wall_ns=1_000, monotonic_ns=7)
    clock.advance(1.5)
    clock.advance(0)
    assert (clock.wall_ns(), clock.monotonic_ns()) == (1_500_001_000, 1_500_000_007)


@pytest.mark.parametrize("seconds", [3600.0, -30.0])
def test_a_wall_clock_that_is_set_leaves_the_monotonic_one_alone(seconds: float) -> None:
    clock = ManualClock(wall_ns=10**18)
    clock.jump_wall(seconds)
    assert clock.wall_ns() == 10**18 + round(seconds * 10**9)
    assert clock.monotonic_ns() == 0


def test_time_cannot_pass_backwards() -> None:
    clock = ManualClock()
    with pytest.raises(ValueError, match="jump_wall"):
        clock.advance(-1)


def test_the_system_clock_is_the_machines() -> None:
    clock = SystemClock()
    before_ns, passed_ns = time.time_ns(), time.monotonic_ns()
    assert before_ns <= clock.wall_ns() <= time.time_ns()
    assert passed_ns <= clock.monotonic_ns() <= time.monotonic_ns()
