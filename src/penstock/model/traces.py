"""What happened to messages, as the traces tell it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeAlias

import msgspec

TraceEventName: TypeAlias = Literal[
    "published",
    "scheduled",
    "moved",
    "cancelled",
    "delivered",
    "extended",
    "acked",
    "nacked",
    "lease_expired",
    "expired",
    "rejected",
    "dead_lettered",
    "redriven",
    "purged",
]


class TraceEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that happened to a message."""

    at_us: int
    """In microseconds since 1970."""
    event: TraceEventName
    topic: str
    partition: int
    offset: int
    """In the topic; of `scheduled` and `cancelled`, where it waits."""
    id: str | None = None
    """Of the message, where it is told; a dead letter, and what is redriven, has one of its own."""
    group: str = ""
    consumer: str = ""
    delivery_count: int = 0
    lease: str = ""
    """The lease under which it was held, in hex as in a receipt."""
    until_us: int | None = None
    """When it falls due, its lease ends, or it may be handed out again."""
    error: str = ""


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """The life of a message: delays, retries, dead letters and redrives belong to it."""

    trace_id: str | None
    """32 hex digits: of its `traceparent`, or else its id as a number."""
    id: str | None
    """Of the message as it was published; None: it was not traced then."""
    topic: str
    partition: int
    offset: int | None
    """Where it was published; None while it waits for its time."""
    events: list[TraceEvent]
    """In the order of time."""


class TracePage(msgspec.Struct, frozen=True, kw_only=True):
    traces: list[Trace]
    next: str | None = None
    """The `after` of the next page; None: that was all."""
    dropped: int = 0
    """So many events were not stored since the broker was opened, since they came too fast."""

    def __iter__(self) -> Iterator[Trace]:
        return iter(self.traces)

    def __len__(self) -> int:
        return len(self.traces)

    def __getitem__(self, nth: int) -> Trace:
        return self.traces[nth]


class TraceBlocks(msgspec.Struct, frozen=True, kw_only=True):
    """Stored rows, as they are read by who works on many: each an Arrow IPC stream."""

    blocks: list[bytes]
    """In JSON as base64."""
    next: int
    """Where to go on."""
    end: int
    """Where the log of traces ends now; that is when there is nothing more."""


class TraceTotals(msgspec.Struct, frozen=True, kw_only=True):
    """Events of messages since the broker was opened."""

    noted: int
    """They are stored."""
    dropped: int
    """They are not: the disk was slower, or refused them."""
