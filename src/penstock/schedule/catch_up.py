"""Which fires are to be made now: those that are due, and of those that were missed, as many as
the schedule asks for.

A fire is missed when nobody made it within `GRACE_US`: the broker was down, or its clock was set
forward. Every fire up to a *cursor* is decided. The cursor only moves forward, so that a clock that
is set back repeats nothing.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.schedule.calendar import Calendar
from penstock.schedule.definition import Overlap, ScheduleDefinition

GRACE_US = 1_000_000
FIRES_MAX = 100
"""So many fires of a schedule are made at once; more of them wait for the next look."""


class DueFires(NamedTuple):
    fires: list[int]
    cursor_us: int
    """All fires up to here are decided: they are among `fires`, or passed over."""


def due(
    calendar: Calendar, definition: ScheduleDefinition, cursor_us: int, now_us: int
) -> DueFires:
    """What is to be fired at a moment, if everything up to the cursor is decided."""
    first = calendar.next_after(cursor_us)
    if first is None or calendar.due_us(first) > now_us:
        return DueFires([], cursor_us)
    window_us = GRACE_US
    if definition.catch_up_policy == "all":
        window_us = max(GRACE_US, definition.catch_up_us)
    jitter_us = definition.timing.jitter_us
    passed_us = now_us - window_us - jitter_us - 1
    cursor_us = max(cursor_us, passed_us)
    fire = first if first > passed_us else calendar.next_after(passed_us)
    fires: list[int] = []
    while fire is not None and calendar.due_us(fire) <= now_us and len(fires) < FIRES_MAX:
        cursor_us = fire
        if calendar.due_us(fire) >= now_us - window_us:
            fires.append(fire)
        fire = calendar.next_after(fire)
    if not fires and definition.catch_up_policy == "last":
        # At least this one is due, whatever its jitter.
        last = calendar.last_until(max(cursor_us, now_us - jitter_us), first - 1)
        if last is not None and calendar.due_us(last) >= now_us - definition.catch_up_us:
            fires, cursor_us = [last], max(cursor_us, last)
    return DueFires(fires, cursor_us)


class AdmittedFires(NamedTuple):
    fires: list[int]
    buffered_us: int | None
    """A fire that is made when the message of the last one is settled."""
    skipped: int


def admit(
    overlap: Overlap, fires: list[int], buffered_us: int | None, is_settled: bool
) -> AdmittedFires:
    """Which fires may be made. `is_settled`: whether the message of the last fire is."""
    if overlap == "allow":
        return AdmittedFires(fires, None, 0)
    waiting = fires if buffered_us is None else [buffered_us, *fires]
    made = waiting[:1] if is_settled else []
    rest = waiting[len(made) :]
    if overlap == "skip":
        return AdmittedFires(made, None, len(rest))
    return AdmittedFires(made, rest[0] if rest else None, len(rest[1:]))
