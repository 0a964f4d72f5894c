"""Traces: what happened to a message, from publish to ack."""

from __future__ import annotations

from penstock.client.arguments import maybe_time
from penstock.client.base import AsyncCalls, SyncCalls
from penstock.durations import Moment
from penstock.model import calls
from penstock.model.traces import TracePage


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
