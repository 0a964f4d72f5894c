"""When schedules fire: cron lines in time zones, intervals, single moments, and jitter."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from typing import Any

import pytest

from penstock.errors import InvalidInput
from penstock.schedule.calendar import ALIASES, Calendar, check_timing
from penstock.schedule.definition import ScheduleTiming

HOUR_US = 3600 * 10**6


def us(text: str) -> int:
    moment = datetime.fromisoformat(text)
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 10**6)


def calendar(anchor: str = "2024-01-01", **timing: Any) -> Calendar:
    return Calendar(ScheduleTiming(**timing), us(anchor))


def fires(line: str, after: str, count: int, timezone: str = "UTC") -> list[str]:
    """The next fires of a cron line, in UTC."""
    found = islice(calendar(cron=line, timezone=timezone).after(us(after)), count)
    return [at(each) for each in found]


def at(moment_us: int) -> str:
    moment = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=moment_us)
    return moment.isoformat(sep=" ").removesuffix("+00:00").removesuffix(":00")


# Europe/Berlin goes from UTC+1 to UTC+2 on 2024-03-31 at 01:00 UTC, and back on 2024-10-27.


def test_a_time_that_the_clocks_leave_out_in_spring_fires_once_when_they_have() -> None:
    found = fires("30 2 * * *", "2024-03-30 12:00", 2, "Europe/Berlin")
    assert found == ["2024-03-31 01:00", "2024-04-01 00:30"]


def test_a_time_that_comes_twice_in_autumn_fires_the_first_time_only() -> None:
    found = fires("30 2 * * *", "2024-10-26 12:00", 2, "Europe/Berlin")
    assert found == ["2024-10-27 00:30", "2024-10-28 01:30"]


def test_a_schedule_that_begins_between_both_does_not_go_back_to_the_first() -> None:
    assert fires("30 2 * * *", "2024-10-27 01:10", 1, "Europe/Berlin") == ["2024-10-28 01:30"]


def test_a_line_of_every_half_hour_fires_in_both_hours_of_autumn() -> None:
    found = fires("*/30 * * * *", "2024-10-26 23:59", 6, "Europe/Berlin")
    assert found == [f"2024-10-27 {h:02d}:{m:02d}" for h in (0, 1, 2) for m in (0, 30)]


def test_leap_days_and_month_ends() -> None:
    assert fires("0 12 29 2 *", "2024-03-01", 2) == ["2028-02-29 12:00", "2032-02-29 12:00"]
    assert fires("0 0 L * *", "2023-01-31", 3) == [
        "2023-02-28 00:00",
        "2023-03-31 00:00",
        "2023-04-30 00:00",
    ]
    assert fires("0 0 31 * *", "2024-01-31", 2) == ["2024-03-31 00:00", "2024-05-31 00:00"]


@pytest.mark.parametrize(
    ("alias", "first"),
    [
        ("@hourly", "2024-05-15 11:00"),
        ("@daily", "2024-05-16 00:00"),
        ("@midnight", "2024-05-16 00:00"),
        ("@weekly", "2024-05-19 00:00"),
        ("@monthly", "2024-06-01 00:00"),
        ("@yearly", "2025-01-01 00:00"),
        ("@Annually", "2025-01-01 00:00"),
    ],
)
def test_the_usual_names_stand_for_lines(alias: str, first: str) -> None:
    assert fires(alias, "2024-05-15 10:30", 1) == [first]
    assert alias.lower() in ALIASES


def test_seconds_are_a_sixth_field_in_front() -> None:
    assert fires("*/20 0 0 * * *", "2024-05-15", 2) == [
        "2024-05-15 00:00:20",
        "2024-05-15 00:00:40",
    ]


def test_a_fire_is_later_than_the_moment_asked_for_by_less_than_a_second() -> None:
    line = calendar(cron="* * * * * *")
    assert line.next_after(us("2024-05-15") - 1) == us("2024-05-15")
    assert line.next_after(us("2024-05-15")) == us("2024-05-15") + 10**6


def test_an_interval_counts_from_its_start_and_not_from_the_last_fire() -> None:
    each = calendar("2024-05-15 10:07", every_us=HOUR_US // 4)
    assert at(each.next_after(us("2024-05-15 10:07")) or 0) == "2024-05-15 10:22"
    assert at(each.next_after(us("2024-05-15 11:00")) or 0) == "2024-05-15 11:07"
    started = calendar("2024-05-15", every_us=HOUR_US, start_us=us("2024-05-20 00:30"))
    assert at(started.next_after(us("2024-05-15")) or 0) == "2024-05-20 00:30"  # the start is one
    assert at(started.next_after(us("2024-05-20 00:30")) or 0) == "2024-05-20 01:30"


def test_a_single_moment_comes_once() -> None:
    once = calendar(at_us=us("2024-05-15 10:00"))
    assert once.next_after(us("2024-05-15 09:59")) == us("2024-05-15 10:00")
    assert once.next_after(us("2024-05-15 10:00")) is None


def test_nothing_fires_before_the_start_or_after_the_end() -> None:
    bound = {"start_us": us("2024-05-15 02:00"), "end_us": us("2024-05-15 04:00")}
    for timing in ({"cron": "0 * * * *"}, {"every_us": HOUR_US}):
        found = [at(each) for each in calendar(**timing, **bound).after(us("2024-05-14"))]
        assert found == [f"2024-05-15 0{hour}:00" for hour in (2, 3, 4)]


@pytest.mark.parametrize("timezone", ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu"])
@pytest.mark.parametrize(
    "line", ["30 2 * * *", "*/30 * * * *", "0 2,3 * * 0", "15 1 L * *", "*/7 2 * * *"]
)
def test_looking_back_finds_what_looking_forward_finds(line: str, timezone: str) -> None:
    lines = calendar(cron=line, timezone=timezone)
    for begin in ("2024-03-30 20:00", "2024-10-26 20:00", "2024-03-09 20:00", "2024-11-02 20:00"):
        moments = list(islice(lines.after(us(begin)), 60))
        for earlier, later in pairwise(moments):
            assert lines.last_until(earlier, 0) == earlier
            assert lines.last_until(later - 1, 0) == earlier
            assert lines.last_until(later - 1, earlier) is None


def test_looking_back_on_intervals_and_single_moments() -> None:
    each = calendar("2024-05-15", every_us=HOUR_US)
    assert each.last_until(us("2024-05-15 03:59"), 0) == us("2024-05-15 03:00")
    assert each.last_until(us("2024-05-14"), 0) is None
    once = calendar(at_us=us("2024-05-15"))
    assert once.last_until(us("2024-05-16"), 0) == us("2024-05-15")
    assert once.last_until(us("2024-05-14"), 0) is None
    bound = calendar(cron="0 * * * *", end_us=us("2024-05-15 02:30"), start_us=us("2024-05-15"))
    assert bound.last_until(us("2024-05-16"), 0) == us("2024-05-15 02:00")
    assert bound.last_until(us("2024-05-14"), 0) is None


def test_jitter_is_bounded_and_always_the_same_for_a_fire() -> None:
    timing = ScheduleTiming(every_us=HOUR_US, jitter_us=60 * 10**6)
    one, same, other = (Calendar(timing, 0, seed) for seed in (1, 1, 2))
    moments = list(islice(one.after(0), 200))
    late = [one.due_us(each) - each for each in moments]
    assert late == [same.due_us(each) - each for each in moments]
    assert late != [other.due_us(each) - each for each in moments]
    assert 0 <= min(late) < 5 * 10**6
    assert 55 * 10**6 < max(late) <= 60 * 10**6


@pytest.mark.parametrize(
    ("timing", "said"),
    [
        ({}, "give one of cron, every and at"),
        ({"cron": "@daily", "every_us": HOUR_US}, "not cron and every"),
        ({"cron": "61 * * * *"}, "such as"),
        ({"cron": "@fortnightly"}, "@hourly"),
        ({"cron": "0 0 30 2 *"}, "Bad"),
        ({"cron": "@daily", "timezone": "Middle/Earth"}, "Europe/Berlin"),
        ({"cron": "@daily", "timezone": "../etc"}, "Europe/Berlin"),
        ({"cron": "@daily", "timezone": ""}, "Europe/Berlin"),
        ({"every_us": 1000}, "10ms"),
        ({"at_us": 10**18}, "1970 to 9999"),
        ({"cron": "@daily", "jitter_us": 48 * HOUR_US}, "24h"),
        ({"every_us": HOUR_US, "jitter_us": HOUR_US + 1}, "no longer than every"),
    ],
)
def test_what_is_no_timing_is_refused(timing: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        check_timing(ScheduleTiming(**timing))


def test_a_line_that_never_fires_again_says_so() -> None:
    assert calendar(cron="0 0 1 1 *", end_us=us("2024-06-01")).next_after(us("2024-05-01")) is None
    assert calendar(cron="@yearly").next_after(us("9999-12-31 23:00")) is None
