"""Recurring schedules: how they are asked for, and how they stand."""

from __future__ import annotations

import msgspec

from penstock.model.values import HeaderValue, headers_to_bytes, to_bytes
from penstock.schedule.definition import CatchUpPolicy, FireKind, Overlap

SCHEDULE_HEADER = "penstock-schedule"
"""On the message of a fire: the name of the schedule."""
SCHEDULED_FOR_HEADER = "penstock-scheduled-for"
"""On the message of a fire: the moment that it is for, as RFC 3339 in UTC."""

SCHEDULES_MAX = 100_000
SCHEDULE_BYTES_MAX = 256 << 10
SCHEDULES_BYTES_MAX = 64 << 20
BACKFILL_MAX = 1000
NEXT_SHOWN = 10


class ScheduleFire(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One fire of a schedule, and its message."""

    number: int
    """Counts the fires of the schedule from 1."""
    scheduled_for_us: int
    """The moment that it was for."""
    fired_at_us: int
    kind: FireKind = "scheduled"
    id: str = ""
    """Of the message; empty if there is none, or none yet."""
    partition: int | None = None
    offset: int | None = None
    error: str = ""
    """Why there is no message."""


class ScheduleDescription(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A schedule, when it fires next, and what became of its last fires."""

    name: str
    topic: str
    value: str | None = None
    value_base64: str | None = None
    key: str | None = None
    key_base64: str | None = None
    headers: dict[str, HeaderValue] | None = None
    priority: str = "normal"
    ttl: str | None = None
    cron: str | None = None
    every: str | None = None
    at_us: int | None = None
    timezone: str = "UTC"
    start_us: int | None = None
    end_us: int | None = None
    jitter: str | None = None
    overlap: Overlap = "allow"
    group: str | None = None
    catch_up: str = "1d"
    catch_up_policy: CatchUpPolicy = "last"
    paused: bool = False
    created_us: int
    fired: int = 0
    """How often it has fired."""
    skipped: int = 0
    """Fires that were left out because the message of the one before was not settled."""
    buffered_us: int | None = None
    """A fire that waits for the message of the one before to be settled."""
    error: str = ""
    """What is wrong with the last fire, or keeps the next one from being made."""
    next_us: list[int] = []
    """The moments of the next fires, without their jitter: 10, or in a list 1."""
    last: list[ScheduleFire] = []
    """The last fires, newest first: 20, or in a list 1."""

    def value_bytes(self) -> bytes | None:
        return to_bytes("value", self.value, self.value_base64)

    def key_bytes(self) -> bytes | None:
        return to_bytes("key", self.key, self.key_base64)

    def header_bytes(self) -> dict[str, bytes | None]:
        return headers_to_bytes(self.headers)


class SchedulePage(msgspec.Struct, frozen=True, kw_only=True):
    schedules: list[ScheduleDescription]
    next: str | None
    """The `after` of the next page; null: that was all."""


class ScheduleTotals(msgspec.Struct, frozen=True, kw_only=True):
    """All schedules of a broker, since it was opened."""

    schedules: int
    paused: int
    fired: int
    late: int
    """Fires that were made more than 10 ms after they were due."""
    failed: int
    """Fires without a message."""
    skipped: int
