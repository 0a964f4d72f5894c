"""Messages that were handed out before and are not done: when they are due, and what befell them.

Delivery counts live here, so they cost memory only for what was retried. Messages that failed
together share one history.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from itertools import islice

import msgspec
from pyroaring import BitMap64

from penstock.delivery.lanes import LANES
from penstock.delivery.offsets import Offsets
from penstock.delivery.timers import NEVER, TimerWheel

STALE_MIN = 1024


class DeliveryHistory(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What befell messages until they were last given back."""

    priority: int
    deliveries: int
    first_us: int  # the first and the last delivery, by the wall clock
    last_us: int
    consumer: str  # who had them last
    error: str
    due_ns: int  # when they may be handed out again, in ledger time


class Retries:
    """A message is added when it is given back, taken when it is handed out again, and forgotten
    when it is done. Between the first and the last it has a history."""

    def __init__(self) -> None:
        self.histories: dict[int, DeliveryHistory] = {}
        self.waiting = BitMap64()
        self.waiting_of = [0] * LANES
        self._timers = TimerWheel()
        self._due: tuple[OrderedDict[int, None], ...] = tuple(OrderedDict() for _ in range(LANES))

    def add(self, offsets: Offsets, history: DeliveryHistory) -> None:
        self.histories.update(dict.fromkeys(offsets, history))
        offsets.add_to(self.waiting)
        self.waiting_of[history.priority] += offsets.count
        if offsets.count == 1:
            self._timers.add(history.due_ns, offsets.first)
        else:
            self._timers.add_many(history.due_ns, offsets.array())
        if len(self._timers) > 2 * len(self.waiting) + STALE_MIN:
            self._rebuild_timers()

    def take(self, offsets: Iterable[int]) -> None:
        """Handed out again: they no longer wait."""
        for offset in offsets:
            history = self.histories.get(offset)
            if history is not None and offset in self.waiting:
                self.waiting.discard(offset)
                self.waiting_of[history.priority] -= 1
                self._due[history.priority].pop(offset, None)

    def forget(self, offsets: Iterable[int]) -> None:
        """Done: neither waiting nor remembered."""
        if self.histories:
            self.take(offsets)
            for offset in offsets:
                self.histories.pop(offset, None)

    def by_history(self, offsets: Iterable[int]) -> list[tuple[DeliveryHistory, Offsets]]:
        """Those that have a history, those that share one together."""
        groups: dict[int, tuple[DeliveryHistory, list[int]]] = {}
        for offset in offsets:
            history = self.histories.get(offset)
            if history is not None:
                groups.setdefault(id(history), (history, []))[1].append(offset)
        return [(history, Offsets.of(members)) for history, members in groups.values()]

    def firsts(self, offsets: Iterable[int], otherwise_us: int) -> dict[int, Offsets]:
        """Messages by when they were first handed out."""
        groups: dict[int, list[int]] = {}
        for offset in offsets:
            history = self.histories.get(offset)
            first_us = otherwise_us if history is None else history.first_us
            groups.setdefault(first_us, []).append(offset)
        return {first_us: Offsets.of(members) for first_us, members in groups.items()}

    def look(self, now_ns: int) -> int:
        """A bit for each priority that has messages due."""
        if not self.waiting:
            return 0
        if now_ns >= self._timers.next_deadline():
            for offset in self._timers.pop_due(now_ns)[1].tolist():
                # A timer outlives its cause: a recovery replays that the message was taken, a
                # power cut gives its offset to another one.
                if offset in self.waiting and self.histories[offset].due_ns <= now_ns:
                    self._due[self.histories[offset].priority][offset] = None
        ready = 0
        for priority, due in enumerate(self._due):
            if due:
                ready |= 1 << priority
        return ready

    def due(self, priority: int, skip: int, count: int) -> list[int]:
        """Messages due, longest overdue first, after the first `skip`. They stay until taken."""
        return list(islice(self._due[priority], skip, skip + count))

    def is_due(self, offset: int) -> bool:
        """As of the last look."""
        history = self.histories.get(offset)
        return history is not None and offset in self._due[history.priority]

    def next_deadline(self) -> int:
        """When the next message falls due that is not yet; NEVER if none does. May be early."""
        return self._timers.next_deadline() if self.waiting else NEVER

    def _rebuild_timers(self) -> None:
        self._timers.clear()
        for history, offsets in self.by_history(self.waiting):
            self._timers.add_many(history.due_ns, offsets.array())
