"""A whole broker lives random lives on a simulated disk beside a plain model: `broker_life.py`.

A failure names its seed and its last steps: `BrokerLife(seed)` replays it.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.broker_life import BrokerLife
from tests.simulation.torture import scaled

# Every kind of step has to happen, or the lives prove less than they seem to.
HAPPENINGS = {
    "ack",
    "altered",
    "came back in the middle of a receive",
    "cancelled",
    "checkpoints",
    "clock set",
    "committed",
    "crashed in recovery",
    "deduplicated",
    "delayed",
    "died",
    "expired",
    "extend",
    "joined",
    "kills",
    "left",
    "letters purged",
    "messages lost to power cuts",
    "moved",
    "nack",
    "power cuts",
    "published",
    "published by the short way",
    "purged",
    "purged for a group",
    "received",
    "received by the short way",
    "redriven",
    "redriven to a group",
    "refused",
    "reject",
    "reopened",
    "sent again",
    "sought",
    "stale member refused",
    "topics deleted",
    "trimmed",
}


def live(seed: int, steps: int) -> Counter[str]:
    with BrokerLife(seed) as life:
        life.run(steps)
    return life.counts


@pytest.mark.parametrize("first_seed", range(0, 24, 4))
def test_broker_agrees_with_the_model(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 4):
        live(seed, steps=250)


@pytest.mark.torture
@pytest.mark.timeout(0)
def test_broker_agrees_with_the_model_for_long() -> None:
    counts: Counter[str] = Counter()
    lives, steps = scaled(2000), 250
    for seed in range(100_000, 100_000 + lives):
        counts += live(seed, steps)
    print(f"\n{lives * steps} steps of {lives} brokers from seed 100000 on: {dict(counts)}")
    assert counts.keys() >= HAPPENINGS
