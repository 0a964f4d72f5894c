"""Delayed messages: how fast a million is scheduled, and how late they come."""

from __future__ import annotations

import random
import struct
import time
from pathlib import Path

import numpy as np

import penstock
from bench import messages
from bench.figures import Curve, at_most
from bench.harness import Bench, Sample, own_garbage_only, stopwatch
from bench.suites.broker_publish import TOPIC
from bench.suites.broker_receive import GROUP

_SCHEDULED = 1_000_000
_SCHEDULED_QUICK = 100_000
_PER_SECOND = (100, 1000, 10_000)
_SECONDS = 8
_SECONDS_QUICK = 4
_AHEAD_S = 1.5  # scheduling is done by then
_DUE_AT = struct.Struct("<d")


def run(bench: Bench) -> None:
    _scheduling(bench)
    _lateness(bench)


def _scheduling(bench: Bench) -> None:
    count = _SCHEDULED_QUICK if bench.quick else _SCHEDULED
    seconds = []
    for _ in range(2 if bench.quick else 3):
        bench.progress.show(f"scheduling {count:,} messages")
        with bench.folder() as folder:
            seconds.append(_schedule(folder, count).seconds * _SCHEDULED / count)
    bench.figure(
        "schedule a million messages",
        min(seconds),
        unit="s",
        target=at_most(5),
        detail=f"{count:,} messages of 100 B, schedule_batch of 1000, each at its own time within "
        f"a day; the best of {len(seconds)} runs" + " x 10" * bench.quick,
    )


def _schedule(folder: Path, count: int) -> Sample:
    values = messages.in_batches(messages.values(50_000))
    source = random.Random(count)
    now = time.time()
    size = messages.BATCH_MESSAGES
    times = [[now + 3600 + source.random() * 86_400 for _ in range(size)] for _ in range(100)]
    with penstock.connect(folder) as ps:
        ps.create_topic(TOPIC)
        with stopwatch(count) as sample:
            for number in range(count // size):
                ps.schedule_batch(
                    TOPIC, values[number % len(values)], deliver_at=times[number % len(times)]
                )
        if ps.delay_stats(TOPIC).pending != count:
            raise RuntimeError("not everything that was scheduled is pending")
    return sample


def _lateness(bench: Bench) -> None:
    seconds = _SECONDS_QUICK if bench.quick else _SECONDS
    lines: dict[str, list[tuple[float, float]]] = {"median": [], "p99": [], "largest": []}
    for per_second in _PER_SECOND:
        bench.progress.show(f"{per_second:,} messages due a second")
        with bench.folder() as folder, own_garbage_only():
            late_ms = _late_ms(folder, per_second, seconds)
        median, p99, largest = np.percentile(late_ms, [50, 99, 100]).tolist()
        for name, value in (("median", median), ("p99", p99), ("largest", largest)):
            lines[name].append((per_second, value))
        most = per_second == _PER_SECOND[-1]
        bench.figure(
            f"lateness p99 at {per_second:,} due a second",
            p99,
            unit="ms",
            target=at_most(10) if most else None,
            detail=f"median {median:.2f} ms, largest {largest:.1f} ms of {len(late_ms):,}; from "
            "deliver_at to the return of a waiting receive_batch",
        )
        if late_ms.min() < -0.002:  # moments are whole microseconds
            raise RuntimeError(f"a message came {-late_ms.min()} ms too early")
    bench.curve(Curve("Lateness of delayed messages", "due a second", "ms", lines, y_log=True))
    with own_garbage_only():
        late_ms = _bare_late_ms(seconds)
    median, p99, largest = np.percentile(late_ms, [50, 99, 100]).tolist()
    bench.figure(
        "lateness p99 of a bare sleep",
        p99,
        unit="ms",
        detail=f"median {median:.2f} ms, largest {largest:.1f} ms of {len(late_ms):,}; a loop that "
        "sleeps up to each whole 2 ms: what this machine does to anybody",
    )


def _bare_late_ms(seconds: int) -> np.ndarray:
    """How late a thread wakes up that does nothing else."""
    first = time.perf_counter()
    late_s = []
    for number in range(1, seconds * 500):
        due = first + number * 0.002
        time.sleep(max(due - time.perf_counter(), 0))
        late_s.append(time.perf_counter() - due)
    return np.array(late_s) * 1e3


def _late_ms(folder: Path, per_second: int, seconds: int) -> np.ndarray:
    """How late each message was in the hands of a consumer who waited for it."""
    count = per_second * seconds
    late_s = []
    with penstock.connect(folder) as ps:
        ps.create_topic(TOPIC)
        first = time.time() + _AHEAD_S
        due = [first + number / per_second for number in range(count)]
        for start in range(0, count, messages.BATCH_MESSAGES):
            some = due[start : start + messages.BATCH_MESSAGES]
            ps.schedule_batch(TOPIC, [_DUE_AT.pack(at) for at in some], deliver_at=some)
        while len(late_s) < count:
            received = ps.receive_batch(TOPIC, GROUP, 1000, wait="10s")
            now = time.time()
            if not len(received):
                raise RuntimeError(f"{count - len(late_s):,} messages never came")
            for batch in received.batches:
                late_s += [now - _DUE_AT.unpack(value)[0] for value in batch.values.to_pylist()]
            received.ack()
    return np.array(late_s) * 1e3
