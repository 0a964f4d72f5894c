"""One partition: messages come in, and are handed out to groups and settled by them.

Publishing needs no lock of ours; reading messages never does. How deliveries are written down is
in `ledgered_partition.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from functools import lru_cache

import msgspec

from penstock.broker.ledgered_partition import (
    CHECKPOINT_LOOK_FRAMES,
    MOVED,
    TRANSACTION,
    LedgeredPartition,
)
from penstock.broker.settlement import SETTLED, Settlement
from penstock.broker.withheld import LETTERS_GROUP, REDRIVEN, group_hash, sent_back_to
from penstock.delivery import ledger
from penstock.delivery.ledger import Acked, Leased
from penstock.delivery.offsets import EMPTY, Offsets
from penstock.delivery.picking import DeadLetter
from penstock.delivery.producers import Duplicate
from penstock.delivery.queue import Decision, GroupQueue, Stats, time_noted_every_ns
from penstock.delivery.timers import NEVER
from penstock.log.base import DONE, Appended
from penstock.model.deliveries import Delivered
from penstock.model.published import CallId
from penstock.model.receipts import NONCE_BITS
from penstock.randomness import own_random
from penstock.record.batch import Batch, Message
from penstock.record.plain import Single
from penstock.record.schema import BITS, Priority
from penstock.record.writing import FrameProducer
from penstock.trace.events import TraceKind

_MOVED = FrameProducer(MOVED)
_PRIORITY = BITS["priority"]
_NORMAL = int(Priority.NORMAL)


class Partition(LedgeredPartition):
    """What can be done with a partition; any thread may call anything."""

    # Publishing.

    def append(self, batch: Batch) -> Appended:
        appended = self.log.append(batch)
        self.traces.appended(batch, appended, TraceKind.PUBLISHED)
        self._note(batch, appended)
        return appended

    def append_value(self, value: bytes) -> Appended:
        """The same of one message that is a value and no more."""
        appended, source = self.log.append_value(value), self.source
        if appended.first_offset == source.read_up_to:
            source.appended(Single(value), appended)
        if (fair := source.fair) is not None:
            fair.published(Single(value), appended.first_offset)
        self.traces.appended_value(appended)
        self._count(_NORMAL, 1)
        return appended

    def append_moved(self, batch: Batch) -> Appended:
        """Append delayed messages that fell due; they keep the ids that they have had."""
        appended = self.log.append(batch, _MOVED, keep_ids=True)
        self.traces.appended(batch, appended, TraceKind.MOVED)
        self._note(batch, appended)
        return appended

    def append_redriven(self, batch: Batch, group: str) -> Appended:
        """Append messages for one group alone: every other reader passes them over."""
        with self.lock:  # nobody receives one before the others know that it is not for them
            end = self.log.end
            try:
                appended = self.log.append(batch, sent_back_to(group))
                first = appended.first_offset
                self.redriven.add(group_hash(group), Offsets.run(first, first + len(batch)))
                for other in self.queues:
                    self._withhold(other)
            except BaseException as exc:
                self._note_frames(end, REDRIVEN)
                self._fold_if_interrupted(exc)
                raise
        self._note(batch, appended)
        return appended

    def append_idempotent(
        self, batch: Batch, producer_id: int, epoch: int, sequence: int, *, wraps: bool = False
    ) -> Appended | Duplicate:
        """Append a producer's batch unless it is here already."""
        with self._publish_lock:
            if wraps:
                sequence = self.producers.unwrapped(producer_id, epoch, sequence)
            known = self.producers.check(producer_id, epoch, sequence, len(batch), anywhere=wraps)
            if known is not None:
                return known
            end = self.log.end
            try:
                appended = self.log.append(batch, FrameProducer(producer_id, sequence, epoch))
                first = appended.first_offset
                self.producers.record(producer_id, epoch, sequence, len(batch), first)
            except BaseException:
                self._note_frames(end, producer_id)
                raise
            self.traces.appended(batch, appended, TraceKind.PUBLISHED)
            self._note(batch, appended)
            return appended

    def append_once(self, batch: Batch, call: CallId) -> Appended:
        """Append what a call brings, or tell where it is if the call was made before."""
        with self._publish_lock:
            known = self.callers.find(call.caller, call.number)
            if known is None:
                end = self.log.end
                try:
                    appended = self.log.append(batch, FrameProducer(-call.caller, call.number))
                    first = appended.first_offset
                    self.callers.record(call.caller, call.number, first, appended.ulid)
                except BaseException:
                    self._note_frames(end, -call.caller)
                    raise
                self.traces.appended(batch, appended, TraceKind.PUBLISHED)
                self._note(batch, appended)
                return appended
        offset, ulid = known
        self.confirm(offset)
        return Appended(offset, offset + len(batch), 0, ulid, DONE)

    def append_of_transaction(self, batch: Batch, number: int) -> Appended | None:
        """Append the messages of a transaction; None: they are here already."""
        with self._publish_lock:
            if number <= self.transaction_stored:
                return None
            end = self.log.end
            try:
                appended = self.log.append(batch, FrameProducer(TRANSACTION, number))
                self.transaction_offset = appended.first_offset
                self.transaction_stored = number
            except BaseException:
                self._note_frames(end, TRANSACTION)
                raise
            self.traces.appended(batch, appended, TraceKind.PUBLISHED)
            self._note(batch, appended)
            return appended

    def _note_frames(self, end: int, producer_id: int) -> None:
        """An append was refused, or interrupted (Ctrl-C) when it was done, or not yet."""
        if self.log.end > end:
            for header in self.log.headers(end):
                if header.producer_id == producer_id:
                    self._fold_frame(header)

    def _note(self, batch: Batch, appended: Appended) -> None:
        """Messages were appended."""
        self.source.appended(batch, appended)
        if (fair := self.source.fair) is not None:
            fair.published(batch, appended.first_offset)
        if batch.columns & _PRIORITY:
            self.counters.count_mixed(batch, self._clock.monotonic_ns())
            self._count(batch.priority, 0)
        else:
            self._count(batch.priority, appended.next_offset - appended.first_offset)

    def _count(self, priority: int, messages: int) -> None:
        """A frame was appended with so many messages of a priority."""
        self._frames += 1
        self.counters.published[priority].add(messages, self._clock.monotonic_ns())
        if not self._frames % CHECKPOINT_LOOK_FRAMES:
            self.look_if_checkpoint_is_due()

    def confirm(self, offset: int) -> None:
        """Whoever sends a message again must not be told of it sooner than the first time."""
        if self.log.config.fsync == "always" and self.log.durable_end <= offset:
            self.log.sync()

    # Queue mode.

    def receive(
        self,
        group: str,
        max_messages: int,
        visibility_ns: int,
        consumer: str,
        bytes_max: int | None = None,
    ) -> Delivered | None:
        """Hand out messages that are ready, if there are any.

        With `bytes_max` no more than have that many bytes together, or one.
        """
        while (
            lease := self._lease(group, max_messages, visibility_ns, consumer, bytes_max)
        ) is not None:
            leased, firsts = lease
            pieces: list[tuple[Batch, int]] = []
            wanted = count = 0
            counted, served = self.latencies[group], self.counters.delivered[group]
            last_served_us = self.counters.last_served_us
            now_ns = self._clock.monotonic_ns()
            for part in leased.parts:
                offsets, delivery_count, before = part.offsets, part.delivery_count, count
                wanted += offsets.count
                for batch in self.source.fetch(offsets):
                    rows = len(batch) if offsets.count > 1 else 1
                    pieces.append((batch, delivery_count))
                    count += rows
                    if delivery_count == 1:
                        counted.waited(part.priority, batch, rows, leased.wall_us)
                served[part.priority].add(count - before, now_ns)
                last_served_us[part.priority] = leased.wall_us
            if count < wanted:
                # Damage took some of them. The log reports it; no retry would find them.
                self.finish(group, _all_offsets(leased.parts) - _present(pieces), leased.nonce)
            if pieces:
                self.traces.delivered(group, leased, pieces, self.redriven, self.queues)
                return Delivered(self.number, leased.nonce, count, pieces, firsts)
        return None

    def begin_at_end(self, group: str) -> None:
        """A group that is not there yet begins after the newest message."""
        with self.lock:
            self.queue(group, self.log.end)

    def _lease(
        self,
        group: str,
        max_messages: int,
        visibility_ns: int,
        consumer: str,
        bytes_max: int | None,
    ) -> tuple[Leased, tuple[tuple[int, Offsets], ...]] | None:
        """What is handed out, and when that was first delivered which comes again."""
        with self.lock:
            queue = (not self._in_doubt and self.queues.get(group)) or self.queue(group)
            now_ns = self._clock.monotonic_ns()
            if now_ns >= self._look_ns:
                self._expire(group, queue, now_ns)
            while True:
                decision = queue.receive(
                    now_ns,
                    self._clock.wall_ns() // 1000,
                    max_messages,
                    visibility_ns,
                    consumer,
                    own_random.getrandbits(NONCE_BITS),
                    self.source,
                    self.log.end,
                )
                if not decision.events:
                    return None
                leased = decision.leased
                if bytes_max is not None and leased is not None:
                    fitting = self._fitting(leased.parts, bytes_max)
                    if fitting is not None:
                        max_messages = fitting
                        continue  # nothing was done yet: decide again, on fewer
                self._carry_out(group, queue, decision)
                if (fair := self.source.fair) is not None:
                    fair.forget_before(min(each.state.passed for each in self.queues.values()))
                if leased is None or len(decision.events) > 1:
                    self.counters.count_dropped(decision.events)
                if leased is not None:
                    look_ns = now_ns + _look_after_ns(visibility_ns)
                    if look_ns < self._look_ns:
                        self._look_at(look_ns)
                    again = [part for part in leased.parts if part.delivery_count > 1]
                    if not again:
                        return leased, ()
                    retries = queue.state.retries
                    firsts = [retries.firsts(part.offsets, leased.wall_us) for part in again]
                    return leased, tuple(each for some in firsts for each in some.items())

    def _fitting(self, parts: Sequence[ledger.Part], bytes_max: int) -> int | None:
        """How many messages have so many bytes together, one at the least; None: all of them."""
        source, rows = self.source, 0
        if all(source.has_read(part.offsets, bytes_max) for part in parts):
            return None
        for part in parts:
            for batch in source.fetch(part.offsets, bytes_max):
                nbytes = batch.payload_bytes
                if nbytes > bytes_max:
                    fitting = max(rows + min(batch.rows_within(bytes_max), len(batch) - 1), 1)
                    return fitting if fitting < sum(x.offsets.count for x in parts) else None
                rows += len(batch)
                bytes_max -= nbytes
        return None

    def best_ready(self, group: str) -> int:
        """The highest priority with a message to hand out, or STARVING; one past the last if there
        is none."""
        with self.lock:
            now_ns, wall_us = self._clock.monotonic_ns(), self._clock.wall_ns() // 1000
            return self.queue(group).best_ready(now_ns, wall_us, self.source, self.log.end)

    def ack(self, group: str, nonce: int, offsets: Offsets | None) -> Settlement:
        """Messages are done."""
        with self.lock:
            now_ns = self._clock.monotonic_ns()
            queue = (not self._in_doubt and self.queues.get(group)) or self.known_queue(group)
            decision = queue.ack(now_ns, nonce, offsets)
            durable = DONE
            if decision.lease is not None:
                durable = self._carry_out(group, queue, decision)
                self.counters.acked += decision.done.count
                wall_us = self._clock.wall_ns() // 1000
                self.latencies[group].handled(decision.lease, decision.done, wall_us, now_ns)
        if (on_settled := self.on_settled) is not None:
            on_settled()
        if durable is DONE and not decision.refused:
            return SETTLED
        return Settlement(decision.refused, durable)

    def ack_lost(self, group: str, offsets: Offsets) -> Settlement:
        """Messages are done whoever holds them now, or nobody, if they were handed out."""
        with self.lock:
            queue = self.known_queue(group)
            decision = queue.ack_lost(offsets)
            durable = self._carry_out(group, queue, decision) if decision.events else DONE
            self.counters.acked += offsets.count - len(decision.refused)
        if (on_settled := self.on_settled) is not None:
            on_settled()
        return Settlement(decision.refused, durable)

    def holders(self, group: str, offsets: Offsets) -> dict[int, Offsets]:
        """The nonces of the leases that hold messages now, and what each holds of them."""
        with self.lock:
            queue = self.queues.get(group)
            return {} if queue is None else queue.holders(offsets)

    def settle(self, group: str, decide: Callable[[GroupQueue, int], Decision]) -> Settlement:
        """Carry out a nack, reject or extend that `decide` asks the group's queue for."""
        with self.lock:
            now_ns = self._clock.monotonic_ns()
            queue = self.known_queue(group)
            decision = decide(queue, now_ns)
            durable = self._carry_out(group, queue, decision) if decision.events else DONE
            self.counters.count_settled(decision.events)
            look_ns = queue.next_look()
            if look_ns is not None:
                self._look_at(look_ns)
        if (on_settled := self.on_settled) is not None:
            on_settled()
        return Settlement(decision.refused, durable)

    def settle_of_transaction(
        self, number: int, decisions: Sequence[tuple[str, GroupQueue, Decision]]
    ) -> None:
        """Carry out what a transaction decided. The caller has held the lock since then."""
        for group, queue, decision in decisions:
            self.traces.settled(group, queue, decision.events, self.source)
        self.settle_transaction(number, events_by_group(decisions))
        now_ns, wall_us = self._clock.monotonic_ns(), self._clock.wall_ns() // 1000
        for group, queue, decision in decisions:
            if decision.lease is not None:
                self.counters.acked += decision.done.count
                self.latencies[group].handled(decision.lease, decision.done, wall_us, now_ns)
            else:
                self.counters.count_settled(decision.events)
            self.counters.dead_lettered += sum(
                letter.offsets.count
                for letter in decision.dead_letters
                if self._letters.keeps(letter)
            )
            look_ns = queue.next_look()
            if look_ns is not None:
                self._look_at(look_ns)

    def fetch(self, offsets: Offsets) -> list[Batch]:
        return self.source.fetch(offsets)

    def known_queue(self, group: str) -> GroupQueue:
        """To decide for. The lock is held."""
        if self._in_doubt:
            self._fold_again()
        return self.queues.get(group) or self._new_queue()

    def letters_of(self, decision: Decision) -> Iterator[tuple[DeadLetter, list[Batch]]]:
        """The dead letters of a decision that are to be stored, and their messages. The lock is
        held."""
        for letter in decision.dead_letters:
            if self._letters.keeps(letter):
                yield letter, self.source.fetch(letter.offsets)

    def redo_settle(self, number: int, groups: Sequence[tuple[str, bytes]]) -> None:
        """The same after a crash. A power cut may have taken messages that it speaks of, and the
        leases; that lasts before there are others in their places."""
        with self.lock:
            if number > self.transaction_settled:
                here = Offsets.run(self.log.start, self.log.end)
                self.settle_transaction(number, {g: _within(data, here) for g, data in groups})
                self.journal.log.ordered()

    def finish(self, group: str, offsets: Offsets, nonce: int = 0) -> Future[None]:
        """Messages are done for a group, whether or not it holds them."""
        with self.lock:
            queue = self.queue(group)
            return self._carry_out(group, queue, Decision((Acked(nonce, offsets),)))

    def withdraw(self, letters: Offsets) -> Future[None]:
        """Dead letters are redriven or purged: they are gone for every reader."""
        with self.lock:
            queue = self.queue(LETTERS_GROUP)
            gone = Decision((Acked(0, letters),))
            durable = self._carry_out(LETTERS_GROUP, queue, gone)
            try:
                for group in [group for group in self.queues if self._withhold(group)]:
                    self._renew(group)  # a lane may have them in its read-ahead
            except BaseException as exc:
                self._fold_if_interrupted(exc)
                raise
        if (on_settled := self.on_settled) is not None:
            on_settled()
        return durable

    def not_done(self, group: str, offsets: Offsets) -> Offsets:
        """Those of the offsets that a group has not done."""
        with self.lock:
            return offsets - self.queue(group).state.acked.among(offsets)

    def unfinished(self, group: str, after: int, limit: int, bytes_max: int) -> list[Message]:
        """Messages that a group has not done, from an offset on; for looking, not for working.

        So many, or those of the frames that make up so many bytes; none only if there are none.
        """
        found: list[Message] = []
        found_bytes = 0
        with self.lock:
            acked = self.queue(group).state.acked
            offset = max(after, acked.floor, self.log.start)
        while offset < self.log.end and len(found) < limit and found_bytes < bytes_max:
            read = self.log.read(offset, 256 << 10)
            some = [message for message in read.messages() if message.offset not in acked]
            if some:
                found += some
                found_bytes += sum(batch.nbytes for batch in read)
            offset = read.next_offset
        return found[:limit]

    def seek(self, group: str, offset: int) -> None:
        with self.lock:
            queue = self.queue(group)
            offset = min(max(offset, self.log.start), self.log.end)
            self._carry_out(group, queue, queue.seek(offset))
            self._withhold(group)

    def purge(self, group: str) -> int:
        """Everything that is there now is done, for one group; how many messages that were."""
        with self.lock:
            queue = self.queue(group)
            end = self.log.end
            depth, before = queue.stats(end).depth, queue.committed
            decision = queue.trim(end)
            if decision.events:
                self._carry_out(group, queue, decision)
                self.traces.purged(Offsets.run(before, end), group)
            return depth

    def count_in_flight(self, group: str) -> int:
        with self.lock:
            queue = self.queues.get(group)
            return 0 if queue is None else queue.state.in_flight

    def stats(self, group: str) -> Stats:
        with self.lock:
            return self.queue(group).stats(self.log.end)

    # Housekeeping.

    def expire(self, now_ns: int) -> bool:
        """Take back what was held too long; whether there may be something to receive now.

        And tell the ledger the time, for those who still hold something.
        """
        news = False
        with self.lock:
            if self._in_doubt:
                self._fold_again()
            for group, queue in self.queues.items():
                deadline = queue.next_deadline()
                if deadline is not None and deadline <= now_ns:
                    news = True
                    self._expire(group, queue, now_ns)
                self._note_time(group, queue, now_ns)
        return news

    def next_look(self) -> int | None:
        """When a lease runs out, a retry falls due or the time is to be noted. To be looked at
        then, or when `plan_look` is called with an earlier time."""
        with self.lock:
            looks = [queue.next_look() for queue in self.queues.values()]
            self._look_ns = min((look for look in looks if look is not None), default=NEVER)
            return None if self._look_ns == NEVER else self._look_ns

    def trim_to(self, before: int) -> None:
        """The log drops what is below; the groups have nothing to do with it any more.

        No delay may be on its way here whose journal is not synced: its frame is what tells that
        it has arrived.
        """
        if before > self._checkpoint_offset and (
            len(self.producers) or len(self.callers) or self.transaction_stored
        ):
            self.checkpoint()  # or what the frames say about their writers would be gone
        with self.lock:
            self.log.trim(before)
            self.redriven.keep_between(self.log.start, self.log.end)
            for group, queue in self.queues.items():
                decision = queue.trim(self.log.start)
                if decision.events:
                    self._carry_out(group, queue, decision)

    def close(self) -> None:
        with self.lock:
            self.journal.close()
            self.log.close()

    # The lock is held.

    def _expire(self, group: str, queue: GroupQueue, now_ns: int) -> None:
        deadline = queue.next_deadline()
        while deadline is not None and deadline <= now_ns:
            decision = queue.expire(now_ns)
            if not decision.events:
                return
            self._carry_out(group, queue, decision)
            deadline = queue.next_deadline()

    def _look_at(self, deadline_ns: int) -> None:
        """Something falls due then that may be earlier than all else."""
        if deadline_ns < self._look_ns:
            self._look_ns = deadline_ns
            self.plan_look(deadline_ns)


