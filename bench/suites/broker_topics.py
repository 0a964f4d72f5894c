"""Ten thousand topics on one broker in a process that may open 1,024 files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from bench.figures import at_least, at_most
from bench.harness import Bench
from bench.topics_child import OPEN_FILES

_TOPICS, _USED, _CALLS = 10_000, 2_000, 10_000
_QUICK_TOPICS, _QUICK_USED, _QUICK_CALLS = 500, 300, 2_000


def run(bench: Bench) -> None:
    topics, used, calls = _TOPICS, _USED, _CALLS
    if bench.quick:
        topics, used, calls = _QUICK_TOPICS, _QUICK_USED, _QUICK_CALLS
    with bench.folder() as folder:
        bench.progress.show(f"making {topics} topics")
        made = _child("make", folder, topics)
        bench.progress.show(f"using {used} of {topics} topics")
        found = _child("use", folder, topics, used, calls)
    bench.figure(f"opening {topics:,} topics", found["opened_s"], unit="s", target=at_most(5))
    bench.figure("memory when opened", found["opened_mb"], unit="MB", target=at_most(400))
    bench.figure("processor when idle", 100 * found["idle_cpu_s"], unit="%", target=at_most(0.1))
    for kind in ("publish", "receive"):
        one, many = found[f"{kind}_one"], found[f"{kind}_random"]
        bench.figure(
            f"{kind} of 100, random topics / one",
            many / one,
            target=at_least(0.3),
            detail=f"{many:,.0f} / {one:,.0f} calls/s",
        )
    bench.figure(f"memory with {used:,} used", found["used_mb"], unit="MB", target=at_most(400))
    bench.figure("open files", found["open_files"], unit="files", target=at_most(OPEN_FILES / 2))
    bench.figure("making a topic", 1000 * made["made_s"] / topics, unit="ms")
    bench.figure("closing, by topic used", 1000 * found["closed_s"] / used, unit="ms")
    bench.figure("opening after that", found["opened_again_s"], unit="s", target=at_most(5))
    bench.note(
        f"A process of its own with ulimit -n {OPEN_FILES}. {used:,} of the topics are used, at "
        "random; {calls:,} calls on one and on random topics in turns, medians of 3. Each receive "
        "gets 100 messages, and acks them."
    )


def _child(command: str, folder: Path, *numbers: float) -> dict[str, float]:
    arguments = [sys.executable, "-m", "bench.topics_child", command, str(folder / "data")]
    done = subprocess.run(
        [*arguments, *map(str, numbers)], check=True, stdout=subprocess.PIPE, text=True
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found
