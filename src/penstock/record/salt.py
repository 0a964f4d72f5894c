"""What makes the frames of one segment unlike any bytes that a message can hold."""

from __future__ import annotations

import os
from typing import NamedTuple


class Salt(NamedTuple):
    """64 random bits, drawn when a segment begins, and written nowhere but beside its frames.

    A publisher can lay a whole frame into a value, but would have to guess these bits for it to be
    taken for one of the segment's own when damage makes a reader look for the next frame.
    """

    magic: bytes
    """The 4 bytes with which every frame of the segment begins."""
    seed: int
    """What the CRC32C of every frame of the segment starts from, instead of 0."""

    @classmethod
    def random(cls) -> Salt:
        return cls(os.urandom(4), int.from_bytes(os.urandom(4), "little"))


PLAIN = Salt(b"PNSK", 0)
"""Of frames that stand alone, and of all frames of the first version of the format."""

UNKNOWN = Salt(b"", 0)
"""Where nobody could read it. No bytes are a frame by it."""
