"""Rate limits: how many messages a handler may begin in a time, in all or by key."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from penstock.errors import InvalidInput

_SECOND_NS = 1_000_000_000
_PERIODS_NS = {"s": _SECOND_NS, "m": 60 * _SECOND_NS, "h": 3600 * _SECOND_NS}
_TEXT = re.compile(r"([1-9][0-9]{0,8})/(s|m|h)( per key)?")
_KEYS_MAX = 10_000  # between two sweeps, so that memory does not grow with the number of keys


class RateLimit(msgspec.Struct, frozen=True):
    """`"100/s"`, `"10/m"` or `"5/s per key"`: at an even pace, in each worker process."""

    every_ns: int
    """From one message to the next."""
    per_key: bool

    @classmethod
    def parse(cls, text: str) -> RateLimit:
        match = _TEXT.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise InvalidInput(
                f'rate_limit is {text!r:.100}; it is such as "100/s", "10/m" or "5/s per key"'
            )
        return cls(_PERIODS_NS[match[2]] // int(match[1]), match[3] is not None)


def parse_limits(value: str | Sequence[str] | None) -> tuple[RateLimit, ...]:
    """One limit or several, all of which count."""
    if value is None:
        return ()
    return tuple(RateLimit.parse(each) for each in ([value] if isinstance(value, str) else value))


class Throttle:
    """Gives each message the moment at which it may begin. Pure: it is told the time.

    An even pace, and no bursts after a quiet time: so in no interval does a handler begin more
    than the limit says, plus one.
    """

    def __init__(self, limits: Sequence[RateLimit]) -> None:
        self._limits = limits
        self._next_ns: dict[tuple[int, bytes | None], int] = {}

    def reserve(self, key: bytes | None, now_ns: int, count: int = 1) -> int:
        """When a message, or a batch of `count`, may begin. Its place is taken then."""
        places = [
            (limit, (number, key if limit.per_key else None))
            for number, limit in enumerate(self._limits)
        ]
        start_ns = max((self._next_ns.get(place, now_ns) for _, place in places), default=now_ns)
        start_ns = max(start_ns, now_ns)
        for limit, place in places:
            self._next_ns[place] = start_ns + limit.every_ns * count
        if len(self._next_ns) > _KEYS_MAX:
            self._next_ns = {k: at for k, at in self._next_ns.items() if at > now_ns}
        return start_ns
