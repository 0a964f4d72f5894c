"""Per-key order: at most one message of a key is in flight or waiting for a retry; or a run of
them that was handed out together, of which none is handed out again while another is in flight.

Keys are known by a hash of 64 bits. Two keys that share one wait for each other now and then,
which costs time and never order.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from heapq import heappop, heappush
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from penstock.delivery.lanes import LANES
from penstock.delivery.offsets import Int64s, Offsets

NO_KEY = 0  # messages without a key wait for nobody


class KeyRun:
    """How many messages of a key one receive takes, and of which lane; -1: retries."""

    __slots__ = ("count", "priority")

    def __init__(self, priority: int, count: int) -> None:
        self.priority = priority
        self.count = count


class KeyLocks:
    """A message locks its key from when it is first handed out until it is done."""

    def __init__(self) -> None:
        self.key_of: dict[int, int] = {}  # of the messages that lock one
        self._locked: dict[int, list[int]] = {}  # by which messages, ascending
        self.ahead = tuple(KeysAhead() for _ in range(LANES))

    def __len__(self) -> int:
        return len(self.key_of)

    def lock(self, offsets: Sequence[int], keys: Sequence[int]) -> None:
        for offset, key in zip(offsets, keys, strict=True):
            if key != NO_KEY:
                self.key_of[offset] = key
                insort(self._locked.setdefault(key, []), offset)

    def release(self, offsets: Iterable[int]) -> None:
        for offset in offsets:
            key = self.key_of.pop(offset, None)
            if key is None:
                continue
            run = self._locked[key]
            if len(run) > 1:
                run.remove(offset)
                continue
            del self._locked[key]
            for ahead in self.ahead:
                ahead.offer(key)

    def run(self, key: int) -> Sequence[int]:
        """The messages that lock a key, ascending."""
        return self._locked.get(key, ())

    def free(
        self, priority: int, count: int, seen: dict[int, KeyRun], taken: Offsets, run_max: int = 1
    ) -> list[int]:
        """Messages ahead in a lane, up to `count`, that may be handed out together: of each key
        that is not locked the first that are not `taken`, those without one too. Of a key that is
        `seen` in this lane as many more as make up `run_max`, and none if it was in another.

        The keys of those found become seen. Looks, and changes nothing else.
        """
        ahead = self.ahead[priority]
        return ahead.free(priority, count, self._locked, seen, taken, run_max)

    def left_lane(self, priority: int, offsets: Offsets) -> None:
        """Messages of a lane were handed out, or dropped."""
        ahead = self.ahead[priority]
        if ahead.key_of:
            ahead.remove(offsets)

    def forget_ahead(self) -> None:
        """The lanes go on somewhere else."""
        for ahead in self.ahead:
            ahead.clear()

    def columns(self) -> tuple[Int64s, NDArray[np.uint64]]:
        """Offsets and their keys, for a snapshot."""
        count = len(self.key_of)
        return (
            np.fromiter(self.key_of.keys(), np.int64, count),
            np.fromiter(self.key_of.values(), np.uint64, count),
        )


class KeysAhead:
    """The first messages ahead in a lane by their keys, so that one whose key is free is found
    without a look at those that have to wait. A cache, as the read-ahead of the lane is."""

    def __init__(self) -> None:
        self.key_of: dict[int, int] = {}
        self._waiting: dict[int, deque[int]] = {}  # by key, ascending
        self._heap: list[int] = []
        """The first of each key that is not locked, and those without a key. There may be others,
        and some twice: what is not to be handed out is dropped when it comes to the top."""

    def __len__(self) -> int:
        return len(self.key_of)

    def add(self, offsets: Iterable[int], keys: Iterable[int]) -> None:
        """The next messages of the lane."""
        for offset, key in zip(offsets, keys, strict=True):
            self.key_of[offset] = key
            if key == NO_KEY:
                heappush(self._heap, offset)
                continue
            waiting = self._waiting.get(key)
            if waiting is None:
                self._waiting[key] = deque((offset,))
                heappush(self._heap, offset)
            else:
                waiting.append(offset)

    def remove(self, offsets: Offsets) -> None:
        for offset in offsets:
            key = self.key_of.pop(offset, NO_KEY)
            if key == NO_KEY:
                continue
            waiting = self._waiting[key]
            if waiting[0] == offset:
                waiting.popleft()
            else:
                waiting.remove(offset)
            if not waiting:
                del self._waiting[key]
            self.offer(key)

    def offer(self, key: int) -> None:
        """A key is free, or another message is the first of it."""
        waiting = self._waiting.get(key)
        if waiting:
            heappush(self._heap, waiting[0])

    def behind(self, offset: int) -> list[int]:
        """The messages of the same key that come after one."""
        waiting = self._waiting.get(self.key_of[offset], ())
        return [later for later in waiting if later > offset]

    def free(
        self,
        priority: int,
        count: int,
        locked: Collection[int],
        seen: dict[int, KeyRun],
        taken: Offsets,
        run_max: int,
    ) -> list[int]:
        heap, last = self._heap, -1
        found: list[int] = []
        kept: list[int] = []
        while heap and len(found) < count:
            offset = heappop(heap)
            key = self.key_of.get(offset)
            if key is None or offset == last or key in locked:
                continue  # gone, or here twice, or offered again when its key is released
            waiting = self._waiting[key] if key != NO_KEY else (offset,)
            if waiting[0] != offset:
                continue
            kept.append(offset)
            last = offset
            if key == NO_KEY:
                if offset not in taken:
                    found.append(offset)
                continue
            run = seen.get(key)
            if run is None:
                run = KeyRun(priority, 0)
            elif run.priority != priority:
                continue
            wanted = min(run_max - run.count, count - len(found))
            if wanted > 0:
                some = list(islice((each for each in waiting if each not in taken), wanted))
                if some:
                    found += some
                    run.count += len(some)
                    seen[key] = run
        for offset in kept:
            heappush(heap, offset)
        return found

    def clear(self) -> None:
        self.key_of.clear()
        self._waiting.clear()
        self._heap.clear()
