"""A real process whose transactions move messages from topic to topic is killed (-9), again and
again: each message is in one place, always."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

import penstock
from tests.integration.broker.doomed_transactions import MESSAGES, STEPS
from tests.integration.broker.test_kill import Doomed
from tests.simulation.torture import scaled


@pytest.fixture
def doomed() -> Iterator[Doomed]:
    process = Doomed("tests.integration.broker.doomed_transactions")
    yield process
    process.close()


def kill_again_and_again(doomed: Doomed, folder: Path, seed: int, kills: int) -> int:
    """How many messages were moved on."""
    rng, moved = Random(seed), 0
    for nth in range(kills):
        lines = doomed.life(folder, rng.getrandbits(30), [], rng.random() * 0.4)
        assert not [line for line in lines if line.startswith("failed")], lines
        moved += sum(int(line.split()[1]) for line in lines if line.startswith("moved"))
        look_at(folder, f"seed {seed}, kill {nth}")
    return moved


def look_at(folder: Path, when: str) -> None:
    copy = folder.with_name("looked-at")
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("SOCKET", "LOCK"))
    with penstock.connect(copy) as ps:
        found: Counter[bytes | None] = Counter()
        for topic in STEPS:
            messages = ps.receive(topic, "g", max_messages=1000)
            found.update(message.value for message in messages)
            if not messages:  # they are still leased by who was killed
                for each in ps.in_flight(topic, "g"):
                    (message,) = ps.peek(topic, partition=each.partition, at=each.offset, limit=1)
                    found[message.value] += 1
            held = [each.receipt for each in ps.in_flight(topic, "g")]
            assert len(held) == ps.stats(topic).in_flight
        waiting = sum(ps.stats(topic).depth for topic in STEPS)
    shutil.rmtree(copy)
    assert waiting == MESSAGES, f"{when}: {waiting} messages"
    assert not [value for value, count in found.items() if count > 1], when


def test_a_killed_process_moves_each_message_or_not(doomed: Doomed, tmp_path: Path) -> None:
    assert kill_again_and_again(doomed, tmp_path / "data", 1, kills=6) > 10


@pytest.mark.torture
@pytest.mark.timeout(0)
def test_processes_with_transactions_killed_for_long(doomed: Doomed, tmp_path: Path) -> None:
    kills, seeds = 50, range(1, 1 + scaled(8))
    moved = sum(kill_again_and_again(doomed, tmp_path / str(seed), seed, kills) for seed in seeds)
    print(f"\n{kills * len(seeds)} kills, {moved} messages moved")
