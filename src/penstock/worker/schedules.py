"""Functions that are called again and again: a schedule, a topic of its own, and a consumer."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.durations import Duration, Moment
from penstock.model.names import schedule_name, topic_name
from penstock.schedule.definition import CatchUpPolicy, Overlap

TOPIC_PREFIX = "schedules."


class AppSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule of an app, which it puts when it starts. Its group is named like it."""

    name: str
    topic: str
    cron: str | None
    every: Duration | None
    at: Moment | None
    timezone: str
    start: Moment | None
    end: Moment | None
    jitter: Duration | None
    overlap: Overlap
    catch_up: Duration
    catch_up_policy: CatchUpPolicy

    def arguments(self) -> dict[str, Any]:
        """Those of `Client.schedule`."""
        group = None if self.overlap == "allow" else self.name
        return {**msgspec.structs.asdict(self), "group": group}


def topic_of_schedule(name: str, topic: str | None, namespace: str) -> str:
    """Where the messages of a schedule go if the app names no topic for them."""
    chosen = TOPIC_PREFIX + schedule_name(name) if topic is None else topic
    return topic_name(chosen, namespace).topic
