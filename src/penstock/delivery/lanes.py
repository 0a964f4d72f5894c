"""Five cursors over one log, one for each priority, and whose turn it is.

A lane finds its messages by asking the log's index, so that what is ready is never listed in
memory: a backlog of a hundred million costs five integers and a little read-ahead. The read-ahead
is only a cache; a restart begins at the cursor again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap64

from penstock.delivery.offsets import EMPTY, Int64s, Offsets

LANES = 5
WEIGHTS = (50, 25, 15, 7, 3)
Cursors = tuple[int, int, int, int, int]
AHEAD = 4096  # messages looked for at a time: cheap as a run, some microseconds as a bitmap

Strip = Callable[[Offsets], Offsets]  # gives back only what was never handed out


class Source(Protocol):
    """What delivery asks about the messages of a partition. The broker answers from the log."""

    def scan(self, priority: int, start: int, limit: int, end: int) -> tuple[range | Int64s, int]:
        """Offsets of messages of that priority in [start, end), ascending, at most `limit` of
        them, and how far it got: none are left out below. A range where they are dense."""
        ...

    def priorities(self, start: int, end: int) -> int:
        """A bit for each priority that may occur in [start, end); one too many does no harm."""
        ...

    def arrived_us(self, offset: int) -> int:
        """When a message was published, by the wall clock."""
        ...

    def expired(self, offsets: Offsets, wall_us: int) -> Offsets:
        """Those of the messages that have outlived their TTL; EMPTY if none."""
        ...

    def keys(self, offsets: Offsets) -> NDArray[np.uint64]:
        """A hash of each message's key, 0 where it has none. Asked only where keys are ordered."""
        ...

    def marks(self, start: int, end: int) -> NDArray[np.uint16]:
        """The marks (`fairness.py`) of some messages in [start, end), from the first on, one at the
        least. Asked only where tenants take turns."""
        ...

    def known_marks(self, start: int, end: int) -> NDArray[np.uint16]:
        """The same, and none where the log would have to be read."""
        ...


class Lane:
    """One priority: what was found ahead and not handed out yet, and how far was looked."""

    __slots__ = ("_bits", "_first", "_stop", "priority", "scanned")

    def __init__(self, priority: int, cursor: int = 0) -> None:
        self.priority = priority
        self.scanned = cursor
        self._first = self._stop = 0  # the messages ahead, if they are a run
        self._bits: BitMap64 | None = None  # the messages ahead, if they are not

    def __len__(self) -> int:
        """How many messages are known to be ahead."""
        return self._stop - self._first if self._bits is None else len(self._bits)

    def at(self, index: int) -> int:
        """The offset of a message ahead, or where the lane looks next if there are not so many."""
        if self._bits is None:
            index += self._first
            return index if index < self._stop else self.scanned
        return self._bits[index] if index < len(self._bits) else self.scanned

    def after(self, offset: int) -> int:
        """Where the lane goes on if nothing below an offset is of interest."""
        if self._bits is None:
            ahead = max(self._first, offset)
            return ahead if ahead < self._stop else max(self.scanned, offset)
        return max(self.at(self._bits.rank(offset - 1) if offset else 0), offset)

    def peek(self, skip: int, count: int) -> Offsets:
        """Some of the messages ahead, as they come after the first `skip`."""
        if self._bits is None:
            first = self._first + skip
            count = min(count, self._stop - first)
            return Offsets(first, count) if count > 0 else EMPTY
        if count == 1 and not skip:
            return Offsets(self._bits.min(), 1)
        count = min(count, len(self._bits) - skip)
        if count <= 0:
            return EMPTY
        return Offsets.run(self._bits[skip], self._bits[skip + count - 1] + 1).within(self._bits)

    def look(self, count: int, source: Source, end: int, strip: Strip) -> None:
        """Read on until so many are ahead, or the end."""
        ahead = self._stop - self._first if self._bits is None else len(self._bits)
        while ahead < count and self.scanned < end:
            found, scanned = source.scan(
                self.priority, self.scanned, max(count - ahead, AHEAD), end
            )
            assert self.scanned < scanned <= end, "a scan must get on, and stay inside the log"
            self._append(strip(Offsets.of(found)))
            self.scanned = scanned
            ahead = len(self)

    def take(self, offsets: Offsets, cursor: int) -> None:
        """Messages were handed out; without read-ahead, as in a recovery, go on at the cursor, or
        behind them where it is -1."""
        if self._bits is None:
            stop = self._first + offsets.count
            if offsets.bits is None and offsets.first == self._first and stop <= self._stop:
                self._first = stop
                if cursor < 0:
                    return  # what is ahead was looked at
            elif self._stop > self._first:
                self._append(self._drain() - offsets)
        else:
            offsets.remove_from(self._bits)
            if not self._bits:
                self._bits = None
                self._first = self._stop = 0
        if cursor < 0:
            cursor = offsets.stop
        if cursor > self.scanned:
            self.scanned = cursor

    def skip_to(self, offset: int) -> None:
        """Nothing below is of interest any more."""
        if len(self):
            ahead = self._drain()
            self._append(ahead & Offsets.run(offset, max(ahead.stop, offset)))
        self.scanned = max(self.scanned, offset)

    def back_to(self, offset: int) -> None:
        """Nothing from here on is known any more."""
        if len(self):
            ahead = self._drain()
            self._append(ahead & Offsets.run(ahead.first, max(ahead.first, offset)))
        self.scanned = min(self.scanned, offset)

    def _append(self, found: Offsets) -> None:
        if not found.count:
            return
        if self._bits is None and found.bits is None:
            if self._first == self._stop:
                self._first, self._stop = found.first, found.stop
                return
            if self._stop == found.first:
                self._stop = found.stop
                return
        self._bits = (self._drain() | found).bitmap()

    def _drain(self) -> Offsets:
        """Everything ahead, which is then no longer there."""
        if self._bits is None:
            ahead = Offsets.run(self._first, self._stop)
        else:
            ahead = Offsets.of(self._bits)
        self._bits = None
        self._first = self._stop = 0
        return ahead


