"""Topics, their settings, statistics, queue groups and dead letters over the wire."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from penstock.broker.settings import TopicSettings
from penstock.broker.stats import LatencyRow, TopicStats
from penstock.broker.structs import Letter, Origin
from penstock.wire.messages import MessageView, Small, Whole, message_of, view
from penstock.wire.values import Place, Seconds, Time


class Settings(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """The settings of a topic as people write them; what is left out stays as it is."""

    partitions: int | msgspec.UnsetType = msgspec.UNSET
    visibility: Seconds | msgspec.UnsetType = msgspec.UNSET
    max_retries: int | msgspec.UnsetType | None = msgspec.UNSET
    backoff: tuple[Seconds, float, Seconds] | msgspec.UnsetType = msgspec.UNSET
    """The first delay, a factor, the longest delay."""
    ordered_by_key: bool | msgspec.UnsetType = msgspec.UNSET
    in_flight_max: int | msgspec.UnsetType | None = msgspec.UNSET
    ttl: Seconds | msgspec.UnsetType | None = msgspec.UNSET
    dead_letter_expired: bool | msgspec.UnsetType = msgspec.UNSET
    retention_mode: str | msgspec.UnsetType = msgspec.UNSET
    retention: Seconds | msgspec.UnsetType | None = msgspec.UNSET
    retention_bytes: int | msgspec.UnsetType | None = msgspec.UNSET
    retention_segments: int | msgspec.UnsetType | None = msgspec.UNSET
    keep_segments: int | msgspec.UnsetType = msgspec.UNSET
    retention_waits_for: list[str] | msgspec.UnsetType = msgspec.UNSET
    compacted: bool | msgspec.UnsetType = msgspec.UNSET
    dedup_window: Seconds | msgspec.UnsetType = msgspec.UNSET
    fsync: str | msgspec.UnsetType = msgspec.UNSET
    fsync_interval: Seconds | msgspec.UnsetType = msgspec.UNSET
    fsync_batch_writes: int | msgspec.UnsetType = msgspec.UNSET
    codec: str | msgspec.UnsetType = msgspec.UNSET
    segment_bytes: int | msgspec.UnsetType = msgspec.UNSET
    message_bytes_max: int | msgspec.UnsetType = msgspec.UNSET
    weights: tuple[int, int, int, int, int] | msgspec.UnsetType = msgspec.UNSET
    boost_after: Seconds | msgspec.UnsetType = msgspec.UNSET
    lease_expiry_backoff: bool | msgspec.UnsetType = msgspec.UNSET

    def given(self) -> dict[str, Any]:
        """Those that were given, as `parse_settings` takes them."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        return {name: value for name, value in fields.items() if value is not msgspec.UNSET}


class TopicView(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    settings: TopicSettings


class TopicNames(msgspec.Struct, frozen=True, kw_only=True):
    topics: list[str]


class Namespaces(msgspec.Struct, frozen=True, kw_only=True):
    namespaces: list[str]


class Groups(msgspec.Struct, frozen=True, kw_only=True):
    groups: list[str]


class Seek(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    to: Place
    partition: Small | None = None
    """By default all."""


class Count(msgspec.Struct, frozen=True, kw_only=True):
    """How many messages it was."""

    count: int


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """Whether it was there."""

    found: bool


class PartitionView(msgspec.Struct, frozen=True, kw_only=True):
    """What a partition holds: offsets from `start` up to, not including, `end`."""

    partition: int
    start: int
    end: int
    durable_end: int
    at: int | None = None
    """The offset at the position that was asked for."""


class LetterView(msgspec.Struct, frozen=True, kw_only=True):
    """A dead letter, and the story of its failure."""

    partition: int
    message: MessageView
    origin: Origin


class LetterPage(msgspec.Struct, frozen=True, kw_only=True):
    letters: list[LetterView]
    count: int
    """All letters that are neither redriven nor purged."""
    next: str | None
    """The `after` of the next page; null: that was all."""


class LetterPlace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    partition: Small
    offset: Whole
    id: str | None = None
    """Of the letter's message. With it, another letter that came to lie there is not touched: the
    whole request is refused."""


class LetterChoice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which letters: those named, those that all given filters fit, or, with nothing, all."""

    letters: list[LetterPlace] | None = None
    reason: Literal["max_retries", "rejected", "expired"] | None = None
    group: str | None = None
    error_contains: str | None = None

    def fits(self, letter: Letter) -> bool:
        origin = letter.origin
        return (
            self.reason in (None, origin.reason)
            and self.group in (None, origin.group)
            and (self.error_contains is None or self.error_contains in origin.error)
        )


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
    polls: int
    """Requests that wait for messages."""


SortBy = Literal[
    "topic", "messages", "size_bytes", "depth", "in_flight", "delayed", "dead", "publish_rate"
]


class TableOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    search: str = ""
    """Only topics whose name holds this."""
    sort: SortBy = "topic"
    descending: bool = False
    offset: Whole = 0
    limit: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 100
    details: bool = False
    """Give all that is known of each topic, too."""


class LatencyOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    since: Time | None = None
    """From the minute on in which this lies; by default an hour before `until`, or now."""
    until: Time | None = None
    """Minutes that begin before this; by default all, the present one too."""
    limit: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 10_000
    """Rows on a page, or some more: a minute is given whole. There may be fewer, even none, where
    much has to be looked through to find them."""


class LatencyPage(msgspec.Struct, frozen=True, kw_only=True):
    rows: list[LatencyRow]
    """In the order of time."""
    next: int | None
    """The `since` of the next page; none: this is the last, and only this says so."""


def letter_view(letter: Letter) -> LetterView:
    return LetterView(
        partition=letter.partition, message=view(letter.message), origin=letter.origin
    )


def letter_of(seen: LetterView) -> Letter:
    return Letter(seen.partition, message_of(seen.message), seen.origin)
