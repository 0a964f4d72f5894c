"""Another process' folder refuses what is wrong with the class and the sentence of one's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import PenstockError
from tests.integration.broker.world import World


@pytest.fixture
def doors(tmp_path: Path) -> Iterator[tuple[Any, Any]]:
    """The client of a folder's owner, and that of another process; each of a folder of its own."""
    worlds = [World(tmp_path / door, door) for door in ("sync", "folder")]
    for world in worlds:
        world.ps.create_topic("orders", partitions=2)
    yield worlds[0].ps, worlds[1].ps
    for world in worlds:
        world.close_all()


def receive(**how: Any) -> Callable[[Any], object]:
    return lambda ps: ps.receive(**{"topic": "orders", "group": "g"} | how)


def settle(verb: str, **how: Any) -> Callable[[Any], object]:
    def received_and_settled(ps: Any) -> object:
        ps.publish("orders", b"x", partition=0)
        (message,) = ps.receive("orders", "g")
        return getattr(message, verb)(**how)

    return received_and_settled


WRONG: dict[str, Callable[[Any], object]] = {
    "no messages": receive(max_messages=0),
    "too many messages": receive(max_messages=100_001),
    "messages as text": receive(max_messages="3"),
    "messages as a float": receive(max_messages=2.0),
    "messages as a bool": receive(max_messages=True),
    "no visibility": receive(visibility="x"),
    "too long a wait": receive(wait=31),
    "a number as a consumer": receive(consumer=5),
    "a long consumer": receive(consumer="x" * 300),
    "a partition below 0": receive(partition=-1),
    "a partition that is not there": receive(partition=2),
    "a partition as text": receive(partition="0"),
    "a wrong group": receive(group="a b"),
    "a topic that is not there": receive(topic="nope"),
    "an ack of what is none": lambda ps: ps.ack("g", "no receipt"),
    "retries below 0": settle("nack", retries=-1),
    "retries as text": settle("nack", retries="x"),
    "too long a delay of a nack": settle("nack", delay="91d"),
    "too long a visibility": settle("extend", visibility="13h"),
    "a moment that is none": lambda ps: ps.publish("orders", b"x", deliver_at="soon"),
    "too late a moment": lambda ps: ps.publish("orders", b"x", delay="91d"),
    "a publish to partition 9": lambda ps: ps.publish("orders", b"x", partition=9),
    "a seek to nowhere": lambda ps: ps.seek("orders", "g", "x"),
    "a seek of a partition below 0": lambda ps: ps.seek("orders", "g", 0, partition=-1),
    "a peek at a partition as text": lambda ps: ps.peek("orders", partition="0"),
    "a setting that is none": lambda ps: ps.create_topic("new", partitons=4),
    "a setting of another type": lambda ps: ps.create_topic("new", partitions="4"),
    "a group that is no text": lambda ps: ps.describe_stream_group(5),
    "a schedule that is no text": lambda ps: ps.describe_schedule(5),
    "a webhook that is no text": lambda ps: ps.webhook(5),
    "a topic that is no text": lambda ps: ps.trace(5),
    "offsets that are none": lambda ps: ps.set_stream_offsets("s", 5),
    "an offset below 0": lambda ps: ps.set_stream_offsets("s", {"orders": {0: -1}}),
    "an offset as text": lambda ps: ps.set_stream_offsets("s", {"orders": {0: "x"}}),
    "a partition of an offset as text": lambda ps: ps.set_stream_offsets("s", {"orders": {"0": 1}}),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_another_process_hears_what_the_owner_would_hear(
    wrong: str, doors: tuple[Any, Any]
) -> None:
    heard = []
    for ps in doors:
        with pytest.raises(PenstockError) as caught:
            WRONG[wrong](ps)
        heard.append((type(caught.value), str(caught.value)))
    assert heard[0] == heard[1]


def test_a_moment_may_be_text_at_every_door(ps: Any) -> None:
    ps.create_topic("orders")
    due = ps.publish("orders", b"x", deliver_at="2000-01-31T12:00:00Z")
    assert due.deliver_at_us == 949_320_000 * 1_000_000
