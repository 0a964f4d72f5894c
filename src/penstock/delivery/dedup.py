"""Deduplication by the caller's own id, over a window of time, in bounded memory.

A false duplicate would lose a message, so an id is known by a cryptographic hash of 128 bits: with
a billion ids in the window, the chance that any two share one is below 10^-20, and nobody can make
two that do. An id costs about 150 bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

import msgspec
import numpy as np

from penstock.errors import InvalidInput

SLICES = 16
DIGEST_BYTES = 16


class Sifted(NamedTuple):
    """Which messages of a call are to be stored, by index, and where the others are."""

    new: list[int]
    known: dict[int, int]  # where the message with this id was stored
    repeated: dict[int, int]  # the index of the message in the same call that has this id


class DedupWindow:
    """Ids are remembered for at least the window and at most a sixteenth longer, in slices that are
    forgotten whole. Beyond `ids_max` the oldest are forgotten early; `forgotten_early` counts them.

    The caller sifts, stores what is new, and records it; all three under one lock. Time is the
    monotonic clock's. It stands still while the broker is down, which only lengthens the window.
    What was stored after the last snapshot is recorded again from the log.
    """

    def __init__(self, window_ns: int, ids_max: int = 1_000_000) -> None:
        if window_ns <= 0 or ids_max < SLICES:
            raise InvalidInput(
                f"a window of {window_ns} ns with at most {ids_max} ids: "
                f"both must be positive, the second at least {SLICES}"
            )
        self.window_ns = window_ns
        self.ids_max = ids_max
        self.forgotten_early = 0
        self._slices: deque[_Slice] = deque()

    def __len__(self) -> int:
        return sum(len(part.places) for part in self._slices)

    def sift(self, ids: Sequence[bytes | None], now_ns: int) -> Sifted:
        """Tell new messages from known ones. None is a message without an id: always new."""
        self._forget(now_ns)
        sifted = Sifted([], {}, {})
        here: dict[bytes, int] = {}
        for index, name in enumerate(ids):
            if name is not None:
                digest = _digest(name)
                place = self._find(digest)
                if place is not None:
                    sifted.known[index] = place
                    continue
                first = here.setdefault(digest, index)
                if first != index:
                    sifted.repeated[index] = first
                    continue
            sifted.new.append(index)
        return sifted

    def record(self, ids: Sequence[bytes | None], places: Sequence[int], now_ns: int) -> None:
        """Messages with these ids are stored. A place is the caller's own number."""
        self._forget(now_ns)
        for name, place in zip(ids, places, strict=True):
            if name is not None:
                self._slice(now_ns).places[_digest(name)] = place
        while len(self._slices) > 1 and len(self) > self.ids_max:
            self.forgotten_early += len(self._slices.popleft().places)

    def snapshot(self, now_ns: int) -> bytes:
        images = [
            _SliceImage(
                now_ns - part.first_ns,
                now_ns - part.last_ns,
                b"".join(part.places),
                np.fromiter(part.places.values(), "<i8", len(part.places)).tobytes(),
            )
            for part in self._slices
        ]
        return msgspec.msgpack.encode(images)

    def restore(self, data: bytes | memoryview, now_ns: int) -> None:
        """Take over the ids of a snapshot, each as old as it was then."""
        try:
            images = _decoder.decode(data)
        except msgspec.DecodeError as exc:
            raise InvalidInput(f"not a snapshot of a deduplication window: {exc}") from exc
        self._slices.clear()
        for image in images:
            digests = [
                image.digests[start : start + DIGEST_BYTES]
                for start in range(0, len(image.digests), DIGEST_BYTES)
            ]
            places = np.frombuffer(image.places, "<i8").tolist()
            part = _Slice(now_ns - image.age_ns)
            part.last_ns = now_ns - image.last_age_ns
            part.places.update(zip(digests, places, strict=True))
            self._slices.append(part)

    def _find(self, digest: bytes) -> int | None:
        for part in reversed(self._slices):
            place = part.places.get(digest)
            if place is not None:
                return place
        return None

    def _slice(self, now_ns: int) -> _Slice:
        """The slice that is being filled."""
        newest = self._slices[-1] if self._slices else None
        if (
            newest is None
            or now_ns - newest.first_ns >= self.window_ns // SLICES
            or len(newest.places) >= self.ids_max // SLICES
        ):
            newest = _Slice(now_ns)
            self._slices.append(newest)
        newest.last_ns = now_ns
        return newest

    def _forget(self, now_ns: int) -> None:
        while self._slices and self._slices[0].last_ns <= now_ns - self.window_ns:
            self._slices.popleft()


class _Slice:
    """Ids that were recorded one after another, and where their messages are."""

    __slots__ = ("first_ns", "last_ns", "places")

    def __init__(self, first_ns: int) -> None:
        self.first_ns = self.last_ns = first_ns
        self.places: dict[bytes, int] = {}


class _SliceImage(msgspec.Struct, array_like=True):
    age_ns: int
    last_age_ns: int
    digests: bytes
    places: bytes  # int64


def _digest(name: bytes) -> bytes:
    return blake2b(name, digest_size=DIGEST_BYTES).digest()


_decoder = msgspec.msgpack.Decoder(list[_SliceImage])
