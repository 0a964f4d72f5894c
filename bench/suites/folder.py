"""A data folder that another process owns, through its socket, beside a server's HTTP."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count
from pathlib import Path

from bench import messages
from bench.figures import Target, at_least, at_most
from bench.harness import Bench, Contender, Sample, stopwatch
from bench.servers.penstock import Penstock, SharedFolder

_BATCH = 100
_BATCHES = 200
_SINGLES = 1000
_FOLDER_BYTES = 1_000_000_000
_VALUE_BYTES = 1000

_queues = count()


def run(bench: Bench) -> None:
    values = messages.values(_BATCH * _BATCHES)
    with bench.folder() as folder, ExitStack() as running:
        doors: list[Penstock] = []
        for kind in (Penstock, SharedFolder):
            door = kind(folder / kind.__name__.lower())
            door.start()
            running.callback(door.stop)
            doors.append(door)
        _race(bench, doors, "publish 100", lambda door: _publish(door, values), at_least(0.8))
        singles = values[:_SINGLES]
        _race(bench, doors, "publish 1", lambda door: _publish_singles(door, singles))
        _race(bench, doors, "receive + ack 100", lambda door: _receive(door, values))
    _take_over(bench)
    bench.note(
        f"One client in this process, messages of 100 B; {_BATCHES} batches of {_BATCH}, or "
        f"{_SINGLES} single messages, a round. Through the socket a publish is stored once, "
        "however often it has to be sent."
    )


def _race(
    bench: Bench,
    doors: list[Penstock],
    what: str,
    work: Callable[[Penstock], Sample],
    target: Target | None = None,
) -> None:
    contenders = [
        Contender(door.name, lambda _, door=door: work(door), door.settings) for door in doors
    ]
    race = bench.race(what, contenders, rounds=2 * bench.rounds - 1)  # short runs, close ratios
    title = f"{what} through the socket: HTTP"
    bench.compare(race, SharedFolder.name, Penstock.name, target, "messages", title=title)


def _publish(door: Penstock, values: list[bytes]) -> Sample:
    queue = f"q{next(_queues)}"
    door.create(queue)
    batches = messages.in_batches(values, _BATCH)
    with stopwatch(len(values)) as sample:
        for batch in batches:
            door.publish_batch(queue, batch)
    return sample


def _publish_singles(door: Penstock, values: list[bytes]) -> Sample:
    queue = f"q{next(_queues)}"
    door.create(queue)
    with stopwatch(len(values)) as sample:
        for value in values:
            door.publish(queue, value)
    return sample


def _receive(door: Penstock, values: list[bytes]) -> Sample:
    queue = f"q{next(_queues)}"
    door.create(queue)
    for batch in messages.in_batches(values, _BATCH):
        door.publish_batch(queue, batch)
    with stopwatch(len(values)) as sample:
        for _ in range(len(values) // _BATCH):
            door.take(queue, _BATCH)
        door.finish(queue)
    return sample


def _take_over(bench: Bench) -> None:
    """From `kill -9` of the owner to the answer of a client that takes a large folder over."""
    bench.progress.show("takeover")
    with bench.folder() as folder:
        owner = SharedFolder(folder)
        owner.start()
        try:
            owner.create("large")
            batch = [os.urandom(_VALUE_BYTES)] * 10_000
            for _ in range(_FOLDER_BYTES // (_VALUE_BYTES * len(batch))):
                owner.publish_batch("large", batch)
            assert owner.process is not None
            owner.process.kill()
            began = time.perf_counter()
            owner.publish("large", b"x")
            took_s = time.perf_counter() - began
        finally:
            owner.stop()
        size_bytes = sum(path.stat().st_size for path in Path(folder).rglob("*.log"))
    bench.figure(
        "takeover after kill -9",
        took_s,
        unit="s",
        target=at_most(2),
        detail=f"the next publish of a client, with a folder of {size_bytes / 1e9:.1f} GB",
    )
