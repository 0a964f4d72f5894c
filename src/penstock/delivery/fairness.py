"""Fairness between the tenants of a topic: whose message is next in a lane of a group.

A message belongs to a tenant by its key or one of its headers. Tenants take turns, so that one with
a million messages waiting delays nobody else by more than a turn. One that is noisy, with more than
a tenth of all that is in flight and no fewer than `NOISY_MIN`, waits until the others have nothing
to hand out: slow messages of one tenant do not occupy all consumers.

Nothing of this is stored. Turns are nobody's right, and leases of a former life count for nobody;
they end soon. The messages ahead of a tenant are found in marks of two bytes, which the source
keeps for each message, so that no backlog is listed here.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.delivery.lanes import LANES
from penstock.delivery.offsets import Offsets

TENANT_BITS = 12
"""Tenants are known by a hash; two that share one share their turns."""
NO_TENANT = 0
NO_MESSAGE = 0xFFFE
"""The mark of an offset that has no message."""
NOISY_MIN = 30
NOISY_SHARE = 10
WINDOW = 15 << 20
"""So far ahead of the first message to do it is looked for tenants."""
DUE_LOOKED_MAX = 1024
_STEP = 4096
_FEW = 64
TENANTS = 1 << TENANT_BITS

Marks = NDArray[np.uint16]
"""By offset: the priority in the upper four bits, the tenant in the lower twelve."""


class MarkSource(Protocol):
    def marks(self, start: int, end: int) -> Marks:
        """Marks of some of the messages in [start, end), from the first on, one at the least."""
        ...

    def known_marks(self, start: int, end: int) -> Marks:
        """The same, and none where the log would have to be read."""
        ...


class Waiting:
    """What a tenant has ahead in a lane."""

    __slots__ = ("cursor", "found")

    def __init__(self, cursor: int) -> None:
        self.cursor = cursor
        """Below it nothing is ahead but what was found. A receive may fail after it was decided,
        so that a message stays here until it is seen to be handed out."""
        self.found: list[int] = []


class Fairness:
    """Of one group on one partition."""

    def __init__(self) -> None:
        self.turns: tuple[OrderedDict[int, Waiting], ...] = tuple(
            OrderedDict() for _ in range(LANES)
        )
        """By lane: tenants that may have messages ahead, the one that was served last at the
        end."""
        self.picked: dict[int, int] = {}
        """By offset, the tenants of what the last receive wants to hand out."""
        self._looked = 0
        """Below it every tenant with a message ahead is in `turns`."""
        self._held: dict[int, int] = {}
        self._given_back: dict[int, int] = {}
        self._in_flight: dict[int, int] = {}

    # What a pick asks.

    def new_waiting(self) -> Waiting:
        """Of a tenant that has nothing ahead as far as it was looked."""
        return Waiting(self._looked)

    def look(self, source: MarkSource, passed: int, end: int) -> bool:
        """See who has messages further ahead; whether there was more to see. Nothing below
        `passed` is of interest."""
        at = max(self._looked, passed)
        end = min(end, passed + WINDOW)
        if at >= end:
            return False
        marks = source.marks(at, end)
        while len(marks):
            if len(marks) < _FEW:
                present: Iterable[int] = set(marks.tolist())
            else:
                present = np.flatnonzero(np.bincount(marks)).tolist()
            for mark in present:
                if mark < NO_MESSAGE:
                    turns = self.turns[mark >> TENANT_BITS]
                    turns.setdefault(mark & TENANTS - 1, Waiting(at))
            at = self._looked = at + len(marks)
            marks = source.known_marks(at, end)
        return True

    def find(self, source: MarkSource, lane: int, tenant: int, waiting: Waiting) -> Offsets:
        """Some messages of a tenant further ahead, perhaps seen ones; EMPTY at the end."""
        mark, at = lane << TENANT_BITS | tenant, waiting.cursor
        while at < self._looked:
            marks = source.marks(at, min(at + _STEP, self._looked))
            hits = np.flatnonzero(marks == mark)
            waiting.cursor = at + len(marks)
            if len(hits):
                return Offsets.of(hits + at)
            at = waiting.cursor
        return Offsets(0, 0)

    def is_noisy(self, tenant: int) -> bool:
        count = self._in_flight.get(tenant, 0)
        return count >= NOISY_MIN and count * NOISY_SHARE > len(self._held)

    def tenant_of(self, offset: int) -> int:
        """Of a message that was given back; NO_TENANT if that was in a former life."""
        return self._given_back.get(offset, NO_TENANT)

    # What has happened.

    def leased(self, offsets: Iterable[int]) -> None:
        for offset in offsets:
            tenant = self._given_back.pop(offset, None)
            if tenant is None:
                tenant = self.picked.get(offset, NO_TENANT)
            self._held[offset] = tenant
            self._in_flight[tenant] = self._in_flight.get(tenant, 0) + 1

    def given_back(self, offsets: Iterable[int]) -> None:
        for offset in offsets:
            tenant = self._held.pop(offset, None)
            if tenant is not None:
                self._ended(tenant)
                self._given_back[offset] = tenant

    def done(self, offsets: Iterable[int]) -> None:
        for offset in offsets:
            tenant = self._held.pop(offset, None)
            if tenant is not None:
                self._ended(tenant)
            else:
                self._given_back.pop(offset, None)

    def _ended(self, tenant: int) -> None:
        count = self._in_flight[tenant] - 1
        if count:
            self._in_flight[tenant] = count
        else:
            del self._in_flight[tenant]

    def forget_ahead(self) -> None:
        """The lanes go on somewhere else."""
        self._looked = 0
        for turns in self.turns:
            turns.clear()


class Turns:
    """The turns of one pick in one lane."""

    def __init__(self, fairness: Fairness, lane: int) -> None:
        self._fairness = fairness
        self._order = fairness.turns[lane]
        self.due: dict[int, deque[int]] = {}
        """By tenant, messages that were given back and may be handed out again."""
        self.places: dict[int, int] = {}
        """How many of the messages that were found this pick has looked at, by tenant."""

    def __len__(self) -> int:
        return len(self._order)

    def add_due(self, due: Sequence[int]) -> None:
        for offset in due:
            tenant = self._fairness.tenant_of(offset)
            self.due.setdefault(tenant, deque()).append(offset)
            self._order.setdefault(tenant, self._fairness.new_waiting())

    def round(self, *, noisy: bool) -> Iterator[tuple[int, Waiting]]:
        """Each tenant once, of those that are noisy or of all others."""
        order = self._order
        for _ in range(len(order)):
            tenant = next(iter(order))
            order.move_to_end(tenant)
            if self._fairness.is_noisy(tenant) == noisy:
                yield tenant, order[tenant]

    def drop(self, tenant: int) -> None:
        """It has nothing ahead."""
        del self._order[tenant]
