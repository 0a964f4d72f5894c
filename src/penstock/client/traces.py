"""Traces: what happened to a message, from publish to ack."""

from __future__ import annotations

from penstock.client.arguments import maybe_time
from penstock.client.base import AsyncCalls, SyncCalls
from penstock.durations import Moment
from penstock.model import calls
from penstock.model.traces import TraceBlocks, TracePage


def _find(
    namespace: str,
    topic: str | None,
    message_id: str | None,
    trace_id: str | None,
    key: str | None,
    partition: int | None,
    offset: int | None,
    since: Moment | None,
    until: Moment | None,
    after: str | None,
    limit: int,
) -> calls.FindTraces:
    return calls.FindTraces(
        namespace=namespace,
        topic=topic,
        message_id=message_id,
        trace_id=trace_id,
        key=key,
        partition=partition,
        offset=offset,
        since=maybe_time(since, "since"),
        until=maybe_time(until, "until"),
        after=after,
        limit=limit,
    )


def _blocks(
    namespace: str, start: int, stop: int | None, since: Moment | None, max_bytes: int
) -> calls.ReadTraceBlocks:
    return calls.ReadTraceBlocks(
        namespace=namespace,
        start=start,
        stop=stop,
        since=maybe_time(since, "since"),
        max_bytes=max_bytes,
    )


class TraceCalls(SyncCalls):
    def trace(
        self,
        topic: str | None = None,
        *,
        message_id: str | None = None,
        trace_id: str | None = None,
        key: str | None = None,
        partition: int | None = None,
        offset: int | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
        after: str | None = None,
        limit: int = 20,
    ) -> TracePage:
        """What happened to messages, each life in the order of time.

        Of one message, by its `message_id` or by `topic`, `partition` and `offset`; of those of a
        `trace_id`; of those of a `topic` that have a `key`; of those of a `topic` to which
        something happened, by default in the last hour. `after` is the `next` of the page before.
        """
        return self._ask(
            _find(
                self._namespace,
                topic,
                message_id,
                trace_id,
                key,
                partition,
                offset,
                since,
                until,
                after,
                limit,
            )
        )

    def trace_blocks(
        self,
        start: int = 0,
        *,
        stop: int | None = None,
        since: Moment | None = None,
        max_bytes: int = 4 << 20,
    ) -> TraceBlocks:
        """Events of the namespace as they are stored, for who works on many: Arrow IPC streams of
        runs of messages. `start` is the `next` of the answer before; where that is the `end`,
        there is nothing more yet."""
        return self._ask(_blocks(self._namespace, start, stop, since, max_bytes))


class AsyncTraceCalls(AsyncCalls):
    async def trace(
        self,
        topic: str | None = None,
        *,
        message_id: str | None = None,
        trace_id: str | None = None,
        key: str | None = None,
        partition: int | None = None,
        offset: int | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
        after: str | None = None,
        limit: int = 20,
    ) -> TracePage:
        """What happened to messages, each life in the order of time.

        Of one message, by its `message_id` or by `topic`, `partition` and `offset`; of those of a
        `trace_id`; of those of a `topic` that have a `key`; of those of a `topic` to which
        something happened, by default in the last hour. `after` is the `next` of the page before.
        """
        return await self._ask(
            _find(
                self._namespace,
                topic,
                message_id,
                trace_id,
                key,
                partition,
                offset,
                since,
                until,
                after,
                limit,
            )
        )

    async def trace_blocks(
        self,
        start: int = 0,
        *,
        stop: int | None = None,
        since: Moment | None = None,
        max_bytes: int = 4 << 20,
    ) -> TraceBlocks:
        """Events of the namespace as they are stored, for who works on many: Arrow IPC streams of
        runs of messages. `start` is the `next` of the answer before; where that is the `end`,
        there is nothing more yet."""
        return await self._ask(_blocks(self._namespace, start, stop, since, max_bytes))
