"""Random lives: what the traces tell of each message is what happened to it, and nothing else."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from penstock.broker import trace_log
from tests.integration.broker.world import World

STEPS = 120
VISIBILITY = "12h"


class Model:
    """What happened to each message, by its id as it was published."""

    def __init__(self) -> None:
        self.told: dict[str, list[str]] = defaultdict(list)
        self.held: list[Any] = []
        self.deliveries: dict[str, int] = defaultdict(int)

    def give_up(self, id_: str, last: str) -> None:
        self.told[id_] += [last, "dead_lettered"]


def act(world: World, model: Model, rng: random.Random) -> None:
    """One thing that somebody does."""
    ps = world.ps
    what = rng.choice(["publish", "batch", "delay", "receive", "settle", "settle", "time", "kill"])
    if what == "publish":
        headers = {"a": "b"} if rng.random() < 0.3 else None
        model.told[ps.publish("orders", b"x", headers=headers).id].append("published")
    elif what == "batch":
        for each in ps.publish_batch("orders", [b"x"] * rng.randint(1, 5)):
            model.told[each.id].append("published")
    elif what == "delay":
        model.told[ps.publish("orders", b"x", delay="5s").id].append("scheduled")
    elif what == "receive":
        for message in ps.receive("orders", "billing", max_messages=rng.randint(1, 4)):
            model.told[message.id].append("delivered")
            model.deliveries[message.id] += 1
            model.held.append(message)
    elif what == "settle" and model.held:
        message = model.held.pop(rng.randrange(len(model.held)))
        how = rng.choice(["ack", "nack", "reject", "extend"])
        if how == "extend":
            message.extend(VISIBILITY)
            model.told[message.id].append("extended")
            model.held.append(message)
        elif how == "ack":
            message.ack()
            model.told[message.id].append("acked")
        elif how == "reject" or model.deliveries[message.id] > 1:
            message.nack() if how == "nack" else message.reject()
            model.give_up(message.id, "rejected")
        else:
            message.nack(delay=0)
            model.told[message.id].append("nacked")
    elif what == "time" and rng.random() < 0.3:
        world.pass_(6)
        for events in model.told.values():
            if events == ["scheduled"]:
                events.append("moved")
    elif what == "kill" and rng.random() < 0.1:
        world.restart()  # a kill loses the last second of traces, and this must lose nothing
        model.held = []  # whoever held them is gone; they end by time


def run(world: World, seed: int) -> Model:
    rng, model = random.Random(seed), Model()
    world.ps.create_topic(
        "orders", trace_sample=1, max_retries=1, backoff=(0, 1, 0), visibility=VISIBILITY
    )
    for _ in range(STEPS):
        act(world, model, rng)
        world.pass_(0.001)
    world.pass_(1)  # what a restart has still to do
    return model


@pytest.mark.parametrize("seed", range(4))
def test_every_life_is_told_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """With indexes of few rows, so that most are found by one."""
    monkeypatch.setattr(trace_log, "INDEX_ROWS_MAX", 20)
    monkeypatch.setattr(trace_log, "PAGE_KEYS", 8)
    world = World(tmp_path / "data")
    try:
        model = run(world, seed)
        assert len(model.told) > 20
        for id_, events in model.told.items():
            (trace,) = world.ps.trace(message_id=id_)
            assert [event.event for event in trace.events] == events, f"seed {seed}, {id_}"
            assert trace.id == id_
    finally:
        world.close_all()
