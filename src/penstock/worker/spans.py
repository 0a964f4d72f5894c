"""Handlers run in spans of OpenTelemetry, where it is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.otel import is_wanted

if TYPE_CHECKING:
    from penstock.worker.consumers import Consumer
    from penstock.worker.jobs import Job
    from penstock.worker.middleware import CallNext, Middleware


def spans_of(consumer: Consumer) -> list[Middleware]:
    """Around the handler of a consumer; nothing where there is no OpenTelemetry."""
    if not is_wanted():
        return []
    from penstock.otel.spans import processing  # noqa: PLC0415

    async def in_span(job: Job, call_next: CallNext) -> Any:
        as_parent = consumer.trace == "parent"
        with processing(consumer.topic, consumer.group, job.messages, as_parent=as_parent):
            return await call_next(job)

    return [in_span]
