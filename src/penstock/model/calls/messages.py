"""Messages of a topic: peeking, reading, searching, purging, trimming and compacting."""

from __future__ import annotations

from typing import Annotated

import msgspec

from penstock.model.calls.base import TopicCall, route
from penstock.model.messages import MessagePage
from penstock.model.searches import FoundPage
from penstock.model.topics import Compacted, Count, PartitionBounds
from penstock.model.values import Short, Small, StreamPosition, Time


@route("GET", "/topics/{topic}/messages", "look", MessagePage, tag="messages")
class Peek(TopicCall[MessagePage], frozen=True, kw_only=True):
    """Look at messages without consuming them, from a position that is brought within what the
    partition holds."""

    partition: Small | None = None
    """By default all partitions, their messages in the order of time."""
    at: StreamPosition = "earliest"
    limit: Annotated[int, msgspec.Meta(ge=0, le=100_000)] = 10


@route(
    "GET", "/topics/{topic}/partitions/{partition}/messages", "look", MessagePage, tag="messages"
)
class Read(TopicCall[MessagePage], frozen=True, kw_only=True):
    """Read a partition on from an offset or a time, as it lies in the log."""

    partition: Small
    at: StreamPosition = "earliest"
    """An offset that is not in the log is an error; a time is always somewhere."""
    max_bytes: Annotated[int, msgspec.Meta(ge=1, le=64 << 20)] = 1 << 20
    """About; at least one batch is read if there is one."""


@route("GET", "/topics/{topic}/search", "look", FoundPage, tag="messages")
class SearchMessages(TopicCall[FoundPage], frozen=True, kw_only=True):
    """Look for messages without consuming them, all filters together, page by page. For one page
    64 MiB are read, or for two seconds: it may be empty and yet not the last."""

    partition: Small | None = None
    """By default all partitions, their messages in the order of time."""
    at: StreamPosition | None = None
    """Where to begin: by default with the first message or, backward, with the last."""
    backward: bool = False
    """The newest first, from below `at`."""
    until: Time | None = None
    """Only messages before this; backward: only those not before."""
    key: Short | None = None
    """Is in the key."""
    value: Short | None = None
    """Is in the value."""
    header: Short | None = None
    """`name`, or `name=text`, where the text is in the value of the header."""
    pointer: Short | None = None
    """A JSON pointer, as "/customer/id", to something that is in the value, or in what it says
    by its schema."""
    equals: Short | None = None
    """What is there: as JSON or, if it is text, as it is."""
    priority: Short | None = None
    """critical, high, normal, low or background; or 0 to 4."""
    after: Annotated[str, msgspec.Meta(max_length=1 << 18)] | None = None
    """The `next` of the page before; the same filters have to go with it."""
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 50


@route("DELETE", "/topics/{topic}/messages", "manage", Count, tag="messages")
class Purge(TopicCall[Count], frozen=True, kw_only=True):
    """Drop every message of a topic, or skip them all for one group; how many there were."""

    group: str | None = None
    """Only skip them for this group."""


@route(
    "POST",
    "/topics/{topic}/partitions/{partition}/trim",
    "manage",
    PartitionBounds,
    tag="messages",
    repeatable=True,
)
class Trim(TopicCall[PartitionBounds], frozen=True, kw_only=True):
    """Drop the messages of a partition that are before a position; what it holds then."""

    partition: Small
    before: StreamPosition
    """An offset that is past the end is an error."""


@route("POST", "/topics/{topic}/compact", "manage", Compacted, tag="topics", repeatable=True)
class Compact(TopicCall[Compacted], frozen=True, kw_only=True):
    """Rewrite the files of a topic without what nobody needs any more; what that saved."""
