"""Programs that are killed, with all that they have started."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import uuid
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]


class Victim:
    """A command with a mark in its environment, by which all that it starts is found, and ended."""

    def __init__(self, *words: str, environment: Mapping[str, str] = {}, log: Path) -> None:
        self._words = words
        self._mark = uuid.uuid4().hex
        self._environment = {**os.environ, **environment, "MARK_OF_A_VICTIM": self._mark}
        self._log = log
        self.start()

    def start(self) -> None:
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                self._words,
                cwd=ROOT,
                env=self._environment,
                start_new_session=True,
                stdout=log,
                stderr=log,
            )

    @property
    def returncode(self) -> int | None:
        return self._process.poll()

    def last_words(self) -> str:
        return self._log.read_text(errors="replace")[-3000:]

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

    def interrupt(self) -> None:
        """Ctrl-C, for the program itself and nobody else."""
        self._process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        for pid in self.family():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._process.wait()

    def kill_one(self, dice: random.Random, command: str) -> bool:
        """Kill one of those that it has started, by a word of the command line; if there is one."""
        found = [pid for pid, line in self.family().items() if command in line]
        if not found:
            return False
        try:
            os.kill(dice.choice(found), signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True
