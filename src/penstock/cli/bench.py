"""`penstock bench`: what this folder or server does on this machine, measured from outside.

A topic of its own is made, filled, emptied and deleted. Every figure is of calls that returned:
what a call waits for is what the topic's fsync setting promises.
"""

from __future__ import annotations

import os
import platform
import secrets
import threading
import time
from collections.abc import Callable
from typing import Annotated, cast

import msgspec
import numpy as np
import typer

from penstock.cli import tables
from penstock.cli.session import Session, connected
from penstock.cli.units import duration, size
from penstock.client.client import Client
from penstock.config import FsyncPolicy
from penstock.durations import parse_ns

EXAMPLES = """
[bold]Examples[/bold]

[cyan]  penstock bench --data ./data[/cyan]

[cyan]  penstock bench --url http://localhost:8080 --clients 8 --seconds 10s[/cyan]

What safety against power cuts costs:

[cyan]  penstock bench --data ./data --fsync always[/cyan]
"""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured in one phase."""

    phase: str
    messages: int
    seconds: float
    calls: int
    p50_us: int
    p95_us: int
    p99_us: int
    max_us: int

    @property
    def rate(self) -> float:
        return self.messages / self.seconds


def _bench(
    session: Session,
    size_: Annotated[int, typer.Option("--size", min=0, help="Bytes in a message.")] = 100,
    batch: Annotated[int, typer.Option(min=1, max=100_000, help="Messages in a batch.")] = 100,
    clients: Annotated[int, typer.Option(min=1, max=256, help="Threads at work.")] = 1,
    seconds: Annotated[str, typer.Option(metavar="TIME", help="How long each phase takes.")] = "3s",
    partitions: Annotated[int, typer.Option(min=1, help="Of the topic.")] = 1,
    fsync: Annotated[
        str, typer.Option(help="Of the topic: always, interval, batch or never.")
    ] = "interval",
) -> None:
    """Measure a folder or a server.

    Publish and receive rates, with percentiles of the calls. It makes a topic bench-..., and
    deletes it at the end.
    """
    topic = f"bench-{secrets.token_hex(4)}"
    lasts_s = parse_ns(seconds, "seconds") / 1e9
    ps = session.ps
    policy = cast("FsyncPolicy", fsync)  # the topic refuses what is none
    ps.create_topic(topic, partitions=partitions, fsync=policy)
    try:
        results = _phases(ps, topic, os.urandom(size_), batch, clients, lasts_s)
    finally:
        ps.delete_topic(topic)
    setting = {
        "target": session.where.target,
        "message_bytes": size_,
        "batch": batch,
        "clients": clients,
        "partitions": partitions,
        "fsync": fsync,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }
    if session.json:
        phases = [{**msgspec.to_builtins(r), "rate": round(r.rate, 1)} for r in results]
        tables.document({"setting": setting, "phases": phases})
        return
    where = "over HTTP" if session.where.url else "in this process"
    tables.say(
        f"{session.where.target}, {where}: messages of {size(size_)}, fsync {fsync}, "
        f"{partitions} partitions, {clients} clients, {os.cpu_count()} cores"
    )
    tables.table(
        ("phase", "messages/s", "messages", "calls", "p50", "p95", "p99", "longest"),
        [
            (
                r.phase,
                round(r.rate),
                r.messages,
                r.calls,
                duration(r.p50_us),
                duration(r.p95_us),
                duration(r.p99_us),
                duration(r.max_us),
            )
            for r in results
        ],
        drop=("calls", "p95", "messages"),
    )


def _phases(
    ps: Client, topic: str, value: bytes, batch: int, clients: int, lasts_s: float
) -> list[Result]:
    values = [value] * batch

    def publish_many() -> int:
        return len(ps.publish_batch(topic, values))

    def publish_one() -> int:
        ps.publish(topic, value)
        return 1

    def receive_and_ack() -> int:
        received = ps.receive_batch(topic, "bench", batch)
        if len(received):
            received.ack()
        return len(received)

    return [
        _measure(f"publish, {batch} at once", publish_many, clients, lasts_s),
        _measure("publish, one by one", publish_one, clients, lasts_s),
        _measure(f"receive + ack, {batch} at once", receive_and_ack, clients, lasts_s),
    ]


def _measure(phase: str, act: Callable[[], int], clients: int, lasts_s: float) -> Result:
    """Call again and again from each client, until time is up or there is nothing left to do."""
    spans: list[list[float]] = [[] for _ in range(clients)]
    counts = [0] * clients
    errors: list[BaseException] = []
    started = time.perf_counter()

    def work(number: int) -> None:
        try:
            now = started
            while now - started < lasts_s:
                before = time.perf_counter()
                count = act()
                now = time.perf_counter()
                if not count:
                    return
                spans[number].append(now - before)
                counts[number] += count
        except BaseException as exc:  # noqa: BLE001 - raised below, in the thread that waits
            errors.append(exc)

    threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    taken_s = time.perf_counter() - started
    if errors:
        raise errors[0]
    calls_us = np.array([span for each in spans for span in each] or [0.0]) * 1e6
    p50, p95, p99, longest = (int(p) for p in np.percentile(calls_us, (50, 95, 99, 100)))
    return Result(
        phase=phase,
        messages=sum(counts),
        seconds=taken_s,
        calls=sum(map(len, spans)),
        p50_us=p50,
        p95_us=p95,
        p99_us=p99,
        max_us=longest,
    )


bench = connected(_bench, makes_folder=True)
