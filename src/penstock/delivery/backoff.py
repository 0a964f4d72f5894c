"""How long a message waits before it is tried again."""

from __future__ import annotations

from random import Random

import msgspec

from penstock.errors import InvalidInput


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """Exponential: `first_ms` after the first failed delivery, `factor` times as long after each
    further one, never more than `max_ms`.

    `jitter` takes up to that share off each delay, at random, so that messages which failed
    together do not all come back together. What was drawn is written to the ledger, so a restart
    draws nothing again.
    """

    first_ms: int = 1000
    factor: float = 2.0
    max_ms: int = 60_000
    jitter: float = 0.0

    def __post_init__(self) -> None:
        if self.first_ms < 0 or self.max_ms < self.first_ms:
            raise InvalidInput(
                f"a backoff from {self.first_ms} ms to {self.max_ms} ms: "
                "the first must be at least 0 and the longest at least the first"
            )
        if not 1.0 <= self.factor <= 1000.0:
            raise InvalidInput(f"a backoff factor of {self.factor}: it must be from 1 to 1000")
        if not 0.0 <= self.jitter <= 1.0:
            raise InvalidInput(f"a backoff jitter of {self.jitter}: it must be from 0 to 1")

    def delay_ms(self, attempt: int, random: Random | None = None) -> int:
        """The wait after delivery number `attempt` (from 1) failed."""
        # 1000 doublings overflow a float; no delay needs more than 64 of them.
        delay = min(self.first_ms * self.factor ** min(attempt - 1, 64), float(self.max_ms))
        if self.jitter and random is not None:
            delay *= 1.0 - self.jitter * random.random()
        return int(delay)
