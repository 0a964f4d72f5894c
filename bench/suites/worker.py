"""A worker app, async and on threads, beside a plain loop of receive and ack."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import penstock
from bench import messages
from bench.figures import at_least
from bench.harness import Bench, Contender, Sample
from bench.suites.broker_publish import TOPIC
from bench.suites.broker_receive import GROUP, receive_singles

_MESSAGES = 20_000
_CONCURRENCY = 8


def run(bench: Bench) -> None:
    values = messages.values(_MESSAGES)
    race = bench.race(
        "worker",
        [
            _working("async worker", values, is_async=True),
            _working("worker on threads", values, is_async=False),
            receive_singles("receive + ack", values, 10),
        ],
    )
    bench.compare(race, "async worker", "receive + ack", at_least(0.5), "messages")
    bench.compare(race, "worker on threads", "receive + ack", None, "messages")
    bench.note(
        f"{_MESSAGES:,} messages wait when the clock starts; the handlers only count. Concurrency "
        f"{_CONCURRENCY}; timed from the first message to the last. The loop takes 10 at a time."
    )


def _working(name: str, values: list[bytes], *, is_async: bool) -> Contender:
    def run(folder: Path) -> Sample:
        with penstock.connect(folder) as ps:
            ps.create_topic(TOPIC)
            ps.publish_batch(TOPIC, values)
        return asyncio.run(_handled(folder, len(values), is_async))

    return Contender(name, run)


async def _handled(folder: Path, count: int, is_async: bool) -> Sample:
    app = penstock.App(folder)
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    moments: list[float] = []
    left = count

    def counted(body: bytes) -> None:
        nonlocal left
        left -= 1
        if left in (0, count - 1):
            moments.append(time.perf_counter())
        if not left:
            loop.call_soon_threadsafe(stop.set)

    async def counted_async(body: bytes) -> None:
        counted(body)

    handler: Callable[[bytes], Any] = counted_async if is_async else counted
    app.consumer(TOPIC, group=GROUP, concurrency=_CONCURRENCY)(handler)
    await app.run_async(stop=stop)
    return Sample(count, moments[-1] - moments[0])
