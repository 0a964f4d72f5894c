"""Which lanes are to be served at once because their next message has waited for too long.

A message that has waited for `boost_after` is next, whatever its lane and whoever's turn it is;
then the timer of its lane starts again, so that a lane with a backlog of old messages gets one of
them in each such time beside its share. As with turns, nothing of this is kept: a restart begins
anew.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.delivery.lanes import LANES, Source
from penstock.delivery.offsets import EMPTY
from penstock.delivery.state import GroupState


class Starving(NamedTuple):
    """The next message of a lane has waited for too long."""

    waited_ns: int
    priority: int
    offset: int
    is_retry: bool


class StarvationTimers:
    """A timer for each lane: before it is up, no message of the lane can have waited too long."""

    def __init__(self, boost_after_ms: int) -> None:
        self._after_ns = boost_after_ms * 1_000_000
        self._look_ns = [0] * LANES  # in ledger time
        self._told: list[Starving] = []

    def starving(
        self, state: GroupState, ready: int, at_ns: int, wall_us: int, source: Source
    ) -> list[Starving]:
        """Of the lanes whose bit is in `ready`, those to be served at once, longest wait first.

        The timer of each starts again, unless its message is not handed out: then it is told of
        in the next call, too.
        """
        for told in self._told:
            offset = told.offset
            is_held = offset in state.outstanding and offset not in state.retries.waiting
            if not is_held and offset not in state.acked:
                self._look_ns[told.priority] = 0
        self._told = []
        for priority, look_ns in enumerate(self._look_ns):
            if at_ns < look_ns or not ready >> priority & 1:
                continue
            longest = self._longest(state, priority, at_ns, wall_us, source)
            waited_ns = 0 if longest is None else max(longest.waited_ns, 0)
            if longest is not None and waited_ns >= self._after_ns:
                self._told.append(longest)
                waited_ns = 0
            self._look_ns[priority] = at_ns + self._after_ns - waited_ns
        self._told.sort(reverse=True)
        return self._told

    def _longest(
        self, state: GroupState, priority: int, at_ns: int, wall_us: int, source: Source
    ) -> Starving | None:
        """The message of a lane that has waited longest; a retry waits from when it fell due."""
        waiting: list[Starving] = []
        for offset in state.retries.due(priority, 0, 1):
            due_ns = state.retries.histories[offset].due_ns
            waiting.append(Starving(at_ns - due_ns, priority, offset, is_retry=True))
        lane = state.lanes[priority]
        if state.keys.ahead[priority]:
            new = state.keys.free(priority, 1, {}, EMPTY)
        else:
            new = [lane.at(0)] if len(lane) else []
        for offset in new:
            waited_us = wall_us - source.arrived_us(offset)
            waiting.append(Starving(waited_us * 1000, priority, offset, is_retry=False))
        return max(waiting, default=None)
