"""How much a namespace may do: buckets that may go into debt. Pure: the caller brings the time.

A bucket holds what one second brings. A request for more than it holds is not refused: the bucket
goes below zero, and the debt is paid off with time. So a batch of any length passes once, and what
follows has to wait for it.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.model.namespaces import Quotas

DELAY_NS_MAX = 1_000_000_000
"""So long an answer is delayed at the most; with more debt than this it is refused."""


class Bucket:
    def __init__(self, per_second: float) -> None:
        self.per_second = per_second
        self._level = per_second  # as it was at `_at_ns`
        self._at_ns: int | None = None

    def debt_ns(self, now_ns: int) -> int:
        """How long it takes until there is something again; 0: there is."""
        level = self._refilled(now_ns)
        return 0 if level >= 0 else int(-level / self.per_second * 1e9) + 1

    def take(self, amount: float, now_ns: int) -> None:
        self._level = self._refilled(now_ns) - amount
        self._at_ns = now_ns if self._at_ns is None else max(self._at_ns, now_ns)

    def used(self, now_ns: int) -> float:
        """How much was taken of what a second brings; with debt it is more."""
        return self.per_second - self._refilled(now_ns)

    def _refilled(self, now_ns: int) -> float:
        passed_ns = 0 if self._at_ns is None else max(now_ns - self._at_ns, 0)
        return min(self._level + passed_ns * self.per_second / 1e9, self.per_second)


class OverQuota(NamedTuple):
    """What is too fast, and by how much."""

    quota: str
    limit: float
    used: float
    debt_ns: int


class RateQuotas:
    """The buckets of one namespace. The caller holds a lock."""

    def __init__(self, quotas: Quotas) -> None:
        rates = {
            "publish_messages": quotas.publish_messages,
            "publish_bytes": quotas.publish_bytes,
            "receive_messages": quotas.receive_messages,
            "receive_bytes": quotas.receive_bytes,
        }
        self._buckets = {name: Bucket(rate) for name, rate in rates.items() if rate is not None}

    def over(self, verb: str, now_ns: int) -> OverQuota | None:
        """The quota of publishing or receiving with the most debt; None: there is none."""
        worst: OverQuota | None = None
        for name in (f"{verb}_messages", f"{verb}_bytes"):
            bucket = self._buckets.get(name)
            debt_ns = 0 if bucket is None else bucket.debt_ns(now_ns)
            if bucket is not None and debt_ns > (0 if worst is None else worst.debt_ns):
                worst = OverQuota(name, bucket.per_second, bucket.used(now_ns), debt_ns)
        return worst

    def take(self, verb: str, messages: int, size_bytes: int, now_ns: int) -> None:
        for name, amount in ((f"{verb}_messages", messages), (f"{verb}_bytes", size_bytes)):
            bucket = self._buckets.get(name)
            if bucket is not None:
                bucket.take(amount, now_ns)
