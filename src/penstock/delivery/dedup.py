"""Deduplication by the caller's own id, over a window of time, in bounded memory.

A false duplicate would lose a message, so an id is known by a cryptographic hash of 128 bits: with
a billion ids in the window, the chance that any two share one is below 10^-20, and nobody can make
two that do. An id costs about 230 bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from struct import Struct
from typing import NamedTuple

from penstock.errors import InvalidInput

DIGEST_BYTES = 16
_SWEEP_MIN = 1024

_ENTRY = Struct("<qqq16s")  # when it was recorded, its own window or 0, the place, the ULID


class Original(NamedTuple):
    """The message that an id came with first."""

    place: int
    """The caller's own number for where it is."""
    ulid: int


class Sifted(NamedTuple):
    """Which messages of a call are to be stored, by index, and where the others are."""

    new: list[int]
    known: dict[int, Original]
    repeated: dict[int, int]  # the index of the message in the same call that has this id


class DedupWindow:
    """Ids are remembered for the window, or for one of their own; beyond `ids_max` the oldest are
    forgotten early, and `forgotten_early` counts them.

    The caller sifts, stores what is new, and records it; all three under one lock. Time is the
    monotonic clock's. Ids are given as their digests. Nothing is persisted: they are recorded again
    from the log.
    """

    def __init__(self, window_ns: int, ids_max: int = 1_000_000) -> None:
        if window_ns <= 0 or ids_max < 1:
            raise InvalidInput(
                f"a window of {window_ns} ns with at most {ids_max} ids: both must be positive"
            )
        self.window_ns = window_ns
        self.ids_max = ids_max
        self.forgotten_early = 0
        self._entries: dict[bytes, bytes] = {}  # the oldest first
        self._sweep_at = _SWEEP_MIN

    def __len__(self) -> int:
        return len(self._entries)

    def sift(self, digests: Sequence[bytes | None], now_ns: int) -> Sifted:
        """Tell new messages from known ones. None is a message without an id: always new."""
        sifted = Sifted([], {}, {})
        here: dict[bytes, int] = {}
        for index, digest in enumerate(digests):
            if digest is not None:
                original = self.find(digest, now_ns)
                if original is not None:
                    sifted.known[index] = original
                    continue
                first = here.setdefault(digest, index)
                if first != index:
                    sifted.repeated[index] = first
                    continue
            sifted.new.append(index)
        return sifted

    def find(self, digest: bytes, now_ns: int) -> Original | None:
        """The message that this id was recorded with; None: the id is new, or forgotten."""
        entry = self._entries.get(digest)
        if entry is None or self._is_over(entry, now_ns):
            return None
        _, _, place, ulid = _ENTRY.unpack(entry)
        return Original(place, int.from_bytes(ulid, "big"))

    def record(
        self,
        digests: Sequence[bytes | None],
        place: int,
        ulid: int,
        now_ns: int,
        window_ns: int = 0,
    ) -> None:
        """Messages with these ids are stored: the first has this place and this ULID, the others
        count on from it. `window_ns`: how long they are remembered, if not for the window."""
        entries = self._entries
        for nth, digest in enumerate(digests):
            if digest is not None:
                if digest in entries:
                    del entries[digest]  # it is over, and comes in as the youngest
                entries[digest] = _ENTRY.pack(
                    now_ns, window_ns, place + nth, (ulid + nth).to_bytes(16, "big")
                )
        self._forget(now_ns)

    def forget(self, digest: bytes, ulid: int) -> None:
        """The message of this id was taken back, as if it had never been sent."""
        entry = self._entries.get(digest)
        if entry is not None and _ENTRY.unpack(entry)[3] == ulid.to_bytes(16, "big"):
            del self._entries[digest]

    def _is_over(self, entry: bytes, now_ns: int) -> bool:
        since_ns: int
        window_ns: int
        since_ns, window_ns, _, _ = _ENTRY.unpack(entry)
        return since_ns + (window_ns or self.window_ns) <= now_ns

    def _forget(self, now_ns: int) -> None:
        entries = self._entries
        while entries:
            oldest = next(iter(entries))
            if not self._is_over(entries[oldest], now_ns):
                break
            del entries[oldest]
        if len(entries) > self._sweep_at:
            # Those with a short window may lie behind one with a long one.
            over = [key for key, entry in entries.items() if self._is_over(entry, now_ns)]
            for key in over:
                del entries[key]
            self._sweep_at = max(_SWEEP_MIN, 2 * len(entries))
        while len(entries) > self.ids_max:
            del entries[next(iter(entries))]
            self.forgotten_early += 1


def digest_of(name: bytes) -> bytes:
    return blake2b(name, digest_size=DIGEST_BYTES).digest()
