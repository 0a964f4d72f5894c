"""Frames that lie: a right checksum over wrong bytes. Run as a program, so that a crash is seen.

    python -m tests.unit.record.mutations exhaustive <n: every nth of them>
    python -m tests.unit.record.mutations random <seed> <count>

It ends with 0 and prints its counts when every frame was either read as valid messages or refused
with FrameCorrupt or FrameTooLarge and the right position, in little memory.
"""

from __future__ import annotations

import random
import resource
import struct
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import islice

import pyarrow as pa

from penstock.errors import FrameCorrupt, FrameTooLarge
from penstock.record.frame import decode
from tests.unit.record.forge import LAYOUT, alter, body_of, dissect, forge, mask_of

BEFORE = b"\xa5" * 64
"""What lies before the frame, so that its position is not 0."""

MEMORY_BYTES_MAX = 160 << 20
"""A body may be 100 MB; nothing else may be large."""


def seeds() -> dict[str, bytes]:
    """Honest frames of every shape."""
    free = {
        "key": [b"k", None, b""],
        "value": [b"value one", None, b"three"],
        "headers": [[{"key": "h", "value": b"1"}, {"key": "i", "value": None}], None, []],
    }
    timed = {"timestamp": [5, 9, 7], "priority": [0, 4, 2], "expires_at": [None, 3, None]}
    compacted = {"offset": [102, 105, 109], "id": [bytes([i]) * 16 for i in (1, 2, 3)]}
    shapes = {
        "value": {"value": [b"a", b"bc", b""]},
        "values without nulls or bytes": {"value": [b"", b"", b""]},
        "free": free,
        "all": free | timed,
        "compacted": free | timed | compacted,
    }
    frames = {}
    for name, columns in shapes.items():
        body = body_of(columns)
        fields = {"columns": mask_of(*columns), "row_count": 3, "span": 3, "base_offset": 100}
        if "offset" in columns:
            fields["span"] = 10
        if "timestamp" in columns:
            fields |= {"first_timestamp": 5, "last_timestamp": 9, "priorities": 0b10010101}
        frames[name] = forge(body, **fields)
        for number, codec in enumerate(("lz4", "zstd", "gzip"), 1):
            if name in ("value", "all"):
                packed = pa.compress(body, codec, asbytes=True)
                fields_packed = fields | {"codec": number, "raw_bytes": len(body)}
                frames[f"{name}, {codec}"] = forge(packed, **fields_packed)
    frames["empty"] = forge(b"", row_count=0, span=7, priorities=0, base_offset=100)
    return frames


NUMBERS = (0, 1, 2, 3, 5, 7, 8, 12, 64, 127, 128, 255, 256, 1 << 15, 1 << 16, 1 << 24, 1 << 30)
WORDS = sorted(
    {sign * n & 0xFFFFFFFF for n in NUMBERS for sign in (1, -1)} | {0x7FFFFFFF, 0x80000000}
)
LONGS = sorted(
    {sign * n & (1 << 64) - 1 for n in (*NUMBERS, 1 << 40, 1 << 62) for sign in (1, -1)}
    | {(1 << 63) - 1, 1 << 63}
)


