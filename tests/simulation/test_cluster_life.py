"""A broker whose logs are a shard's lives random lives beside the model of one that is alone.

`ClusterLife(seed)` replays a failure.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.cluster_life import ClusterLife
from tests.simulation.torture import scaled

# What has to happen in the long run, or the lives prove less than they seem to.
HAPPENINGS = {"kill", "power cut", "wiped", "dropped", "handed over", "followed", "void records"}
HAPPENINGS |= {"purged records", "crashed in recovery", "moved", "died", "trimmed", "committed"}


def live(seed: int, steps: int) -> Counter[str]:
    with ClusterLife(seed) as life:
        life.run(steps)
    return life.counts


@pytest.mark.parametrize("seed", range(4))
def test_a_shard_agrees_with_the_model(seed: int) -> None:
    live(seed, steps=120)


@pytest.mark.torture
@pytest.mark.timeout(0)
def test_a_shard_agrees_with_the_model_for_long() -> None:
    counts: Counter[str] = Counter()
    lives, steps = scaled(4000), 250
    for seed in range(200_000, 200_000 + lives):
        counts += live(seed, steps)
    print(f"\n{lives * steps} steps of {lives} shards from seed 200000 on: {dict(counts)}")
    assert counts.keys() >= HAPPENINGS
    assert counts["fetched again"] <= max(1, lives // 20)
