"""Traces: the recorded lives of messages."""

from __future__ import annotations

from typing import Annotated

import msgspec

from penstock.model.calls.base import Call, EverywhereCall, route
from penstock.model.traces import TraceBlocks, TracePage
from penstock.model.values import Short, Small, Time, Whole


@route("GET", "/traces", "look", TracePage, tag="traces")
class FindTraces(Call[TracePage], frozen=True, kw_only=True):
    """The lives of messages: of one by its id or by topic, partition and offset; of those of a
    trace id; of those of a topic with a key, or to which something happened in a time."""

    message_id: Short | None = None
    trace_id: Short | None = None
    """32 hex digits, as in `traceparent`."""
    topic: Short | None = None
    partition: Small | None = None
    offset: Whole | None = None
    key: str | None = None
    since: Time | None = None
    """With a topic: by default an hour before `until`."""
    until: Time | None = None
    """With a topic: by default now."""
    after: Short | None = None
    """The `next` of the page before."""
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 20


@route("GET", "/traces/blocks", "look", TraceBlocks, tag="traces")
class ReadTraceBlocks(EverywhereCall[TraceBlocks], frozen=True, kw_only=True):
    """Events as they are stored, in bulk: Arrow IPC streams, from a position of the log on. With a
    namespace in the path, of that one."""

    start: Whole = 0
    """The `next` of the answer before."""
    since: Time | None = None
    """Not before this, if that is later than `start`."""
    stop: Whole | None = None
    """Nothing that lies here or later, so that two answers bring nothing twice."""
    max_bytes: Annotated[int, msgspec.Meta(ge=1, le=16 << 20)] = 4 << 20