class Lanes:
    def __init__(self, cursors: Cursors) -> None:
        self.lanes = [Lane(priority, cursor) for priority, cursor in enumerate(cursors)]
        self._alone: Lane | None = None
        """The one lane that had messages when all were last looked at, up to `_end`."""
        self._end = 0

    def __getitem__(self, priority: int) -> Lane:
        return self.lanes[priority]

    def __iter__(self) -> Iterator[Lane]:
        return iter(self.lanes)

    @property
    def cursors(self) -> Cursors:
        """Where each lane goes on."""
        critical, high, normal, low, background = [lane.at(0) for lane in self.lanes]
        return critical, high, normal, low, background

    def of_one_lane(
        self, count: int, source: Source, end: int, strip: Strip
    ) -> tuple[int, Offsets, int] | None:
        """What comes next where one lane alone has messages, by far the most frequent case: its
        priority, so many of its messages, and where it goes on behind them."""
        if self._alone is None or end != self._end:
            self.look(source, end, strip)
        lane = self._alone
        if lane is None:
            return None
        first, stop = lane._first, lane._first + count
        if stop <= lane._stop:  # a long run is ahead
            return lane.priority, Offsets(first, count), stop if stop < lane._stop else lane.scanned
        lane.look(count, source, end, strip)
        found = lane.peek(0, count)
        return (lane.priority, found, lane.at(found.count)) if found.count else None

    def look(self, source: Source, end: int, strip: Strip) -> int:
        """A bit for each lane that has a message to hand out."""
        alone = self._alone
        if alone is not None and end == self._end and alone._stop > alone._first:
            return 1 << alone.priority  # nothing has come, and it still has some
        ready = lagging = 0
        lowest = end
        for lane in self.lanes:
            if lane._bits is not None or lane._stop > lane._first:
                ready |= 1 << lane.priority
            elif lane.scanned < end:
                lagging |= 1 << lane.priority
                if lane.scanned < lowest:
                    lowest = lane.scanned
        if lagging:
            # One question about what is new, so that lanes without traffic cost nothing each.
            present = source.priorities(lowest, end)
            for lane in self.lanes:
                bit = 1 << lane.priority
                if lagging & bit:
                    if present & bit:
                        lane.look(1, source, end, strip)
                        if lane._bits is not None or lane._stop > lane._first:
                            ready |= bit
                    else:
                        lane.scanned = end
        one_lane = ready and not ready & ready - 1
        self._alone, self._end = self.lanes[ready.bit_length() - 1] if one_lane else None, end
        return ready

    def skip_to(self, offset: int) -> None:
        self._alone = None
        for lane in self.lanes:
            lane.skip_to(offset)

    def back_to(self, offset: int) -> None:
        self._alone = None
        for lane in self.lanes:
            lane.back_to(offset)


class DeficitRoundRobin:
    """Deficit round robin: in each round a lane may send as many messages as its weight.

    The higher lane goes first while it has something left of its round. An idle lane keeps one
    whole round and no more, so that a critical message that comes behind any number of others is
    next. DeficitRoundRobin are not state: a restart begins a new round.
    """

    def __init__(self, weights: tuple[int, ...] = WEIGHTS) -> None:
        self.weights = weights
        self._left = list(weights)

    def share(self, count: int, ready: int, draw: Callable[[int, int], int]) -> None:
        """Let the lanes whose bit is in `ready` send `count` messages by their weights.

        `draw(priority, want)` says how many it could get.
        """
        left = self._left
        while True:
            for priority in range(LANES):
                want = min(count, left[priority])
                if not ready >> priority & 1 or want <= 0:
                    continue
                got = draw(priority, want)
                left[priority] -= got
                count -= got
                if got < want:  # it is idle now, and saves nothing up
                    ready &= ~(1 << priority)
                    left[priority] = min(left[priority], self.weights[priority])
                if not count:
                    return
            if not ready:
                return
            self._new_round(count, ready)

    def _new_round(self, count: int, ready: int) -> None:
        self._left[:] = self.weights
        # Many rounds at once for a large receive.
        total = sum(left for priority, left in enumerate(self._left) if ready >> priority & 1)
        rounds = count // total
        if rounds > 1:
            for priority in range(LANES):
                if ready >> priority & 1:
                    self._left[priority] *= rounds
