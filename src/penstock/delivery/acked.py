"""Which messages are done: everything below a floor, and a compressed bitmap above it."""

from __future__ import annotations

from pyroaring import BitMap64

from penstock.delivery.offsets import EMPTY, Offsets


class AckedSet:
    """The floor is the committed offset: below it every message is done or does not exist.

    Only the caller knows which offsets hold no message (a compacted log has gaps), so it says how
    far the floor may rise; what was acked out of order waits above it in the bitmap, a few bits a
    message at worst.
    """

    __slots__ = ("above", "floor")

    def __init__(self, floor: int = 0, above: BitMap64 | None = None) -> None:
        self.floor = floor
        self.above = BitMap64() if above is None else above

    def __contains__(self, offset: int) -> bool:
        return offset < self.floor or offset in self.above

    def add(self, offsets: Offsets) -> None:
        if offsets.first == self.floor and offsets.bits is None:
            self.floor += offsets.count  # in order: nothing has to wait above
            return
        if offsets.first < self.floor:
            offsets = offsets & Offsets.run(self.floor, offsets.stop)
        offsets.add_to(self.above)

    def among(self, offsets: Offsets) -> Offsets:
        """Those of the offsets that are done."""
        if offsets.stop <= self.floor:
            return offsets
        done = offsets.within(self.above) if self.above else EMPTY
        if offsets.first < self.floor:
            done |= offsets & Offsets.run(offsets.first, self.floor)
        return done

    def advance(self, floor: int) -> None:
        """Raise the floor, and on over what is done above it. The caller vouches that no message
        below `floor` is left to be done."""
        if floor > self.floor:
            if self.above:
                self.above.remove_range(self.floor, floor)
            self.floor = floor
        if self.above and self.floor in self.above:
            stop = self._end_of_run()
            self.above.remove_range(self.floor, stop)
            self.floor = stop

    def forget_from(self, offset: int) -> None:
        """As if nothing from here on had ever been handed out."""
        self.floor = min(self.floor, offset)
        if self.above and self.above.max() >= offset:
            self.above.remove_range(offset, self.above.max() + 1)

    def _end_of_run(self) -> int:
        """Where the run that begins at the floor ends: by doubling, then halving, the step."""
        stop = self.floor + 1
        step = 1
        while self.above.contains_range(stop, stop + step):
            stop += step
            step *= 2
        while step > 1:
            step //= 2
            if self.above.contains_range(stop, stop + step):
                stop += step
        return stop
