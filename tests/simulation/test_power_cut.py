"""A log is crashed at every operation on its disk and at random ones; its promises hold.

Kills leave all that was written; power cuts leave any part of what was not synced. Each failure
names its seed: `LogLife(seed, ...)` replays it.
"""

from __future__ import annotations

from random import Random

import pytest

from penstock.config import FsyncPolicy
from tests.simulation.life import POLICIES, LogLife, small_segments, told
from tests.simulation.survivor import check_survivor
from tests.simulation.torture import scaled

STEPS = 50
"""Of one life: enough for a dozen rolls."""


def crash_here(life: LogLife, rng: Random, *, kill: bool) -> None:
    """Crash at this boundary, open what is left and check it; the life itself goes on."""
    life.observe_as_reader()
    check_survivor(
        life.files.kill() if kill else life.files.crash(rng),
        life.model,
        life.config,
        rng,
        promised_end=life.model.written_end if kill else life.model.durable_end,
        crashes_more=rng.randint(0, 1),
    )


def crash_everywhere(seed: int, policy: FsyncPolicy) -> tuple[LogLife, int]:
    """A kill and a power cut at every operation of a life; the life, and how many crashes."""
    rng = Random(seed)
    crashes = 0

    def crash(life: LogLife) -> None:
        nonlocal crashes
        crash_here(life, rng, kill=True)
        crash_here(life, rng, kill=False)
        crashes += 2

    life = LogLife(seed, small_segments(policy))
    life.at_boundary = crash
    with told(life):
        life.run(STEPS)
    return life, crashes


def crash_now_and_then(seed: int) -> int:
    """A few crashes in a life, and one at its end; how many."""
    rng = Random(seed)
    crashes = 1

    def crash(life: LogLife) -> None:
        nonlocal crashes
        if rng.random() < 0.02:
            crash_here(life, rng, kill=rng.random() < 0.3)
            crashes += 1

    config = small_segments(
        rng.choice(POLICIES),
        segment_bytes=rng.choice((4096, 8192, 16384)),
        codec=rng.choice(("none", "none", "lz4", "zstd")),
    )
    life = LogLife(seed, config)
    life.at_boundary = crash
    with told(life):
        life.run(rng.randint(5, STEPS))
        crash_here(life, rng, kill=False)
    return crashes


@pytest.mark.parametrize("policy", POLICIES)
def test_crash_at_every_operation(policy: FsyncPolicy) -> None:
    life, _ = crash_everywhere(6, policy)
    assert life.compactions
    assert len(life.segments) > 3


def test_power_cut_at_any_moment() -> None:
    for seed in range(200):
        crash_now_and_then(seed)


@pytest.mark.torture
@pytest.mark.timeout(0)
@pytest.mark.parametrize("policy", POLICIES)
def test_crash_at_every_operation_of_many_lives(policy: FsyncPolicy) -> None:
    seeds = range(1000, 1000 + scaled(25))
    crashes = sum(crash_everywhere(seed, policy)[1] for seed in seeds)
    print(
        f"\n{crashes} crashes at every operation, fsync={policy}, seeds {seeds}: no promise broken"
    )


@pytest.mark.torture
@pytest.mark.timeout(0)
def test_power_cut_with_ten_thousand_seeds() -> None:
    seeds = range(10_000, 10_000 + scaled(10_000))
    crashes = sum(map(crash_now_and_then, seeds))
    print(f"\n{crashes} crashes, seeds {seeds}: no promise broken")
