"""Durations and moments as people write them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.durations import parse_ms, parse_ns, parse_us, text
from penstock.errors import InvalidInput

SECOND = 1_000_000_000


@pytest.mark.parametrize(
    ("value", "ns"),
    [
        ("30s", 30 * SECOND),
        ("250ms", 250_000_000),
        ("10us", 10_000),
        ("5m", 300 * SECOND),
        ("2h", 7200 * SECOND),
        ("7d", 7 * 86_400 * SECOND),
        ("1h30m", 5400 * SECOND),
        ("1m30s500ms", 90 * SECOND + 500_000_000),
        ("0.5s", 500_000_000),
        ("1.5h", 5400 * SECOND),
        (" 5s ", 5 * SECOND),
        ("0s", 0),
        (30, 30 * SECOND),
        (0.25, 250_000_000),
        (0, 0),
        (timedelta(minutes=2), 120 * SECOND),
        (timedelta(microseconds=3), 3_000),
    ],
)
def test_a_duration_is_text_with_a_unit_a_timedelta_or_seconds(value: Any, ns: int) -> None:
    assert parse_ns(value) == ns


@pytest.mark.parametrize(
    "value",
    [
        "",
        "  ",
        "30",
        "s",
        "30 s",
        "30sec",
        "half an hour",
        "1h 30m",
        "-5s",
        "1e3s",
        "5w",
        "5S",
        "٣s",
        None,
        True,
        b"5s",
        [5],
        float("nan"),
        float("inf"),
        -1,
        -0.001,
        timedelta(seconds=-1),
    ],
)
def test_anything_else_says_what_is_allowed(value: Any) -> None:
    with pytest.raises(InvalidInput, match=r"^linger is .*(a duration is|not be negative)"):
        parse_ns(value, "linger")


def test_a_number_without_a_unit_is_answered_with_one() -> None:
    with pytest.raises(InvalidInput, match=r"linger is '5'; .*Did you mean \"5s\"\?"):
        parse_ns("5", "linger")


def test_milliseconds_are_whole_and_what_is_not_zero_is_at_least_one() -> None:
    assert parse_ms("1s") == 1000
    assert parse_ms("1.9ms") == 1
    assert parse_ms("10us") == 1
    assert parse_ms(0) == 0


def test_a_moment_is_a_datetime_with_a_zone_or_seconds() -> None:
    moment = datetime(2024, 5, 6, 7, 8, 9, 123_456, tzinfo=UTC)
    assert parse_us(moment) == 1_714_979_289_123_456
    east = moment.astimezone(timezone(timedelta(hours=5)))
    assert parse_us(east) == 1_714_979_289_123_456
    assert parse_us(1_714_979_289) == 1_714_979_289_000_000
    assert parse_us(1.5) == 1_500_000


@pytest.mark.parametrize("value", ["now", None, True, float("nan"), float("inf"), -1e30, 10**20])
def test_a_wrong_moment_says_what_is_allowed(value: Any) -> None:
    with pytest.raises(
        InvalidInput, match=r"deliver_at is .* give a datetime with a time zone, or"
    ):
        parse_us(value, "deliver_at")
    with pytest.raises(InvalidInput, match=r"has no time zone; add one, such as timezone\.utc"):
        parse_us(datetime(2024, 5, 6))  # noqa: DTZ001 - that is what is wrong with it


@given(st.integers(0, 10**9))
def test_what_is_written_can_be_read_again(us: int) -> None:
    assert parse_ns(text(us * 1000)) == us * 1000


@pytest.mark.parametrize(
    ("ns", "written"), [(0, "0s"), (90 * SECOND, "1m30s"), (1_500_000, "1ms500us"), (7, "0s")]
)
def test_a_duration_is_written_as_a_person_would(ns: int, written: str) -> None:
    assert text(ns) == written


@pytest.mark.parametrize(
    "endless",
    [1.7976931348623157e308, 10**400, 10**5000, -1e300, "9" * 400 + "d", "9" * 10_000, "1e400d"],
    ids=lambda value: type(value).__name__,
)
def test_a_duration_without_bounds_is_refused_in_a_short_sentence(endless: Any) -> None:
    with pytest.raises(InvalidInput, match=r"^linger is ") as refused:
        parse_ns(endless, "linger")
    assert len(str(refused.value)) < 300
    with pytest.raises(InvalidInput, match=r"^at is ") as refused:
        parse_us(endless, "at")
    assert len(str(refused.value)) < 300
