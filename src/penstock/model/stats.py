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


class MessageCounters(msgspec.Struct, frozen=True, kw_only=True):
    """What became of messages since the broker was opened, of all groups together."""

    published: int = 0
    """Stored in the topic: by a publish, when a delay was over, or by a redrive."""
    delivered: int = 0
    """Handed out, each time anew."""
    acked: int = 0
    nacked: int = 0
    rejected: int = 0
    expired: int = 0
    """Outlived their TTL before a group got them, or got them again."""
    dead_lettered: int = 0
    """Stored as dead letters, whatever the reason."""


class PartitionStats(msgspec.Struct, frozen=True, kw_only=True):
    partition: int
    start: int
    end: int
    durable_end: int
    size_bytes: int
    damaged: int
    """Places where messages were found lost since the broker was opened."""
    publish_rate: float
    segments: int = 0
    """In how many files its messages lie."""


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


AlarmKind: TypeAlias = Literal["lag", "unread"]
GroupMode: TypeAlias = Literal["queue", "stream"]


class Alarm(msgspec.Struct, frozen=True, kw_only=True):
    """A message that waits for too long."""

    kind: AlarmKind
    """`lag`: a group has not done it, and it is older than the topic's `lag_alarm`. `unread`: no
    group has read it, and retention will drop it soon."""
    group: str | None = None
    """None: none has read it."""
    mode: GroupMode | None = None
    partition: int
    age_us: int
    """Of the oldest such message."""


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
    segments: int = 0
    counters: MessageCounters = MessageCounters()
    created_us: int | None = None
    """When the topic was made; None: by a version that did not note it."""
    updated_us: int | None = None
    """When its settings were last changed, or it was made."""
    incarnation: str = ""
    """Another one when the topic is deleted and made again."""
    alarms: list[Alarm] = []


class LaneStats(msgspec.Struct, frozen=True, kw_only=True):
    """One priority of a topic, or of one of its partitions.

    Rates are messages a second, over the last ten seconds.
    """

    ready: int
    """Never handed out to the group that has most of them left; all while there is no group."""
    in_flight: int
    """Under a lease, of all groups together."""
    enqueue_rate: float
    dequeue_rate: float
    """Handed out, of all groups together."""
    last_served_us: int | None
    """When the last one was handed out; None: none since the broker was opened."""


class PartitionLanes(msgspec.Struct, frozen=True, kw_only=True):
    partition: int
    lanes: dict[str, LaneStats]


class PriorityStats(msgspec.Struct, frozen=True, kw_only=True):
    """A topic by priority: the five lanes, the most urgent first."""

    topic: str
    lanes: dict[str, LaneStats]
    partitions: list[PartitionLanes]


class PriorityTable(msgspec.Struct, frozen=True, kw_only=True):
    """A page of all topics by priority."""

    topics: list[PriorityStats]
    total: int
    """How many topics there are."""


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
    recent: list[list[int]] = []
    """Messages published to each in the last sixty minutes that are over, by minute; if asked
    for."""


class QueueSummary(msgspec.Struct, frozen=True, kw_only=True):
    """All queues together; topics of dead letters are no queues of their own."""

    total_queues: int
    namespaces: int
    total_depth: int
    total_scheduled: int
    """Delayed messages that wait."""
    dlq_alerts: int
    """Queues that have dead letters."""


class QueueRow(msgspec.Struct, frozen=True, kw_only=True):
    """One queue in the table of all."""

    namespace: str
    queue: str
    depth: int
    in_flight: int
    scheduled: int
    dead: int
    publish_rate: float
    ack_rate: float


class QueuePage(msgspec.Struct, frozen=True, kw_only=True):
    """Queues by namespace and name."""

    queues: list[QueueRow]
    total: int
    page: int
    limit: int
    total_pages: int


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
    """Delayed messages: those that wait and, since the broker was opened, what became of others."""

    pending: int
    next_due_us: int | None
    delivered: int = 0
    """Fell due, and are in their partitions."""
    cancelled: int = 0
    expired: int = 0
    """Fell due when their TTL was over already, so that nobody gets them."""


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
