"""A backlog of ten million, much of it in flight or delayed: memory, speed, and after a crash."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from bench import backlog
from bench.figures import Spread, at_most
from bench.harness import Bench
from bench.units import quantity

_SMALL = 10_000
_MEMORY_MB = 300
_OPENINGS = 3


class _Size(NamedTuple):
    messages: int
    in_flight: int
    delayed: int


_FULL = _Size(10_000_000, 100_000, 1_000_000)
_QUICK = _Size(1_000_000, 10_000, 100_000)
_LEASES = {"leases of one": 1, "leases of 1000": 1000}


def run(bench: Bench) -> None:
    size = _QUICK if bench.quick else _FULL
    for name, lease in _LEASES.items():
        _one(bench, size, name, lease)
    bench.note(
        f"{size.messages:,} messages of 100 B wait, {size.in_flight:,} of them in flight, "
        f"{size.delayed:,} more are delayed, each to a time of its own. The process that built it "
        "is killed with SIGKILL; others open what is left, and end without closing. The files are "
        "in the page cache."
    )


def _one(bench: Bench, size: _Size, name: str, lease: int) -> None:
    folder = bench.cache / "logs" / f"backlog-{size.messages}-{lease}"
    small = bench.cache / "logs" / "backlog-small"
    live = _built(bench, folder, size, lease)
    probes = []
    for number in range(_OPENINGS):
        bench.progress.show(f"{name}: opening {number + 1} of {_OPENINGS}")
        shutil.rmtree(small, ignore_errors=True)
        backlog.build_small(str(small), _SMALL)
        probes.append(_run("probe", folder, str(small)))
    last = probes[-1]
    counts = f"{last['depth']:,} not done, {last['in_flight']:,} in flight"
    if last["in_flight"] != size.in_flight or last["delayed"] != size.delayed:
        raise RuntimeError(f"the crash changed what there is: {counts}, {last['delayed']} delayed")
    bench.figure(
        f"open after a crash, {name}",
        Spread.of(probe["open_s"] for probe in probes),
        unit="s",
        target=at_most(2),
        detail=f"penstock.connect in a fresh process; {counts}, {last['delayed']:,} delayed",
    )
    _memory(bench, name, live, last)
    for what, key in (("receive + ack of one", "single_s"), ("of 100", "batch_s")):
        pairs = [pair for probe in probes for pair in probe[key]]
        large, little = (Spread.of(pair[side] for pair in pairs).median for side in (0, 1))
        bench.figure(
            f"{what}, cost with {size.messages:,} / {_SMALL:,} waiting, {name}",
            Spread.of(large / little for large, little in pairs),
            target=at_most(1.5),
            detail=f"{quantity(large * 1e6, 'us')} / {quantity(little * 1e6, 'us')} a message",
        )
    late = [ms for probe in probes for ms in probe["critical_ms"]]
    bench.figure(
        f"a critical message behind {size.messages:,} others, {name}",
        max(late),
        unit="ms",
        target=at_most(50),
        detail=f"from publish to the next receive, the slowest of {len(late)}; "
        f"median {Spread.of(late).median:.2f} ms",
    )


def _memory(bench: Bench, name: str, live: dict[str, Any], probe: dict[str, Any]) -> None:
    bench.figure(
        f"resident memory, {name}",
        max(live["memory_mb"], probe["opened_mb"], probe["used_mb"]),
        unit="MB",
        target=at_most(_MEMORY_MB),
        detail=f"{quantity(live['memory_mb'], 'MB')} in the process that built it, "
        f"{quantity(probe['opened_mb'], 'MB')} after opening, "
        f"{quantity(probe['used_mb'], 'MB')} in use (anonymous: "
        f"{quantity(live['anonymous_mb'], 'MB')}, {quantity(probe['opened_anonymous_mb'], 'MB')}, "
        f"{quantity(probe['used_anonymous_mb'], 'MB')}); of that "
        f"{quantity(probe['import_mb'], 'MB')} are Python and the imports",
    )


def _built(bench: Bench, folder: Path, size: _Size, lease: int) -> dict[str, Any]:
    """Fill a data folder and crash, once: an earlier run may have kept it."""
    done = folder / "BUILT"
    if not done.exists():
        bench.progress.say(f"  building a backlog of {size.messages:,}, {lease:,} to a lease ...")
        shutil.rmtree(folder, ignore_errors=True)
        command = [*_command("build", folder / "data"), *map(str, size), str(lease)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            try:
                assert child.stdout is not None
                told = child.stdout.readline()
            finally:
                child.kill()
        if not told:
            raise RuntimeError("the process that builds the backlog failed")
        done.write_bytes(told)
    live: dict[str, Any] = json.loads(done.read_bytes())
    return live


def _run(verb: str, folder: Path, *rest: str) -> dict[str, Any]:
    command = [*_command(verb, folder / "data"), *rest]
    told = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if told.returncode != 0:
        raise RuntimeError(f"the process that opens {folder} failed")
    found: dict[str, Any] = json.loads(told.stdout)
    return found


def _command(verb: str, folder: Path) -> list[str]:
    return [sys.executable, "-m", "bench.backlog", verb, str(folder)]
