"""Schedules on a simulated disk: each fire is exactly one message, wherever a crash falls.

A failure names its seed and its last steps: `ScheduleLife(seed, fsync)` replays it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

import pytest

from penstock.model import calls
from tests.simulation.disk import SimulatedFiles
from tests.simulation.schedule_life import BY_HAND, WALL_NS, ScheduleLife
from tests.simulation.torture import scaled

HAPPENINGS = {
    "backfilled",
    "checked",
    "clock set",
    "crashed in recovery",
    "crashed within",
    "disk full",
    "kills",
    "power cuts",
    "reopened",
    "time passed",
    "triggered",
}


def live(seed: int, fsync: str, steps: int, *, power_cuts: bool = True) -> Counter[str]:
    life = ScheduleLife(seed, fsync, power_cuts=power_cuts)
    life.run(steps)
    return life.counts


@pytest.mark.parametrize("fsync", ["always", "interval"])
def test_each_fire_is_one_message(fsync: str) -> None:
    for seed in range(4):
        live(seed, fsync, steps=60)


def test_each_fire_is_one_message_where_nothing_is_synced_and_the_power_stays() -> None:
    for seed in range(2):
        live(seed, "never", steps=60, power_cuts=False)


@pytest.mark.torture
@pytest.mark.timeout(0)
def test_each_fire_is_one_message_for_long() -> None:
    counts: Counter[str] = Counter()
    lives, steps = scaled(500), 150
    for seed in range(100_000, 100_000 + lives):
        counts += live(seed, Random(seed).choice(("always", "interval")), steps)
    print(f"\n{lives * steps} steps of {lives} brokers from seed 100000 on: {dict(counts)}")
    assert counts.keys() >= HAPPENINGS


# A crash before each operation on the disk.


def fire(life: ScheduleLife) -> None:
    life.pass_time(1)


def catch_up(life: ScheduleLife) -> None:
    life.pass_time(12)


def confirm(life: ScheduleLife) -> None:
    life.pass_time(1)
    life.pass_time(1.2)


def trigger(life: ScheduleLife) -> None:
    life.trigger()


def close(life: ScheduleLife) -> None:
    life.pass_time(1)
    life.broker.close()


def change(life: ScheduleLife) -> None:
    life.pass_time(1)
    life.api.ask(calls.PauseSchedule(schedule=BY_HAND))
    life._put(BY_HAND, every="2h")


@pytest.mark.parametrize("fsync", ["always", "interval"])
@pytest.mark.parametrize("power_cut", [False, True], ids=["kill", "power-cut"])
@pytest.mark.parametrize("act", [fire, catch_up, confirm, trigger, close, change])
def test_a_fire_is_one_message_wherever_the_crash_falls(
    act: Callable[[ScheduleLife], None], power_cut: bool, fsync: str
) -> None:
    life = ScheduleLife(1, fsync)
    life._begin()
    life.pass_time(1)
    left: list[tuple[SimulatedFiles, int]] = []

    def crash(kind: str, path: str) -> None:
        files = life.files.crash(Random(len(left))) if power_cut else life.files.kill()
        left.append((files, life.now_us))

    life.files.before_operation = crash
    act(life)
    life.files.before_operation = None
    crash("", "")
    assert len(left) > 2
    triggered = life.wanted[BY_HAND]
    for files, now_us in left:
        survivor = ScheduleLife(2, fsync)
        survivor.files, survivor.began_us = files, life.began_us
        survivor.possible = set(triggered)
        survivor.open(now_us * 1000)
        survivor.pass_time(0)
        survivor.trigger()  # a number that comes twice would hide it
        survivor.check()
    assert left[0][1] > WALL_NS // 1000
