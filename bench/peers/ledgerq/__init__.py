"""LedgerQ, an embedded queue in Go, driven by the small program in main.go.

The program is built once into the cache. It reads the very messages that the others send from a
file, times itself, and prints the seconds: starting a process is no part of the figure.
"""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Sequence
from pathlib import Path

from bench.harness import Contender, Sample

_SOURCE = Path(__file__).parent
_BUILD_TIMEOUT_S = 180

_SETTINGS = "v1.4.2, AutoSync off, SyncInterval 1 s (buffered until then), 64 MB segments"


def enqueue(values: Sequence[bytes], cache: Path) -> Contender:
    return _contender("LedgerQ enqueue", "single", values, cache)


def enqueue_batch(values: Sequence[bytes], cache: Path) -> Contender:
    """Batches of 1000, the size of the batches that it is compared with."""
    return _contender("LedgerQ enqueue batch", "batch", values, cache)


def _contender(name: str, mode: str, values: Sequence[bytes], cache: Path) -> Contender:
    program = cache.resolve() / "ledgerq-bench"

    def run(folder: Path) -> Sample:
        messages = folder / "messages"
        messages.write_bytes(b"".join(values))
        told = subprocess.run(
            [program, mode, folder / "queue", messages, str(len(values[0]))],
            capture_output=True,
            text=True,
            check=False,
        )
        if told.returncode != 0:
            raise RuntimeError(f"the LedgerQ program failed: {told.stderr.strip()}")
        count, seconds = told.stdout.split()
        return Sample(int(count), float(seconds))

    return Contender(name, run, _SETTINGS, missing=_build(program))


@functools.cache
def _build(program: Path) -> str:
    """Build the program; empty, or why that was not possible."""
    program.parent.mkdir(parents=True, exist_ok=True)
    try:
        built = subprocess.run(
            ["go", "build", "-trimpath", "-o", program, "."],
            cwd=_SOURCE,
            capture_output=True,
            text=True,
            timeout=_BUILD_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError:
        return "LedgerQ needs Go 1.23 or newer, and no 'go' is on the PATH"
    except subprocess.TimeoutExpired:
        return f"LedgerQ was not built within {_BUILD_TIMEOUT_S} s"
    if built.returncode != 0:
        said = built.stderr.strip().splitlines() or ["go build said nothing"]
        return f"LedgerQ could not be built: {said[-1].strip()}"
    return ""
