"""Namespaces that were made, and the quotas of each: the fold of a journal, and what it decides.

Changes are durable when the call returns. A namespace needs not be made to have topics. Acks, and
all that makes room, are never counted. What is published too fast is stored, and the future of its
durability is held back by up to a second, so that every door delays its answer; with more debt than
that it is refused. What is received too fast comes later. Counts are looked at before something is
made, and what the messages take at most once a second.
"""

from __future__ import annotations

import heapq
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from itertools import count

import msgspec

from penstock.broker.housekeeper import Chore
from penstock.broker.journal import LazyJournal
from penstock.broker.quota_buckets import DELAY_NS_MAX, OverQuota, RateQuotas
from penstock.clock import Clock
from penstock.errors import (
    MessageTooLarge,
    QuotaExceeded,
    RateQuotaExceeded,
    StorageQuotaExceeded,
)
from penstock.model.names import TopicName
from penstock.model.namespaces import NO_QUOTAS, NamespaceUsage, Quotas
from penstock.model.published import Placed
from penstock.model.settings import TopicSettings
from penstock.record.batch import Batch

_logger = logging.getLogger("penstock.broker")

MEASURED_NS = 1_000_000_000
"""What a namespace takes is measured again after so long."""

_WARN_NS = 60_000_000_000
_CHECKPOINT_BYTES = 1 << 20


class TenantRecord(msgspec.Struct, frozen=True, kw_only=True, tag="namespace"):
    """As it is stored. Fields may be added, never renamed."""

    namespace: str
    created_us: int
    quotas: Quotas = NO_QUOTAS


class _Deleted(msgspec.Struct, frozen=True, tag="deleted"):
    namespace: str


class _All(msgspec.Struct, frozen=True, tag="all"):
    """A checkpoint."""

    namespaces: list[TenantRecord]


_entries = msgspec.json.Decoder(TenantRecord | _Deleted | _All)


class _Limits:
    """Of a namespace with quotas."""

    def __init__(self, quotas: Quotas) -> None:
        self.quotas = quotas
        self.rates = RateQuotas(quotas)
        self.delayed_answers = 0
        self.refused = 0
        self.measured: tuple[int, NamespaceUsage] | None = None
        self.warned_ns: dict[str, int] = {}
        self.stored_since = 0  # bytes published since that was measured


