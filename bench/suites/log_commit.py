"""Confirmed single appends with fsync `always`, from 1 to 32 threads: what group commit gives."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from bench import messages
from bench.figures import Curve, at_least
from bench.harness import Bench, Contender, Sample
from penstock.config import LogConfig
from penstock.log.appender import BufferedAppender
from penstock.log.files import DiskFile, DiskFiles
from penstock.log.local import LocalLog
from penstock.record.batch import Batch

_THREADS = (1, 2, 4, 8, 16, 32)
_SECONDS = 0.5
_SLOW_S = 0.002
_SLOW = ", fsync of 2 ms"
_ALONE = ", each its own frame"

Confirm = Callable[[LocalLog], Callable[[bytes], object]]
"""How a message is appended to a log and waited for."""


def run(bench: Bench) -> None:
    race = bench.race(
        "confirmed appends",
        [
            _raw_commits(),
            *(_commits(threads) for threads in _THREADS),
            *(_commits(threads, confirm=_append, suffix=_ALONE) for threads in (1, 32)),
        ],
    )
    for threads in _THREADS[1:]:
        target = at_least(8) if threads == _THREADS[-1] else None
        bench.compare(race, _name(threads), _name(1), target, "messages")
    bench.compare(race, _name(1), "raw write + fdatasync", None, "messages")
    bench.compare(race, _name(32) + _ALONE, _name(1) + _ALONE, None, "messages")
    slow = bench.race("slow disk", [_commits(n, SlowFiles(), suffix=_SLOW) for n in (1, 32)])
    bench.compare(slow, _name(32) + _SLOW, _name(1) + _SLOW, None, "messages")
    rates = [(threads, race.rate(_name(threads)).median / 1e3) for threads in _THREADS]
    bench.curve(
        Curve("Confirmed single appends", "threads", "thousand a second", {"fsync always": rates})
    )
    bench.note(
        f"Each thread sends one message of {messages.VALUE_BYTES} B and waits until it is on disk, "
        f"for {_SECONDS} s a round: BufferedAppender.send(value).result(); each its own frame: "
        "LocalLog.append of a batch of one."
    )


def _name(threads: int) -> str:
    return f"{threads} thread" + "s" * (threads > 1)


class SlowFile(DiskFile):
    """A file whose fsync takes as long as on a common cloud volume."""

    def sync(self) -> None:
        time.sleep(_SLOW_S)
        super().sync()


class SlowFiles(DiskFiles):
    """Group commit matters most where an fsync is slow; the disk under test may be a fast one."""

    def create(self, path: str) -> SlowFile:
        file = super().create(path)
        file.__class__ = SlowFile
        return file

    def open(self, path: str) -> SlowFile:
        file = super().open(path)
        file.__class__ = SlowFile
        return file


def _send(log: LocalLog) -> Callable[[bytes], object]:
    send = BufferedAppender(log).send
    return lambda value: send(value).result()


def _append(log: LocalLog) -> Callable[[bytes], object]:
    return lambda value: log.append(Batch.build([value])).durable.result()


def _commits(
    threads: int, files: DiskFiles | None = None, confirm: Confirm = _send, suffix: str = ""
) -> Contender:
    def run(folder: Path) -> Sample:
        config = LogConfig(fsync="always")
        with LocalLog.open(str(folder / "log"), config, files=files) as log:
            return _in_threads(threads, confirm(log))

    return Contender(_name(threads) + suffix, run)


def _in_threads(threads: int, confirm: Callable[[bytes], object]) -> Sample:
    """Let threads append until the time is up. The last confirmation ends the measurement."""
    values = messages.values(64)
    start = threading.Barrier(threads + 1)
    counts: list[int] = []
    failures: list[BaseException] = []

    def work() -> None:
        try:
            start.wait()
            until = time.perf_counter() + _SECONDS
            count = 0
            while time.perf_counter() < until:
                confirm(values[count % 64])
                count += 1
            counts.append(count)
        except BaseException as exc:
            failures.append(exc)
            raise

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    start.wait()
    began = time.perf_counter()
    for worker in workers:
        worker.join()
    if failures:
        raise RuntimeError("a thread could not append") from failures[0]
    return Sample(sum(counts), time.perf_counter() - began)


def _raw_commits() -> Contender:
    """What the disk allows: one thread, one write and one fdatasync a message."""

    def run(folder: Path) -> Sample:
        value = messages.values(1)[0]
        fd = os.open(folder / "raw", os.O_WRONLY | os.O_CREAT)
        try:
            count = 0
            began = time.perf_counter()
            while time.perf_counter() - began < _SECONDS:
                os.write(fd, value)
                os.fdatasync(fd)
                count += 1
            return Sample(count, time.perf_counter() - began)
        finally:
            os.close(fd)

    return Contender("raw write + fdatasync", run)
