"""The floor under everything: plain system calls on the same bytes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from bench.harness import Contender, Sample, stopwatch

READ_BYTES = 1 << 20


def write(blocks: Sequence[bytes], units: float) -> Contender:
    """One `os.write` for each block, into one file. `units` is what the blocks count for."""

    def run(folder: Path) -> Sample:
        fd = os.open(folder / "raw", os.O_WRONLY | os.O_CREAT)
        try:
            with stopwatch(units) as sample:
                for block in blocks:
                    os.write(fd, block)
        finally:
            os.close(fd)
        return sample

    return Contender("raw write", run, "one os.write a batch, payload bytes only, no fsync")


def read(paths: Sequence[Path]) -> Contender:
    """The files from beginning to end, into one buffer that is used again and again."""

    def run(folder: Path) -> Sample:
        buffer = bytearray(READ_BYTES)
        with stopwatch(sum(path.stat().st_size for path in paths)) as sample:
            for path in paths:
                with open(path, "rb", buffering=0) as file:
                    while file.readinto(buffer):
                        pass
        return sample

    return Contender("plain read", run, "readinto of 1 MiB into one reused buffer, no CRC")
