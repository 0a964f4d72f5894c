"""What traces cost who publishes and receives in batches, and how long it takes to find a life."""

from __future__ import annotations

import os
import random
import statistics
import time
from pathlib import Path

from bench.figures import at_most
from bench.harness import Bench
from penstock.broker import trace_log
from penstock.broker.broker import Broker, BrokerConfig
from penstock.broker.trace_log import TraceLog, trace_log_config
from penstock.log.local import LocalLog
from penstock.log.local_engine import LocalEngine
from penstock.model.names import TopicName
from penstock.record.batch import Batch
from penstock.trace.events import TraceKind, TraceRow
from penstock.trace.lives import life

_BATCH = 1000
_BATCHES = 100
_ROWS = 300_000
_INDEX_ROWS = 3_000
_LOOKUPS = 50
_ORDERS = TopicName("default", "orders")


def run(bench: Bench) -> None:
    with bench.folder() as folder:
        _cost(bench, folder)
    with bench.folder() as folder:
        _finding(bench, folder)


def _cost(bench: Bench, folder: Path) -> None:
    """CPU time of publish, receive and ack in batches, interleaved; storing the rows is in it."""
    brokers = {share: _broker(folder / str(share), share) for share in (0.0, 0.01, 1.0)}
    times: dict[float, list[float]] = {share: [] for share in brokers}
    values = [b"x" * 200] * _BATCH
    for turn in range(10 * bench.rounds + 1):
        bench.progress.show(f"publish and receive, round {turn}")
        for share in random.sample(list(brokers), len(brokers)):
            took_s = _round(brokers[share], values)
            if turn:  # the first warms up
                times[share].append(took_s)
    for share, most in ((0.01, 1.03), (1.0, 1.25)):
        ratio = statistics.median(a / b for a, b in zip(times[share], times[0.0], strict=True))
        bench.figure(
            f"publish + receive + ack {_BATCH}, {share:.0%} traced: not traced",
            ratio,
            unit="x",
            target=at_most(most),
            detail="CPU time, the median of pairs that were measured one after the other",
        )
    for broker in brokers.values():
        broker.close()


def _broker(folder: Path, share: float) -> Broker:
    config = BrokerConfig(free_bytes_min=0, tracing=share > 0)
    broker = Broker(LocalEngine(str(folder)), config)
    broker.create_topic(_ORDERS, {"trace_sample": share, "fsync": "never"})
    return broker


def _round(broker: Broker, values: list[bytes]) -> float:
    began = time.process_time()
    for _ in range(_BATCHES):
        broker.publish(_ORDERS, Batch.build(values))
        (leased,) = broker.receive(_ORDERS, "billing", _BATCH)
        broker.ack(_ORDERS, 0, "billing", leased.nonce, None)
    broker.tracer.flush()
    return time.process_time() - began


def _finding(bench: Bench, folder: Path) -> None:
    """With as many indexes as there are of 100 M rows: to find a life is a page of each."""
    known = trace_log.INDEX_ROWS_MAX
    trace_log.INDEX_ROWS_MAX = _INDEX_ROWS
    try:
        log = LocalLog.open(str(folder), trace_log_config(0))
        traces = TraceLog(log)
        for first in range(0, _ROWS // 3, 1000):
            bench.progress.show(f"{3 * first:,} events stored")
            traces.append(_lives(first, 1000))
        for share in (0.25, 1.0):
            took_ms = _found_ms(folder, traces, int(_ROWS / 3 * share))
            bench.figure(
                f"a life, {share:.0%} of the way through {_ROWS // _INDEX_ROWS} indexes",
                took_ms,
                unit="ms",
                target=at_most(50),
                detail="by its id, published, delivered, acked; the files out of the page cache",
            )
        log.close()
    finally:
        trace_log.INDEX_ROWS_MAX = known
    bench.note(
        f"An index has {_INDEX_ROWS:,} rows here, so that {_ROWS:,} make as many as 100 M rows do "
        "with 1 Mi in each: a search reads one page of each, whatever its size."
    )


def _lives(first: int, count: int) -> list[TraceRow]:
    rows = []
    for nth in range(first, first + count):
        ids = _ulid(nth).to_bytes(16, "big")
        at_us = 1_700_000_000_000_000 + nth * 1000
        rows.append(TraceRow(at_us, TraceKind.PUBLISHED, "orders", 0, nth, 1, None, ids))
        for kind in (TraceKind.DELIVERED, TraceKind.ACKED):
            row = TraceRow(at_us + kind, kind, "orders", 0, nth, 1)
            row.group, row.lease = "billing", nth + 1
            rows.append(row)
    return rows


def _ulid(nth: int) -> int:
    """As messages have them that were published one by one."""
    return (1_700_000_000_000 + nth) << 80 | random.Random(nth).getrandbits(56) << 24


def _found_ms(folder: Path, traces: TraceLog, below: int) -> float:
    times = []
    for _ in range(_LOOKUPS):
        nth = random.randrange(below)
        for path in folder.iterdir():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)
        began = time.perf_counter()
        found = life(traces.find(), _ulid(nth))
        times.append(time.perf_counter() - began)
        assert len(found) == 3, (nth, found)
    return 1000 * statistics.median(times)
