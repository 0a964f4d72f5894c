"""What a transaction gathers before anything of it is sent. No I/O."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from penstock.client.arguments import (
    Messages,
    Value,
    as_batch,
    moments_us,
    one_message,
    receipts_by_topic,
)
from penstock.client.leases import HandedOut, HeldLease
from penstock.client.received import Held, HeldBatch, nack_of, reject_of
from penstock.durations import Duration, Moment
from penstock.errors import InvalidInput, RequestTooLarge
from penstock.model.deliveries import LeasePart, Nack, Rejection, Settle
from penstock.model.messages import Run, placed_of
from penstock.model.names import TopicName, group_name
from penstock.model.published import Delayed, DelayedIds, Published, PublishedBatch, published
from penstock.model.transactions import (
    BYTES_MAX,
    MESSAGES_MAX,
    SettleVerb,
    StagedMessages,
    StagedOffsets,
    StagedSettle,
    StagedTransaction,
    StoredMessages,
    TransactionOutcome,
)
from penstock.randomness import own_random
from penstock.record.batch import Batch, HeaderMap, Payload
from penstock.record.plain import WORTH_IT_MAX, Plain, Single
from penstock.record.schema import Priority, ulid_text

Settleable: TypeAlias = Held | HeldBatch | str
"""A message, a batch of them, or a receipt."""


class StagedResult:
    """Messages of a transaction. Where they are is known once it is committed."""

    def __init__(self, row: int | None) -> None:
        self._row = row
        self._stored: StoredMessages | None = None

    def result(self) -> Any:
        """What `publish`, or `publish_batch`, would have returned. Raises InvalidInput before the
        transaction is committed."""
        stored = self._stored
        if stored is None:
            raise InvalidInput("where the message is, is known when its transaction is committed")
        runs = [placed_of(run) for run in (*stored.runs, *stored.delayed)]
        if self._row is None:
            ids = DelayedIds(runs)
            if not stored.delayed:
                return PublishedBatch(runs)
            return ids if len(ids) else []
        run, nth = _run_of(stored, self._row)
        at = published(placed_of(run), nth)
        if stored.delayed:
            return Delayed(at.id, stored.deliver_at_us or 0, run.duplicate)
        return Published(at.partition, -1 if run.offset < 0 else at.offset, at.id, at.duplicate)


class StagedItem:
    """Messages that go to one topic in the same way, one after the other."""

    def __init__(self, how: tuple[Any, ...]) -> None:
        self.how = how
        self.batches: list[Batch] = []
        self.dedup_ids: list[str | bytes | None] = []
        self.handles: list[StagedResult] = []
        self.rows = 0
        self.is_single = True

    def add(
        self, batch: Batch, dedup_ids: Sequence[str | bytes | None], handle: StagedResult
    ) -> None:
        self.batches.append(batch)
        self.dedup_ids += dedup_ids
        self.handles.append(handle)
        self.rows += len(batch)

    def staged(self) -> StagedMessages:
        topic, partition, ttl, delay, deliver_at, window, has_ids = self.how
        return StagedMessages(
            topic=topic,
            batch=_joined(self.batches),
            partition=partition,
            ttl=ttl,
            delay=delay,
            deliver_at=deliver_at,
            dedup_ids=self.dedup_ids if has_ids else None,
            dedup_window=window,
        )


class TransactionContents:
    """Everything that a transaction is to do."""

    def __init__(self, namespace: str) -> None:
        self.id = ulid_text(time.time_ns() // 1_000_000 << 80 | own_random.getrandbits(80))
        self._namespace = namespace
        self._items: list[StagedItem] = []
        self._settle: list[StagedSettle] = []
        self._offsets: list[StagedOffsets] = []
        self._held: list[Held | HeldBatch] = []
        self._leases: dict[tuple[Any, ...], list[int] | None] = {}
        self._last_of: dict[str, StagedItem] = {}
        self._messages = self._bytes = 0
        self.leases: list[tuple[HeldLease, int | None]] = []
        """Under which the messages are that it settles, to be held meanwhile; and which of their
        messages, None: all."""

    def publish(
        self,
        topic: str,
        value: Value,
        key: Payload,
        headers: HeaderMap | None,
        priority: int | str,
        ttl: Duration | None,
        delay: Duration | None,
        deliver_at: Moment | None,
        partition: int | None,
        dedup_id: str | bytes | None,
        dedup_window: Duration | None,
    ) -> StagedResult:
        batch = one_message(value, key, headers, priority)
        how = topic, partition, ttl, delay, deliver_at, dedup_window, dedup_id is not None
        self._count(batch)
        last = self._last_of.get(topic)
        if last is None or not last.is_single or last.how != how:
            last = self._last_of[topic] = StagedItem(how)
            self._items.append(last)
        staged = StagedResult(last.rows)
        last.add(batch, [dedup_id] if dedup_id is not None else [], staged)
        return staged

    def publish_batch(
        self,
        topic: str,
        messages: Messages,
        keys: Sequence[Payload] | None,
        headers: Sequence[HeaderMap | None] | None,
        priority: int | str | Sequence[int | str],
        ttl: Duration | None,
        delay: Duration | None,
        deliver_at: Moment | Sequence[Moment] | None,
        partition: int | None,
        dedup_ids: Sequence[str | bytes | None] | None,
        dedup_window: Duration | None,
    ) -> StagedResult:
        batch = as_batch(messages, keys, headers, priority)
        due: Any = deliver_at
        if isinstance(deliver_at, Sequence | np.ndarray):
            due = moments_us(deliver_at)
        if dedup_ids is not None and len(dedup_ids) != len(batch):
            raise InvalidInput(f"{len(batch)} messages, but {len(dedup_ids)} dedup_ids")
        self._count(batch)
        how = topic, partition, ttl, delay, due, dedup_window, dedup_ids is not None
        item = self._last_of[topic] = StagedItem(how)
        item.is_single = False
        self._items.append(item)
        staged = StagedResult(None)
        item.add(batch, dedup_ids or [], staged)
        return staged

    def ack(self, what: Settleable | Sequence[Settleable], group: str | None) -> None:
        self._settle_all("ack", what, group, Settle())

    def nack(
        self,
        what: Settleable | Sequence[Settleable],
        group: str | None,
        delay: Duration | None,
        error: str,
        retries: int | None,
    ) -> None:
        self._settle_all("nack", what, group, nack_of(delay, error, retries))

    def reject(
        self, what: Settleable | Sequence[Settleable], group: str | None, reason: str
    ) -> None:
        self._settle_all("reject", what, group, reject_of(reason))

    def commit(self, offsets: StagedOffsets | None) -> None:
        if offsets is not None:
            self._offsets.append(offsets)

    @property
    def is_empty(self) -> bool:
        return not (self._items or self._leases or self._settle or self._offsets)

    def transaction(self, producer: str | None, epoch: int) -> StagedTransaction:
        by_how: dict[tuple[Any, ...], list[LeasePart]] = {}
        for (*how, partition, nonce), offsets in self._leases.items():
            part = LeasePart(partition=partition, lease=nonce, offsets=offsets)
            by_how.setdefault(tuple(how), []).append(part)
        settle = [
            _staged_settle(verb, group, topic, named, (), parts)
            for (verb, named, topic, group), parts in by_how.items()
        ]
        return StagedTransaction(
            id=self.id,
            namespace=self._namespace,
            producer=producer,
            epoch=epoch,
            messages=[item.staged() for item in self._items],
            settle=settle + self._settle,
            offsets=self._offsets,
        )

    def committed(self, outcome: TransactionOutcome) -> None:
        """It is done: give the handles of its messages what is known of them."""
        for item, stored in zip(self._items, outcome.published, strict=True):
            for handle in item.handles:
                handle._stored = stored
        for held in self._held:
            if isinstance(held, HeldBatch):
                held._acked = True
            else:
                held._settled = True

    def _settle_all(
        self,
        verb: SettleVerb,
        what: Settleable | Sequence[Settleable],
        group: str | None,
        how: Settle,
    ) -> None:
        several = [what] if isinstance(what, Held | HeldBatch | str) else what
        receipts: list[str] = []
        for each in several:
            if isinstance(each, Held):
                self._add_lease(verb, how, each._lease, each.offset)
            elif isinstance(each, HeldBatch):
                for lease, _ in _leases_of(each):
                    self._add_lease(verb, how, lease, None)
            elif isinstance(each, str):
                receipts.append(each)
                continue
            else:
                raise InvalidInput(f"a message, a batch or a receipt is wanted, not {each!r:.100}")
            self._held.append(each)
        if receipts:
            if group is None:
                raise InvalidInput("receipts are settled for a group: name it")
            for name, texts in receipts_by_topic(receipts).items():
                self._check_namespace(name)
                self._settle.append(_staged_settle(verb, group, None, how, texts, ()))

    def _add_lease(
        self, verb: SettleVerb, how: Settle, lease: HeldLease, offset: int | None
    ) -> None:
        self._check_namespace(lease.topic)
        key = verb, how, lease.topic.topic, lease.group, lease.partition, lease.nonce
        if offset is None:
            self._leases[key] = None
        elif (offsets := self._leases.setdefault(key, [])) is not None:
            offsets.append(offset)
        self.leases.append((lease, offset))

    def _check_namespace(self, name: TopicName) -> None:
        if name.namespace != self._namespace:
            raise InvalidInput(
                f"a message of {name} cannot be settled with a transaction of namespace "
                f"{self._namespace!r}"
            )

    def _count(self, batch: Batch) -> None:
        self._messages += len(batch)
        self._bytes += len(batch.value) if type(batch) is Single else batch.payload_bytes
        if self._messages > MESSAGES_MAX or self._bytes > BYTES_MAX:
            raise RequestTooLarge(
                f"a transaction has at most {MESSAGES_MAX:,} messages and {BYTES_MAX >> 20} MiB"
            )


def _staged_settle(
    verb: SettleVerb,
    group: str,
    topic: str | None,
    how: Settle,
    receipts: Sequence[str],
    leases: Sequence[LeasePart],
) -> StagedSettle:
    delay, error, retries = None, "", None
    if isinstance(how, Nack):
        delay, error, retries = how.delay, how.error, how.retries
    elif isinstance(how, Rejection):
        error = how.reason
    return StagedSettle(
        verb=verb,
        group=group_name(group),
        topic=topic,
        receipts=list(receipts),
        leases=list(leases),
        delay=delay,
        error=error,
        retries=retries,
    )


def _leases_of(batch: HeldBatch) -> HandedOut:
    return batch._leases


def _joined(batches: Sequence[Batch]) -> Batch:
    if len(batches) > 1 and all(type(batch) is Single for batch in batches):
        first: Any = batches[0]
        if all(batch.priority == first.priority for batch in batches):
            values = [batch.value for batch in batches if isinstance(batch, Single)]
            if first.priority == Priority.NORMAL and len(values) <= WORTH_IT_MAX:
                return Plain(values)  # laid down faster without Arrow's help
            return Batch.build(values, priority=first.priority)
    return Batch.concat(batches)


def _run_of(stored: StoredMessages, row: int) -> tuple[Run, int]:
    for run in (*stored.runs, *stored.delayed):
        if run.rows is not None:
            if row in run.rows:
                return run, run.rows.index(row)
        elif run.row <= row < run.row + run.count:
            return run, row - run.row
    raise InvalidInput("the answer does not say where the message is")
