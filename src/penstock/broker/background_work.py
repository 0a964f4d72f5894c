"""Long work that is done aside, one piece at a time, by a thread that is there only meanwhile."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from penstock.at_exit import REST_S_MAX, rest_at_exit

_logger = logging.getLogger("penstock.broker")


class BackgroundWork:
    """Any thread may call anything."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._waiting: deque[Callable[[], None]] = deque()
        self._thread: threading.Thread | None = None
        self._stopped = False
        rest_at_exit(self)

    def run(self, work: Callable[[], None]) -> None:
        with self._lock:
            if self._stopped:
                return
            self._waiting.append(work)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Begin nothing more."""
        with self._lock:
            self._stopped = True
            self._waiting.clear()

    def join(self) -> None:
        """Wait for what is under way."""
        thread = self._thread
        if thread is not None:
            thread.join()

    def rest(self) -> None:
        thread = self._thread
        if thread is not None and thread.is_alive():
            self.stop()
            thread.join(REST_S_MAX)

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
                work = self._waiting.popleft()
            try:
                work()
            except Exception:  # the next piece is another topic's
                if not self._stopped:
                    _logger.exception("%s failed", self._name)
