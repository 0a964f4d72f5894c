"""Durations and moments as people write them: `"30s"`, a timedelta, or seconds."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import TypeAlias

from penstock.errors import InvalidInput

Duration: TypeAlias = str | int | float | timedelta
Moment: TypeAlias = datetime | int | float

_UNITS_NS = {
    "us": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60 * 1_000_000_000,
    "h": 3600 * 1_000_000_000,
    "d": 86400 * 1_000_000_000,
}
_NS_MAX = 10_000 * 365 * 86_400 * 1_000_000_000  # and as microseconds still a 64-bit number
_SECONDS_MAX = 1e12  # no duration is longer than 30,000 years
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(us|ms|s|m|h|d)")
_ALLOWED = 'a duration is a string such as "250ms", "30s", "1h30m" or "7d", a timedelta, or seconds'


def parse_ns(value: Duration, name: str = "duration") -> int:
    """Nanoseconds, never negative."""
    if isinstance(value, timedelta):
        ns = round(value.total_seconds() * 1e9)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        if not abs(value) < _SECONDS_MAX:
            raise InvalidInput(f"{name} is {_shown(value)}; {_ALLOWED}")
        ns = round(value * 1_000_000_000)
    elif isinstance(value, str) and _PART.sub("", value.strip()) == "" and value.strip():
        ns = sum(
            round(min(float(n), _SECONDS_MAX) * _UNITS_NS[unit]) for n, unit in _PART.findall(value)
        )
    else:
        number = isinstance(value, str) and value.strip().isdecimal()
        hint = f'. Did you mean "{value:.20}s"?' if number else ""
        raise InvalidInput(f"{name} is {_shown(value)}; {_ALLOWED}{hint}")
    if ns < 0:
        raise InvalidInput(f"{name} is {_shown(value)}; it must not be negative")
    if ns > _NS_MAX:
        raise InvalidInput(f"{name} is {_shown(value)}; it must be at most 10,000 years")
    return ns


def parse_ms(value: Duration, name: str = "duration") -> int:
    """Whole milliseconds; what is not zero is at least one."""
    ns = parse_ns(value, name)
    return max(ns // 1_000_000, 1) if ns else 0


def parse_us(value: Moment, name: str = "time") -> int:
    """Microseconds since 1970 of a datetime with a time zone, or of seconds since 1970."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise InvalidInput(f"{name} {value} has no time zone; add one, such as timezone.utc")
        return round(value.timestamp() * 1_000_000)
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e12:
        return round(value * 1_000_000)
    raise InvalidInput(
        f"{name} is {_shown(value)}; give a datetime with a time zone, or seconds since 1970"
    )


def text(ns: int) -> str:
    """A duration as a person would write it."""
    if ns == 0:
        return "0s"
    parts = []
    for unit in ("d", "h", "m", "s", "ms", "us"):
        count, ns = divmod(ns, _UNITS_NS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def _shown(value: object) -> str:
    """As it was given, if that is not too long."""
    try:
        return repr(value)[:100]
    except ValueError:  # Python writes no number with more digits
        return "a number of more than 4,300 digits"
