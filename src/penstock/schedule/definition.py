"""What somebody asked for: a message, and when it is to be published again and again."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

Overlap: TypeAlias = Literal["allow", "skip", "buffer_one"]
"""What happens to a fire while the message of the last one is not settled."""
CatchUpPolicy: TypeAlias = Literal["last", "all", "none"]
"""Which of the fires that were missed are made up for."""
FireKind: TypeAlias = Literal["scheduled", "triggered", "backfilled"]

EVERY_US_MIN = 10_000
JITTER_US_MAX = 86_400 * 1_000_000
CATCH_UP_US_MAX = 366 * 86_400 * 1_000_000
TIME_US_MAX = 253_402_300_799 * 1_000_000
"""The last second of the year 9999: no calendar goes on after it."""


class ScheduleTiming(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When a schedule fires: one of `cron`, `every_us` and `at_us`, and its bounds.

    New fields need a default.
    """

    cron: str | None = None
    every_us: int | None = None
    at_us: int | None = None
    timezone: str = "UTC"
    start_us: int | None = None
    """No fire is before this; `every_us` counts from here, or from when the schedule was made."""
    end_us: int | None = None
    """No fire is after this."""
    jitter_us: int = 0
    """A fire is late by up to so much, always the same for the same fire."""


class ScheduleDefinition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A schedule as it was put. New fields need a default."""

    topic: str
    timing: ScheduleTiming
    value: bytes | None = None
    key: bytes | None = None
    headers: dict[str, bytes | None] = {}
    priority: int = 2
    ttl_us: int | None = None
    overlap: Overlap = "allow"
    group: str | None = None
    """Whose settling counts for `overlap`."""
    catch_up_us: int = 86_400 * 1_000_000
    """A fire that was missed longer ago is not made up for."""
    catch_up_policy: CatchUpPolicy = "last"

    @property
    def payload_bytes(self) -> int:
        headers = sum(len(name) + len(value or b"") for name, value in self.headers.items())
        return len(self.value or b"") + len(self.key or b"") + headers
