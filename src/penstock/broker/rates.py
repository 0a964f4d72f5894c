"""How fast things happen: messages a second over the last ten seconds, and how many so far."""

from __future__ import annotations

WINDOW_S = 10
_NS = 1_000_000_000


class Meter:
    """Counts in slots of a second, the present one included.

    Several threads may add; a count that is lost between two of them does no harm.
    """

    __slots__ = ("_count", "_past", "_second", "_until_ns", "total")

    def __init__(self) -> None:
        self._past = [0] * WINDOW_S  # by second; that of the present one is not in use
        self._second = 0
        self._until_ns = _NS  # when the present second ends
        self._count = 0  # in it
        self.total = 0
        """All that was ever added."""

    def add(self, count: int, now_ns: int) -> None:
        if now_ns >= self._until_ns:
            self._move_to(now_ns // _NS)
        self._count += count
        self.total += count

    def per_second(self, now_ns: int) -> float:
        if now_ns >= self._until_ns:
            self._move_to(now_ns // _NS)
        return (sum(self._past) + self._count) / WINDOW_S

    def _move_to(self, second: int) -> None:
        self._past[self._second % WINDOW_S] = self._count
        for passed in range(max(self._second, second - WINDOW_S) + 1, second + 1):
            self._past[passed % WINDOW_S] = 0
        self._count = 0
        self._second = second
        self._until_ns = (second + 1) * _NS
