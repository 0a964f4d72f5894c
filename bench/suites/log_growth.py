"""Finding things in a log of 10 MB to 10 GB: flat, quick to open, small in memory."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

from bench import messages
from bench.figures import Curve, at_most
from bench.harness import Bench, Contender, Sample, stopwatch
from bench.suites.log_append import as_table
from bench.units import quantity, size
from penstock.clock import ManualClock
from penstock.config import LogConfig
from penstock.log.local import LocalLog
from penstock.record.batch import Batch

_SIZES = (10**7, 10**8, 10**9, 10**10)
_BATCH = 100  # messages of 100 B a frame, as the buffered appender writes them
_STEP_S = 0.001  # between frames, so that there are times to find
_LOOKUPS = 1000
_FLAT = at_most(1.5)  # for a log that is a thousand times as long


def run(bench: Bench) -> None:
    sizes = _sizes(bench)
    folders = {count: _built(bench, count) for count in sizes}
    _opening(bench, folders)
    _lookups(bench, folders)
    bench.note(
        f"Frames of {_BATCH} messages of {messages.VALUE_BYTES} B, segments of 64 MB. Each look-up "
        "goes to a random offset or time; a read checks the CRC of the frame and takes the "
        "message. The files were read once before, so they are in the page cache where memory "
        "allows."
    )


def _sizes(bench: Bench) -> list[int]:
    """From 10 MB up to what was asked for, as far as the disk has room."""
    sizes = [count for count in _SIZES if count < bench.size_bytes_max] + [bench.size_bytes_max]
    bench.cache.mkdir(parents=True, exist_ok=True)
    room = shutil.disk_usage(bench.cache).free
    while len(sizes) > 1 and not _folder(bench, sizes[-1]).exists() and sum(sizes) > 0.9 * room:
        bench.note(f"No room on the disk for a log of {size(sizes.pop())}.")
    return sizes


def _folder(bench: Bench, size_bytes: int) -> Path:
    return bench.cache / "logs" / size(size_bytes).replace(" ", "")


def _built(bench: Bench, size_bytes: int) -> str:
    """A log of this size, made once: an earlier run may have kept it."""
    folder = _folder(bench, size_bytes)
    done = folder / "BUILT"
    if not done.exists():
        bench.progress.say(f"  building a log of {size(size_bytes)} ...")
        _build(bench, folder / "log", size_bytes)
        done.touch()
    return str(folder / "log")


def _build(bench: Bench, folder: Path, size_bytes: int) -> None:
    pool = messages.in_batches(messages.values(50 * _BATCH), _BATCH)
    batches = [Batch.from_arrow(as_table(values)) for values in pool]
    clock = ManualClock()
    with LocalLog.open(str(folder), LogConfig(fsync="never"), clock=clock) as log:
        while (done := log.size_bytes) < size_bytes:
            bench.progress.show(f"building a log of {size(size_bytes)}: {done / size_bytes:.0%}")
            for batch in batches:
                log.append(batch)
                clock.advance(_STEP_S)


def _opening(bench: Bench, folders: dict[int, str]) -> None:
    """A fresh process opens the largest log: how long, and how much memory above the imports."""
    opened = {count: _probe(folder) for count, folder in folders.items()}
    largest = max(folders)
    seen = opened[largest]
    cold = _probe(folders[largest], cold=True)
    name = size(largest)
    bench.figure(
        f"open {name}", seen["open_s"], unit="s", target=at_most(1), detail="in a fresh process"
    )
    bench.figure(f"open {name}, nothing of it cached", cold["open_s"], unit="s")
    bench.figure(
        f"memory of an open log of {name}",
        max(seen["open_rss_mb"], seen["used_rss_mb"]),
        unit="MB",
        target=at_most(100),
        detail=f"resident above the import of Penstock ({quantity(seen['import_rss_mb'], 'MB')}): "
        f"{quantity(seen['open_rss_mb'], 'MB')} after opening, "
        f"{quantity(seen['used_rss_mb'], 'MB')} after {_LOOKUPS:,} random reads and finds "
        f"(anonymous: {quantity(seen['used_anonymous_mb'], 'MB')})",
    )
    open_ms = [(count / 1e6, probe["open_s"] * 1e3) for count, probe in opened.items()]
    bench.curve(Curve("Opening a log", "size in MB", "ms", {"open": open_ms}))


def _probe(folder: str, cold: bool = False) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.probe", folder, str(_LOOKUPS)]
    told = subprocess.run(command + ["--cold"] * cold, capture_output=True, text=True, check=False)
    if told.returncode != 0:
        raise RuntimeError(f"the process that opens {folder} failed:\n{told.stderr}")
    probe: dict[str, float] = json.loads(told.stdout)
    return probe


def _lookups(bench: Bench, folders: dict[int, str]) -> None:
    for folder in folders.values():
        _warm(bench, folder)
    logs = {count: LocalLog.open(folder) for count, folder in folders.items()}
    try:
        reads = bench.race("random read", [_random_reads(*item) for item in logs.items()])
        finds = bench.race("find by time", [_random_finds(*item) for item in logs.items()])
    finally:
        for log in logs.values():
            log.close()
    lines = {}
    smallest, largest = size(min(folders)), size(max(folders))
    for name, race in (("random read by offset", reads), ("find by timestamp", finds)):
        costs = {count: 1e6 / race.rate(size(count)).median for count in folders}
        lines[name] = [(count / 1e6, cost) for count, cost in costs.items()]
        detail = " -> ".join(f"{quantity(cost, 'us')}" for cost in costs.values())
        ratio = race.ratio(smallest, largest)  # of rates, so the inverse of that of costs
        title = f"{name}, cost in {largest} / in {smallest}"
        bench.figure(title, ratio, target=_FLAT, detail=f"{detail} for {len(costs)} sizes")
    bench.curve(Curve("Look-ups as a log grows", "size in MB", "us a look-up", lines))


def _warm(bench: Bench, folder: str) -> None:
    bench.progress.show(f"reading {folder} once")
    buffer = bytearray(1 << 20)
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def _random_reads(size_bytes: int, log: LocalLog) -> Contender:
    source = random.Random(size_bytes)

    def run(_: Path) -> Sample:
        offsets = [source.randrange(log.start, log.end) for _ in range(_LOOKUPS)]
        with stopwatch(_LOOKUPS) as sample:
            for offset in offsets:
                read_one(log, offset)
        return sample

    return Contender(size(size_bytes), run)


def read_one(log: LocalLog, offset: int) -> bytes:
    """The value at an offset."""
    batch = next(iter(log.read(offset, 1)))
    value: bytes = batch.values[0].as_py()
    return value


def _random_finds(size_bytes: int, log: LocalLog) -> Contender:
    source = random.Random(size_bytes)
    first = next(iter(log.read(log.start, 1))).timestamp_us
    last = next(iter(log.read(log.end - 1, 1))).timestamp_us

    def run(_: Path) -> Sample:
        times = [source.randrange(first, last) for _ in range(_LOOKUPS)]
        with stopwatch(_LOOKUPS) as sample:
            for time_us in times:
                log.find(time_us)
        return sample

    return Contender(size(size_bytes), run)
