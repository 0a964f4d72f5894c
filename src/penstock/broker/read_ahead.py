"""How much of the logs is at hand in memory for those who will ask for it next, in all partitions.

Each partition remembers what it read last. There may be thousands of them, so those that read
longest ago forget it.
"""

from __future__ import annotations

import threading
from typing import Protocol

from penstock.forks import abandon_in_children

READ_AHEAD_BYTES_MAX = 32 << 20


class Forgetful(Protocol):
    """A reader with frames in memory that it can drop."""

    def forget(self) -> None:
        """Any thread may call it, at any time."""
        ...


class ReadAhead:
    """How much each reader holds in memory, in the order of their last reads."""

    def __init__(self, bytes_max: int = READ_AHEAD_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self.abandon()
        abandon_in_children(self)

    def abandon(self) -> None:
        """This is a forked process, which reads nothing of its parent's."""
        self._readers: dict[Forgetful, int] = {}
        self._bytes = 0
        self._lock = threading.Lock()

    def add(self, reader: Forgetful, nbytes: int) -> None:
        """A reader holds `nbytes` now, in place of what it held before."""
        with self._lock:
            self._bytes += nbytes - self._readers.pop(reader, 0)
            self._readers[reader] = nbytes
            while self._bytes > self._bytes_max and len(self._readers) > 1:
                oldest = next(iter(self._readers))
                self._bytes -= self._readers.pop(oldest)
                oldest.forget()


READ_AHEAD = ReadAhead()
"""The process's own."""
