"""Queue groups of a topic, and its delayed messages."""

from __future__ import annotations

from typing import Annotated, Generic

import msgspec

from penstock.model.calls.base import T_co, TopicCall, route
from penstock.model.messages import DelayedPage
from penstock.model.stats import DelayStats, InFlightPage
from penstock.model.topics import Found, Groups
from penstock.model.values import Small, StreamPosition, Whole


class GroupCall(
    TopicCall[T_co], Generic[T_co], frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """A question about one queue group of a topic."""

    group: str


@route("GET", "/topics/{topic}/groups", "describe", Groups, tag="queues")
class ListGroups(TopicCall[Groups], frozen=True, kw_only=True):
    """The groups that read a topic as a queue."""


@route("DELETE", "/topics/{topic}/groups/{group}", "manage", Found, tag="queues", repeatable=True)
class DeleteGroup(GroupCall[Found], frozen=True, kw_only=True):
    """Delete a group and what it has done; the next receive of that name begins with the oldest."""


@route("POST", "/topics/{topic}/groups/{group}/seek", "consume", tag="queues", repeatable=True)
class Seek(GroupCall[None], frozen=True, kw_only=True):
    """Move a group to a position; receipts that were handed out become invalid."""

    to: StreamPosition
    partition: Small | None = None
    """By default all."""


@route("GET", "/topics/{topic}/groups/{group}/in-flight", "look", InFlightPage, tag="queues")
class InFlight(GroupCall[InFlightPage], frozen=True, kw_only=True):
    """Messages that a group was handed and has not settled, and those that wait for a retry."""

    after: str | None = None
    """The `next` of the page before."""
    limit: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 100


@route("GET", "/topics/{topic}/delayed", "look", DelayedPage, tag="delayed")
class ListDelayed(TopicCall[DelayedPage], frozen=True, kw_only=True):
    """Messages that wait, in the order in which they were published, page by page."""

    after: Whole = 0
    """The `next` of the page before."""
    limit: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 100


@route("GET", "/topics/{topic}/delayed/stats", "describe", DelayStats, tag="delayed")
class DescribeDelays(TopicCall[DelayStats], frozen=True, kw_only=True):
    """How many messages wait and when the next falls due; and, since the broker was opened, how
    many were delivered or cancelled, or had expired by then."""


@route("DELETE", "/topics/{topic}/delayed/{id}", "publish", Found, tag="delayed", repeatable=True)
class CancelDelayed(TopicCall[Found], frozen=True, kw_only=True):
    """Take back a delayed message; not found: it is delivered or cancelled already."""

    id: str
