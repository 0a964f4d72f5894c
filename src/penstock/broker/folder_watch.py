"""Notices that the data folder was removed, moved or replaced under a broker.

What is open stays writable then, and would be gone with the process. A look is two `stat` calls,
and a thread of its own makes them, so that no chore can be in the way.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

LOOK_EVERY_S = 0.4
"""Noticed within a second, on a machine that is busy, too."""


class FolderWatch:
    def __init__(self, is_intact: Callable[[], bool], on_lost: Callable[[], None]) -> None:
        self._is_intact = is_intact
        self._on_lost = on_lost
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-folder-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(LOOK_EVERY_S):
            if not self._is_intact():
                self._on_lost()
                return
