"""The messages that everyone sends: random bytes from a fixed seed, so that runs are alike."""

from __future__ import annotations

import random

VALUE_BYTES = 100
BATCH_MESSAGES = 1000


def values(count: int, value_bytes: int = VALUE_BYTES) -> list[bytes]:
    """Random values, which no codec can shrink."""
    source = random.Random(count * 31 + value_bytes)
    return [source.randbytes(value_bytes) for _ in range(count)]


def documents(count: int) -> list[bytes]:
    """Values of about 200 B that compress as JSON events do."""
    source = random.Random(count)
    states = ("created", "paid", "packed", "shipped", "returned")
    return [
        b'{"order_id":"%016x","customer":"c-%05d","state":"%s","amount_cents":%d,"currency":"EUR",'
        b'"warehouse":"north-%d","created_at":"2024-05-%02dT%02d:%02d:00Z","retry":false}'
        % (
            source.getrandbits(64),
            source.randrange(20_000),
            source.choice(states).encode(),
            source.randrange(100, 50_000),
            source.randrange(4),
            source.randrange(1, 32),
            source.randrange(24),
            source.randrange(60),
        )
        for _ in range(count)
    ]


def in_batches(items: list[bytes], size: int = BATCH_MESSAGES) -> list[list[bytes]]:
    return [items[start : start + size] for start in range(0, len(items), size)]
