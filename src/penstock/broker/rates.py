"""How fast things happen: messages a second over the last ten seconds."""

from __future__ import annotations

WINDOW_S = 10
_NS = 1_000_000_000


class Meter:
    """Counts in slots of a second, the present one included.

    Several threads may add; a count that is lost between two of them does no harm.
    """

    __slots__ = ("_counts", "_second")

    def __init__(self) -> None:
        self._counts = [0] * WINDOW_S
        self._second = 0

    def add(self, count: int, now_ns: int) -> None:
        second = now_ns // _NS
        if second != self._second:
            self._move_to(second)
        self._counts[second % WINDOW_S] += count

    def per_second(self, now_ns: int) -> float:
        self._move_to(now_ns // _NS)
        return sum(self._counts) / WINDOW_S

    def _move_to(self, second: int) -> None:
        for passed in range(max(self._second, second - WINDOW_S) + 1, second + 1):
            self._counts[passed % WINDOW_S] = 0
        self._second = max(self._second, second)


class GroupRates:
    """What a group does on a partition."""

    __slots__ = ("acked", "delivered")

    def __init__(self) -> None:
        self.delivered = Meter()
        self.acked = Meter()
