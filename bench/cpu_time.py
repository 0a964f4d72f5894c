"""How much of a processor another process has used."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.harness import Sample, stopwatch


def used_s(process: int) -> float:
    """The CPU time of a process so far, its threads included."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def process_at(url: str) -> int:
    """The process that listens there; it is a child of this one."""
    port = f":{int(url.rpartition(':')[2]):04X}"
    inodes = {
        line.split()[9]
        for line in Path("/proc/net/tcp").read_text().splitlines()
        if port in line.split()[1] and line.split()[3] == "0A"
    }
    for process in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if os.readlink(process)[8:-1] in inodes:
                return int(process.parts[2])
        except OSError:
            continue
    raise RuntimeError(f"nobody listens on {url}")


class ServerCpu:
    """What a server spends on a message, by who asks it."""

    def __init__(self, process: int) -> None:
        self._process = process
        self._spent: dict[str, list[tuple[float, float]]] = {}

    @contextmanager
    def timed(self, name: str, messages: int) -> Iterator[Sample]:
        before_s = used_s(self._process)
        with stopwatch(messages) as sample:
            yield sample
        self._spent.setdefault(name, []).append((used_s(self._process) - before_s, messages))

    def us_a_message(self, name: str) -> float:
        """On average over all rounds but the first, since the clock is a coarse one."""
        rounds = self._spent[name][1:] or self._spent[name]
        return 1e6 * sum(spent for spent, _ in rounds) / sum(messages for _, messages in rounds)
