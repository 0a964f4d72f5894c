"""Numbers as people read them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def size(count: int) -> str:
    """Bytes, in units of 1000: `64.0 MB`."""
    number = float(count)
    for unit in ("bytes", "kB", "MB", "GB"):
        if number < 999.5 or unit == "GB":
            break
        number /= 1000
    return f"{count:,} bytes" if unit == "bytes" else f"{number:,.1f} {unit}"


def moment(timestamp_us: int) -> str:
    """A time in UTC, to the millisecond; a number where it is no date that anyone could mean."""
    try:
        at = _EPOCH + timedelta(microseconds=timestamp_us)
    except OverflowError:
        return f"{timestamp_us:,} us"
    return at.strftime("%Y-%m-%d %H:%M:%S.") + f"{at.microsecond // 1000:03d}"


def duration(count_us: int) -> str:
    """A length of time by its largest unit: `1.5 s`."""
    number = float(count_us)
    for unit, factor in (("us", 1000), ("ms", 1000), ("s", 60), ("min", 60), ("h", 48)):
        if number < factor:
            return f"{number:,.0f} {unit}" if unit == "us" else f"{number:,.1f} {unit}"
        number /= factor
    return f"{number * 2:,.1f} days"


def count(number: int, noun: str) -> str:
    """`1 frame`, `2 frames`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
