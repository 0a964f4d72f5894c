"""Random lives of a consumer group, on the way to finding one that breaks a promise."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.test_group_world import World

QUICK_SEEDS, QUICK_STEPS = range(8), 4000
LONG_SEEDS, LONG_STEPS = range(1000, 1200), 20_000


@pytest.mark.parametrize("alike", [True, False], ids=["alike", "mixed"])
@pytest.mark.parametrize("seed", QUICK_SEEDS)
def test_a_group_keeps_its_promises_through_a_random_life(seed: int, alike: bool) -> None:
    World(seed, alike=alike).run(QUICK_STEPS)


def test_random_lives_are_eventful() -> None:
    seen: Counter[str] = Counter()
    for seed in range(20, 24):
        world = World(seed, alike=False)
        world.run(QUICK_STEPS)
        seen += world.seen

    refusals = {"unknown_member", "stale_generation", "stale_commit", "partition_not_owned"}
    deeds = {"kill_client", "hang_client", "leave", "change_topics", "resubscribe", "crash"}
    assert seen.keys() >= refusals | deeds | {"committed", "expire", "disk full"}


@pytest.mark.torture
def test_a_group_keeps_its_promises_through_millions_of_steps() -> None:
    steps, seen = 0, Counter[str]()
    for seed in LONG_SEEDS:
        world = World(seed, alike=seed % 2 == 0)
        world.run(LONG_STEPS)
        steps, seen = steps + world.steps, seen + world.seen
    print(
        f"\ngroups: seeds {LONG_SEEDS.start}-{LONG_SEEDS.stop - 1}, {steps:,} steps, {dict(seen)}"
    )
