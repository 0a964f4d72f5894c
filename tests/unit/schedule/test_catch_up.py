"""Which fires are made after a time in which nobody could make them, and while one is at work."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.schedule.calendar import Calendar
from penstock.schedule.catch_up import FIRES_MAX, GRACE_US, AdmittedFires, admit, due
from penstock.schedule.definition import CatchUpPolicy, Overlap, ScheduleDefinition, ScheduleTiming

MINUTE_US = 60 * 10**6


def hourly(policy: CatchUpPolicy, catch_up_us: int = 10**12, **timing: Any) -> ScheduleDefinition:
    given = ScheduleTiming(**{"every_us": 60 * MINUTE_US} | timing)
    return ScheduleDefinition(
        topic="t", timing=given, catch_up_policy=policy, catch_up_us=catch_up_us
    )


def fires(definition: ScheduleDefinition, cursor_us: int, now_us: int) -> tuple[list[int], int]:
    """In minutes, and where the cursor is then."""
    found = due(Calendar(definition.timing, 0), definition, cursor_us, now_us)
    return [each // MINUTE_US for each in found.fires], found.cursor_us


@pytest.mark.parametrize("policy", ["last", "all", "none"])
def test_a_fire_that_is_on_time_is_made_by_every_policy(policy: CatchUpPolicy) -> None:
    for late_us in (0, GRACE_US):
        now_us = 60 * MINUTE_US + late_us
        assert fires(hourly(policy), 0, now_us) == ([60], 60 * MINUTE_US)
    assert fires(hourly(policy), 0, 60 * MINUTE_US - 1) == ([], 0)


@pytest.mark.parametrize(
    ("policy", "made"), [("last", [240]), ("all", [60, 120, 180, 240]), ("none", [])]
)
def test_of_those_that_were_missed_the_policy_picks(policy: CatchUpPolicy, made: list[int]) -> None:
    now_us = 250 * MINUTE_US
    found, cursor_us = fires(hourly(policy), 0, now_us)
    assert found == made
    assert fires(hourly(policy), cursor_us, now_us) == ([], cursor_us)  # it is decided for good


@pytest.mark.parametrize(("policy", "made"), [("last", []), ("all", [])])
def test_what_was_missed_too_long_ago_is_let_go(policy: CatchUpPolicy, made: list[int]) -> None:
    definition = hourly(policy, catch_up_us=5 * MINUTE_US)
    assert fires(definition, 0, 250 * MINUTE_US)[0] == made
    assert fires(definition, 0, 244 * MINUTE_US)[0] == [240]


def test_the_last_one_is_the_one_that_is_on_time_if_there_is_one() -> None:
    assert fires(hourly("last"), 0, 240 * MINUTE_US)[0] == [240]
    assert fires(hourly("none"), 0, 240 * MINUTE_US)[0] == [240]


def test_a_clock_that_is_set_back_repeats_nothing() -> None:
    definition = hourly("all")
    _, cursor_us = fires(definition, 0, 120 * MINUTE_US)
    assert fires(definition, cursor_us, 60 * MINUTE_US) == ([], cursor_us)
    assert fires(definition, cursor_us, 130 * MINUTE_US) == ([], cursor_us)
    assert fires(definition, cursor_us, 180 * MINUTE_US)[0] == [180]


def test_many_are_made_up_for_in_portions() -> None:
    definition, cursor_us, made = hourly("all", every_us=MINUTE_US), 0, []
    now_us = 250 * MINUTE_US
    while True:
        found, cursor_us = fires(definition, cursor_us, now_us)
        if not found:
            break
        assert len(found) <= FIRES_MAX
        made += found
    assert made == list(range(1, 251))


@pytest.mark.parametrize("policy", ["last", "all", "none"])
def test_with_jitter_each_fire_is_made_once_at_its_own_time(policy: CatchUpPolicy) -> None:
    definition = hourly(policy, every_us=MINUTE_US, jitter_us=MINUTE_US)
    calendar = Calendar(definition.timing, 0)
    made: list[int] = []
    cursor_us = 0
    for now_us in range(0, 40 * MINUTE_US, 500_000):
        found, cursor_us = due(calendar, definition, cursor_us, now_us)
        for each in found:
            assert calendar.due_us(each) <= now_us
        made += found
    expected = [n * MINUTE_US for n in range(1, len(made) + 1)]
    assert made == expected
    assert len(made) >= 38


def test_the_last_missed_one_with_jitter_is_due() -> None:
    definition = hourly("last", every_us=MINUTE_US, jitter_us=MINUTE_US)
    calendar = Calendar(definition.timing, 0)
    for now_us in range(100 * MINUTE_US, 110 * MINUTE_US, 7 * 10**6):
        found, cursor_us = due(calendar, definition, 0, now_us)
        assert 1 <= len(found) <= 2
        assert all(calendar.due_us(each) <= now_us for each in found)
        assert cursor_us >= found[-1] >= now_us - 3 * MINUTE_US


@pytest.mark.parametrize(
    ("overlap", "moments", "buffered_us", "is_settled", "expected"),
    [
        ("allow", [1, 2], None, False, AdmittedFires([1, 2], None, 0)),
        ("skip", [1], None, True, AdmittedFires([1], None, 0)),
        ("skip", [1, 2], None, True, AdmittedFires([1], None, 1)),
        ("skip", [1, 2], None, False, AdmittedFires([], None, 2)),
        ("buffer_one", [1], None, True, AdmittedFires([1], None, 0)),
        ("buffer_one", [1], None, False, AdmittedFires([], 1, 0)),
        ("buffer_one", [2], 1, False, AdmittedFires([], 1, 1)),
        ("buffer_one", [], 1, True, AdmittedFires([1], None, 0)),
        ("buffer_one", [2, 3], 1, True, AdmittedFires([1], 2, 1)),
    ],
)
def test_while_a_message_is_at_work_the_overlap_policy_decides(
    overlap: Overlap,
    moments: list[int],
    buffered_us: int | None,
    is_settled: bool,
    expected: AdmittedFires,
) -> None:
    assert admit(overlap, moments, buffered_us, is_settled) == expected
