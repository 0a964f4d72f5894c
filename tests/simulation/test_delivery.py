"""The pure core of queue mode lives random lives beside a plain model; see `delivery.py`."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.simulation.delivery import World, live
from tests.simulation.torture import scaled

# Every kind of step has to happen, or the life proves less than it seems to.
HAPPENINGS = {
    "ack",
    "append failed",
    "crashed",
    "delivered",
    "ended at the start",
    "expired",
    "extend",
    "nack",
    "purged",
    "refused",
    "reject",
    "restored",
    "sought",
    "time noted",
    "turns",
}


@pytest.mark.parametrize("first_seed", range(0, 80, 10))
def test_random_lives_agree_with_the_model(first_seed: int) -> None:
    counts = sum((live(seed, steps=300) for seed in range(first_seed, first_seed + 10)), Counter())

    assert counts.keys() >= HAPPENINGS


@settings(max_examples=40, deadline=None, suppress_health_check=[*HealthCheck])
@given(st.randoms(use_true_random=False), st.integers(1, 25))
def test_short_lives_that_shrink(random: Random, steps: int) -> None:
    world = World(random)
    for _ in range(steps):
        world.step()


@pytest.mark.torture
def test_millions_of_steps_agree_with_the_model() -> None:
    counts: Counter[str] = Counter()
    lives, steps = scaled(4000), 500
    for seed in range(1_000_000, 1_000_000 + lives):
        counts += live(seed, steps)
    print(f"{lives * steps} steps of {lives} lives from seed 1000000 on: {dict(counts)}")
