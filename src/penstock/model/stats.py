"""How things stand: of a topic, its partitions and groups, and of all topics together."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

Kind: TypeAlias = Literal["waited", "handled"]


class LatencyStats(msgspec.Struct, frozen=True, kw_only=True):
    """How long something took. The percentiles are off by an eighth at the most."""

    count: int
    mean_us: int
    p50_us: int
    p95_us: int
    p99_us: int
    max_us: int


class LatencyRow(LatencyStats, frozen=True, kw_only=True):
    """One minute of a group: its messages of one priority, or of all."""

    minute_us: int
    """When it began, in microseconds since 1970."""
    group: str
    priority: str | None
    """None: of all priorities together."""
    kind: Kind


class PartitionStats(msgspec.Struct, frozen=True, kw_only=True):
    partition: int
    start: int
    end: int
    durable_end: int
    size_bytes: int
    damaged: int
    """Places where messages were found lost since the broker was opened."""
    publish_rate: float


class GroupStats(msgspec.Struct, frozen=True, kw_only=True):
    """One group that reads the topic as a queue, over all partitions.

    Rates are messages a second, over the last ten seconds.
    """

    group: str
    depth: int
    ready: int
    in_flight: int
    retrying: int
    committed: dict[int, int]
    depth_by_partition: dict[int, int]
    ready_by_priority: dict[str, int]
    """Counted some way ahead on each lane; in a long backlog the fullest lane gets the rest."""
    in_flight_by_priority: dict[str, int]
    retrying_by_priority: dict[str, int]
    oldest_age_us: int | None
    """How long the oldest message that is not done has been there."""
    deliver_rate: float
    ack_rate: float
    waited: LatencyStats | None = None
    """Of the last five minutes: from a message's timestamp to its first hand-out."""
    handled: LatencyStats | None = None
    """Of the last five minutes: from a hand-out to the ack."""


class TopicStats(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    messages: int
    size_bytes: int
    depth: int
    """Messages that some group still has to do; all of them while there is no group."""
    in_flight: int
    delayed: int
    next_due_us: int | None
    dead: int
    publish_rate: float
    deliver_rate: float
    ack_rate: float
    partitions: list[PartitionStats]
    groups: list[GroupStats]


class TopicRow(msgspec.Struct, frozen=True, kw_only=True):
    """One topic in the table of all."""

    topic: str
    namespace: str
    partitions: int
    groups: int
    messages: int
    size_bytes: int
    depth: int
    in_flight: int
    delayed: int
    dead: int
    publish_rate: float
    deliver_rate: float
    ack_rate: float


class TopicTable(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    topics: list[TopicRow]
    total: int
    """Topics that fit, on all pages."""
    details: list[TopicStats] = []
    """Of the same topics, by partition, group and priority; if asked for."""


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Everything together."""

    topics: int
    partitions: int
    groups: int
    stream_groups: int
    messages: int
    size_bytes: int
    depth: int
    in_flight: int
    delayed: int
    dead: int
    publish_rate: float
    deliver_rate: float
    ack_rate: float
    polls: int = 0
    """Requests to the server that wait for messages."""


SortBy = Literal[
    "topic", "messages", "size_bytes", "depth", "in_flight", "delayed", "dead", "publish_rate"
]


class LatencyPage(msgspec.Struct, frozen=True, kw_only=True):
    rows: list[LatencyRow]
    """In the order of time."""
    next: int | None
    """The `since` of the next page; none: this is the last, and only this says so."""


class DelayStats(msgspec.Struct, frozen=True):
    pending: int
    next_due_us: int | None


class InFlightMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message that a group was handed and has not settled, or that waits for a retry."""

    partition: int
    offset: int
    state: Literal["leased", "retrying"]
    delivery_count: int
    """How often it was handed out."""
    receipt: str | None
    """Of the present delivery; None while it waits for a retry."""
    consumer: str
    first_delivery_us: int
    last_delivery_us: int
    deadline_us: int
    """When the lease ends, or the retry falls due."""
    error: str = ""
    """What the last consumer said went wrong."""


class InFlightPage(msgspec.Struct, frozen=True, kw_only=True):
    messages: list[InFlightMessage]
    next: str | None
    """The `after` of the next page; None: that was all."""