@lru_cache(maxsize=64)  # one visibility timeout comes again and again
def _look_after_ns(visibility_ns: int) -> int:
    """How long after a lease begins something of it falls due."""
    return min(visibility_ns, time_noted_every_ns(visibility_ns))


def events_by_group(
    decisions: Sequence[tuple[str, GroupQueue, Decision]],
) -> dict[str, list[ledger.Event]]:
    events: dict[str, list[ledger.Event]] = {}
    for group, _, decision in decisions:
        events.setdefault(group, []).extend(decision.events)
    return events


def _within(data: bytes, offsets: Offsets) -> list[ledger.Event]:
    """Those of some events that are about these messages."""
    found: list[ledger.Event] = []
    for event in ledger.decode(data):
        assert isinstance(event, Acked | ledger.Nacked | ledger.Rejected)
        some = event.offsets & offsets
        if some.count:
            found.append(msgspec.structs.replace(event, offsets=some))
    return found


def _all_offsets(parts: Iterable[ledger.Part]) -> Offsets:
    every = EMPTY
    for part in parts:
        every |= part.offsets
    return every


def _present(pieces: list[tuple[Batch, int]]) -> Offsets:
    present = EMPTY
    for batch, _ in pieces:
        present |= Offsets.of(batch.offset_numbers())
    return present
