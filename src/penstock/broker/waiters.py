"""Who wants to know when there may be something new: long polls, streams, subscribers."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Waiters:
    """Callbacks that are called from whichever thread has news; they must be short."""

    def __init__(self) -> None:
        self.callbacks: dict[int, Callable[[], None]] = {}
        self._lock = threading.Lock()
        self._next = 0

    def __len__(self) -> int:
        return len(self.callbacks)

    def add(self, callback: Callable[[], None]) -> int:
        with self._lock:
            self._next += 1
            self.callbacks[self._next] = callback
            return self._next

    def remove(self, ticket: int) -> None:
        with self._lock:
            self.callbacks.pop(ticket, None)

    def notify(self) -> None:
        with self._lock:
            callbacks = list(self.callbacks.values())
        for callback in callbacks:
            callback()
