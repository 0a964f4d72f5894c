"""As little of a broker as stories need: it makes decisions true, in the order that is promised."""

from __future__ import annotations

from itertools import count
from typing import TypeVar

from penstock.delivery.ledger import Event, Leased, decode, encode
from penstock.delivery.offsets import Offsets
from penstock.delivery.picking import DeadLetter
from penstock.delivery.queue import Decision, GroupQueue, Policy
from penstock.delivery.state import GroupState
from tests.simulation.memory_source import BEGINNING_US, MemorySource

T = TypeVar("T")

SECOND = 1_000_000_000
MS = 1_000_000


class TinyBroker:
    """One partition and one group."""

    def __init__(self, policy: Policy | None = None, source: MemorySource | None = None) -> None:
        self.source = source or MemorySource()
        self.policy = policy or Policy()
        self.now_ns = 1000 * SECOND
        self.wall_us = BEGINNING_US
        self.queue = GroupQueue(GroupState(), self.policy, self.now_ns, self.wall_us)
        self.ledger: list[bytes] = []
        self.dead: list[DeadLetter] = []
        self._nonces = count(1)

    def commit(self, decision: Decision) -> Decision:
        self.dead += decision.dead_letters
        if decision.events:
            self.ledger.append(encode(decision.events))
            self.queue.apply(decision.events)
        return decision

    def receive(
        self, max_messages: int = 1, *, visibility_ns: int = 30 * SECOND, consumer: str = "anna"
    ) -> Leased | None:
        self.expire()
        while True:
            decision = self.commit(
                self.queue.receive(
                    self.now_ns,
                    self.wall_us,
                    max_messages=max_messages,
                    visibility_ns=visibility_ns,
                    consumer=consumer,
                    nonce=next(self._nonces),
                    source=self.source,
                    end=self.source.end,
                )
            )
            if decision.leased is not None or not decision.events:
                return decision.leased

    def got(self, max_messages: int = 1) -> list[int]:
        """What a receive brings, in the order it is handed out."""
        leased = self.receive(max_messages)
        return [] if leased is None else offsets_of(leased)

    def ack(self, leased: Leased, *offsets: int) -> Decision:
        return self.commit(self.queue.ack(self.now_ns, leased.nonce, some(offsets)))

    def nack(
        self, leased: Leased, *offsets: int, delay_ns: int | None = None, error: str = ""
    ) -> Decision:
        return self.commit(
            self.queue.nack(
                self.now_ns, leased.nonce, some(offsets), delay_ns=delay_ns, error=error
            )
        )

    def reject(self, leased: Leased, *offsets: int, error: str = "") -> Decision:
        return self.commit(self.queue.reject(self.now_ns, leased.nonce, some(offsets), error=error))

    def extend(self, leased: Leased, *offsets: int, visibility_ns: int) -> Decision:
        return self.commit(
            self.queue.extend(self.now_ns, leased.nonce, some(offsets), visibility_ns=visibility_ns)
        )

    def expire(self) -> list[Event]:
        events: list[Event] = []
        while (next_ns := self.queue.next_deadline()) is not None and next_ns <= self.now_ns:
            events += self.commit(self.queue.expire(self.now_ns)).events
        return events

    def wait(self, seconds: float) -> None:
        self.now_ns += round(seconds * SECOND)
        self.wall_us += round(seconds * 1_000_000)

    def live(self, seconds: float) -> None:
        """Time passes while a housekeeper looks whenever it should."""
        until_ns = self.now_ns + round(seconds * SECOND)
        looks = 0
        while (look_ns := self.queue.next_look()) is not None and look_ns <= until_ns:
            looks += 1
            assert looks <= 2000 * seconds + 100, "it looks again and again, and nothing changes"
            self.wait(max(look_ns - self.now_ns, 0) / SECOND)
            self.expire()
            self.commit(self.queue.note_time(self.now_ns, self.wall_us))
        self.wait((until_ns - self.now_ns) / SECOND)

    def restart(self, *, snapshot: bytes | None = None, entries: int = 0) -> None:
        """Another process, with another monotonic clock, folds the ledger again."""
        state = GroupState() if snapshot is None else GroupState.restore(snapshot)
        for entry in self.ledger[entries:]:
            state.apply(decode(entry))
        self.now_ns = 7 * SECOND
        self.queue = GroupQueue(state, self.policy, self.now_ns, self.wall_us)
        self.commit(self.queue.end_old_leases(self.wall_us))


def some(offsets: tuple[int, ...]) -> Offsets | None:
    return Offsets.of(offsets) if offsets else None


def offsets_of(leased: Leased) -> list[int]:
    return [offset for part in leased.parts for offset in part.offsets]


def must(found: T | None) -> T:
    assert found is not None
    return found
