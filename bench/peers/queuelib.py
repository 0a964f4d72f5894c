"""queuelib, the disk queue of Scrapy: one `write` or two `read` calls a message, no fsync."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.harness import Contender, Sample, stopwatch

try:
    import queuelib
except ImportError:
    queuelib = None

_SETTINGS = "FifoDiskQueue with its defaults: a write call a message, no fsync, no checksum"
_MISSING = "" if queuelib else "queuelib is not installed; make setup installs it"


def push(values: Sequence[bytes]) -> Contender:
    def run(folder: Path) -> Sample:
        queue = queuelib.FifoDiskQueue(folder / "queue")
        with stopwatch(len(values)) as sample:
            for value in values:
                queue.push(value)
        queue.close()
        return sample

    return Contender("queuelib push", run, _SETTINGS, _MISSING)


def pop(values: Sequence[bytes]) -> Contender:
    """Every message, its bytes looked at."""

    def run(folder: Path) -> Sample:
        queue = queuelib.FifoDiskQueue(folder / "queue")
        for value in values:
            queue.push(value)
        total_bytes = 0
        with stopwatch(len(values)) as sample:
            while (value := queue.pop()) is not None:
                total_bytes += len(value)
        queue.close()
        if total_bytes != sum(map(len, values)):
            raise RuntimeError(f"queuelib gave back {total_bytes:,} bytes, not what it was given")
        return sample

    return Contender("queuelib pop", run, _SETTINGS, _MISSING)
