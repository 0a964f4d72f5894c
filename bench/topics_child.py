"""A broker with many topics in a process that may open few files. It prints what it measured.

python -m bench.topics_child make FOLDER TOPICS
python -m bench.topics_child use FOLDER TOPICS USED SECONDS
"""

from __future__ import annotations

import json
import os
import random
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import penstock
from penstock.client.client import Client

OPEN_FILES = 1024
GROUP = "g"
VALUES = [b"x" * 100] * 100
IDLE_S = 5.0


def make(folder: Path, topics: int) -> dict[str, float]:
    began = time.perf_counter()
    with penstock.connect(folder) as ps:
        for number in range(topics):
            ps.create_topic(_name(number))
    return {"made_s": time.perf_counter() - began}


def use(folder: Path, topics: int, used: int, seconds: float) -> dict[str, float]:
    began = time.perf_counter()
    ps = penstock.connect(folder)
    found: dict[str, float] = {"opened_s": time.perf_counter() - began, "opened_mb": _rss_mb()}
    assert len(ps.topics()) == topics
    found["idle_cpu_s"] = _idle_cpu_s()
    for number in range(used):  # each is opened here
        _publish(ps, number)
        _receive(ps, number)
    for kind, call in (("publish", _publish), ("receive", _receive)):
        one, many = [], []
        for _ in range(3):  # in turns
            if call is _receive:
                for number in [0] * 2000 + [*range(used)] * (1 + 2000 // used):
                    _publish(ps, number)
            one.append(_rate(lambda: call(ps, 0), seconds))  # noqa: B023
            many.append(_rate(lambda: call(ps, random.randrange(used)), seconds))  # noqa: B023
        found[f"{kind}_one"], found[f"{kind}_random"] = sorted(one)[1], sorted(many)[1]
    found["used_mb"], found["open_files"] = _rss_mb(), len(os.listdir("/proc/self/fd"))
    found["idle_used_cpu_s"] = _idle_cpu_s(settle_s=3)
    began = time.perf_counter()
    ps.close()
    found["closed_s"] = time.perf_counter() - began
    began = time.perf_counter()
    with penstock.connect(folder):
        found["opened_again_s"] = time.perf_counter() - began
    return found


def _publish(ps: Client, number: int) -> None:
    ps.publish_batch(_name(number), VALUES)


def _receive(ps: Client, number: int) -> None:
    ps.receive_batch(_name(number), GROUP, max_messages=100).ack()


def _rate(call: Callable[[], None], seconds: float) -> float:
    calls, began = 0, time.perf_counter()
    while (took := time.perf_counter() - began) < seconds:
        call()
        calls += 1
    return calls / took


def _idle_cpu_s(settle_s: float = 0) -> float:
    """Processor time of all threads while nobody does anything, per second."""
    time.sleep(settle_s)
    before = time.process_time()
    time.sleep(IDLE_S)
    return (time.process_time() - before) / IDLE_S


def _rss_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def _name(number: int) -> str:
    return f"topic-{number}"


def main(command: str, folder: str, *numbers: str) -> dict[str, Any]:
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, OPEN_FILES))
    if command == "make":
        return make(Path(folder), int(numbers[0]))
    return use(Path(folder), int(numbers[0]), int(numbers[1]), float(numbers[2]))


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
