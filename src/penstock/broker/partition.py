"""One partition: its messages, and what every group has done with them.

The ledger is a journal with an entry for each decision of a group, and checkpoints. All that
concerns delivery happens under the partition's lock, in this order: dead letters are stored, the
events are appended to the ledger, then they are believed. A crash between two of these loses
nothing. Publishing needs no lock of ours; reading messages never does.
"""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import lru_cache
from typing import Protocol

import msgspec

from penstock.broker.group_latencies import TopicLatencies
from penstock.broker.journal import Journal
from penstock.broker.rates import GroupRates, Meter
from penstock.broker.source import LogSource
from penstock.broker.structs import SETTLED, Delivered, Origin, Settled
from penstock.clock import Clock
from penstock.delivery import ledger
from penstock.delivery.ledger import Acked, Event, Leased
from penstock.delivery.offsets import EMPTY, Offsets
from penstock.delivery.picking import DeadLetter
from penstock.delivery.producers import Duplicate, Producers
from penstock.delivery.queue import Decision, GroupQueue, Policy, Stats
from penstock.delivery.receipts import NONCE_BITS
from penstock.delivery.state import GroupState
from penstock.delivery.timers import NEVER
from penstock.errors import DiskFull
from penstock.log.base import DONE, Appended
from penstock.log.local import LocalLog
from penstock.log.segment import Segment
from penstock.record.batch import Batch, Message
from penstock.record.schema import Priority

MOVED = -1
"""In place of a producer id: the frame holds delayed messages that fell due, with their ids."""

CHECKPOINT_LEDGER_BYTES = 8 << 20  # or as much as the last checkpoint itself took
CHECKPOINT_LOG_BYTES = 256 << 20
CHECKPOINT_FRAMES = 100_000  # of the log: a restart looks at each
_EVENTS, _CHECKPOINT, _GROUP_DELETED = b"\x00", b"\x01", b"\x02"


class DeadLetterStore(Protocol):
    """Where the messages of a topic are stored that were given up."""

    def store(self, partition: int, group: str, letter: DeadLetter, batches: list[Batch]) -> None:
        """Store messages of a partition that a group gave up; they last once this returns."""

    def ends(self) -> list[int]:
        """Where the letters end."""

    def sync(self) -> bool:
        """Try to make all letters durable; whether they are."""

    def since(self, ends: Sequence[int]) -> Iterable[Origin]:
        """Of each durable letter that was stored since they ended there: what it was."""


class _Checkpoint(msgspec.Struct, array_like=True):
    """Everything that the ledger, and the frames of the log below `log_offset`, say."""

    groups: dict[str, bytes]
    producers: bytes
    log_offset: int
    letters_known: list[int] = []  # where the dead letters ended


_checkpoint_decoder = msgspec.msgpack.Decoder(_Checkpoint)


