"""Processes of their own for the backlog suite, each of which tells what it found as JSON.

`python -m bench.backlog build FOLDER MESSAGES IN_FLIGHT DELAYED LEASE` fills a data folder, says
how much memory that took, and waits to be killed: LEASE is how many messages each receive takes.
`python -m bench.backlog probe FOLDER SMALL` opens what the crash left, and receives from it and
from a folder with a small backlog in turns. It ends as abruptly, so that it can be done again.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

import penstock
from bench import messages
from bench.probe import memory_mb
from bench.suites.broker_publish import TOPIC
from bench.suites.broker_receive import GROUP
from penstock.client.client import Client

_SINCE = 10_000  # received and acked after the last of what stays in flight
_ROUNDS = 15
_SINGLES = 150  # of each round; all rounds together fit into the small backlog
_BATCHES = 4
_BATCH = 100
_CRITICAL = 20


def build(folder: str, count: int, in_flight: int, delayed: int, lease: int) -> None:
    values = messages.in_batches(messages.values(20 * messages.BATCH_MESSAGES))
    ps = penstock.connect(folder)
    ps.create_topic(TOPIC)
    for number in range(count // messages.BATCH_MESSAGES):
        ps.publish_batch(TOPIC, values[number % len(values)])
    source = random.Random(delayed)
    now = time.time()
    for number in range(delayed // messages.BATCH_MESSAGES):
        some = values[number % len(values)]
        due = [now + 86_400 * (1 + 30 * source.random()) for _ in some]
        ps.schedule_batch(TOPIC, some, deliver_at=due)
    for _ in range(in_flight // lease):
        ps.receive_batch(TOPIC, GROUP, lease, visibility="12h")
    for _ in range(min(_SINCE, in_flight)):
        for message in ps.receive(TOPIC, GROUP, 1):
            message.ack()
    _tell({"memory_mb": memory_mb()["rss"], "anonymous_mb": memory_mb()["anonymous"]})
    sys.stdin.read()  # until we are killed


def probe(folder: str, small_folder: str) -> None:
    imports = memory_mb()
    began = time.perf_counter()
    ps = penstock.connect(folder)
    open_s = time.perf_counter() - began
    opened = memory_mb()
    stats = ps.stats(TOPIC)
    small = penstock.connect(small_folder)
    single = _in_turns(ps, small, _receive_singles)
    batch = _in_turns(ps, small, _receive_batches)
    critical_ms = [_critical_ms(ps) for _ in range(_CRITICAL)]
    _tell(
        {
            "open_s": open_s,
            "import_mb": imports["rss"],
            "opened_mb": opened["rss"],
            "opened_anonymous_mb": opened["anonymous"],
            "used_mb": memory_mb()["rss"],
            "used_anonymous_mb": memory_mb()["anonymous"],
            "single_s": single,
            "batch_s": batch,
            "critical_ms": critical_ms,
            "depth": stats.depth,
            "in_flight": stats.in_flight,
            "delayed": stats.delayed,
        }
    )
    os._exit(0)  # as a crash: nothing is closed


def build_small(folder: str, count: int) -> None:
    """A backlog with nothing in flight, closed in good order."""
    with penstock.connect(folder) as ps:
        ps.create_topic(TOPIC)
        for values in messages.in_batches(messages.values(count)):
            ps.publish_batch(TOPIC, values)


def _in_turns(
    large: Client, small: Client, receive: Callable[[Client], int]
) -> list[tuple[float, float]]:
    """Seconds a message with the large and with the small backlog, round by round."""
    costs: list[tuple[float, float]] = []
    for number in range(_ROUNDS + 1):
        pair = {}
        for ps in (large, small) if number % 2 else (small, large):
            began = time.perf_counter()
            received = receive(ps)
            pair[ps] = (time.perf_counter() - began) / received
        if number:  # the first round warms up
            costs.append((pair[large], pair[small]))
    return costs


def _receive_singles(ps: Client) -> int:
    for _ in range(_SINGLES):
        (message,) = ps.receive(TOPIC, GROUP, 1)
        message.ack()
    return _SINGLES


def _receive_batches(ps: Client) -> int:
    for _ in range(_BATCHES):
        batch = ps.receive_batch(TOPIC, GROUP, _BATCH)
        if len(batch) != _BATCH:
            raise RuntimeError(f"{len(batch)} messages where there must be {_BATCH}")
        batch.ack()
    return _BATCHES * _BATCH


def _critical_ms(ps: Client) -> float:
    """From the publishing of a critical message to when it is received before all the others."""
    began = time.perf_counter()
    ps.publish(TOPIC, b"critical", priority="critical")
    (message,) = ps.receive(TOPIC, GROUP, 1)
    took_ms = (time.perf_counter() - began) * 1e3
    if message.value != b"critical":
        raise RuntimeError("another message was received before the critical one")
    message.ack()
    return took_ms


def _tell(found: dict[str, object]) -> None:
    print(json.dumps(found), flush=True)


def main(verb: str, folder: str, *rest: str) -> None:
    Path(folder).mkdir(parents=True, exist_ok=True)
    if verb == "build":
        build(folder, *map(int, rest))
    else:
        probe(folder, *rest)


if __name__ == "__main__":
    main(*sys.argv[1:])