class Tenants:
    """Any thread may call."""

    def __init__(self, journal: LazyJournal, clock: Clock) -> None:
        self.limited = False
        """Whether any namespace has quotas; the others need not be asked for."""
        self.measure: Callable[[str], NamespaceUsage]
        self.made_in: Callable[[str], tuple[int, int]]
        self.notify: Callable[[TopicName], None]
        self.plan: Callable[[Chore, int], None]
        """Set by the broker: what a namespace uses, for which topics may be opened; how many topics
        and partitions were made in it, which opens none; that there may be something to receive;
        that something is to be done at a time."""
        self.connections: Callable[[str], int] = lambda namespace: 0
        """Set by a server: how many connections are open for a namespace."""
        self._journal = journal
        self._clock = clock
        self._changing = threading.Lock()
        """Held while a change is stored. It is taken before the other one, which is held for
        moments only: who charges may hold locks of topics."""
        self._lock = threading.Lock()
        self._records: dict[str, TenantRecord] = {}
        self._limits: dict[str, _Limits] = {}
        self._held_back: list[tuple[int, int, Future[None], Future[None]]] = []
        self._numbers = count()
        self._waking: dict[TopicName, int] = {}
        for entry in journal.entries():
            self._fold(_entries.decode(entry))

    # What there is.

    def names(self) -> list[str]:
        return list(self._records)

    def limited_names(self) -> list[str]:
        """Those with quotas."""
        return sorted(self._limits)

    def record(self, namespace: str) -> TenantRecord | None:
        return self._records.get(namespace)

    def quotas(self, namespace: str) -> Quotas:
        record = self._records.get(namespace)
        return NO_QUOTAS if record is None else record.quotas

    def counted(self, namespace: str) -> tuple[int, int]:
        """How many answers were delayed, and how much was refused."""
        limits = self._limits.get(namespace)
        return (0, 0) if limits is None else (limits.delayed_answers, limits.refused)

    def put(self, namespace: str, quotas: Quotas | None) -> TenantRecord:
        """Make a namespace, or give one that is there other quotas."""
        with self._changing:
            known = self._records.get(namespace)
            if known is not None and quotas in (None, known.quotas):
                return known
            now_us = self._clock.wall_ns() // 1000
            record = TenantRecord(
                namespace=namespace,
                created_us=now_us if known is None else known.created_us,
                quotas=quotas or NO_QUOTAS,
            )
            self._store(record)
            return record

    def delete(self, namespace: str) -> bool:
        with self._changing:
            if namespace not in self._records:
                return False
            self._store(_Deleted(namespace))
            return True

    def close(self) -> None:
        with self._lock:
            held, self._held_back = self._held_back, []
        with self._changing:
            self._journal.close()
        for _, _, inner, outer in held:
            _follow(inner, outer)

    # What they may.

    def publishing(self, namespace: str, *batches: Batch) -> int:
        """Messages are about to be stored: for how long the answer is to be held back, in
        nanoseconds. Raises RateQuotaExceeded, StorageQuotaExceeded or MessageTooLarge.

        What is stored together is asked for together, or the debt of one part would refuse the
        next, however often it is tried."""
        self.check_message_bytes(namespace, *batches)
        self.look_at_storage(namespace)
        return self.charge(namespace, *batches)

    def look_at_storage(self, namespace: str) -> None:
        """Measure what is stored, if that was a while ago. No lock of a topic may be held."""
        limits = self._limits.get(namespace)
        if limits is None or limits.quotas.storage_bytes is None:
            return
        now_ns = self._clock.monotonic_ns()
        if limits.measured is None or now_ns - limits.measured[0] >= MEASURED_NS:
            limits.measured = now_ns, self.measure(namespace)
            limits.stored_since = 0

    def charge(self, namespace: str, *batches: Batch) -> int:
        """The same as `publishing`, of messages whose length is allowed, and when it was looked at
        the storage: what is locked may stay so. What is refused is not charged."""
        limits = self._limits.get(namespace)
        if limits is None:
            return 0
        quotas, size = limits.quotas, sum(batch.payload_bytes for batch in batches)
        with self._lock:
            self._check_storage(namespace, limits)
            now_ns = self._clock.monotonic_ns()
            over = limits.rates.over("publish", now_ns)
            if over is not None:
                allowed_ns = 0 if quotas.policy == "refuse" else DELAY_NS_MAX
                if over.debt_ns > allowed_ns:
                    self._refuse(namespace, limits, over, over.debt_ns - allowed_ns, now_ns)
            limits.rates.take("publish", sum(map(len, batches)), size, now_ns)
            limits.stored_since += size
            after = limits.rates.over("publish", now_ns)
            if after is None or quotas.policy != "delay":
                return 0
            limits.delayed_answers += 1
            return min(after.debt_ns, DELAY_NS_MAX)

    def check_message_bytes(self, namespace: str, *batches: Batch) -> None:
        """Raises MessageTooLarge."""
        limits = self._limits.get(namespace)
        limit = None if limits is None else limits.quotas.message_bytes
        if limits is None or limit is None or limits.quotas.policy == "warn":
            return
        for batch in batches:
            if batch.payload_bytes > limit:
                longest = int(batch.message_bytes().max(initial=0))
                if longest > limit:
                    raise MessageTooLarge(
                        f"a message of {longest} bytes; in namespace {namespace} it may have "
                        f"{limit}"
                    )

    def later(self, placed: Sequence[Placed], pause_ns: int) -> list[Placed]:
        """The same, durable no sooner than after a pause."""
        return [
            msgspec.structs.replace(each, durable=self.later_future(each.durable, pause_ns))
            for each in placed
        ]

    def later_future(self, durable: Future[None], pause_ns: int) -> Future[None]:
        outer: Future[None] = Future()
        at_ns = self._clock.monotonic_ns() + pause_ns
        with self._lock:
            heapq.heappush(self._held_back, (at_ns, next(self._numbers), durable, outer))
        self.plan(self._let_go, at_ns)
        return outer

    def may_receive(self, name: TopicName) -> bool:
        """Whether anything may be handed out now; if not, polls are notified when it may."""
        limits = self._limits.get(name.namespace)
        if limits is None:
            return True
        with self._lock:
            now_ns = self._clock.monotonic_ns()
            over = limits.rates.over("receive", now_ns)
            if over is None:
                return True
            if limits.quotas.policy != "delay":
                self._refuse(name.namespace, limits, over, over.debt_ns, now_ns)
                return True
            at_ns = now_ns + over.debt_ns
            is_new = name not in self._waking
            self._waking[name] = min(at_ns, self._waking.get(name, at_ns))
        if is_new:
            self.plan(self._wake, at_ns)
        return False

    def received(self, name: TopicName, messages: int, size_bytes: int) -> None:
        limits = self._limits.get(name.namespace)
        if limits is not None and messages:
            with self._lock:
                now_ns = self._clock.monotonic_ns()
                limits.rates.take("receive", messages, size_bytes, now_ns)

    def check_topic(self, name: TopicName, settings: TopicSettings, partitions: int) -> None:
        """A topic is to be made, or altered, with so many partitions more. Raises QuotaExceeded.
        The broker's lock is held, or others would be made that nobody has counted."""
        limits = self._limits.get(name.namespace)
        if limits is None or name.is_dead_letters:  # nobody is to lose a letter
            return
        is_new = partitions == settings.partitions
        topics_made, partitions_made = self.made_in(name.namespace)
        self._check_count(name.namespace, limits, "topics", topics_made, int(is_new))
        self._check_count(name.namespace, limits, "partitions", partitions_made, partitions)
        longest_ms = limits.quotas.retention_ms
        kept_ms = settings.retention_ms
        if longest_ms is not None and (kept_ms is None or kept_ms > longest_ms):
            self._count_over(
                name.namespace, limits, "retention_ms", longest_ms, kept_ms or float("inf")
            )

    def check(self, namespace: str, quota: str, more: int) -> None:
        """So many more are to be made of something that is counted. Raises QuotaExceeded."""
        limits = self._limits.get(namespace)
        if limits is not None and getattr(limits.quotas, quota) is not None and more > 0:
            used = getattr(self.measure(namespace), quota)
            self._check_count(namespace, limits, quota, used, more)

    def _check_count(
        self, namespace: str, limits: _Limits, quota: str, used: int, more: int
    ) -> None:
        limit = getattr(limits.quotas, quota)
        if limit is not None and more > 0 and used + more > limit:
            self._count_over(namespace, limits, quota, limit, used + more)

    def _count_over(
        self, namespace: str, limits: _Limits, quota: str, limit: float, used: float
    ) -> None:
        limits.refused += 1
        if limits.quotas.policy != "warn":
            raise QuotaExceeded(namespace, quota, limit, used)
        self._warn(namespace, limits, quota, self._clock.monotonic_ns())

    def _store(self, entry: TenantRecord | _Deleted) -> None:
        """Appended, durable, believed. The lock of changes is held."""
        journal = self._journal.made()
        journal.append(msgspec.json.encode(entry)).result()
        with self._lock:
            self._fold(entry)
        if journal.bytes_since_checkpoint > _CHECKPOINT_BYTES:
            journal.checkpoint(msgspec.json.encode(_All(list(self._records.values()))))

    # The lock is held.

    def _check_storage(self, namespace: str, limits: _Limits) -> None:
        limit = limits.quotas.storage_bytes
        if limit is None or limits.measured is None:
            return
        used = limits.measured[1].storage_bytes + limits.stored_since
        if used >= limit and limits.quotas.policy != "warn":
            limits.refused += 1
            raise StorageQuotaExceeded(namespace, limit, used)

    def _refuse(
        self, namespace: str, limits: _Limits, over: OverQuota, wait_ns: int, now_ns: int
    ) -> None:
        """Or, where the policy says so, only warn."""
        limits.refused += 1
        if limits.quotas.policy == "warn":
            self._warn(namespace, limits, over.quota, now_ns)
            return
        raise RateQuotaExceeded(namespace, over.quota, over.limit, over.used, wait_ns / 1e9)

    def _warn(self, namespace: str, limits: _Limits, quota: str, now_ns: int) -> None:
        if now_ns - limits.warned_ns.get(quota, -_WARN_NS) >= _WARN_NS:
            limits.warned_ns[quota] = now_ns
            _logger.warning("namespace %s is above its quota of %s", namespace, quota)

    def _fold(self, entry: TenantRecord | _Deleted | _All) -> None:
        match entry:
            case TenantRecord(namespace=namespace, quotas=quotas):
                self._records[namespace] = entry
                self._limits.pop(namespace, None)
                if quotas != NO_QUOTAS:
                    self._limits[namespace] = _Limits(quotas)
            case _Deleted(namespace=namespace):
                self._records.pop(namespace, None)
                self._limits.pop(namespace, None)
            case _All(namespaces=records):
                self._records, self._limits = {}, {}
                for record in records:
                    self._fold(record)
        self.limited = bool(self._limits)

    # Called when it is time.

    def _let_go(self, now_ns: int) -> int | None:
        due: list[tuple[Future[None], Future[None]]] = []
        with self._lock:
            while self._held_back and self._held_back[0][0] <= now_ns:
                due.append(heapq.heappop(self._held_back)[2:])
            next_ns = self._held_back[0][0] if self._held_back else None
        for inner, outer in due:
            _follow(inner, outer)
        return next_ns

    def _wake(self, now_ns: int) -> int | None:
        with self._lock:
            due = [name for name, at_ns in self._waking.items() if at_ns <= now_ns]
            for name in due:
                del self._waking[name]
            next_ns = min(self._waking.values(), default=None)
        for name in due:
            self.notify(name)
        return next_ns


def _follow(inner: Future[None], outer: Future[None]) -> None:
    def tell(done: Future[None]) -> None:
        if outer.cancelled():
            return
        error = done.exception()
        if error is None:
            outer.set_result(None)
        else:
            outer.set_exception(error)

    inner.add_done_callback(tell)
