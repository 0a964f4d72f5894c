"""What is noted of a partition for traces: short, since it stands on the way of every message.

Which messages are traced is told by their ids (`trace/sampling.py`). An ack names offsets and a
lease, not ids: so the traced messages of each lease are remembered while it lasts. What is nacked,
expires, is rejected or comes again is noted in any case, sampled or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np

from penstock.broker.source import LogSource
from penstock.broker.withheld import Redriven
from penstock.clock import Clock
from penstock.delivery.ledger import (
    Acked,
    Dropped,
    Event,
    Expired,
    Extended,
    Leased,
    Nacked,
    Rejected,
)
from penstock.delivery.offsets import EMPTY, Int64s, Offsets, bitmap
from penstock.delivery.queue import GroupQueue
from penstock.log.base import Appended
from penstock.record.batch import Batch
from penstock.record.schema import BITS
from penstock.record.singles import Singles
from penstock.trace.events import ID_BYTES, TraceKind, TraceRow
from penstock.trace.sampling import (
    BITS_32,
    LOOKED_AT,
    MIX,
    ROW_BITS,
    choose,
    sampled_singles,
    threshold_of,
)

_OFFSET = BITS["offset"]
_SWEPT_MIN = 1024


class AddRow(Protocol):
    def __call__(self, row: TraceRow, source: LogSource | None = None) -> None: ...


class PartitionTraces:
    """The caller holds the partition's lock, but for what is appended."""

    def __init__(
        self, add: AddRow | None, clock: Clock, topic: str, partition: int, share: float
    ) -> None:
        """Without `add` nothing is noted."""
        self._add = add
        self._clock = clock
        self._topic = topic
        self._partition = partition
        self._threshold = threshold_of(share)
        self._held: dict[int, Offsets] = {}  # by lease: those of its messages that are traced
        self._inherited: set[int] = set()  # leases of a former life, of which that is not known
        self._sweep_at = _SWEPT_MIN

    def sample(self, share: float) -> None:
        """Trace such a share of what comes from now on."""
        self._threshold = threshold_of(share)

    def inherit(self, queues: Mapping[str, GroupQueue]) -> None:
        """After a start: these leases go on."""
        if self._add is not None:
            self._inherited = {
                lease.nonce for queue in queues.values() for lease in queue.state.leases
            }

    # What comes in.

    def appended(
        self, batch: Batch, at: Appended, kind: TraceKind, until_us: int | Int64s = 0
    ) -> None:
        """Messages were stored."""
        add, threshold = self._add, self._threshold
        if add is None:
            return
        # What falls due keeps its id.
        ulid = batch.ulid if kind == TraceKind.MOVED else at.ulid
        rows, trace_ids = None, None
        if batch.columns & LOOKED_AT:
            chosen = choose(batch, ulid, threshold)
            if chosen is None:
                return
            rows, ids, trace_ids = chosen
        elif (ulid >> ROW_BITS & BITS_32) * MIX & BITS_32 < threshold:
            ids = ulid.to_bytes(ID_BYTES, "big")
        else:
            return
        offsets = Offsets.run(at.first_offset, at.next_offset)
        if rows is not None:
            offsets = Offsets.of(rows + at.first_offset)
        row = self._row(kind, offsets)
        row.ids, row.trace_ids = ids, trace_ids
        if isinstance(until_us, int):
            row.until_us = until_us
        else:
            due_us = until_us if rows is None else until_us[rows]
            row.until_us = int(due_us[0]) if (due_us == due_us[0]).all() else 0
        add(row)

    def appended_value(self, at: Appended) -> None:
        """A message was published that is a value and no more."""
        if (at.ulid >> ROW_BITS & BITS_32) * MIX & BITS_32 < self._threshold and self._add:
            row = self._row(TraceKind.PUBLISHED, Offsets.one(at.first_offset))
            row.ids = at.ulid.to_bytes(ID_BYTES, "big")
            self._add(row)

    def cancelled(self, offset: int, ulid: int) -> None:
        """A delayed message was taken back."""
        if self._add is not None:
            row = self._row(TraceKind.CANCELLED, Offsets.one(offset))
            row.ids = ulid.to_bytes(ID_BYTES, "big")
            self._add(row)

    def took_over(
        self,
        kind: TraceKind,
        offsets: Offsets,
        ulid: int,
        trace_ids: bytes | None,
        origin: tuple[str, int, Offsets],
        group: str = "",
        error: str = "",
    ) -> None:
        """Dead letters, or messages that were redriven: they come from another place."""
        if self._add is not None:
            row = self._row(kind, offsets)
            row.ids, row.trace_ids = ulid.to_bytes(ID_BYTES, "big"), trace_ids
            row.group, row.error = group, error
            row.origin_topic, row.origin_partition, its = origin
            row.origin_first, row.origin_holes = its.first, its.bits
            self._add(row)

    def purged(self, offsets: Offsets, group: str = "") -> None:
        if self._add is not None and offsets.count:
            row = self._row(TraceKind.PURGED, offsets)
            row.group = group
            self._add(row)

    # What is handed out and settled.

    def delivered(
        self,
        group: str,
        leased: Leased,
        pieces: Iterable[tuple[Batch, int]],
        redriven: Redriven,
        queues: Mapping[str, GroupQueue],
    ) -> None:
        """Messages were handed out. Those that were redriven are traced in any case."""
        add, threshold = self._add, self._threshold
        if add is None:
            return
        traced: dict[int, list[Offsets]] = {}
        again = redriven.only_for(group) if redriven.by_group else None
        for batch, delivery_count in pieces:
            some = EMPTY
            if delivery_count > 1:
                some = _offsets(batch)
            elif type(batch) is Singles:
                rows = sampled_singles(batch, threshold)
                if rows is not None:
                    some = _offsets(batch, rows)
            elif batch.columns & LOOKED_AT:
                chosen = choose(batch, batch.ulid, threshold)
                if chosen is not None:
                    some = _offsets(batch, chosen.rows)
            elif (batch.ulid >> ROW_BITS & BITS_32) * MIX & BITS_32 < threshold:
                some = _offsets(batch)
            if again is not None:
                some |= _offsets(batch) & again
            if some.count:
                traced.setdefault(delivery_count, []).append(some)
        if not traced:
            return
        held = EMPTY
        for delivery_count, parts in traced.items():
            some = parts[0] if len(parts) == 1 else _joined(parts)
            row = self._row(TraceKind.DELIVERED, some, leased.wall_us)
            row.group, row.consumer = group, leased.consumer
            row.delivery_count, row.lease = delivery_count, leased.nonce
            row.until_us = leased.wall_us + leased.visibility_ns // 1000
            add(row)
            held = some if not held.count else held | some
        self._held[leased.nonce] = held
        if len(self._held) > self._sweep_at:
            self._sweep(queues)

    def settled(
        self,
        group: str,
        queue: GroupQueue,
        events: Sequence[Event],
        source: LogSource,
        at_us: int | None = None,
    ) -> None:
        """A decision of a group is stored, and not yet applied to the state of its queue."""
        if self._add is None:
            return
        for event in events:
            kind = type(event)
            if kind is Acked or kind is Extended:
                if self._held or self._inherited:
                    self._note_some(group, queue, event, source)  # type: ignore[arg-type]
            elif kind is Nacked or kind is Expired or kind is Rejected:
                self._note_all(group, queue, event, source, at_us)  # type: ignore[arg-type]
            elif kind is Dropped:
                for part in event.parts:  # type: ignore[union-attr]
                    row = self._row(TraceKind.EXPIRED, part.offsets, at_us)
                    row.group, row.delivery_count = group, part.delivery_count - 1
                    self._add(row, source)

    def _note_some(
        self, group: str, queue: GroupQueue, event: Acked | Extended, source: LogSource
    ) -> None:
        """Of those messages of the lease that are traced."""
        nonce = event.nonce
        held = self._held.get(nonce)
        if held is None:
            if nonce not in self._inherited:
                return
            held = self._remember(queue, nonce, source)
        lease = queue.state.leases.get(nonce)
        if lease is None or self._add is None:
            return
        offsets = event.offsets if event.offsets.count else lease.held()
        if isinstance(event, Acked) and offsets.count == lease.held().count:
            self._held.pop(nonce, None)
        some = offsets if held == offsets else offsets & held
        if not some.count:
            return
        is_ack = isinstance(event, Acked)
        row = self._row(TraceKind.ACKED if is_ack else TraceKind.EXTENDED, some)
        row.group, row.consumer, row.lease = group, lease.consumer, nonce
        if isinstance(event, Extended):
            row.until_us = row.at_us + event.visibility_ns // 1000
        self._add(row)

    def _note_all(
        self,
        group: str,
        queue: GroupQueue,
        event: Nacked | Expired | Rejected,
        source: LogSource,
        at_us: int | None,
    ) -> None:
        lease = queue.state.leases.get(event.nonce)
        if lease is None or self._add is None:
            return
        if event.offsets.count == lease.held().count:
            self._held.pop(event.nonce, None)
        for part in lease.parts_of(event.offsets):
            row = self._row(_KINDS[type(event)], part.offsets, at_us)
            row.group, row.consumer, row.lease = group, lease.consumer, lease.nonce
            row.delivery_count = part.delivery_count
            if isinstance(event, Rejected):
                row.error = "" if event.reason == "rejected" else event.reason
            else:
                row.until_us = row.at_us + event.delay_ns // 1000
            if isinstance(event, Nacked):
                row.error = event.error
            self._add(row, source)

    def _remember(self, queue: GroupQueue, nonce: int, source: LogSource) -> Offsets:
        """Which messages of a lease of a former life are traced."""
        self._inherited.discard(nonce)
        lease = queue.state.leases.get(nonce)
        if lease is None:
            return EMPTY
        found = [part.offsets for part in lease.parts if part.delivery_count > 1]
        for batch in source.fetch(lease.held()):
            chosen = choose(batch, batch.ulid, self._threshold)
            if chosen is not None:
                found.append(_offsets(batch, chosen.rows))
        held = self._held[nonce] = _joined(found)
        return held

    def _sweep(self, queues: Mapping[str, GroupQueue]) -> None:
        """Forget leases that ended without a word: of groups that were deleted, or began anew."""
        alive = [queue.state.leases for queue in queues.values()]
        self._held = {
            nonce: held
            for nonce, held in self._held.items()
            if any(nonce in leases for leases in alive)
        }
        self._sweep_at = max(_SWEPT_MIN, 2 * len(self._held))

    def _row(self, kind: TraceKind, offsets: Offsets, at_us: int | None = None) -> TraceRow:
        if at_us is None:
            at_us = self._clock.wall_ns() // 1000
        return TraceRow(
            at_us,
            kind,
            self._topic,
            self._partition,
            offsets.first,
            offsets.count,
            offsets.bits,
        )


_KINDS = {
    Nacked: TraceKind.NACKED,
    Expired: TraceKind.LEASE_EXPIRED,
    Rejected: TraceKind.REJECTED,
}


def _offsets(batch: Batch, rows: Int64s | None = None) -> Offsets:
    if rows is not None:
        return Offsets.of(batch.offset_numbers()[rows])
    if batch.columns & _OFFSET:
        return Offsets.of(batch.offset_numbers())
    first = batch.base_offset or 0
    return Offsets(first, len(batch))


def _joined(parts: Sequence[Offsets]) -> Offsets:
    """The union of many, most often neighbours."""
    first, stop = parts[0].first if parts else 0, parts[0].first if parts else 0
    for part in parts:
        if part.bits is not None or part.first != stop:
            break
        stop += part.count
    else:
        return Offsets.run(first, stop)
    union = bitmap(np.empty(0, np.int64))
    for part in parts:
        part.add_to(union)
    return Offsets.of(union)
