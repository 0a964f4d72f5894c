"""Disks that fail: an error at every single operation of a life, one life for each.

After a failed fsync the log stops and nothing more is confirmed; opening it again brings back
all that was written and makes it durable in truth, although the kernel calls the lost pages clean.
A full disk stops nothing: the append is refused at once, and the next one with room goes through.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from random import Random

import pytest

from penstock.clock import ManualClock
from penstock.config import FsyncPolicy, LogConfig
from penstock.errors import DiskFull, LogError, LogFailed
from penstock.log.commit import ManualCommitter
from penstock.log.local import LocalLog
from penstock.record.batch import Batch
from tests.simulation.disk import KINDS, SimulatedFiles
from tests.simulation.life import POLICIES, LogLife, small_segments, told
from tests.simulation.model import read_all
from tests.simulation.survivor import check_survivor
from tests.simulation.torture import scaled

STEPS = 30


def undisturbed(policy: FsyncPolicy, seed: int) -> SimulatedFiles:
    """The disk of a life in which nothing goes wrong: it knows how many operations there were."""
    life = LogLife(seed, small_segments(policy))
    life.run(STEPS)
    return life.files


def check_after_failure(life: LogLife, rng: Random) -> None:
    """What the failed log leaves: when it is just opened again, and when the power goes first."""
    life.files.mend()
    for kill in (True, False):
        check_survivor(
            life.files.kill() if kill else life.files.crash(rng),
            life.model,
            life.config,
            rng,
            promised_end=life.model.written_end if kill else life.model.durable_end,
            crashes_more=int(kill),
        )


# EIO: the disk is broken.


def fail_each(kind: str, policy: FsyncPolicy, seed: int) -> int:
    """A life for each operation of a kind, in which that one fails; how many logs it stopped."""
    stopped = 0
    for nth in range(1, undisturbed(policy, seed).counts[kind] + 1):
        life = LogLife(seed, small_segments(policy))
        life.files.fail(kind, nth)
        life.at_boundary = PowerCutAfterFailure(Random(nth))
        with told(life, f"{kind} {nth} fails"):
            try:
                life.run(STEPS)
            except LogFailed:
                check_stopped(life)
                stopped += 1
            except LogError as exc:
                life.history.append(f"  {exc}")  # a compaction that was given up
            check_after_failure(life, Random(nth))
    return stopped


class PowerCutAfterFailure:
    """Cuts the power at the first operations after a failure, before they make up for it."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._cuts = 3

    def __call__(self, life: LogLife) -> None:
        if life.files.failures and self._cuts:
            self._cuts -= 1
            check_survivor(
                life.files.crash(self._rng),
                life.model,
                life.config,
                self._rng,
                promised_end=life.model.durable_end,
                crashes_more=0,
            )


def check_stopped(life: LogLife) -> None:
    """No append and no confirmation any more; reads go on."""
    log = life.log
    if log is None:
        return  # it failed while it was opened or closed
    durable_end, disk_operations = log.durable_end, life.files.operations
    with pytest.raises(LogFailed):
        log.sync()
    with pytest.raises(LogFailed):
        life.append()
    life.model.refused()
    life.committer.run_due()
    assert log.durable_end == durable_end
    assert life.files.operations == disk_operations, "it went on writing"
    for future in life.unconfirmed():
        assert future.done()
        assert isinstance(future.exception(), LogFailed)
    life.model.check_messages(read_all(log))


@pytest.mark.parametrize("policy", POLICIES)
def test_eio_on_each_fsync_stops_the_log(policy: FsyncPolicy) -> None:
    assert fail_each("sync", policy, 5) > 5


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "sync"])
def test_eio_on_each_other_operation_loses_nothing(kind: str) -> None:
    fail_each(kind, "interval", 5)


@pytest.mark.torture
@pytest.mark.timeout(0)
@pytest.mark.parametrize("policy", POLICIES)
def test_eio_on_each_operation_of_many_lives(policy: FsyncPolicy) -> None:
    seeds = range(100, 100 + scaled(20))
    stopped = {kind: sum(fail_each(kind, policy, seed) for seed in seeds) for kind in KINDS}
    print(f"\nlogs stopped by EIO, fsync={policy}, seeds {seeds}: {stopped}; nothing lost")


# ENOSPC: the disk is full, for a moment or for a while.

WRITES = ("append", "overwrite", "create", "rename")


def fill_each(kind: str, policy: FsyncPolicy, seed: int) -> int:
    """A life for each operation of a kind, in which that one finds no room; how many lives.

    The life goes on with the same open log, and finds everything in order.
    """
    count = undisturbed(policy, seed).counts[kind]
    for nth in range(1, count + 1):
        life = LogLife(seed, small_segments(policy))
        life.files.fail(kind, nth, errno.ENOSPC, partial=nth % 4 / 4)
        with told(life, f"{kind} {nth} finds no room"):
            life.run(STEPS)
            life.append()
            life.sync()
            life.check()
            check_after_failure(life, Random(nth))
    return count


@pytest.mark.parametrize("kind", WRITES)
def test_enospc_on_each_write_is_over_when_there_is_room(kind: str) -> None:
    fill_each(kind, "always", 5)
    fill_each(kind, "interval", 6)


@pytest.mark.torture
@pytest.mark.timeout(0)
@pytest.mark.parametrize("policy", POLICIES)
def test_enospc_on_each_write_of_many_lives(policy: FsyncPolicy) -> None:
    seeds = range(100, 100 + scaled(20))
    lives = {kind: sum(fill_each(kind, policy, seed) for seed in seeds) for kind in WRITES}
    print(f"\nlives that met ENOSPC, fsync={policy}, seeds {seeds}: {lives}; nothing lost")


@pytest.mark.parametrize("policy", POLICIES)
def test_full_disk_refuses_at_once_and_serves_reads_until_there_is_room(
    policy: FsyncPolicy,
) -> None:
    life = LogLife(7, small_segments(policy))
    with told(life):
        life.run(20)
        life.files.capacity_bytes = used_bytes(life.files) + 3000
        life.run(60)
        assert life.disk_was_full > 3, "the disk was never full"
        with pytest.raises(DiskFull):
            fill(life.append)
        life.check()
        life.read_somewhere()

        life.files.capacity_bytes = None
        life.append()
        life.sync()
        life.check()
        life.run(20)
        check_after_failure(life, Random(7))


def test_writes_stop_above_the_floor_so_that_trim_has_the_room_it_needs() -> None:
    files = SimulatedFiles(capacity_bytes=8 << 20)
    config = LogConfig(segment_bytes=1 << 20, free_bytes_min=3 << 20)
    log = LocalLog.open("log", config, files=files, committer=ManualCommitter(ManualClock()))
    with pytest.raises(DiskFull, match="free"):
        fill(lambda: log.append(Batch.build([bytes(100_000)])))
    assert files.free_bytes("log") > 1 << 20

    log.trim(log.end)
    log.append(Batch.build([b"there is room again"]))

    assert [message.value for message in log.read(log.start).messages()] == [b"there is room again"]


def fill(append: Callable[[], object]) -> None:
    for _ in range(1000):
        append()


def used_bytes(files: SimulatedFiles) -> int:
    return sum(files.size(f"log/{name}") for name in files.list("log"))
