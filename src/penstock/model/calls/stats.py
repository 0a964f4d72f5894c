"""How a broker stands and stood: statistics, latencies and history."""

from __future__ import annotations

from typing import Annotated

import msgspec

from penstock.model.calls.base import EverywhereCall, TopicCall, route
from penstock.model.overview import HistoryPage, Overview
from penstock.model.stats import (
    DelayStats,
    LatencyPage,
    PriorityStats,
    PriorityTable,
    SortBy,
    Summary,
    TopicStats,
    TopicTable,
)
from penstock.model.values import Seconds, Time, Whole


@route("GET", "/topics/{topic}/stats", "describe", TopicStats, tag="stats")
class DescribeStats(TopicCall[TopicStats], frozen=True, kw_only=True):
    """Depth, in flight, delayed, dead and rates of a topic, by partition, group and priority."""


@route("GET", "/topics/{topic}/priority/stats", "describe", PriorityStats, tag="stats")
class DescribePriorities(TopicCall[PriorityStats], frozen=True, kw_only=True):
    """Each priority of a topic, over all partitions and by partition: ready, in flight, enqueue and
    dequeue rate, and when it was last served."""


@route("GET", "/topics/{topic}/latencies", "describe", LatencyPage, tag="stats")
class ListLatencies(TopicCall[LatencyPage], frozen=True, kw_only=True):
    """How long messages waited for their first hand-out, and were worked on until their ack: by
    minute, group and priority, page by page."""

    since: Time | None = None
    """From the minute on in which this lies; by default an hour before `until`, or now."""
    until: Time | None = None
    """Minutes that begin before this; by default all, the present one too."""
    limit: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 10_000
    """Rows on a page, or some more: a minute is given whole. There may be fewer, even none, where
    much has to be looked through to find them."""


@route("GET", "/stats", "describe", Summary, tag="stats")
class Summarize(EverywhereCall[Summary], frozen=True, kw_only=True):
    """All topics together, in one pass. With a namespace in the path, of that one."""


@route("GET", "/delayed/stats", "describe", DelayStats, tag="delayed")
class SummarizeDelays(EverywhereCall[DelayStats], frozen=True, kw_only=True):
    """Delayed messages of all topics together: how many wait, and what became of the others. With a
    namespace in the path, of that one."""


@route("GET", "/stats/topics", "describe", TopicTable, tag="stats")
class TabulateTopics(EverywhereCall[TopicTable], frozen=True, kw_only=True):
    """A page of the table of all topics, sorted. With a namespace in the path, of that one."""

    search: str = ""
    """Only topics whose name holds this."""
    sort: SortBy = "topic"
    descending: bool = False
    offset: Whole = 0
    limit: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 100
    details: bool = False
    """Give all that is known of each topic, too."""
    dead_letter_topics: bool = True
    """Also those of dead letters."""
    recent: bool = False
    """Give what was published to each in each of the last sixty minutes, too."""


@route("GET", "/priority/stats", "describe", PriorityTable, tag="stats")
class TabulatePriorities(EverywhereCall[PriorityTable], frozen=True, kw_only=True):
    """A page of all topics by name, each by priority and partition. With a namespace in the path,
    of that one."""

    offset: Whole = 0
    limit: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 100


@route("GET", "/overview", "describe", Overview, tag="stats")
class DescribeOverview(EverywhereCall[Overview], frozen=True, kw_only=True):
    """The overview: all topics together, and what needs attention. With a namespace in the path, of
    that one."""


@route("GET", "/topics/{topic}/history", "describe", HistoryPage, tag="stats")
class ListHistory(TopicCall[HistoryPage], frozen=True, kw_only=True):
    """How a topic stood, minute by minute, for up to seven days: what came and went, what was left,
    and the lag of its queue groups. Minutes in which nothing changed are left out."""

    since: Time | None = None
    """From the minute on in which this lies; by default an hour before `until`, or now."""
    until: Time | None = None
    """Minutes that begin before this; by default all that are over."""
    step: Seconds = "1m"
    """The time that one row covers: whole minutes, up to a day."""


@route("GET", "/history", "describe", HistoryPage, tag="stats")
class ListAllHistory(EverywhereCall[HistoryPage], frozen=True, kw_only=True):
    """The same of all topics together. With a namespace in the path, of that one."""

    since: Time | None = None
    """From the minute on in which this lies; by default an hour before `until`, or now."""
    until: Time | None = None
    """Minutes that begin before this; by default all that are over."""
    step: Seconds = "1m"
    """The time that one row covers: whole minutes, up to a day."""
