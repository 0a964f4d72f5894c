"""When work of a log is done: fsyncs, at the pace that its policy sets.

A log asks its committer to run something after a delay; it never waits itself. All logs of a
process can share one committer and so one thread.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

from penstock.at_exit import REST_S_MAX, rest_at_exit
from penstock.clock import Clock
from penstock.forks import abandon_in_children

_logger = logging.getLogger("penstock.log")

Task = Callable[[], None]


class Committer(Protocol):
    """Runs tasks after a delay, one at a time. A task handles its own errors."""

    def schedule(self, delay_ms: float, task: Task) -> None: ...


class BackgroundCommitter:
    """One daemon thread that sleeps until the next task is due. It starts with the first task."""

    def __init__(self, name: str = "penstock-committer") -> None:
        self._name = name
        self._order = itertools.count()
        self.abandon()
        abandon_in_children(self)
        rest_at_exit(self)

    def abandon(self) -> None:
        """Begin anew, without what was planned: in a forked process that is its parent's."""
        self._tasks: list[tuple[float, int, Task]] = []
        # Taken as it is, not by way of the condition, which a Ctrl-C could leave locked for ever.
        self._lock = threading.RLock()
        self._wake = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None
        self._resting = False

    def schedule(self, delay_ms: float, task: Task) -> None:
        due = time.monotonic() + delay_ms / 1000
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                # The first task; or the first after a fork, where the parent's are not ours.
                self._tasks = [(due, next(self._order), task)]
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
                return
            heapq.heappush(self._tasks, (due, next(self._order), task))
            if self._tasks[0][2] is task:
                self._wake.notify()

    def rest(self) -> None:
        """Begin no task any more."""
        thread = self._thread
        if thread is not None and thread.is_alive():
            with self._lock:
                self._resting = True
                self._wake.notify()
            thread.join(REST_S_MAX)

    def _run(self) -> None:
        while True:
            with self._lock:
                while not self._resting and (wait_s := self._wait_s()) != 0:
                    self._wake.wait(wait_s)
                if self._resting:
                    return
                task = heapq.heappop(self._tasks)[2]
            try:
                task()
            except Exception:  # a task that fails must not stop the commits of other logs
                _logger.exception("a background task failed")
            del task  # while it sleeps it keeps nothing alive

    def _wait_s(self) -> float | None:
        """Until the next task is due; None if there is none."""
        return max(0.0, self._tasks[0][0] - time.monotonic()) if self._tasks else None


class ManualCommitter:
    """Runs what is due when it is told to: for tests and the simulator, without threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tasks: list[tuple[float, int, Task]] = []
        self._order = itertools.count()

    def schedule(self, delay_ms: float, task: Task) -> None:
        due = self._clock.monotonic_ns() / 1e6 + delay_ms
        heapq.heappush(self._tasks, (due, next(self._order), task))

    def run_due(self) -> int:
        """Run every task that is due, those that they schedule included; how many there were."""
        ran = 0
        while self._tasks and self._tasks[0][0] <= self._clock.monotonic_ns() / 1e6:
            heapq.heappop(self._tasks)[2]()
            ran += 1
        return ran


SHARED = BackgroundCommitter()
"""The process's own committer, for logs that are opened without one."""
