"""What a dashboard of all queues asks for: cards, the table without dead letters, and numbers by
priority and of delays."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from penstock.model.calls import SummarizeDelays, TabulatePriorities
from penstock.model.stats import DelayStats, PriorityTable, QueuePage, QueueSummary
from penstock.server.http.endpoints import HttpRequest, Table

table = Table("stats")

QUEUES_MAX = 200


class QueuePageOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which page."""

    page: Annotated[int, msgspec.Meta(ge=1, le=1 << 31)] = 1
    limit: Annotated[int, msgspec.Meta(ge=1, le=QUEUES_MAX)] = 50


@table.add("GET", "/api/stats/summary", right="describe", result=QueueSummary, in_namespaces=False)
async def queue_summary(call: HttpRequest) -> QueueSummary:
    """The cards of a dashboard: queues, namespaces, depth, scheduled messages, dead letters."""
    return await call.door.aside(call.api.queue_summary)


@table.add(
    "GET",
    "/api/stats",
    right="describe",
    options=QueuePageOptions,
    result=QueuePage,
    in_namespaces=False,
)
async def queue_page(call: HttpRequest) -> QueuePage:
    """The table of a dashboard: queues by namespace and name, page by page."""
    wanted: QueuePageOptions = call.options
    return await call.door.aside(call.api.queue_page, wanted.page, wanted.limit)


class PriorityTableOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which topics."""

    offset: Annotated[int, msgspec.Meta(ge=0, le=1 << 31)] = 0
    limit: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 100


@table.add(
    "GET",
    "/priority/stats",
    right="describe",
    options=PriorityTableOptions,
    result=PriorityTable,
    in_namespaces=False,
)
async def all_priority_stats(call: HttpRequest) -> Any:
    """All topics by name, each by priority and partition: ready, in flight, enqueue and dequeue
    rate, and when it was last served."""
    wanted: PriorityTableOptions = call.options
    asked = TabulatePriorities(offset=wanted.offset, limit=wanted.limit)
    return await call.door.aside(call.api.ask, asked)


@table.add("GET", "/delay/stats", right="describe", result=DelayStats, in_namespaces=False)
async def all_delay_stats(call: HttpRequest) -> Any:
    """Delayed messages of all topics together: how many wait, and what became of the others."""
    return await call.door.aside(call.api.ask, SummarizeDelays())
