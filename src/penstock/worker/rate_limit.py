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
    several = value if isinstance(value, list | tuple) else () if value is None else (value,)
    return tuple(RateLimit.parse(each) for each in several)


class Throttle:
    """Gives each message the moment at which it may begin. Pure: it is told the time.

    An even pace, and no bursts after a quiet time: so in no interval does a handler begin more
    than the limit says, plus one.
    """

    def __init__(self, limit: RateLimit) -> None:
        self._limit = limit
        self._next_ns: dict[bytes | None, int] = {}

    def reserve(self, key: bytes | None, now_ns: int, count: int = 1) -> int:
        """When a message, or a batch of `count`, may begin. Its place is taken then."""
        place = key if self._limit.per_key else None
        start_ns = max(now_ns, self._next_ns.get(place, now_ns))
        self._next_ns[place] = start_ns + self._limit.every_ns * count
        if len(self._next_ns) > _KEYS_MAX:
            self._next_ns = {k: at for k, at in self._next_ns.items() if at > now_ns}
        return start_ns


def throttles(limits: Sequence[RateLimit]) -> list[Throttle]:
    """To be passed one after the other: those by key first, so that a message that waits for its
    key does not take the place of others meanwhile."""
    return [Throttle(limit) for limit in sorted(limits, key=lambda limit: not limit.per_key)]
