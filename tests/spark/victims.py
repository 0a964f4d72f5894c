"""Processes that are started to be killed, with all that they have started."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import uuid
from pathlib import Path

ROOT = Path(__file__).parents[2]


class Victim:
    """A command with a mark in its environment, by which all that it starts is found, and ended."""

    def __init__(self, *words: str) -> None:
        self._words = words
        self._mark = uuid.uuid4().hex
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, *self._words],
            cwd=ROOT,
            env={**os.environ, "MARK_OF_A_VICTIM": self._mark},
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    @property
    def returncode(self) -> int | None:
        return self._process.poll()

    def family(self) -> dict[int, str]:
        """The processes with the mark, and their command lines."""
        found = {}
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                if self._mark.encode() in Path("/proc", name, "environ").read_bytes():
                    found[int(name)] = Path("/proc", name, "cmdline").read_text().replace("\0", " ")
            except OSError:
                continue  # it has ended, or is somebody else's
        return found

    def kill(self) -> None:
        for pid in self.family():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._process.wait()

    def kill_a_worker(self, dice: random.Random) -> bool:
        workers = [pid for pid, line in self.family().items() if "pyspark.daemon" in line]
        if not workers:
            return False
        try:
            os.kill(dice.choice(workers), signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True
