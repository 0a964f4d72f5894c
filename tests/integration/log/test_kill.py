"""Real processes are killed (-9) on a real disk, at every operation and at every system call.

Two ways to the same end: a process kills itself before its nth operation on the disk, or strace
kills it on entering its nth pwritev, fdatasync, rename ... Either way the log opens, and everything
is there for which `append` had returned. `make test` takes a few of each, `make torture` all; the
simulated disk is killed at every operation in both.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from penstock.config import FsyncPolicy
from tests.integration.log.doomed import OPERATIONS_FILE
from tests.integration.log.image import FOLDER, open_log
from tests.simulation.life import POLICIES, LogLife, small_segments
from tests.simulation.model import LogModel
from tests.simulation.torture import scaled

ROOT = Path(__file__).parents[3]
STEPS = 40
SYSTEM_CALLS = (
    "pwritev",
    "pwritev2",
    "pwrite64",
    "fdatasync",
    "fsync",
    "rename",
    "ftruncate",
    "unlink",
)

KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)


def check_killed(folder: Path, seed: int, policy: FsyncPolicy) -> int:
    """Open what a killed process left, and hold it against what it had promised."""
    operation = int(["1", *(folder / OPERATIONS_FILE).read_text().split()][-1])
    model = promises(seed, policy)[operation - 1].copy()
    with open_log(folder / FOLDER, small_segments(policy)) as log:
        found = model.check(log, model.written_end)
        model.reopened(log, found)
    with open_log(folder / FOLDER, small_segments(policy)) as log:
        assert model.check(log, model.written_end) == found
    return operation


@functools.cache
def promises(seed: int, policy: FsyncPolicy) -> list[LogModel]:
    """What the same life, lived in memory, has promised before each of its operations."""
    models: list[LogModel] = []
    life = LogLife(seed, small_segments(policy))
    life.at_boundary = lambda life: models.append(life.model.copy())
    life.run(STEPS)
    assert len(life.segments) > 3
    return models


# A process that ends itself.


@pytest.mark.parametrize("policy", ["always", "interval"])
def test_kill_before_an_operation(policy: FsyncPolicy, tmp_path: Path) -> None:
    operations = range(1, len(promises(1, policy)) + 1)
    kill_before(Random(1).sample(operations, 12), tmp_path, 1, policy)


@pytest.mark.torture
@pytest.mark.timeout(0)
@pytest.mark.parametrize("policy", POLICIES)
def test_kill_before_every_operation(policy: FsyncPolicy, tmp_path: Path) -> None:
    seeds = range(100, 100 + scaled(5))
    kills = 0
    for seed in seeds:
        folder = tmp_path / str(seed)
        folder.mkdir()
        operations = range(1, len(promises(seed, policy)) + 1)
        kill_before(operations, folder, seed, policy)
        kills += len(operations)
        shutil.rmtree(folder)
    print(f"\n{kills} kills before an operation, fsync={policy}, seeds {seeds}: nothing lost")


def kill_before(operations: Sequence[int], folder: Path, seed: int, policy: FsyncPolicy) -> None:
    """One fresh process forks a child for each; it has no threads that a fork would lose."""
    program = f"""
import os, signal
from tests.integration.log.doomed import live
for operation in {list(operations)}:
    os.mkdir(str(operation))
    child = os.fork()
    if child == 0:
        os.chdir(str(operation))
        live({seed}, {policy!r}, {STEPS}, kill_before=operation)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert os.WTERMSIG(status) == signal.SIGKILL, (operation, status)
"""
    subprocess.run([sys.executable, "-c", program], cwd=folder, env=environment(), check=True)
    for operation in operations:
        assert check_killed(folder / str(operation), seed, policy) == operation


# A process that strace ends, on entering a system call.


@functools.cache
def strace_works() -> bool:
    """Whether strace is here and may trace: containers often forbid it."""
    if shutil.which("strace") is None:
        return False
    inject = ["-e", "trace=chdir", "-e", "inject=chdir:signal=KILL:when=1"]
    program = [sys.executable, "-c", "import os; os.chdir('/')"]
    command = ["strace", "-f", "-qq", *inject, *program]
    return subprocess.run(command, capture_output=True, check=False).returncode in KILLED


needs_strace = pytest.mark.skipif(
    "not strace_works()",
    reason="strace is missing or may not trace; the processes above kill themselves instead",
)


@needs_strace
def test_kill_at_system_calls(tmp_path: Path) -> None:
    rng = Random(2)
    counts = system_calls(tmp_path / "count", 2, "interval")
    for call, count in counts.items():
        if count:
            nth = rng.randint(1, count)
            folder = tmp_path / f"{call}-{nth}"
            assert strace_kills(folder, 2, "interval", call, nth)
            check_killed(folder, 2, "interval")


@needs_strace
@pytest.mark.torture
@pytest.mark.timeout(0)
@pytest.mark.parametrize("policy", ["always", "interval"])
def test_kill_at_every_system_call(policy: FsyncPolicy, tmp_path: Path) -> None:
    counts = system_calls(tmp_path / "count", 3, policy)
    kills = 0
    for call, count in counts.items():
        for nth in range(1, count + 1):
            folder = tmp_path / f"{call}-{nth}"
            assert strace_kills(folder, 3, policy, call, nth)
            check_killed(folder, 3, policy)
            kills += 1
            shutil.rmtree(folder)
    print(f"\n{kills} kills at system calls {counts}, fsync={policy}: nothing lost")


@needs_strace
def test_process_stops_when_the_kernel_reports_a_failed_fsync(tmp_path: Path) -> None:
    folder = tmp_path / "eio"
    options = [
        "-o",
        "/dev/null",
        "-e",
        trace("fdatasync"),
        "-e",
        "inject=fdatasync:error=EIO:when=4+",
    ]

    ended = traced(folder, 2, "interval", options)

    assert b"LogFailed" in ended.stderr
    check_killed(folder, 2, "interval")


def system_calls(folder: Path, seed: int, policy: FsyncPolicy) -> dict[str, int]:
    """How often a life makes each call."""
    output = folder.with_suffix(".strace")
    traced(folder, seed, policy, ["-c", "-o", str(output), "-e", trace(*SYSTEM_CALLS)], check=True)
    counts = dict.fromkeys(SYSTEM_CALLS, 0)
    for line in output.read_text().splitlines():
        fields = line.split()
        if fields and fields[-1] in counts:
            counts[fields[-1]] = int(fields[3])
    # What is short goes in one piece, by pwrite64; so does the mark of what is durable.
    assert sum(counts[call] for call in counts if call.startswith("pwrite")) > STEPS, counts
    return counts


def strace_kills(folder: Path, seed: int, policy: FsyncPolicy, call: str, nth: int) -> bool:
    options = ["-o", "/dev/null", "-e", trace(call), "-e", f"inject={call}:signal=KILL:when={nth}"]
    return traced(folder, seed, policy, options).returncode in KILLED


def traced(
    folder: Path, seed: int, policy: FsyncPolicy, options: list[str], *, check: bool = False
) -> subprocess.CompletedProcess[bytes]:
    folder.mkdir()
    doomed = [sys.executable, "-m", "tests.integration.log.doomed", str(seed), policy, str(STEPS)]
    return subprocess.run(
        ["strace", "-f", "-qq", *options, *doomed],
        cwd=folder,
        env=environment(),
        stderr=subprocess.PIPE,
        check=check,
    )


def trace(*calls: str) -> str:
    return f"trace={','.join(calls)}"


def environment() -> dict[str, str]:
    """With this tree's tests, and whichever penstock runs these, on the path."""
    path = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}
