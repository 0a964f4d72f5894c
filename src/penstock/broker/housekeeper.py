"""Work that falls due: leases that run out, retries, delays, sessions, retention.

Everyone with deadlines says when the next one is; one thread sleeps until then. Nothing polls:
without deadlines it sleeps for ever.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
from collections.abc import Callable

from penstock.at_exit import rest_at_exit
from penstock.clock import Clock

_logger = logging.getLogger("penstock.broker")

Chore = Callable[[int], int | None]
"""Does what is due at a monotonic time; returns when it wants to be called again, if at all."""


class Housekeeper:
    """Calls each chore at its time. With a thread, or, in tests, when `run_due` is called."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heap: list[tuple[int, int, Chore]] = []
        self._planned: dict[Chore, int] = {}
        self._order = itertools.count()
        # Taken as it is, not by way of the condition, which a Ctrl-C could leave locked for ever.
        self._lock = threading.RLock()
        self._wake = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None
        self._stopping = False

    def start(self) -> None:
        rest_at_exit(self)
        self._thread = threading.Thread(target=self._run, name="penstock-housekeeper", daemon=True)
        self._thread.start()

    def plan(self, chore: Chore, deadline_ns: int | None) -> None:
        """Call a chore at a time, or earlier if that was planned before."""
        if deadline_ns is None or deadline_ns >= self._planned.get(chore, 1 << 63):
            return
        with self._lock:
            if deadline_ns >= self._planned.get(chore, 1 << 63):
                return
            heapq.heappush(self._heap, (deadline_ns, next(self._order), chore))
            self._planned[chore] = (
                deadline_ns  # not sooner: after a Ctrl-C here nobody would call it
            )
            if self._heap[0][2] is chore or self._heap[0][0] >= deadline_ns:
                self._wake.notify()

    def forget(self, chore: Chore) -> None:
        with self._lock:
            self._planned.pop(chore, None)

    def run_due(self) -> int:
        """Do everything that is due; how many chores that were."""
        done = 0
        while (chore := self._next_due()) is not None:
            now_ns = self._clock.monotonic_ns()
            try:
                self.plan(chore, chore(now_ns))
            except Exception:  # one topic's trouble must not stop the others' housekeeping
                if self._stopping:
                    return done
                _logger.exception("housekeeping failed; trying again in a second")
                self.plan(chore, now_ns + 1_000_000_000)
            done += 1
        return done

    def next_deadline(self) -> int | None:
        with self._lock:
            self._drop_stale()
            return self._heap[0][0] if self._heap else None

    def give_up(self) -> None:
        """Call nobody any more: what the chores are about is gone. The thread ends by itself."""
        with self._lock:
            self._stopping = True
            self._heap.clear()
            self._planned.clear()
            self._wake.notify()

    def stop(self) -> None:
        with self._lock:
            self._stopping = True
            self._wake.notify()
        if self._thread and self._thread is not threading.current_thread():
            self._thread.join()

    def rest(self) -> None:
        if self._thread is not None and self._thread.is_alive():
            self.stop()

    def _next_due(self) -> Chore | None:
        with self._lock:
            self._drop_stale()
            if self._stopping or not self._heap or self._heap[0][0] > self._clock.monotonic_ns():
                return None
            chore = heapq.heappop(self._heap)[2]
            del self._planned[chore]
            return chore

    def _drop_stale(self) -> None:
        """Entries of chores that were planned anew, or forgotten."""
        while self._heap and self._planned.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)

    def _run(self) -> None:
        while not self._stopping:
            self.run_due()
            with self._lock:
                self._drop_stale()
                if self._stopping:
                    return
                wait_s = None
                if self._heap:
                    wait_s = (self._heap[0][0] - self._clock.monotonic_ns()) / 1e9
                if wait_s is None or wait_s > 0:
                    self._wake.wait(wait_s)
