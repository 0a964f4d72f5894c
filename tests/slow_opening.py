"""An engine on which one topic takes long to open: until it is told to go on."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

from penstock.config import LogConfig
from penstock.log.local import LocalLog
from penstock.log.local_engine import LocalEngine

_WAIT_S_MAX = 30


class SlowEngine(LocalEngine):
    def __init__(self, folder: Path, topic: str) -> None:
        """Every topic whose name begins so is slow."""
        super().__init__(folder)
        self._slow = f"topics/default/{topic}"
        self.is_opening = threading.Event()
        self.go_on = threading.Event()
        self.refuses = False
        self.opened: Counter[str] = Counter()
        self._counting = threading.Lock()

    def open(self, name: str, config: LogConfig) -> LocalLog:
        if name.startswith(self._slow):
            if self.refuses:
                raise OSError("no luck")
            self.is_opening.set()
            assert self.go_on.wait(_WAIT_S_MAX), "nobody said to go on"
        with self._counting:
            self.opened[name] += 1
        return super().open(name, config)
