"""Time comes in from outside, so that tests and the simulator can own it."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Wall time says when something happened; monotonic time says how long something takes."""

    def wall_ns(self) -> int: ...

    def monotonic_ns(self) -> int: ...


class SystemClock:
    """The machine's own clocks."""

    wall_ns = staticmethod(time.time_ns)
    monotonic_ns = staticmethod(time.monotonic_ns)


class ManualClock:
    """A clock that moves only when it is told to."""

    def __init__(self, wall_ns: int = 1_700_000_000_000_000_000, monotonic_ns: int = 0) -> None:
        self._wall_ns = wall_ns
        self._monotonic_ns = monotonic_ns

    def wall_ns(self) -> int:
        return self._wall_ns

    def monotonic_ns(self) -> int:
        return self._monotonic_ns

    def advance(self, seconds: float) -> None:
        """Let time pass: both clocks move, and only forwards."""
        if seconds < 0:
            raise ValueError("time does not run backwards; use jump_wall for a clock that is set")
        step_ns = round(seconds * 1e9)
        self._wall_ns += step_ns
        self._monotonic_ns += step_ns

    def jump_wall(self, seconds: float) -> None:
        """Set the wall clock, forwards or back, as an operator or NTP may do."""
        self._wall_ns += round(seconds * 1e9)
