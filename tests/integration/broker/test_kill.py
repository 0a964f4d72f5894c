"""A real process is killed (-9) in the middle of its work with a broker, again and again.

What it had heard is what the next one finds: nothing acknowledged is lost, nothing acked comes back
or becomes a dead letter, nothing dies twice, delivery counts and attempts go on where they were,
and the folder opens. Each life goes on where the killed one was; what it left is looked at in a
copy.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.integration.broker.doomed import TOPICS
from tests.integration.broker.heard import Heard
from tests.simulation.torture import scaled

ROOT = Path(__file__).parents[3]
READY_S_MAX = 60
WORK_S = (0.001, 0.05, 0.2, 0.5)


class Doomed:
    """The process that forks the lives, and what they say."""

    def __init__(self, module: str = "tests.integration.broker.doomed") -> None:
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            bufsize=0,
        )
        self._rest = b""

    def life(
        self, folder: Path, seed: int, again: list[tuple[str, str]], work_s: float
    ) -> list[str]:
        """Let one live for a while, kill it, and return what it has said."""
        assert self._process.stdin is not None
        order = {"folder": str(folder), "seed": seed, "again": again}
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        lines = self._read(READY_S_MAX, until="ready")
        assert "ready" in lines, lines
        pid = int(lines[0].split()[1])
        lines += self._read(work_s)
        os.kill(pid, signal.SIGKILL)
        while alive(pid):
            lines += self._read(0.001)
        return lines + self._read(0)

    def _read(self, seconds: float, until: str = "") -> list[str]:
        stdout = self._process.stdout
        assert stdout is not None
        deadline = time.monotonic() + seconds
        lines: list[str] = []
        while True:
            left_s = deadline - time.monotonic()
            if not select.select([stdout], [], [], max(left_s, 0))[0]:
                return lines
            data = os.read(stdout.fileno(), 1 << 16)
            assert data, "the process that forks is gone"
            *whole, self._rest = (self._rest + data).split(b"\n")
            lines += [line.decode() for line in whole]
            if until in lines or left_s <= 0:
                return lines

    def close(self) -> None:
        with self._process:  # closes its pipes, which ends it, and waits for that
            pass


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def doomed() -> Iterator[Doomed]:
    process = Doomed()
    yield process
    process.close()


def kill_again_and_again(doomed: Doomed, folder: Path, seed: int, kills: int) -> Counter[str]:
    rng = Random(seed)
    heard = Heard()
    for life in range(kills):
        work_s = rng.choice(WORK_S)
        lines = doomed.life(folder / "data", seed + life, heard.unanswered(), work_s)
        copy = folder / "copy"
        shutil.copytree(folder / "data", copy, ignore=shutil.ignore_patterns("SOCKET"))
        try:
            heard.hear(lines)
            heard.check(copy)
        except AssertionError as exc:
            exc.add_note(f"seed {seed}, life {life}, after {work_s} s")
            raise
        shutil.rmtree(copy)
    return heard.counts


def test_killed_process_loses_nothing(doomed: Doomed, tmp_path: Path) -> None:
    counts = kill_again_and_again(doomed, tmp_path, 1, kills=5)

    assert counts["sent"] > 0
    assert counts["acked"] > 0


@pytest.mark.torture
@pytest.mark.timeout(0)
def test_processes_killed_for_long(doomed: Doomed, tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    kills = 25
    seeds = range(1000, 1000 + 100 * scaled(16), 100)
    for seed in seeds:
        folder = tmp_path / str(seed)
        folder.mkdir()
        counts += kill_again_and_again(doomed, folder, seed, kills)
        shutil.rmtree(folder)
    print(f"\n{kills * len(seeds)} kills, {len(TOPICS)} topics, seeds {seeds}: {dict(counts)}")
