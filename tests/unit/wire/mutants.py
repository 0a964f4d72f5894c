"""Reads mutated answers as a client would; run as a child process, which must not crash.

python -m tests.unit.wire.mutants SEED COUNT
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from penstock.errors import ProtocolError
from penstock.model.deliveries import Delivered
from penstock.record.batch import Batch
from penstock.wire.columns import (
    decode_delivered,
    decode_read,
    encode_compact,
    encode_delivered,
    encode_read,
)


def batches() -> list[Batch]:
    plain = Batch.build([b"value-%d" % n for n in range(20)], timestamps_us=1_700_000_000_000_000)
    full = Batch.build(
        [b"value-%d" % n * n for n in range(20)],
        keys=[b"key-%d" % (n % 3) if n % 2 else None for n in range(20)],
        headers=[{"a": b"1", "b": None} if n % 3 else None for n in range(20)],
        priority=[n % 5 for n in range(20)],
        timestamps_us=[1_700_000_000_000_000 + n for n in range(20)],
        expires_at_us=[None if n % 4 else 1_800_000_000_000_000 for n in range(20)],
    )
    for batch in (plain, full):
        batch.base_offset, batch.ulid = 7, 1 << 100
    return [plain, full]


def read_delivered(body: bytes, pieces: bytes) -> int:
    read = 0
    for each in decode_delivered(body, pieces):
        for batch, _ in each.pieces:
            read += _use(batch)
    return read


def read_page(body: bytes, pieces: bytes) -> int:
    return sum(_use(batch) for batch in decode_read(body)[0])


def _use(batch: Batch) -> int:
    """All that a client does with it."""
    pa.Table.from_batches([batch.record_batch()]).take([0] if len(batch) else []).validate(
        full=True
    )
    batch.offset_numbers(), batch.timestamps_us(), batch.message_bytes()
    return len(batch.messages()) + len(batch.slice(1).messages())


def answers() -> list[tuple[Callable[[bytes, bytes], int], bytes, bytes]]:
    found: list[tuple[Callable[[bytes, bytes], int], bytes, bytes]] = []
    plain, full = batches()
    for some in ([plain], [full], [plain, full]):
        delivered = [Delivered(3, 1 << 59, 20, [(batch, 1)]) for batch in some]
        compact = encode_compact(delivered)
        assert compact is not None
        found.append((read_delivered, *compact))
        found.append((read_delivered, encode_delivered(delivered), b""))
        found.append((read_page, encode_read(some, b"{}"), b""))
    return found


def mutated(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 8))):
        at = chance.randrange(len(changed))
        match chance.randrange(6):
            case 0:
                changed[at] ^= 1 << chance.randrange(8)
            case 1:
                changed[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
            case 2:
                word = chance.choice((0, 1, -1, 1 << 31, -(1 << 31), (1 << 62), -(1 << 62)))
                changed[at : at + 8] = (word & (1 << 64) - 1).to_bytes(8, "little")
            case 3:
                del changed[at : at + chance.randrange(1, 16)]
            case 4:
                changed[at:at] = chance.randbytes(chance.randrange(1, 16))
            case _:
                del changed[at:]
        if not changed:
            return b"\0"
    return bytes(changed)


def main(seed: int, count: int) -> None:
    chance = random.Random(seed)
    originals: list[Any] = answers()
    for read, body, pieces in originals:
        assert read(body, pieces)
    refused = 0
    for _ in range(count):
        read, body, pieces = chance.choice(originals)
        if pieces and chance.random() < 0.2:
            pieces = mutated(pieces, chance)
        else:
            body = mutated(body, chance)
        try:
            read(body, pieces)
        except ProtocolError:
            refused += 1
    print(refused)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
