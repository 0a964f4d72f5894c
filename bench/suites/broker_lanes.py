"""Receiving what was published one by one: five priorities mixed, and keys in order."""

from __future__ import annotations

import random
import shutil
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import penstock
from bench.figures import Spread, at_least, at_most
from bench.harness import Bench, Contender, Sample, stopwatch
from bench.suites.broker_publish import TOPIC

_FEW, _HOT, _MANY, _MANY_QUICK = 20_000, 2000, 1_000_000, 100_000
_RECEIVED = 5000  # of each run; those of a hot key come one by one, so only some of these
_RECEIVED_HOT = 500
_VALUE = b"x" * 100
_groups = (f"g{number}" for number in count())  # each run begins with the oldest message


class _Backlog(NamedTuple):
    """Messages that wait, published one by one."""

    name: str
    messages: int
    lanes: int = 1
    keys: int = 0
    ordered: bool = False

    @property
    def received(self) -> int:
        return _RECEIVED_HOT if self.keys == 1 else _RECEIVED


def run(bench: Bench) -> None:
    many = _MANY_QUICK if bench.quick else _MANY
    one = _Backlog("one lane", _FEW)
    five = _Backlog("five lanes", _FEW, lanes=5)
    five_many = _Backlog(f"five lanes of {many:,}", many, lanes=5)
    keyed = _Backlog("10,000 keys", _FEW, keys=10_000)
    ordered = _Backlog("10,000 keys in order", _FEW, keys=10_000, ordered=True)
    hot = _Backlog("one key in order", _HOT, keys=1, ordered=True)
    hot_many = _Backlog(f"one key in order of {many:,}", many, keys=1, ordered=True)
    contenders = [
        _receive(bench, each) for each in (one, five, five_many, keyed, ordered, hot, hot_many)
    ]
    race = bench.race("receive(10) + ack", contenders)
    bench.compare(race, five.name, one.name, at_least(0.5), "messages")
    bench.compare(race, ordered.name, keyed.name, at_least(0.3), "messages")
    bench.compare(race, hot.name, keyed.name, at_least(0.1), "messages")
    for large, small in ((five_many, five), (hot_many, hot)):
        slower = zip(race.rates[small.name], race.rates[large.name], strict=True)
        bench.figure(
            f"cost of {large.name} / of {small.messages:,}",
            Spread.of(little / much for little, much in slower),
            target=at_most(1.5),
        )
    bench.note(
        "Every message was published on its own. A run begins with the oldest message, receives 10 "
        f"at a time and acks each: {_RECEIVED:,} messages, of one key in order {_RECEIVED_HOT:,}, "
        "which come one by one. The first receive, which opens the topic, is not counted."
    )


def _receive(bench: Bench, backlog: _Backlog) -> Contender:
    folder = bench.cache / "logs" / f"lanes-{'-'.join(map(str, backlog[1:]))}"

    def run(_: Path) -> Sample:
        _build(folder, backlog)
        with penstock.connect(folder) as ps:
            group, received = next(_groups), 0
            for message in ps.receive(TOPIC, group, 1):  # opens the topic, and reads ahead
                message.ack()
            with stopwatch(backlog.received) as sample:
                while received < backlog.received:
                    messages = ps.receive(TOPIC, group, 10)
                    for message in messages:
                        message.ack()
                    received += len(messages)
            ps.delete_group(TOPIC, group)
        return sample

    return Contender(backlog.name, run)


def _build(folder: Path, backlog: _Backlog) -> None:
    """Fill a folder, once: an earlier run may have kept it."""
    done = folder / "BUILT"
    if done.exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    source = random.Random(backlog.messages)
    with penstock.connect(folder) as ps:
        ps.create_topic(TOPIC, ordered_by_key=backlog.ordered, retention=None)
        for _ in range(backlog.messages):
            options: dict[str, Any] = {}
            if backlog.lanes > 1:
                options["priority"] = source.randrange(backlog.lanes)
            if backlog.keys:
                options["key"] = b"%d" % source.randrange(backlog.keys)
            ps.publish(TOPIC, _VALUE, **options)
    done.touch()
