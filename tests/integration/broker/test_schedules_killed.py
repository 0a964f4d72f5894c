"""A real process with schedules is killed (-9), again and again: each fire is one message."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

import penstock
from tests.integration.broker.doomed_schedules import EVERY_MS
from tests.integration.broker.test_kill import Doomed
from tests.simulation.torture import scaled

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.fixture
def doomed() -> Iterator[Doomed]:
    process = Doomed("tests.integration.broker.doomed_schedules")
    yield process
    process.close()


def kill_again_and_again(doomed: Doomed, folder: Path, seed: int, kills: int) -> int:
    """How many fires there were."""
    rng = Random(seed)
    for _ in range(kills):
        lines = doomed.life(folder, 0, [], rng.random() * 0.4)
        assert not [line for line in lines if line.startswith("failed")], lines
    with penstock.connect(folder) as ps:
        described = [ps.pause_schedule(name) for name in ("jobs", "sure")]
        for each in described:
            moments = Counter(
                (datetime.fromisoformat(moment.decode()) - EPOCH) // timedelta(microseconds=1)
                for message in ps.receive(each.topic, "g", max_messages=100_000)
                if (moment := message.headers["penstock-scheduled-for"]) is not None
            )
            assert set(moments.values()) == {1}, f"seed {seed}: a fire has several messages"
            assert len(moments) == each.fired, f"seed {seed}: a fire has no message"
            gaps = {later - earlier for earlier, later in pairwise(sorted(moments))}
            assert gaps == {EVERY_MS * 1000}, f"seed {seed}: a fire is missing"
    return sum(each.fired for each in described)


def test_a_killed_process_makes_each_fire_once(doomed: Doomed, tmp_path: Path) -> None:
    assert kill_again_and_again(doomed, tmp_path / "data", 1, kills=8) > 8


@pytest.mark.torture
@pytest.mark.timeout(0)
def test_processes_with_schedules_killed_for_long(doomed: Doomed, tmp_path: Path) -> None:
    kills, seeds = 50, range(1, 1 + scaled(8))
    fires = sum(kill_again_and_again(doomed, tmp_path / str(seed), seed, kills) for seed in seeds)
    print(f"\n{kills * len(seeds)} kills, {fires} fires")
