"""Recurring schedules."""

from __future__ import annotations

from typing import Annotated, Any, Generic

import msgspec

from penstock.model.calls.base import Call, T_co, route
from penstock.model.schedules import ScheduleDescription, ScheduleFire, SchedulePage
from penstock.model.topics import Count, Found
from penstock.model.values import HeaderValue, Seconds, Short, Time
from penstock.schedule.definition import CatchUpPolicy, Overlap


class ScheduleCall(
    Call[T_co], Generic[T_co], frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """A question about one schedule of a namespace."""

    schedule: str


@route("GET", "/schedules", "look", SchedulePage, tag="schedules")
class ListSchedules(Call[SchedulePage], frozen=True, kw_only=True):
    """The schedules of a namespace by name, each with its next and its last fire, page by page."""

    after: Short | None = None
    """The `next` of the page before."""
    limit: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 100


@route(
    "PUT",
    "/schedules/{schedule}",
    "publish",
    ScheduleDescription,
    tag="schedules",
    repeatable=True,
)
class PutSchedule(ScheduleCall[ScheduleDescription], frozen=True, kw_only=True):
    """Make a schedule, or change the one of that name, which goes on counting its fires."""

    topic: str
    """Of the namespace in the path."""
    value: Any = None
    """Text is the value itself; any other JSON is stored as JSON, with the header `content-type`.
    What is neither goes into `value_base64`."""
    value_base64: str | None = None
    key: str | None = None
    key_base64: str | None = None
    headers: dict[str, HeaderValue] | None = None
    """Each is text, `{"base64": "..."}`, or null."""
    priority: str | int = "normal"
    """critical, high, normal, low or background; or 0 to 4."""
    ttl: Seconds | None = None
    """A message is not delivered after this time."""
    cron: Short | None = None
    """Five fields, as in "30 2 * * *", six with seconds first, or "@hourly" and the like. One of
    `cron`, `every` and `at`."""
    every: Seconds | None = None
    """An interval from 10ms up, counted from `start`, or from when the schedule was made."""
    at: Time | None = None
    """A single moment."""
    timezone: Short = "UTC"
    """In which `cron` is meant: a name of the IANA database."""
    start: Time | None = None
    """No fire is before this."""
    end: Time | None = None
    """No fire is after this."""
    jitter: Seconds | None = None
    """Each fire is late by up to so much, at most 24h, always the same for the same fire."""
    overlap: Overlap = "allow"
    """While `group` has not settled the message of the last fire: fire all the same, leave the
    fire out, or make one when it is settled."""
    group: Short | None = None
    """The queue group whose settling counts for `overlap`."""
    catch_up: Seconds = "1d"
    """Fires that were missed longer ago, while the broker was down, are not made up for."""
    catch_up_policy: CatchUpPolicy = "last"
    """Of the others: make the last one, all of them, or none."""
    paused: bool | None = None
    """By default as it is; a new one is not paused."""


@route("GET", "/schedules/{schedule}", "look", ScheduleDescription, tag="schedules")
class DescribeSchedule(ScheduleCall[ScheduleDescription], frozen=True, kw_only=True):
    """A schedule with its next 10 and its last 20 fires."""


@route("DELETE", "/schedules/{schedule}", "publish", Found, tag="schedules", repeatable=True)
class DeleteSchedule(ScheduleCall[Found], frozen=True, kw_only=True):
    """Delete a schedule. Messages that it has published stay."""


@route(
    "POST",
    "/schedules/{schedule}/pause",
    "publish",
    ScheduleDescription,
    tag="schedules",
    repeatable=True,
)
class PauseSchedule(ScheduleCall[ScheduleDescription], frozen=True, kw_only=True):
    """No fires until it is resumed; those in between are not made up for."""


@route(
    "POST",
    "/schedules/{schedule}/resume",
    "publish",
    ScheduleDescription,
    tag="schedules",
    repeatable=True,
)
class ResumeSchedule(ScheduleCall[ScheduleDescription], frozen=True, kw_only=True):
    """Go on with the next fire after now."""


@route("POST", "/schedules/{schedule}/trigger", "publish", ScheduleFire, tag="schedules")
class TriggerSchedule(ScheduleCall[ScheduleFire], frozen=True, kw_only=True):
    """Fire once now, paused or not, whatever `overlap` says."""


@route("POST", "/schedules/{schedule}/backfill", "publish", Count, tag="schedules")
class BackfillSchedule(ScheduleCall[Count], frozen=True, kw_only=True):
    """Make all fires of a time that is over, again or for the first time; how many there were. All
    or none, and at most 1,000."""

    since: Time
    """From this moment on."""
    until: Time
    """Up to this moment, which is included; not later than now."""
