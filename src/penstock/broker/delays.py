"""Delayed messages of a partition, until they fall due.

A delayed message is appended at once to the delay log of its partition, where its timestamp is the
moment at which it falls due. Then it is moved to the log of messages, under the same id. A journal
says which are moved or cancelled. Exactly once: a crash between the append to the partition and the
entry in the journal is found at start-up, because the moved frame carries the ids.

Due is by the wall clock, at or after and never before; a clock that was set is noticed within a
second. The wheel holds 16 bytes for each message; the messages themselves stay on disk.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import msgspec
import numpy as np
import pyarrow as pa

from penstock.broker.delay_ids import DelayIds
from penstock.broker.journal import Journal
from penstock.broker.ledgered_partition import TRANSACTION
from penstock.broker.partition import Partition
from penstock.broker.source import LogSource
from penstock.clock import Clock
from penstock.delivery.acked import AckedSet
from penstock.delivery.callers import CALLER_MIN, Callers
from penstock.delivery.offsets import Int64s, Offsets, decode_hook, encode_hook
from penstock.delivery.timers import NEVER, TimerWheel
from penstock.log.base import DONE, Appended, PartitionLog
from penstock.model.messages import DelayedMessage
from penstock.model.published import CallId, place
from penstock.model.stats import DelayStats
from penstock.record.batch import Batch, Message
from penstock.record.writing import NOBODY, FrameProducer
from penstock.trace.events import TraceKind

RECHECK_NS = 1_000_000_000
MOVE_MAX = 10_000  # messages moved at a time, so that the first are not late for the last
CHECKPOINT_BYTES = 4 << 20
_US_PER_TICK = 1000


class _Done(msgspec.Struct, array_like=True, tag=0):
    """Moved or cancelled.

    A log is not synced for every move. If a power cut took its end, and with it what was moved
    there, this entry is void.
    """

    offsets: Offsets
    partition: int = -1  # -1: cancelled
    end: int = 0


class _Checkpoint(msgspec.Struct, array_like=True, tag=1):
    floor: int
    above: Offsets
    transaction: int = 0


_encoder = msgspec.msgpack.Encoder(enc_hook=encode_hook)
_decoder = msgspec.msgpack.Decoder(_Done | _Checkpoint, dec_hook=decode_hook)


class Delays:
    def __init__(
        self,
        log: PartitionLog,
        journal: Journal,
        clock: Clock,
        partition: Partition,
        moved_ids: Iterable[pa.Array] = (),
        all_partitions: Sequence[Partition] = (),
    ) -> None:
        """`moved_ids`: of messages that it got lately, which the journal may not know.
        `all_partitions`: of a journal from when messages went from one log to all of them."""
        self.log = log
        self.journal = journal
        self._source = LogSource(log)
        self._clock = clock
        self._partition = partition
        self._counters = partition.counters
        self._traces = partition.traces
        self._all_partitions = all_partitions
        self.lock = threading.RLock()
        self.transaction_stored = 0
        """The number of the last transaction that is in the log; they come in their order."""
        self.transaction_offset = -1
        """Where its messages begin, if that is known."""
        self._wheel = TimerWheel(_US_PER_TICK)
        self._done = AckedSet(log.start)
        self._callers = Callers()
        self._ids = DelayIds(log)
        self._recover(moved_ids)

    def add(
        self, batch: Batch, deliver_at_us: int | Int64s, call: CallId | None = None
    ) -> Appended:
        """Store messages that fall due at a time, or each at its own; those of a call once."""
        with self.lock:
            by = NOBODY
            if call is not None:
                known = self._callers.find(call.caller, call.number)
                if known is not None:
                    return self._found(known, len(batch))
                by = FrameProducer(-call.caller, call.number)
            appended = self._append(batch, deliver_at_us, by)
            if call is not None:
                first = appended.first_offset
                self._callers.record(call.caller, call.number, first, appended.ulid)
            return appended

    def add_of_transaction(self, batch: Batch, number: int) -> Appended | None:
        """Store the messages of a transaction, which fall due at their timestamps; None: they are
        here already."""
        with self.lock:
            if number <= self.transaction_stored:
                return None
            appended = self._append(
                batch, batch.timestamps_us(), FrameProducer(TRANSACTION, number)
            )
            self.transaction_stored, self.transaction_offset = number, appended.first_offset
            return appended

    def add_moved(self, batch: Batch) -> None:
        """Take over messages that waited in another log; they keep their ids and their times."""
        with self.lock:
            batch = batch.stamped(batch.timestamps_us())
            appended = self.log.append(batch, keep_ids=True)
            offsets = np.arange(appended.first_offset, appended.next_offset)
            for offset, id_ in zip(offsets.tolist(), batch.ids.to_pylist(), strict=True):
                self._ids.appended(offset, int.from_bytes(id_, "big"))
            self._wheel.add_many(batch.timestamps_us(), offsets)

    def fetch(self, offsets: Offsets) -> list[Batch]:
        return self._source.fetch(offsets)

    def finish(self, offsets: Offsets) -> None:
        """Another log has taken these messages over, durably."""
        with self.lock:
            self._finish(offsets)
            self._wheel.cancel(offsets.array().tolist())

    def cancel(self, ulid: int) -> Message | None:
        """Forget a message that is not due yet; None if it is not here, or gone already."""
        with self.lock:
            message = self._ids.find(ulid)
            if message is None or not self._is_pending(message.offset):
                return None
            self._finish(Offsets.one(message.offset))
            self._wheel.cancel([message.offset])
            self._counters.delays_cancelled += 1
            self._traces.cancelled(message.offset, message.ulid)
            self._confirm()
            return message

    def due_us(self, offset: int) -> int:
        """When a waiting message falls due; 0 if it no longer waits."""
        with self.lock:
            batches = self._source.fetch(Offsets.one(offset)) if self._is_pending(offset) else []
            return int(batches[0].timestamps_us()[0]) if batches else 0

    def confirm(self, offset: int) -> None:
        """A repeated publish is not confirmed before the first one is durable."""
        if self.log.config.fsync == "always" and self.log.durable_end <= offset:
            self.log.sync()

    def pending(
        self, after: int, limit: int, bytes_max: int | None = None
    ) -> list[tuple[int, DelayedMessage]]:
        """Messages that wait, by place, from an offset on; the last is the one with which they
        have `bytes_max` bytes or more."""
        found: list[tuple[int, DelayedMessage]] = []
        bytes_left = 1 << 62 if bytes_max is None else bytes_max
        offset = max(after, self._done.floor, self.log.start)
        while offset < self.log.end and len(found) < limit and bytes_left > 0:
            read = self.log.read(offset, 256 << 10)
            for message in read.messages():
                if message.offset not in self._done and len(found) < limit and bytes_left > 0:
                    bytes_left -= message.nbytes
                    where = place(self._partition.number, message.offset)
                    waiting = DelayedMessage(message.id, message.timestamp_us, message)
                    found.append((where, waiting))
            offset = read.next_offset
        return found

    def move_due(self, news: Callable[[], None]) -> int:
        """Bring what is due to the partition; how many messages that were."""
        with self.lock:
            due = self._wheel.pop_due(self._clock.wall_ns() // 1000)[1]
            for start in range(0, len(due), MOVE_MAX):
                left = Offsets.of(due[start : start + MOVE_MAX])
                try:
                    for batch in self._fetch_in_order(left):
                        appended = self._partition.append_moved(batch.stamped(None))
                        news()
                        moved = Offsets.of(batch.offset_numbers())
                        self._finish(moved, self._partition.number, appended.next_offset)
                        self._counters.count_due(batch, self._clock.wall_ns() // 1000)
                        left -= moved
                except BaseException:
                    self._wait_again(np.concatenate([left.array(), due[start + MOVE_MAX :]]))
                    raise
                if left.count:  # damage took them, or none would be left
                    self._finish(left)
            if self.journal.bytes_since_checkpoint > CHECKPOINT_BYTES:
                self.checkpoint()
            return len(due)

    def next_deadline(self, now_ns: int) -> int | None:
        """When to look again, by the monotonic clock."""
        next_us = self._wheel.next_deadline()
        if next_us == NEVER:
            return None
        wait_ns = next_us * 1000 - self._clock.wall_ns()
        return now_ns + min(max(wait_ns, 0), RECHECK_NS)

    def stats(self) -> DelayStats:
        pending, next_us = len(self._wheel), self._wheel.next_deadline()
        counters = self._counters
        return DelayStats(
            pending,
            next_us if pending and next_us != NEVER else None,
            delivered=counters.delays_delivered,
            cancelled=counters.delays_cancelled,
            expired=counters.delays_expired,
        )

    def purge(self) -> int:
        """Cancel everything that waits."""
        with self.lock:
            pending = len(self._wheel)
            if pending:
                self._finish(Offsets.run(self._done.floor, self.log.end))
                self._wheel.clear()
                self._counters.delays_cancelled += pending
                self._confirm()
            return pending

    def ordered(self) -> None:
        """What was moved is known to be, before what comes next."""
        self.journal.log.ordered()

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """Nothing is being moved, and what was moved is durably known to be."""
        with self.lock:
            self.ordered()
            yield

    def checkpoint(self) -> None:
        """Drop from disk what is moved or cancelled."""
        with self.lock:
            self._partition.log.ordered()  # from here on nobody can tell which entries may be void
            above = Offsets.of(self._done.above.copy())
            self.journal.checkpoint(
                _encoder.encode(_Checkpoint(self._done.floor, above, self.transaction_stored))
            )
            self.log.trim(self._done.floor)

    def close(self) -> None:
        with self.lock:
            self.journal.close()
            self.log.close()

    # The lock is held.

    def _append(self, batch: Batch, deliver_at_us: int | Int64s, by: FrameProducer) -> Appended:
        appended = self.log.append(batch.stamped(deliver_at_us), by)
        first = appended.first_offset
        self._ids.appended(first, appended.ulid, len(batch))
        self._traces.appended(batch, appended, TraceKind.SCHEDULED, deliver_at_us)
        if isinstance(deliver_at_us, int) and appended.next_offset == first + 1:
            self._wheel.add(deliver_at_us, first)
        else:
            self._wheel.add_many(deliver_at_us, np.arange(first, appended.next_offset))
        return appended

    def _found(self, known: tuple[int, int], rows: int) -> Appended:
        """What a call has stored that was made before."""
        offset, ulid = known
        self.confirm(offset)
        return Appended(offset, offset + rows, 0, ulid, DONE)

    def _confirm(self) -> None:
        if self.journal.log.config.fsync == "always":
            self.journal.log.sync()

    def _holds(self, partition: int, end: int) -> bool:
        """Whether the partition's log has not lost what was in it when it ended there."""
        if partition < 0 or partition == self._partition.number:
            return partition < 0 or end <= self._partition.log.end
        others = self._all_partitions
        return partition < len(others) and end <= others[partition].log.end

    def _is_pending(self, offset: int) -> bool:
        return self.log.start <= offset < self.log.end and offset not in self._done

    def _finish(self, offsets: Offsets, partition: int = -1, end: int = 0) -> None:
        self.journal.append(_encoder.encode(_Done(offsets, partition, end)))
        self._done.add(offsets)
        self._done.advance(self._done.floor)

    def _fetch_in_order(self, due: Offsets) -> list[Batch]:
        """Messages by when they fall due."""
        batches = self._source.fetch(due)
        if not batches:
            return []
        joined = Batch.concat(batches)
        stamps = joined.timestamps_us()
        if (stamps[1:] >= stamps[:-1]).all():
            return [joined]
        return [joined.take(np.argsort(stamps, kind="stable"))]

    def _wait_again(self, offsets: Int64s) -> None:
        """The partitions could not take them; they are due still."""
        self._wheel.add_many(self._clock.wall_ns() // 1000, offsets)

    def _recover(self, moved_ids: Iterable[pa.Array]) -> None:
        void = False
        for data in self.journal.entries():
            entry = _decoder.decode(data)
            if isinstance(entry, _Checkpoint):
                self._done = AckedSet(entry.floor, entry.above.bitmap())
                self.transaction_stored = entry.transaction
            elif self._holds(entry.partition, entry.end):
                self._done.add(entry.offsets)
            else:
                void = True
        # A power cut may have taken messages, and not the entries about them.
        void |= bool(self._done.among(Offsets.run(self.log.end, 1 << 62)).count)
        self._done.forget_from(self.log.end)
        self._done.advance(self.log.start)
        moved = {id_ for ids in moved_ids for id_ in ids.to_pylist()}
        offset = max(self.log.start, self._done.floor)
        while offset < self.log.end:
            read = self.log.read(offset)
            for batch in read:
                self._ids.read(batch)
                offsets = batch.offset_numbers()
                waiting = ~np.isin(offsets, self._done.among(Offsets.of(offsets)).array())
                if moved:
                    ids = batch.ids.to_pylist()
                    here = np.fromiter((id_ in moved for id_ in ids), bool, len(ids))
                    if (here & waiting).any():
                        self._finish(Offsets.of(offsets[here & waiting]))
                    waiting &= ~here
                self._wheel.add_many(batch.timestamps_us()[waiting], offsets[waiting])
            offset = read.next_offset
        for header in self.log.headers(self.log.start):
            if header.producer_id == TRANSACTION:
                self.transaction_stored = header.base_sequence
                self.transaction_offset = header.base_offset
            elif header.producer_id <= -CALLER_MIN:
                self._callers.record(
                    -header.producer_id,
                    header.base_sequence,
                    header.base_offset,
                    int.from_bytes(header.ulid, "big"),
                )
        if void:
            self.checkpoint()  # or those entries would be taken for the next messages at the place
