"""The groups of a partition, and their ledger: what is stored before it is believed.

The ledger is a journal with an entry for each decision of a group, and checkpoints. All that
concerns delivery happens under the partition's lock, in this order: dead letters are stored, the
events are appended to the ledger, then they are believed. A crash between two of these loses
nothing. After an interrupt (Ctrl-C) between two of them, in a program that goes on, the groups are
folded again from the ledger, as a start would.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import lru_cache, partial
from typing import Protocol

import msgspec

from penstock.broker.counters import PartitionCounters
from penstock.broker.group_latencies import TopicLatencies
from penstock.broker.journal import Journal
from penstock.broker.partition_traces import PartitionTraces
from penstock.broker.source import LogSource
from penstock.broker.withheld import LETTERS_GROUP, REDRIVEN, Redriven, done_between
from penstock.clock import Clock
from penstock.delivery import ledger
from penstock.delivery.callers import CALLER_MIN, Callers
from penstock.delivery.ledger import Acked, Leased
from penstock.delivery.offsets import EMPTY, Offsets, decode_hook, encode_hook
from penstock.delivery.picking import DeadLetter
from penstock.delivery.producers import Producers
from penstock.delivery.queue import Decision, GroupQueue, Policy
from penstock.delivery.state import GroupState
from penstock.errors import DiskFull, PenstockError
from penstock.log.base import PartitionLog
from penstock.model.dead_letters import Origin
from penstock.record.batch import Batch
from penstock.record.frame import FrameHeader

MOVED = -1
"""In place of a producer id: the frame holds delayed messages that fell due, with their ids."""

TRANSACTION = -3
"""In place of a producer id: the frame is part of a transaction, whose number is the sequence."""

CHECKPOINT_LEDGER_BYTES = 8 << 20  # or as much as the last checkpoint itself took
CHECKPOINT_LOG_BYTES = 256 << 20
CHECKPOINT_FRAMES = 100_000  # of the log: a restart looks at each
SHORT_LEDGER_BYTES = 32 << 10  # no more, and so few frames, are read as quickly as a checkpoint
SHORT_FRAMES = 100
_INTERRUPTS_MAX = 1000
CHECKPOINT_LOOK_FRAMES = 16  # appended between two looks at whether a checkpoint is due
_EVENTS, _CHECKPOINT, _GROUP_DELETED, _SETTLED = b"\x00", b"\x01", b"\x02", b"\x03"


class DeadLetterStore(Protocol):
    """Where the messages of a topic are stored that were given up."""

    def keeps(self, letter: DeadLetter) -> bool:
        """Whether such messages are stored at all."""

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
    redriven: dict[int, Offsets] = {}  # for one group alone, by the hash of its name
    callers: bytes = b""
    transactions: tuple[int, int, int] = (0, 0, -1)
    """The last that is in the log, the last that is in the ledger, and where the first begins."""


class _SettledEntry(msgspec.Struct, array_like=True):
    """What a transaction did, for all groups of the partition at once."""

    number: int
    groups: list[tuple[str, bytes]]


_settled_encoder = msgspec.msgpack.Encoder()
_settled_decoder = msgspec.msgpack.Decoder(_SettledEntry)
_checkpoint_encoder = msgspec.msgpack.Encoder(enc_hook=encode_hook)
_checkpoint_decoder = msgspec.msgpack.Decoder(_Checkpoint, dec_hook=decode_hook)


class LedgeredPartition:
    """What is known of a partition, how it is written down, and how a start finds it again."""

    def __init__(
        self,
        number: int,
        log: PartitionLog,
        journal: Journal,
        policy: Policy,
        clock: Clock,
        letters: DeadLetterStore,
        latencies: TopicLatencies,
        counters: PartitionCounters,
        traces: PartitionTraces,
        up_since: tuple[int, int],
    ) -> None:
        """`up_since`: when the broker began, by the monotonic clock in nanoseconds and by the wall
        clock in microseconds. Leases go on from there, whenever the partition is opened."""
        self.number = number
        self.log = log
        self.journal = journal
        self.source = LogSource(log)
        self.source.be_fair(policy.fair_by)
        self.queues: dict[str, GroupQueue] = {}
        self.producers = Producers()
        self.redriven = Redriven()
        self.callers = Callers()
        self.transaction_stored = 0
        """The number of the last transaction that is in the log; they come in their order."""
        self.transaction_offset = -1
        """Where its messages begin."""
        self.transaction_settled = 0
        """The number of the last transaction that is in the ledger."""
        self.latencies = latencies
        self.counters = counters
        self.traces = traces
        self.lock = threading.Lock()
        self.plan_look: Callable[[int], None] = lambda deadline_ns: None
        """Set by the broker: the partition wants to be looked at then."""
        self.on_settled: Callable[[], None] | None = None
        """Set by the topic, if it wants to know that messages were done or given back."""
        self._in_doubt = False
        """Whether the queues may be other than the ledger says."""
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
        self._sized_at = -1  # where the log was sealed then
        self._log_grew = False
        self._frames = 0  # since the last checkpoint; one that two threads count as one is no harm
        self._checkpoint_offset = 0  # the state of producers is that of the frames below, or newer
        self.moved_at: list[int] = []
        """Where in the log delayed messages lie that no checkpoint knows of."""
        self._recover(up_since)

    def queue(self, group: str, start: int | None = None) -> GroupQueue:
        """The queue of a group; a new one begins at `start`, by default with the oldest message."""
        if self._in_doubt:
            self._fold_again()
        queue = self.queues.get(group)
        if queue is None:
            queue = self._queue_of(GroupState(0))
            first = queue.seek(self.log.start if start is None else start)
            self._carry_out(group, queue, first)
            self.queues[group] = queue
            self._withhold(group)
        return queue

    def passed_over(self, *, by_streams: bool = False) -> Offsets:
        """Messages that readers of the log pass over; streams also those that were redriven."""
        if LETTERS_GROUP not in self.queues and not (by_streams and self.redriven):
            return EMPTY
        with self.lock:
            gone = self._gone()
            return gone | self.redriven.not_for(None) if by_streams else gone

    def delete_group(self, group: str) -> bool:
        with self.lock:
            if group not in self.queues:
                return False
            try:
                self.journal.append(_GROUP_DELETED + group.encode())
                del self.queues[group]
            except BaseException as exc:
                self._fold_if_interrupted(exc)
                raise
            self.counters.delivered.forget(group)
            return True

    def set_policy(self, policy: Policy) -> None:
        with self.lock:
            self._policy = policy
            self.source.be_fair(policy.fair_by)
            for group in self.queues:
                self._renew(group)

    def finish_dead_letter(self, origin: Origin) -> bool:
        """The message of a dead letter is done, if it is not; whether it was not."""
        with self.lock:
            if not self._is_unsettled_dead_letter(origin):
                return False
            queue, done = self.queues[origin.group], Acked(origin.nonce, Offsets.one(origin.offset))
            try:
                self._carry_out(origin.group, queue, Decision((done,)))
            except DiskFull:  # then the next start finds it again, or a checkpoint says it
                queue.apply((done,))
            return True

    def is_at_rest(self) -> bool:
        """Whether nothing is held, is to be tried again, or may have been given up half way."""
        with self.lock:
            outstanding = any(queue.state.outstanding for queue in self.queues.values())
            return not outstanding and self._letters_in_doubt is None

    def starts_quickly(self) -> bool:
        """Whether a start has little to read although no checkpoint is written now. A checkpoint
        takes some fsyncs, which add up where many topics are closed.

        Leases that go on need one, which says how much time they have left; so do new dead letters,
        or the start would have to look at them.
        """
        if (
            self.journal.bytes_since_checkpoint > SHORT_LEDGER_BYTES
            or self._frames > SHORT_FRAMES
            or not self.is_at_rest()
        ):
            return False
        known = self.letters_known if self._checkpointed is None else self._checkpointed[2]
        return self._letters.ends() == known

    def checkpoint_is_due(self) -> bool:
        sealed_end = self.log.sealed_end
        if sealed_end != self._sized_at:  # asked very often: a size of many files takes a while
            self._sized_at = sealed_end
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
        self.log.ordered()  # most of it now, so that nobody has to wait for it below
        with self.lock:
            if self._in_doubt:
                self._fold_again()
            letters_known = self._letters_in_doubt
            if letters_known is None:
                letters_known = self._letters.ends()
            if self._checkpointed == (self.log.end, self.journal.log.end, letters_known):
                return
            with self._publish_lock:
                log_offset, producers = self.log.end, self.producers.snapshot()
                callers = self.callers.snapshot()
                stored, stored_at = self.transaction_stored, self.transaction_offset
                self.log.ordered()  # the state below speaks of messages that must not be lost
            now_ns = self._clock.monotonic_ns()
            for name, queue in self.queues.items():
                self._note_time(name, queue, now_ns)
            groups = {name: queue.snapshot(now_ns) for name, queue in self.queues.items()}
            redriven = self.redriven.snapshot()
            transactions = stored, self.transaction_settled, stored_at
            image = _Checkpoint(
                groups, producers, log_offset, letters_known, redriven, callers, transactions
            )
            marked = self.journal.mark(_CHECKPOINT + _checkpoint_encoder.encode(image))
            self._checkpoint_log_bytes = self.log.size_bytes
            self._log_grew = False
            self._frames = 0
            self._checkpoint_offset = log_offset
            self._checkpointed = self.log.end, self.journal.log.end, letters_known
        self.journal.drop_before(marked)

    # The lock is held.

    def settle_transaction(self, number: int, groups: Mapping[str, Sequence[ledger.Event]]) -> None:
        """Store the events of all groups of a transaction as one entry, unless they are there."""
        if number <= self.transaction_settled:
            return
        queues = {group: self.queue(group) for group in groups}  # a new one has an entry, too
        encoded = [(group, ledger.encode(events)) for group, events in groups.items()]
        entry = _SettledEntry(number, encoded)
        try:
            self.journal.append(_SETTLED + _settled_encoder.encode(entry))
            for group, events in groups.items():
                self.traces.settled(group, queues[group], events, self.source)
                queues[group].apply(events)
            self.transaction_settled = number
        except BaseException as exc:
            self._fold_if_interrupted(exc)
            raise
        if self.journal.bytes_since_checkpoint > CHECKPOINT_LEDGER_BYTES:
            self.look_if_checkpoint_is_due()

    def _carry_out(
        self, group: str, queue: GroupQueue, decision: Decision, at_us: int | None = None
    ) -> Future[None]:
        """`at_us`: when it was decided, if that was before something that took a while."""
        if decision.dead_letters:
            return self._give_up(group, queue, decision)
        events, journal = decision.events, self.journal
        try:
            durable = journal.append(_events_of(group) + ledger.encode(events))
            if len(events) > 1 or type(events[0]) is not Leased:
                self.traces.settled(group, queue, events, self.source, at_us)
            queue.apply(events)
        except BaseException as exc:
            self._fold_if_interrupted(exc)
            raise
        if journal.bytes_since_checkpoint > CHECKPOINT_LEDGER_BYTES:
            self.look_if_checkpoint_is_due()
        return durable

    def _fold_if_interrupted(self, exc: BaseException) -> None:
        """Unless nothing was stored, because that was refused: believe what is stored."""
        if isinstance(exc, PenstockError):
            return
        self._in_doubt = True
        for _ in range(_INTERRUPTS_MAX):
            try:
                return self._fold_again()
            except KeyboardInterrupt:  # whoever is impatient: the first one is raised in the end
                continue

    def _fold_again(self) -> None:
        """Begin all groups anew from the ledger, and from the letters that it does not know of.
        What fails here is done by the next who needs a queue."""
        now_ns, wall_us = self._clock.monotonic_ns(), self._clock.wall_ns() // 1000
        states, image, settled, _ = self._fold_ledger()
        self.queues = {
            group: GroupQueue(state, self._policy, now_ns, wall_us)
            for group, state in states.items()
        }
        self.transaction_settled = settled
        for group in self.queues:
            self._withhold(group)
        self._believe_letters_since([] if image is None else image.letters_known)
        self.traces.inherit(self.queues)
        self._in_doubt = False

    def _give_up(self, group: str, queue: GroupQueue, decision: Decision) -> Future[None]:
        """Store dead letters, and then what else was decided. A stored letter is final."""
        letters = [letter for letter in decision.dead_letters if self._letters.keeps(letter)]
        rest = Decision(decision.events)
        at_us = self._clock.wall_ns() // 1000
        if not letters:
            return self._carry_out(group, queue, rest)
        in_doubt = self._letters_in_doubt
        if in_doubt is None:
            self._letters_in_doubt = self._letters.ends()
        try:
            if self.journal.log.config.fsync != "never":
                self.journal.log.ordered()  # what led to the letters must not be lost before them
            for letter in letters:
                self._letters.store(self.number, group, letter, self.source.fetch(letter.offsets))
            durable = self._carry_out(group, queue, rest, at_us)
        except BaseException:  # Ctrl-C too
            self._believe_letters()
            raise
        self.counters.dead_lettered += sum(letter.offsets.count for letter in letters)
        self._letters_in_doubt = in_doubt
        return durable

    def _believe_letters(self) -> None:
        """Messages are done whose letters were stored, and are durable, before something failed.

        The ledger does not say so. The letters do, if a start has to find out; until all of them
        are known to last, no checkpoint says that they need not be looked at.
        """
        assert self._letters_in_doubt is not None
        all_last = self._letters.sync()
        for group in self._believe_letters_since(self._letters_in_doubt):
            self._renew(group)  # a lane may have them in its read-ahead
        if all_last:
            self._letters_in_doubt = None

    def _believe_letters_since(self, ends: Sequence[int]) -> set[str]:
        """Messages are done whose letters were stored, and are durable, since they ended there;
        whose they were."""
        groups = set()
        for origin in self._letters.since(ends):
            if origin.partition == self.number and self._is_unsettled_dead_letter(origin):
                done = Acked(origin.nonce, Offsets.one(origin.offset))
                self.queues[origin.group].apply((done,))
                groups.add(origin.group)
        return groups

    def _gone(self) -> Offsets:
        """Letters that were redriven or purged."""
        letters = self.queues.get(LETTERS_GROUP)
        if letters is None:
            return EMPTY
        return done_between(letters.state.acked, self.log.start, self.log.end)

    def _withhold(self, group: str) -> bool:
        """Let a group be done with what is not for it; whether there was such that it did not
        know of."""
        if group == LETTERS_GROUP:
            return False
        state = self.queues[group].state
        withheld = self._gone() | self.redriven.not_for(group)
        withheld -= state.acked.among(withheld)
        if withheld.count:
            state.withhold(withheld)
        return withheld.count > 0

    def _note_time(self, group: str, queue: GroupQueue, now_ns: int) -> None:
        """Tell the ledger the time, if something depends on it and it has not been told lately."""
        time_passed = queue.note_time(now_ns, self._clock.wall_ns() // 1000)
        if time_passed.events:
            self._carry_out(group, queue, time_passed)

    def _renew(self, group: str) -> None:
        """Go on with what is known of a group, as after a restart."""
        now_ns = self._clock.monotonic_ns()
        self._note_time(group, self.queues[group], now_ns)
        state = GroupState.restore(self.queues[group].snapshot(now_ns))
        self.queues[group] = self._queue_of(state)

    def _is_unsettled_dead_letter(self, origin: Origin) -> bool:
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

    def _new_queue(self) -> GroupQueue:
        """Of a group that nobody knows: nobody of that name was given anything."""
        return self._queue_of(GroupState(self.log.start))

    def _queue_of(self, state: GroupState) -> GroupQueue:
        """What goes on from a state, now."""
        now_ns, wall_us = self._clock.monotonic_ns(), self._clock.wall_ns() // 1000
        return GroupQueue(state, self._policy, now_ns, wall_us)

    def _recover(self, up_since: tuple[int, int]) -> None:
        """Fold the ledger, then the frames that came after its checkpoint."""
        states, image, self.transaction_settled, last_kind = self._fold_ledger()
        log_offset = self.log.start
        if image is not None:
            log_offset = max(image.log_offset, log_offset)
            self._restore(image)
        journal_end = self.journal.log.end
        self._begin_queues(states, up_since)
        log_offset = self._checkpoint_offset = min(log_offset, self.log.end)
        if log_offset == self.log.end:
            self._checkpoint_log_bytes = self.log.size_bytes
            leased = any(q.state.outstanding for q in self.queues.values())
            if last_kind == _CHECKPOINT and not leased:
                # Nothing happened since, and no lease goes on from here: it need not be written
                # again when this life ends like that.
                self._checkpointed = self.log.end, journal_end, self.letters_known
        for header in self.log.headers(log_offset):
            self._frames += 1
            self._fold_frame(header)
        self.redriven.keep_between(self.log.start, self.log.end)
        for group in self.queues:
            self._withhold(group)
        self.traces.inherit(self.queues)

    def _fold_ledger(self) -> tuple[dict[str, GroupState], _Checkpoint | None, int, bytes]:
        """How the groups stand, the last checkpoint, the last transaction that is in the ledger,
        and the last entry's kind."""
        states: dict[str, GroupState] = {}
        image: _Checkpoint | None = None
        transaction_settled = 0
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
            elif kind == _SETTLED:
                settled = _settled_decoder.decode(rest)
                for group, data in settled.groups:
                    states.setdefault(group, GroupState(0)).apply(ledger.decode(data))
                transaction_settled = settled.number
            elif kind == _GROUP_DELETED:
                states.pop(rest.decode(), None)
            elif kind == _CHECKPOINT:
                image = _checkpoint_decoder.decode(rest)
                states = {name: GroupState.restore(data) for name, data in image.groups.items()}
                transaction_settled = image.transactions[1]
        return states, image, transaction_settled, kind

    def _restore(self, image: _Checkpoint) -> None:
        """What a checkpoint says besides the groups."""
        self.producers.restore(image.producers)
        if image.callers:
            self.callers.restore(image.callers)
        self.transaction_stored, _, self.transaction_offset = image.transactions
        self.letters_known = image.letters_known
        self.redriven.restore(image.redriven)

    def _begin_queues(self, states: dict[str, GroupState], up_since: tuple[int, int]) -> None:
        """A queue of each group, within what the log still has, without leases that ended."""
        wall_us = self._clock.wall_ns() // 1000
        for group, state in states.items():
            queue = self.queues[group] = GroupQueue(state, self._policy, *up_since)
            # After a power cut the ledger may know of messages that the log has lost.
            for decide in (
                partial(queue.truncate, self.log.end),
                partial(queue.trim, self.log.start),
                partial(queue.end_old_leases, wall_us),
            ):
                decision = decide()
                if decision.events:
                    self._carry_out(group, queue, decision)
        if self.queues:
            # Before new messages get the offsets of those that were lost, and last longer.
            self.journal.log.ordered()

    def _fold_frame(self, header: FrameHeader) -> None:
        """What a frame of the log says beyond its messages."""
        if header.producer_id == MOVED:
            self.moved_at.append(header.base_offset)
        elif header.producer_id == REDRIVEN:
            redriven = Offsets.run(header.base_offset, header.next_offset)
            self.redriven.add(header.base_sequence, redriven)
        elif header.producer_id == TRANSACTION:
            self.transaction_stored = header.base_sequence
            self.transaction_offset = header.base_offset
        elif header.producer_id > 0:
            self.producers.record(
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                header.row_count,
                header.base_offset,
            )
        elif header.producer_id <= -CALLER_MIN:
            self.callers.record(
                -header.producer_id,
                header.base_sequence,
                header.base_offset,
                int.from_bytes(header.ulid, "big"),
            )


@lru_cache(maxsize=1024)
def _events_of(group: str) -> bytes:
    name = group.encode()
    return _EVENTS + bytes((len(name),)) + name
