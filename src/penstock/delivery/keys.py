"""Per-key order: at most one message of a key is in flight or waiting for a retry.

Keys are known by a hash of 64 bits. Two keys that share one wait for each other now and then,
which costs time and never order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from penstock.delivery.offsets import Int64s, Offsets

NO_KEY = 0  # messages without a key wait for nobody


class KeyLocks:
    """A message locks its key from when it is first handed out until it is done."""

    def __init__(self) -> None:
        self.known: dict[int, int] = {}  # keys of messages that stayed behind, not to ask again
        self.key_of: dict[int, int] = {}  # of the messages that lock one
        self._locked: set[int] = set()

    def __len__(self) -> int:
        return len(self.key_of)

    def lock(self, offsets: Sequence[int], keys: Sequence[int]) -> None:
        pairs = [pair for pair in zip(offsets, keys, strict=True) if pair[1] != NO_KEY]
        self.key_of.update(pairs)
        for offset in offsets:
            self.known.pop(offset, None)
        self._locked.update(key for _, key in pairs)

    def release(self, offsets: Iterable[int]) -> None:
        for offset in offsets:
            key = self.key_of.pop(offset, None)
            if key is not None:
                self._locked.discard(key)

    def free(self, keys: Iterable[int], seen: set[int], count: int) -> list[int]:
        """Indices of up to `count` messages that may be handed out together: the first of each key
        that is neither locked nor `seen`. All keys become seen: what stays behind keeps its place
        before later ones of its key."""
        free: list[int] = []
        for index, key in enumerate(keys):
            if key != NO_KEY:
                if key in seen:
                    continue
                seen.add(key)
                if key in self._locked:
                    continue
            if len(free) < count:
                free.append(index)
        return free

    def of(self, offsets: Offsets, ask: Callable[[Offsets], NDArray[np.uint64]]) -> list[int]:
        """The keys of messages that are not handed out yet."""
        known = self.known
        new = [offset for offset in offsets if offset not in known]
        if new:
            known.update(zip(new, ask(Offsets.of(new)).tolist(), strict=True))
        return [known[offset] for offset in offsets]

    def columns(self) -> tuple[Int64s, NDArray[np.uint64]]:
        """Offsets and their keys, for a snapshot."""
        count = len(self.key_of)
        return (
            np.fromiter(self.key_of.keys(), np.int64, count),
            np.fromiter(self.key_of.values(), np.uint64, count),
        )