def exhaustive() -> Iterator[bytes]:
    """Each field with each suspicious value; each bit of a body flipped, each word replaced."""
    for frame in seeds().values():
        yield frame
        header, body = dissect(frame)
        for name, code in LAYOUT[2:]:
            if code == "16s":
                values: list[object] = [b"\xff" * 16, b"\x00" * 16]
            else:
                bits = 8 * struct.calcsize(code)
                values = [v & (1 << bits) - 1 for v in LONGS]
                if code == "q":
                    values = [v - (1 << 64) if v >> 63 else v for v in LONGS]
            for value in values:
                yield alter(frame, **{name: value})
        for bit in range(8 * len(body)):
            other = bytearray(body)
            other[bit // 8] ^= 1 << bit % 8
            yield forge(bytes(other), **_without_lengths(header))
        for at in range(0, len(body) - 3, 4):
            for word in WORDS:
                other = bytearray(body)
                struct.pack_into("<I", other, at, word)
                yield forge(bytes(other), **_without_lengths(header))
        for at in range(0, len(body) - 7, 8):
            for long in LONGS:
                other = bytearray(body)
                struct.pack_into("<Q", other, at, long)
                yield forge(bytes(other), **_without_lengths(header))
        for length in range(len(body)):
            yield forge(body[:length], **_without_lengths(header))
            yield forge(body[:length], **_without_lengths(header) | {"raw_bytes": len(body)})
        for mask in range(1 << 8):
            yield alter(frame, columns=mask)


def at_random(seed: int, count: int) -> Iterator[bytes]:
    """Several wrong things at once."""
    rng = random.Random(seed)
    frames = list(seeds().values())
    for _ in range(count):
        header, body = dissect(rng.choice(frames))
        other = bytearray(body)
        for _ in range(rng.randint(1, 4)):
            _spoil(rng, header, other, frames)
        honest = len(other) if rng.random() < 0.8 else header["raw_bytes"]
        raw = header["raw_bytes"] if header["codec"] else honest
        yield forge(bytes(other), **_without_lengths(header) | {"raw_bytes": raw})


def _spoil(
    rng: random.Random, header: dict[str, object], body: bytearray, frames: list[bytes]
) -> None:
    at = rng.randrange(max(len(body), 1))
    choice = rng.randrange(8)
    if choice == 0:
        name, code = rng.choice(LAYOUT[2:-1])
        bits = 8 * struct.calcsize(code)
        value = rng.choice(LONGS) & (1 << bits) - 1
        header[name] = value - (1 << 64) if code == "q" and value >> 63 else value
    elif choice == 1:
        del body[at : at + rng.randint(1, 16)]
    elif choice == 2:
        body[at:at] = rng.randbytes(rng.randint(1, 16))
    elif choice == 3:
        _, donor = dissect(rng.choice(frames))
        start = rng.randrange(max(len(donor), 1))
        body[at : at + 64] = donor[start : start + 64]
    elif len(body) >= 8:
        at = rng.randrange(len(body) // 4 - 1) * 4
        if choice == 4:
            body[at] ^= 1 << rng.randrange(8)
        elif choice == 5:
            struct.pack_into("<I", body, at, rng.choice(WORDS))
        elif choice == 6:
            struct.pack_into("<Q", body, at, rng.choice(LONGS))
        else:
            body[at : at + 4] = rng.randbytes(4)


def _without_lengths(header: dict[str, object]) -> dict[str, object]:
    kept = {k: v for k, v in header.items() if k not in ("magic", "crc", "stored_bytes")}
    if not header["codec"]:
        del kept["raw_bytes"]
    return kept


def outcome(frame: bytes) -> str:
    """What became of a frame. Raises whatever should not have been raised."""
    buffer = memoryview(BEFORE + frame)
    try:
        header, batch = decode(buffer, len(BEFORE))
    except (FrameCorrupt, FrameTooLarge) as exc:
        if exc.position != len(BEFORE):
            raise
        return type(exc).__name__
    messages = batch.messages()
    assert len(messages) == len(batch) == header.row_count <= header.span
    table = batch.record_batch()
    table.validate(full=True)
    offsets = table.column("offset").to_pylist()
    assert offsets == [m.offset for m in messages] == sorted(set(offsets))
    assert all(header.base_offset <= offset < header.next_offset for offset in offsets)
    assert all(m.priority in range(5) for m in messages)
    assert all(None not in m.headers for m in messages)
    batch.message_bytes()
    return "read"


def main(arguments: list[str]) -> None:
    if arguments[0] == "exhaustive":
        frames = islice(exhaustive(), 0, None, int(arguments[1]))
    else:
        frames = at_random(int(arguments[1]), int(arguments[2]))
    before = _peak_bytes()
    outcomes: Counter[str] = Counter()
    for number, frame in enumerate(frames):
        try:
            outcomes[outcome(frame)] += 1
        except Exception:
            print(f"frame {number} of {' '.join(arguments)}: {frame.hex()}", file=sys.stderr)
            raise
    grown = _peak_bytes() - before
    assert grown < MEMORY_BYTES_MAX, f"{grown >> 20} MB for frames of a few hundred bytes"
    print(dict(outcomes), f"{grown >> 20} MB more at most")


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main(sys.argv[1:])