class Partition:
    def __init__(
        self,
        number: int,
        log: LocalLog,
        journal: Journal,
        policy: Policy,
        clock: Clock,
        letters: DeadLetterStore,
        latencies: TopicLatencies,
    ) -> None:
        self.number = number
        self.log = log
        self.journal = journal
        self.source = LogSource(log)
        self.queues: dict[str, GroupQueue] = {}
        self.producers = Producers()
        self.published = Meter()
        self.rates: defaultdict[str, GroupRates] = defaultdict(GroupRates)
        self.latencies = latencies
        self.lock = threading.Lock()
        self.plan_look: Callable[[int], None] = lambda deadline_ns: None
        """Set by the broker: the partition wants to be looked at then."""
        self._look_ns = 0  # when it will be; until `next_look` was asked, nobody looks
        self._publish_lock = threading.Lock()
        self._policy = policy
        self._clock = clock
        self._letters = letters
        self.letters_known: list[int] = []
        """Where the dead letters ended at the checkpoint that this life began with."""
        self._letters_in_doubt: list[int] | None = None
        """Where they ended before some were stored whose messages may not be done."""
        self._checkpoint_log_bytes = 0
        self._checkpointed: tuple[int, int, list[int]] | None = None
        self._sized: Segment | None = None
        self._log_grew = False
        self._frames = 0  # since the last checkpoint; one that two threads count as one is no harm
        self._checkpoint_offset = 0  # the state of producers is that of the frames below, or newer
        self.moved_at: list[int] = []
        """Where in the log delayed messages lie that no checkpoint knows of."""
        self._recover()

    # Publishing.

    def append(self, batch: Batch) -> Appended:
        appended = self.log.append(batch)
        self._count(batch)
        return appended

    def append_moved(self, batch: Batch) -> Appended:
        """Append delayed messages that fell due; they keep the ids that they have had."""
        appended = self.log.append(batch, producer_id=MOVED, keep_ids=True)
        self._count(batch)
        return appended

    def append_idempotent(
        self, batch: Batch, producer_id: int, epoch: int, sequence: int
    ) -> Appended | Duplicate:
        """Append a producer's batch unless it is here already."""
        with self._publish_lock:
            known = self.producers.check(producer_id, epoch, sequence, len(batch))
            if known is not None:
                return known
            appended = self.log.append(
                batch,
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=sequence,
            )
            self.producers.record(producer_id, epoch, sequence, len(batch), appended.first_offset)
            self._count(batch)
            return appended

    def _count(self, batch: Batch) -> None:
        self._frames += 1
        self.published.add(len(batch), self._clock.monotonic_ns())

    def confirm(self, offset: int) -> None:
        """Whoever sends a message again must not be told of it sooner than the first time."""
        if self.log.config.fsync == "always" and self.log.durable_end <= offset:
            self.log.sync()

    # Queue mode.

    def receive(
        self, group: str, max_messages: int, visibility_ns: int, consumer: str
    ) -> Delivered | None:
        """Hand out messages that are ready, if there are any."""
        while (leased := self._lease(group, max_messages, visibility_ns, consumer)) is not None:
            pieces: list[tuple[Batch, int]] = []
            wanted = count = 0
            for part in leased.parts:
                wanted += part.offsets.count
                for batch in self.source.fetch(part.offsets):
                    rows = len(batch)
                    pieces.append((batch, part.delivery_count))
                    count += rows
                    if part.delivery_count == 1:
                        self.latencies[group].waited(part.priority, batch, rows, leased.wall_us)
            if count < wanted:
                # Damage took some of them. The log reports it; no retry would find them.
                self.finish(group, _all_offsets(leased.parts) - _present(pieces), leased.nonce)
            if pieces:
                self.rates[group].delivered.add(count, self._clock.monotonic_ns())
                return Delivered(self.number, leased.nonce, count, pieces)
        return None

    def _lease(
        self, group: str, max_messages: int, visibility_ns: int, consumer: str
    ) -> Leased | None:
        with self.lock:
            queue = self.queues.get(group) or self.queue(group)
            now_ns = self._clock.monotonic_ns()
            if now_ns >= self._look_ns:
                self._expire(group, queue, now_ns)
            while True:
                decision = queue.receive(
                    now_ns,
                    self._clock.wall_ns() // 1000,
                    max_messages=max_messages,
                    visibility_ns=visibility_ns,
                    consumer=consumer,
                    nonce=random.getrandbits(NONCE_BITS),
                    source=self.source,
                    end=self.log.end,
                )
                if not decision.events:
                    return None
                self._carry_out(group, queue, decision)
                leased = decision.leased
                if leased is not None:
                    self._look_at(now_ns + visibility_ns)
                    return leased

    def best_ready(self, group: str) -> int:
        """The highest priority with a message to hand out; one past the last if there is none."""
        with self.lock:
            queue = self.queue(group)
            ready = queue.ready(self._clock.monotonic_ns(), self.source, self.log.end)
            return (ready & -ready).bit_length() - 1 if ready else len(Priority)

    def ack(self, group: str, nonce: int, offsets: Offsets | None) -> Settled:
        """Messages are done."""
        with self.lock:
            now_ns = self._clock.monotonic_ns()
            queue = self.queues.get(group) or self._new_queue(now_ns)
            decision = queue.ack(now_ns, nonce, offsets)
            durable = DONE
            if decision.events:
                lease = queue.state.leases.get(nonce)
                durable = self._carry_out(group, queue, decision)
                (acked,) = decision.events
                assert type(acked) is Acked
                assert lease is not None
                self.rates[group].acked.add(acked.offsets.count, now_ns)
                wall_us = self._clock.wall_ns() // 1000
                self.latencies[group].handled(lease, acked.offsets, wall_us)
        if durable is DONE and not decision.refused:
            return SETTLED
        return Settled(decision.refused, durable)

    def settle(self, group: str, decide: Callable[[GroupQueue, int], Decision]) -> Settled:
        """Carry out a nack, reject or extend that `decide` asks the group's queue for."""
        with self.lock:
            now_ns = self._clock.monotonic_ns()
            queue = self.queues.get(group) or self._new_queue(now_ns)
            decision = decide(queue, now_ns)
            durable = self._carry_out(group, queue, decision) if decision.events else DONE
            deadline_ns = queue.next_deadline()
            if deadline_ns is not None:
                self._look_at(deadline_ns)
        return Settled(decision.refused, durable)

    def finish(self, group: str, offsets: Offsets, nonce: int = 0) -> Future[None]:
        """Messages are done for a group, whether or not it holds them."""
        with self.lock:
            queue = self.queue(group)
            return self._carry_out(group, queue, Decision((Acked(nonce, offsets),)))

    def finish_buried(self, origin: Origin) -> bool:
        """The message of a dead letter is done, if it is not; whether it was not."""
        with self.lock:
            if not self._is_buried_alive(origin):
                return False
            queue, done = self.queues[origin.group], Acked(origin.nonce, Offsets.one(origin.offset))
            try:
                self._believe(origin.group, queue, (done,))
            except DiskFull:  # then the next start finds it again, or a checkpoint says it
                queue.apply((done,))
            return True

    def unfinished(self, group: str, after: int, limit: int) -> list[Message]:
        """Messages that a group has not done, from an offset on; for looking, not for working."""
        found: list[Message] = []
        with self.lock:
            acked = self.queue(group).state.acked
            offset = max(after, acked.floor, self.log.start)
        while offset < self.log.end and len(found) < limit:
            read = self.log.read(offset, 256 << 10)
            found += [message for message in read.messages() if message.offset not in acked]
            offset = read.next_offset
        return found[:limit]

    def seek(self, group: str, offset: int) -> None:
        with self.lock:
            queue = self.queue(group)
            offset = min(max(offset, self.log.start), self.log.end)
            self._carry_out(group, queue, queue.seek(offset))

    def purge(self, group: str) -> int:
        """Everything that is there now is done, for one group; how many messages that were."""
        with self.lock:
            queue = self.queue(group)
            end = self.log.end
            depth = queue.stats(end).depth
            decision = queue.trim(end)
            if decision.events:
                self._carry_out(group, queue, decision)
            return depth

    def delete_group(self, group: str) -> bool:
        with self.lock:
            if group not in self.queues:
                return False
            self.journal.append(_GROUP_DELETED + group.encode())
            del self.queues[group]
            self.rates.pop(group, None)
            return True

    def queue(self, group: str, start: int | None = None) -> GroupQueue:
        """The queue of a group; a new one begins at `start`, by default with the oldest message."""
        queue = self.queues.get(group)
        if queue is None:
            queue = GroupQueue(GroupState(0), self._policy, self._clock.monotonic_ns())
            first = queue.seek(self.log.start if start is None else start)
            self._carry_out(group, queue, first)
            self.queues[group] = queue
        return queue

    def stats(self, group: str) -> Stats:
        with self.lock:
            return self.queue(group).stats(self.log.end)

    def set_policy(self, policy: Policy) -> None:
        with self.lock:
            self._policy = policy
            for group in self.queues:
                self._renew(group)

    # Housekeeping.

    def expire(self, now_ns: int) -> bool:
        """Take back what was held too long; whether there may be something to receive now."""
        news = False
        with self.lock:
            for group, queue in self.queues.items():
                deadline = queue.next_deadline()
                if deadline is not None and deadline <= now_ns:
                    news = True
                    self._expire(group, queue, now_ns)
        return news

    def next_look(self) -> int | None:
        """When a lease runs out or a retry falls due. To be looked at then, or when `plan_look`
        is called with an earlier time."""
        with self.lock:
            deadlines = [queue.next_deadline() for queue in self.queues.values()]
            self._look_ns = min((d for d in deadlines if d is not None), default=NEVER)
            return None if self._look_ns == NEVER else self._look_ns

    def trim_to(self, before: int) -> None:
        """The log drops what is below; the groups have nothing to do with it any more.

        No delay may be on its way here whose journal is not synced: its frame is what tells that
        it has arrived.
        """
        if before > self._checkpoint_offset and len(self.producers):
            self.checkpoint()  # or what the frames say about their producers would be gone
        with self.lock:
            self.log.trim(before)
            for group, queue in self.queues.items():
                decision = queue.trim(self.log.start)
                if decision.events:
                    self._carry_out(group, queue, decision)

    def checkpoint_is_due(self) -> bool:
        active = self.log.segments[-1]
        if active is not self._sized:  # asked very often: the size of many segments takes a while
            self._sized = active
            grown_bytes = self.log.size_bytes - self._checkpoint_log_bytes
            self._log_grew = grown_bytes > CHECKPOINT_LOG_BYTES
        return (
            self._log_grew
            or self._frames > CHECKPOINT_FRAMES
            or self.journal.bytes_since_checkpoint
            > max(CHECKPOINT_LEDGER_BYTES, self.journal.checkpoint_bytes)
        )

    def look_if_checkpoint_is_due(self) -> None:
        if self.checkpoint_is_due():
            self.plan_look(self._clock.monotonic_ns())

    def checkpoint(self) -> None:
        """Write down the whole state, so that a restart is quick."""
        self.log.sync()  # most of it now, so that nobody has to wait for it below
        with self.lock:
            letters_known = self._letters_in_doubt
            if letters_known is None:
                letters_known = self._letters.ends()
            if self._checkpointed == (self.log.end, self.journal.log.end, letters_known):
                return
            with self._publish_lock:
                log_offset, producers = self.log.end, self.producers.snapshot()
                self.log.sync()  # the state below speaks of messages that must not be lost
            now_ns = self._clock.monotonic_ns()
            groups = {name: queue.snapshot(now_ns) for name, queue in self.queues.items()}
            image = _Checkpoint(groups, producers, log_offset, letters_known)
            marked = self.journal.mark(_CHECKPOINT + msgspec.msgpack.encode(image))
            self._checkpoint_log_bytes = self.log.size_bytes
            self._log_grew = False
            self._frames = 0
            self._checkpoint_offset = log_offset
            self._checkpointed = self.log.end, self.journal.log.end, letters_known
        self.journal.drop_before(marked)

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

    def _carry_out(self, group: str, queue: GroupQueue, decision: Decision) -> Future[None]:
        if decision.dead_letters:
            return self._give_up(group, queue, decision)
        return self._believe(group, queue, decision.events)

    def _believe(self, group: str, queue: GroupQueue, events: tuple[Event, ...]) -> Future[None]:
        durable = self.journal.append(_events_of(group) + ledger.encode(events))
        queue.apply(events)
        if self.journal.bytes_since_checkpoint > CHECKPOINT_LEDGER_BYTES:
            self.look_if_checkpoint_is_due()
        return durable

    def _give_up(self, group: str, queue: GroupQueue, decision: Decision) -> Future[None]:
        """Store dead letters, and then what else was decided. A stored letter is final."""
        in_doubt = self._letters_in_doubt
        if in_doubt is None:
            self._letters_in_doubt = self._letters.ends()
        try:
            if self.journal.log.config.fsync != "never":
                self.journal.log.sync()  # a letter names a lease, which must not be lost before it
            for letter in decision.dead_letters:
                self._letters.store(self.number, group, letter, self.source.fetch(letter.offsets))
            durable = self._believe(group, queue, decision.events)
        except BaseException:  # Ctrl-C too
            self._believe_letters()
            raise
        self._letters_in_doubt = in_doubt
        return durable

    def _believe_letters(self) -> None:
        """Messages are done whose letters were stored, and are durable, before something failed.

        The ledger does not say so. The letters do, if a start has to find out; until all of them
        are known to last, no checkpoint says that they need not be looked at.
        """
        assert self._letters_in_doubt is not None
        all_last = self._letters.sync()
        groups = set()
        for origin in self._letters.since(self._letters_in_doubt):
            if origin.partition == self.number and self._is_buried_alive(origin):
                done = Acked(origin.nonce, Offsets.one(origin.offset))
                self.queues[origin.group].apply((done,))
                groups.add(origin.group)
        for group in groups:
            self._renew(group)  # a lane may have them in its read-ahead
        if all_last:
            self._letters_in_doubt = None

    def _renew(self, group: str) -> None:
        """Go on with what is known of a group, as after a restart."""
        now_ns = self._clock.monotonic_ns()
        state = GroupState.restore(self.queues[group].snapshot(now_ns))
        self.queues[group] = GroupQueue(state, self._policy, now_ns)

    def _is_buried_alive(self, origin: Origin) -> bool:
        """Whether the message of a letter is still to be done."""
        queue = self.queues.get(origin.group)
        if queue is None or not self.log.start <= origin.offset < self.log.end:
            return False
        if not queue.may_give_up(origin.nonce, origin.offset):
            return False
        # The topic may be another one by now, or have lost its end and got a new one.
        found = self.source.fetch(Offsets.one(origin.offset))
        return any(
            message.id == origin.id and (origin.nonce or message.expires_at_us is not None)
            for batch in found
            for message in batch.messages()
        )

    def _look_at(self, deadline_ns: int) -> None:
        """Something falls due then that may be earlier than all else."""
        if deadline_ns < self._look_ns:
            self._look_ns = deadline_ns
            self.plan_look(deadline_ns)

    def _new_queue(self, now_ns: int) -> GroupQueue:
        """Of a group that nobody knows: nobody of that name was given anything."""
        return GroupQueue(GroupState(self.log.start), self._policy, now_ns)

    def _recover(self) -> None:
        """Fold the ledger, then the frames that came after its checkpoint."""
        states: dict[str, GroupState] = {}
        log_offset = self.log.start
        kind = b""
        for entry in self.journal.entries():
            kind, rest = entry[:1], entry[1:]
            if kind == _EVENTS:
                name_bytes = rest[0]
                group = rest[1 : 1 + name_bytes].decode()
                events = ledger.decode(rest[1 + name_bytes :])
                state = states.get(group)
                if state is None:
                    state = states[group] = GroupState(0)
                state.apply(events)
            elif kind == _GROUP_DELETED:
                states.pop(rest.decode(), None)
            elif kind == _CHECKPOINT:
                image = _checkpoint_decoder.decode(rest)
                states = {name: GroupState.restore(data) for name, data in image.groups.items()}
                self.producers.restore(image.producers)
                log_offset = max(image.log_offset, self.log.start)
                self.letters_known = image.letters_known
        journal_end = self.journal.log.end
        now_ns = self._clock.monotonic_ns()
        for group, state in states.items():
            queue = self.queues[group] = GroupQueue(state, self._policy, now_ns)
            # After a power cut the ledger may know of messages that the log has lost.
            for decision in (queue.truncate(self.log.end), queue.trim(self.log.start)):
                if decision.events:
                    self._carry_out(group, queue, decision)
        if self.queues:
            # Before new messages get the offsets of those that were lost, and last longer.
            self.journal.log.sync()
        log_offset = self._checkpoint_offset = min(log_offset, self.log.end)
        if log_offset == self.log.end:
            self._checkpoint_log_bytes = self.log.size_bytes
            if kind == _CHECKPOINT and not any(q.state.outstanding for q in self.queues.values()):
                # Nothing happened since, and no lease goes on from here: it need not be written
                # again when this life ends like that.
                self._checkpointed = self.log.end, journal_end, self.letters_known
        for header in self.log.headers(log_offset):
            self._frames += 1
            if header.producer_id == MOVED:
                self.moved_at.append(header.base_offset)
            elif header.producer_id > 0:
                self.producers.record(
                    header.producer_id,
                    header.producer_epoch,
                    header.base_sequence,
                    header.row_count,
                    header.base_offset,
                )


@lru_cache(maxsize=1024)
def _events_of(group: str) -> bytes:
    name = group.encode()
    return _EVENTS + bytes((len(name),)) + name


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
