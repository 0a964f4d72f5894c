"""A hierarchical timer wheel of numpy buckets: millions of deadlines at 16 bytes each.

A deadline's tick is written in base 256. It lies on the level of the highest digit in which it
differs from the present tick, in the slot of that digit: level 0 holds the ticks that differ in
the last digit only, level 1 the next 65 thousand, and so on; 64 bits need eight levels, so there
is no horizon. When time enters a slot above level 0, its entries are dealt out again further down.
Each entry moves at most once a level, whole buckets at a time, so that its cost stays constant.

Time is whatever unit the caller counts in, as long as it is one. Nothing is persisted: whoever
owns the deadlines adds them again after a restart.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

Int64s = NDArray[np.int64]

NEVER: Final = (1 << 63) - 1
SLOT_BITS = 8
SLOTS = 1 << SLOT_BITS
LEVELS = 8
STAGED_MAX = 8192  # numbers, two an entry
CANCELLED_MIN = 1024
# A tick on level n differs from the present in a bit below these bounds.
LEVEL_BOUNDS = np.array([1 << SLOT_BITS * level for level in range(1, LEVELS)], dtype=np.int64)
NOTHING = np.empty(0, dtype=np.int64)


class TimerWheel:
    """Deadlines with a payload each. What is popped is due: at or after its deadline, not before.

    A payload is the caller's own number. To be cancelled it must be pending, and unique.
    """

    __slots__ = (
        "_buckets",
        "_cancelled",
        "_next",
        "_now",
        "_occupied",
        "_placed",
        "_staged",
        "_tick",
        "tick_size",
    )

    def __init__(self, tick_size: int = 1_000_000) -> None:
        """`tick_size`: the units of time in a tick; by default a millisecond of nanoseconds.
        It sets how fine the buckets are, not how exact: entries keep their whole deadline."""
        self.tick_size = tick_size
        self.clear()

    def clear(self) -> None:
        self._tick = 0
        self._placed = 0  # entries in buckets, cancelled ones too
        self._next: int = NEVER  # no pending deadline is earlier
        self._now = _Bucket()  # the present tick and whatever is overdue
        self._buckets: dict[int, _Bucket] = {}  # level * SLOTS + slot; only those in use
        self._occupied = [0] * LEVELS  # a bit for each slot in use
        self._staged = array("q")  # deadline, payload, ...: added singly, not yet in a bucket
        self._cancelled: set[int] = set()

    @property
    def count(self) -> int:
        """Entries, cancelled ones too."""
        return self._placed + (len(self._staged) >> 1)

    def __len__(self) -> int:
        return self.count - len(self._cancelled)

    def next_deadline(self) -> int:
        """No entry is due before; NEVER if there is none. Early only after a cancel."""
        return self._next

    def add(self, deadline: int, payload: int) -> None:
        # Ctrl-C may strike between any two of these. A look that comes too early does no harm, and
        # half an entry, which can only be the last one, is taken away again.
        if deadline < self._next:
            self._next = deadline
        staged = self._staged
        size = len(staged)
        if size & 1:
            staged.pop()
        staged.append(deadline)
        staged.append(payload)
        if size >= STAGED_MAX:
            self._place_staged()

    def add_many(self, deadlines: ArrayLike, payloads: ArrayLike) -> None:
        """Many at once; one deadline may serve all payloads."""
        entries = np.empty((2, np.size(payloads)), dtype=np.int64)
        entries[0], entries[1] = deadlines, payloads
        if not entries.size:
            return
        self._placed += entries.shape[1]
        self._next = min(self._next, int(entries[0].min()))
        self._place(entries)

    def cancel(self, payloads: Iterable[int]) -> None:
        """Pending entries that shall never be popped."""
        self._cancelled.update(payloads)
        if len(self._cancelled) > max(CANCELLED_MIN, self.count // 2):
            self._rebuild(self._tick)

    def pop_due(self, now: int) -> tuple[Int64s, Int64s]:
        """Deadlines and payloads of all that is due, by deadline; each is popped once."""
        if now < self._next:
            return NOTHING, NOTHING
        self._place_staged()
        tick = now // self.tick_size
        due: list[Int64s] = []
        if tick > self._tick:
            self._advance(tick, due)
        elif tick < self._tick and self._now.size > STAGED_MAX:
            # A clock that was set back: deal out again, or all that comes lands in one bucket.
            self._rebuild(tick)
        self._pop_present(now, due)
        self._next = self._least()
        entries = np.concatenate(due, axis=1) if due else np.empty((2, 0), dtype=np.int64)
        self._placed -= entries.shape[1]
        if self._cancelled:
            entries = self._without_cancelled(entries)
        order = np.argsort(entries[0], kind="stable")
        return entries[0][order], entries[1][order]

    def _advance(self, tick: int, due: list[Int64s]) -> None:
        """Move the present to a later tick; what lies wholly before it is due."""
        top = ((tick ^ self._tick).bit_length() - 1) // SLOT_BITS
        slot_entered = tick >> SLOT_BITS * top & SLOTS - 1
        due += self._now.empty()
        for level in range(top):
            self._empty(level, self._occupied[level], due)
        self._empty(top, self._occupied[top] & (1 << slot_entered) - 1, due)
        entered: list[Int64s] = []
        self._empty(top, self._occupied[top] & 1 << slot_entered, entered)
        self._tick = tick
        for entries in entered:
            self._place(entries)

    def _empty(self, level: int, slots: int, into: list[Int64s]) -> None:
        self._occupied[level] &= ~slots
        while slots:
            lowest = slots & -slots
            into += self._buckets.pop(level * SLOTS + lowest.bit_length() - 1).empty()
            slots ^= lowest

    def _pop_present(self, now: int, due: list[Int64s]) -> None:
        for entries in self._now.empty():
            ripe = entries[0] <= now
            if ripe.all():
                due.append(entries)
                continue
            self._now.append(entries[:, ~ripe])
            if ripe.any():
                due.append(entries[:, ripe])

    def _place_staged(self) -> None:
        if self._staged:
            if len(self._staged) & 1:
                self._staged.pop()
            entries = np.array(self._staged, dtype=np.int64).reshape(-1, 2).T
            self._staged = array("q")
            self._placed += entries.shape[1]
            self._place(entries)

    def _place(self, entries: Int64s) -> None:
        """Deal entries out to their buckets."""
        ticks = entries[0] // self.tick_size
        present = ticks <= self._tick
        if present.any():
            self._now.append(entries[:, present])
            entries, ticks = entries[:, ~present], ticks[~present]
        if not ticks.size:
            return
        levels = np.searchsorted(LEVEL_BOUNDS, ticks ^ self._tick, side="right")
        keys = (levels * SLOTS + (ticks >> SLOT_BITS * levels & SLOTS - 1)).astype(np.uint16)
        if keys[0] != keys[-1] or (keys != keys[0]).any():
            order = np.argsort(keys, kind="stable")
            entries, keys = entries[:, order], keys[order]
        starts = [0, *(np.flatnonzero(np.diff(keys)) + 1).tolist()]
        for key, start, stop in zip(
            keys[starts].tolist(), starts, [*starts[1:], keys.size], strict=True
        ):
            bucket = self._buckets.get(key)
            if bucket is None:
                bucket = self._buckets[key] = _Bucket()
                self._occupied[key >> SLOT_BITS] |= 1 << (key & SLOTS - 1)
            bucket.append(entries[:, start:stop])

    def _least(self) -> int:
        # Whatever is on a lower level, or in a lower slot of the same one, is earlier.
        if self._now.size:
            return self._now.least
        for level, slots in enumerate(self._occupied):
            if slots:
                lowest = (slots & -slots).bit_length() - 1
                return self._buckets[level * SLOTS + lowest].least
        return NEVER

    def _rebuild(self, tick: int) -> None:
        """Deal everything out again from another present, without what was cancelled."""
        self._place_staged()
        chunks = self._now.empty()
        for level in range(LEVELS):
            self._empty(level, self._occupied[level], chunks)
        self._tick = tick
        if chunks:
            entries = self._without_cancelled(np.concatenate(chunks, axis=1))
            self._placed = entries.shape[1]
            self._place(entries)
        self._cancelled.clear()
        self._next = self._least()

    def _without_cancelled(self, entries: Int64s) -> Int64s:
        gone = np.isin(entries[1], np.fromiter(self._cancelled, np.int64, len(self._cancelled)))
        self._cancelled.difference_update(entries[1][gone].tolist())
        return entries[:, ~gone]


class _Bucket:
    """Entries of one slot, as blocks of two rows: deadlines and payloads."""

    __slots__ = ("blocks", "least", "size")

    def __init__(self) -> None:
        self.blocks: list[Int64s] = []
        self.least: int = NEVER
        self.size = 0

    def append(self, entries: Int64s) -> None:
        self.least = min(self.least, int(entries[0].min()))
        self.size += entries.shape[1]
        blocks = self.blocks
        # Blocks shrink towards the end, at least by half each: few of them, and few copies.
        while blocks and blocks[-1].shape[1] <= 2 * entries.shape[1]:
            entries = np.concatenate((blocks.pop(), entries), axis=1)
        # A view would keep alive the larger array that it was cut from.
        blocks.append(entries if entries.base is None else entries.copy())

    def empty(self) -> list[Int64s]:
        blocks, self.blocks, self.least, self.size = self.blocks, [], NEVER, 0
        return blocks
