"""What may be dropped from the stream of a shard: only what a trim that is committed speaks of.

So an owner that was replaced, and does not know it yet, drops nothing that the next one needs. A
purge takes JetStream some tenths of a second: it waits until it is worth it.
"""

from __future__ import annotations

import threading

from penstock.cluster.records import decode
from penstock.cluster.takeover import ShardStream


class Trims:
    """The committed trims of a shard whose records are still in the stream."""

    def __init__(self, voids: list[int]) -> None:
        """`voids`: records that do not count; they are deleted first, and then forgotten."""
        self.voids = voids
        self._lock = threading.Lock()
        self._starts: dict[int, int | None] = {}

    def note(self, log: int, before: int | None) -> None:
        """A committed record says that a log begins there; None: that it is gone."""
        with self._lock:
            known = self._starts.get(log, 0)
            if known is not None:
                self._starts[log] = None if before is None else max(before, known)

    def __len__(self) -> int:
        return len(self._starts)

    def purge(self, stream: ShardStream) -> int:
        """Drop the records that only hold what was trimmed; of how many logs."""
        while self.voids:
            stream.delete(self.voids[-1])
            self.voids.pop()
        with self._lock:
            starts, self._starts = self._starts, {}
        last = stream.last_seq() if starts else 0
        for log, before in starts.items():
            seq = last + 1 if before is None else first_needed(stream, log, before, last)
            stream.purge(log, seq)
        return len(starts)


def first_needed(stream: ShardStream, log: int, before: int, last_seq: int) -> int:
    """The number of the first record that holds something of a log at an offset or beyond."""
    low, high = 1, last_seq + 1
    while low < high:
        middle = (low + high) // 2
        found = stream.next_of(log, middle)
        if found is None or found[0] >= high or decode(found[1], found[0]).end > before:
            high = middle
        else:
            low = found[0] + 1
    return low
