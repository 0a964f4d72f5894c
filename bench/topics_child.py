"""A broker with many topics in a process that may open few files. It prints what it measured.

python -m bench.topics_child make FOLDER TOPICS
python -m bench.topics_child use FOLDER TOPICS USED CALLS
"""

from __future__ import annotations

import json
import os
import random
import resource
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import penstock
from penstock.client.client import Client

OPEN_FILES = 1024
GROUP = "g"
VALUES = [b"x" * 100] * 100
IDLE_S = 60.0
"""Some work is done once a minute."""


def make(folder: Path, topics: int) -> dict[str, float]:
    began = time.perf_counter()
    with penstock.connect(folder) as ps:
        for number in range(topics):
            ps.create_topic(_name(number))
    return {"made_s": time.perf_counter() - began}


def use(folder: Path, topics: int, used: int, calls: int) -> dict[str, float]:
    began = time.perf_counter()
    ps = penstock.connect(folder)
    found: dict[str, float] = {"opened_s": time.perf_counter() - began, "opened_mb": _rss_mb()}
    assert len(ps.topics()) == topics
    found["idle_cpu_s"] = _idle_cpu_s()
    for number in range(used):  # each is opened here
        _publish(ps, number)
        _receive(ps, number)
    one, many = [0] * calls, random.choices(range(used), k=calls)
    rates: dict[str, list[float]] = {}
    for _ in range(3):  # in turns; what was published is what is received
        for kind, call in (("publish", _publish), ("receive", _receive)):
            rates.setdefault(f"{kind}_one", []).append(_rate(ps, call, one))
            rates.setdefault(f"{kind}_random", []).append(_rate(ps, call, many))
    found |= {name: sorted(each)[1] for name, each in rates.items()}
    found["used_mb"], found["open_files"] = _rss_mb(), len(os.listdir("/proc/self/fd"))
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
    received = ps.receive_batch(_name(number), GROUP, max_messages=len(VALUES))
    assert len(received) == len(VALUES)
    received.ack()


def _rate(ps: Client, call: Callable[[Client, int], None], numbers: Sequence[int]) -> float:
    """Calls a second."""
    began = time.perf_counter()
    for number in numbers:
        call(ps, number)
    return len(numbers) / (time.perf_counter() - began)


def _idle_cpu_s() -> float:
    """Processor time of all threads while nobody does anything, per second."""
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
    return use(Path(folder), int(numbers[0]), int(numbers[1]), int(numbers[2]))


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
