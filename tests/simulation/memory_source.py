"""A partition in memory, for tests of delivery: plain lists where the broker asks the log."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.delivery.fairness import NO_MESSAGE, TENANT_BITS, Marks
from penstock.delivery.offsets import Offsets

BEGINNING_US = 1_700_000_000_000_000
"""When stories begin, by the wall clock."""


class Stored(NamedTuple):
    priority: int = 2
    key: int = 0
    arrived_us: int = 0
    expires_us: int | None = None


class MemorySource:
    """Offsets without a message are gaps, as compaction leaves them."""

    def __init__(self, random: Random | None = None) -> None:
        self.messages: dict[int, Stored] = {}
        self.end = 0
        self.scans = 0
        self._random = random  # None: every scan gets as far as it is asked to

    def publish(
        self,
        count: int = 1,
        *,
        priority: int = 2,
        key: int = 0,
        arrived_us: int = BEGINNING_US,
        expires_us: int | None = None,
    ) -> range:
        first = self.end
        self.end += count
        for offset in range(first, self.end):
            self.messages[offset] = Stored(priority, key, arrived_us, expires_us)
        return range(first, self.end)

    def gap(self, count: int) -> None:
        self.end += count

    def trim(self, before: int) -> None:
        self.messages = {o: stored for o, stored in self.messages.items() if o >= before}

    def truncate(self, end: int) -> None:
        self.messages = {o: stored for o, stored in self.messages.items() if o < end}
        self.end = end

    # What delivery asks.

    def scan(
        self, priority: int, start: int, limit: int, end: int
    ) -> tuple[range | NDArray[np.int64], int]:
        self.scans += 1
        if self._random is not None and self._random.random() < 0.3:
            end = min(end, start + self._random.randint(1, 20))
            limit = min(limit, self._random.randint(1, 10))
        found: list[int] = []
        for offset in range(start, end):
            stored = self.messages.get(offset)
            if stored is not None and stored.priority == priority:
                if len(found) == limit:
                    end = offset
                    break
                found.append(offset)
        if found and found[-1] - found[0] + 1 == len(found):
            return range(found[0], found[-1] + 1), end
        return np.array(found, dtype=np.int64), end

    def priorities(self, start: int, end: int) -> int:
        mask = 0
        for offset in range(start, end):
            if offset in self.messages:
                mask |= 1 << self.messages[offset].priority
        if self._random is not None and self._random.random() < 0.3:
            mask |= self._random.getrandbits(5)
        return mask

    def arrived_us(self, offset: int) -> int:
        return self.messages[offset].arrived_us

    def expired(self, offsets: Offsets, wall_us: int) -> Offsets:
        return Offsets.of([offset for offset in offsets if self.is_expired(offset, wall_us)])

    def keys(self, offsets: Offsets) -> NDArray[np.uint64]:
        return np.array([self.messages[offset].key for offset in offsets], dtype=np.uint64)

    def marks(self, start: int, end: int) -> Marks:
        """The tenant is the key."""
        if self._random is not None and self._random.random() < 0.3:
            end = min(end, start + self._random.randint(1, 20))
        return np.array([self._mark(offset) for offset in range(start, end)], np.uint16)

    def known_marks(self, start: int, end: int) -> Marks:
        if self._random is not None and self._random.random() < 0.3:
            return np.empty(0, np.uint16)
        return self.marks(start, end)

    def _mark(self, offset: int) -> int:
        stored = self.messages.get(offset)
        return NO_MESSAGE if stored is None else stored.priority << TENANT_BITS | stored.key

    def is_expired(self, offset: int, wall_us: int) -> bool:
        expires_us = self.messages[offset].expires_us
        return expires_us is not None and expires_us <= wall_us
