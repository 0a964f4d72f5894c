"""What one wants to know first of a broker, and how it stood over time."""

from __future__ import annotations

import msgspec

from penstock.model.stats import GroupMode, Summary, TopicRow


class LaggingGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group that has something to do."""

    namespace: str
    topic: str
    group: str
    mode: GroupMode
    lag: int
    """Messages that it has not done."""
    oldest_age_us: int | None
    """How long the oldest of them has been there; None: it is not known."""


class TopicAlarms(msgspec.Struct, frozen=True, kw_only=True):
    namespace: str
    topic: str
    kinds: list[str]
    """`lag`, `unread`; see `Alarm`."""


class FailingWebhook(msgspec.Struct, frozen=True, kw_only=True):
    namespace: str
    name: str
    failing_since_us: int | None
    disabled: str
    """Why it is disabled; empty: it is not."""


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """Everything together, and what needs attention: of each at most ten, the worst first."""

    summary: Summary
    disk_free_bytes: int | None
    """Of the disk of the data folder; None: for who may see one namespace only."""
    disk_floor_bytes: int
    """Below this nothing is published any more."""
    lagging: list[LaggingGroup]
    dead: list[TopicRow]
    """Topics with dead letters."""
    busiest: list[TopicRow]
    alarms: list[TopicAlarms]
    webhooks: list[FailingWebhook]
    failed_logs: int
    """Logs that take no writes any more, after a failed write or fsync."""


class HistoryRow(msgspec.Struct, frozen=True, kw_only=True):
    """Some time: what happened in it, and how things stood at its end."""

    time_us: int
    """When it began."""
    published: int
    delivered: int
    acked: int
    failed: int
    """Nacked, rejected, or expired."""
    dead_lettered: int
    depth: int | None
    """None: not all topics were known yet."""
    in_flight: int | None
    delayed: int | None
    dead: int | None
    lag: dict[str, int] = {}
    """What each of the queue groups of a topic had not done: those twenty that had most."""


class HistoryPage(msgspec.Struct, frozen=True, kw_only=True):
    rows: list[HistoryRow]
    """In the order of time."""
    complete: bool = True
    """Whether that is all; very much is not read at once: ask for less time."""
