"""Random lives of queues: a log, the groups that read it, and all that may happen to them.

A life is drawn from a seed: publishing, receiving, settling with good, stale and forged receipts,
time passing, wall clocks being set, purges, seeks, appends that fail, crashes that keep the whole
ledger or lose its end, recoveries from the ledger alone or with a snapshot. After every step what
can be seen of a queue is compared with its model (`delivery_life.py`, `delivery_model.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import count
from random import Random

from penstock.delivery.backoff import Backoff
from penstock.delivery.queue import Policy
from tests.simulation.delivery_life import MS, Life
from tests.simulation.delivery_model import Fate
from tests.simulation.memory_source import BEGINNING_US, MemorySource

LIVE_MAX = 100  # messages in the log at a time, so that the plain model stays quick


class World:
    """A log and the groups that read it, with clocks that only the seed moves."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.source = MemorySource(random)
        self.nonces = count(1)
        self.start = 0
        self.synced_end = 0
        self.now_ns = random.randrange(10**15)
        self.wall_us = BEGINNING_US
        self.jumped_us = 0  # by how much the wall clock was set
        self.jumps = 0
        self.keys = random.choice([2, 5, 40])
        policies = [
            Policy(),
            Policy(max_retries=1, backoff=Backoff(first_ms=10, max_ms=100), in_flight_max=30),
            Policy(ordered_by_key=True, backoff=Backoff(first_ms=5, max_ms=20)),
            Policy(max_retries=None, backoff=Backoff(first_ms=0, max_ms=0)),
            Policy(lease_expiry_backoff=True, backoff=Backoff(first_ms=100, max_ms=1000)),
            Policy(fair_by="key", backoff=Backoff(first_ms=5, max_ms=20)),
            Policy(fair_by="key", max_retries=1, in_flight_max=200),
        ]
        self.lives = [
            Life(self, random.choice(policies), random) for _ in range(random.randint(1, 3))
        ]

    def step(self) -> None:
        life = self.random.choice(self.lives)
        happenings, weights = zip(*self._happenings(life), strict=True)
        happening: Callable[[], None] = self.random.choices(happenings, weights)[0]
        if happening != life.settle or self.random.random() < 0.7:
            life.expire()
        happening()
        for concerned in self.lives if self.random.random() < 0.1 else [life]:
            concerned.check()

    def _happenings(self, life: Life) -> list[tuple[Callable[[], None], int]]:
        return [
            (life.receive, 30),
            (life.settle, 40),
            (self.publish, 15),
            (self.let_time_pass, 12),
            (self.set_the_wall_clock, 1),
            (life.purge, 1),
            (life.seek, 1),
            (life.take_snapshot, 1),
            (self.sync, 2),
            (self.crash, 1),
        ]

    def publish(self) -> None:
        for _ in range(self.random.choice([1, 1, 3, 20])):
            if self.random.random() < 0.1:
                self.source.gap(self.random.randint(1, 5))
                continue
            priority = self.random.choice([0, 1, 2, 2, 2, 2, 3, 4])
            many = self.random.choice([1, 1, 1, 10])
            key = self.random.randrange(self.keys) if self.random.random() < 0.8 else 0
            ttl_us = self.random.choice([None, None, None, 50_000])
            published = self.source.publish(
                many,
                priority=priority,
                key=key,
                arrived_us=self.wall_us,
                expires_us=None if ttl_us is None else self.wall_us + ttl_us,
            )
            for life in self.lives:
                life.model.fates.update((offset, Fate()) for offset in published)
        excess = len(self.source.messages) - LIVE_MAX
        if excess > 0:
            self.start = sorted(self.source.messages)[excess]
            self.source.trim(self.start)
            for life in self.lives:
                life.trim(self.start)

    def let_time_pass(self) -> None:
        step_ns = self.random.choice([1, 100, MS, 20 * MS, 1000 * MS, 40_000 * MS])
        step_ns = self.random.randint(1, step_ns)
        self.now_ns += step_ns
        self.wall_us += step_ns // 1000
        for life in self.lives:
            if self.random.random() < 0.7:
                life.note_time()

    @property
    def true_us(self) -> int:
        """The wall clock as it would be if nobody had set it."""
        return self.wall_us - self.jumped_us

    def set_the_wall_clock(self) -> None:
        jump_us = self.random.choice([-3600, -30, 30, 3600]) * 1_000_000
        self.wall_us += jump_us
        self.jumped_us += jump_us
        self.jumps += 1
        for life in self.lives:
            life.unnoted_us += jump_us
            if self.random.random() < 0.7:
                life.note_time()

    def sync(self) -> None:
        self.synced_end = self.source.end
        for life in self.lives:
            life.sync()

    def crash(self) -> None:
        power_cut = self.random.random() < 0.5
        if power_cut:
            self.source.truncate(self.random.randint(self.synced_end, self.source.end))
            self.start = min(self.start, self.source.end)
        self.now_ns = self.random.randrange(10**15)  # another boot, another monotonic clock
        self.wall_us += self.random.choice([0, 1, 40, 70, 200]) * 1_000_000
        for life in self.lives:
            # The ledger may lose its end as well, or have reached the disk before the log did.
            life.crash(lose_end=power_cut and self.random.random() < 0.5)
        self.sync()


def live(seed: int, steps: int) -> Counter[str]:
    """Live a life; an assertion that fails says which seed it was."""
    world = World(Random(seed))
    for step in range(steps):
        try:
            world.step()
        except Exception as exc:
            exc.add_note(f"seed {seed}, step {step}")
            raise
    for life in world.lives:
        life.drain()
    return sum((life.counts for life in world.lives), Counter())
