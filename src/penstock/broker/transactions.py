"""Transactions: messages, settlements and offsets that are all there, or not at all.

1. Everything is checked (`transaction_plan.py`), and stays as it was checked: its locks are held.
2. The whole transaction is one entry in the journal. This is the commit point. Where a topic is
   synced with each publish, the entry is synced before anything of it is done.
   What is one append to one partition is committed by that append, and its entry comes before.
3. It is done, part by part. A part is an append to one log, which carries the number of the
   transaction; numbers ascend, so that each log knows by its last one what it has.
4. A second later, or when much is waiting, the parts are synced as the policies say, the outcomes
   are stored for those who ask again, and what is before can be dropped from the journal.

What a crash leaves between 2 and 3 is done when a topic is opened, before anybody uses it
(`opening`). A part that cannot be stored now, for want of room say, is tried again every second;
until then nothing else is committed in that partition, because numbers have to ascend.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from penstock.broker.dead_letter_store import NoDeadLetterTopic
from penstock.broker.delays import RECHECK_NS
from penstock.broker.journal import Journal, LazyJournal
from penstock.broker.topic import Topic
from penstock.broker.transaction_entries import (
    ALONE,
    NOT_PLACED,
    STAGED,
    JournalState,
    PlacedPart,
    ProducerBegan,
    TransactionCommitted,
    decode_entry,
    encode_entry,
    outcome_of,
)
from penstock.broker.transaction_outcomes import TransactionOutcomes
from penstock.broker.transaction_parts import (
    PendingTransaction,
    append_part,
    entries_of,
    is_same_topic,
    nothing_done,
    order_part,
    partitions_of,
    sync_parts,
    was_appended,
)
from penstock.broker.transaction_plan import TransactionPlan
from penstock.broker.transaction_producers import TransactionProducers, check_producer_name
from penstock.errors import (
    DiskFull,
    InvalidInput,
    PenstockError,
    RateQuotaExceeded,
    RefusedItem,
    StorageQuotaExceeded,
    TopicNotFound,
    TransactionForgotten,
    TransactionNotFound,
    TransactionRefused,
    Unavailable,
)
from penstock.log.base import PartitionLog
from penstock.model.names import TopicName
from penstock.model.transactions import (
    ProducerEpoch,
    StagedTransaction,
    TransactionOutcome,
    TransactionPage,
    TransactionTotals,
    parse_transaction_id,
)
from penstock.record.batch import Batch
from penstock.record.writing import FrameProducer

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

_logger = logging.getLogger("penstock.broker")

CONFIRM_AFTER_NS = 1_000_000_000
UNCONFIRMED_BYTES_MAX = 64 << 20
_CHECKPOINT_BYTES = 4 << 20
_READ_QUICKLY_BYTES = 256 << 10
_UNLOOKED_BYTES = 1 << 20
REFUSED_MAX = 1000
"""So many refused ones are remembered, for those who look; no restart keeps them."""


class Transactions:
    """All transactions of a broker. Any thread may call anything."""

    def __init__(
        self,
        broker: Broker,
        open_journal: Callable[[bool], Journal | None],
        open_outcomes: Callable[[bool], PartitionLog | None],
    ) -> None:
        """What opens a log is told not to make one, and then gives None if there is none."""
        self._broker = broker
        self._lock = threading.RLock()
        self._journal = LazyJournal(open_journal)
        self._outcomes = TransactionOutcomes(open_outcomes)
        self._number = 0
        self._producers = TransactionProducers()
        self._pending: dict[bytes, PendingTransaction] = {}
        """Those that are not confirmed, by id, in the order of their numbers."""
        self._unfinished: dict[int, PendingTransaction] = {}
        """Those of them of which something is missing, by number."""
        self._pending_bytes = 0
        self._before: list[PlacedPart] = []
        self._unlooked_bytes = 0
        """Bytes that can be written before the free space on the disk is checked again."""
        self._mark: tuple[int, int] | None = None
        """A checkpoint that waits for all before it to be confirmed: its offset, and number."""
        self._refused: dict[tuple[str, str], TransactionOutcome] = {}
        """By namespace and id, in the order in which they were refused last."""
        self._committed_count = self._refused_count = 0
        self._recover()

    # What can be asked.

    def commit(
        self, staged: StagedTransaction, charge: Callable[[], None] = lambda: None
    ) -> TransactionOutcome:
        """Do all of it, or raise; what was committed before under this id is not done again.

        `charge` is called once, when nothing else was found wrong, and may refuse the messages.
        Locks of topics are held then, so it asks nothing of them.
        When this returns it is as durable as the topics' policies say."""
        id_ = parse_transaction_id(staged.id)
        self._finish_all()
        seen = self._number
        if (known := self._find(id_, staged.namespace)) is not None:
            return known
        self._check_remembered(id_, staged.id)
        try:
            outcome = self._commit_new(id_, staged, seen, charge)
        except TransactionRefused as exc:
            self._note_refused(staged, exc.reasons)
            raise
        except (RateQuotaExceeded, StorageQuotaExceeded) as exc:  # it may pass when sent again
            self._note_refused(staged, [RefusedItem("messages", exc.code, str(exc))])
            raise
        with self._lock:
            self._refused.pop((staged.namespace, staged.id), None)
        return outcome

    def begin_producer(self, namespace: str, name: str) -> ProducerEpoch:
        """The former holder of this name is fenced from now on."""
        check_producer_name(name)
        with self._lock:
            epoch = self._producers.epoch + 1
            journal = self._journal.made()
            held = f"{namespace}/{name}"
            journal.append(encode_entry(ProducerBegan(held, epoch)))
            journal.log.ordered()
            self._producers.began(held, epoch)
            return ProducerEpoch(producer=name, epoch=epoch)

    def describe(self, id_: str, namespace: str) -> TransactionOutcome:
        """Raises TransactionNotFound."""
        self._finish_all()
        with suppress(InvalidInput):  # it is no id, or that of another namespace
            known = self._find(parse_transaction_id(id_), namespace)
            if known is not None:
                return known
        with self._lock:
            refused = self._refused.get((namespace, id_))
        if refused is not None:
            return refused
        raise TransactionNotFound(id_)

    def page(self, namespace: str, before: int | None, limit: int) -> TransactionPage:
        """The newest first; refused ones among them, as long as they are remembered."""
        self._finish_all()
        found: list[TransactionOutcome] = []
        with self._lock:
            refused = [
                each for each in reversed(self._refused.values()) if each.namespace == namespace
            ]
            for outcome in self._newest(before):
                while refused and before is None and refused[0].at_us >= outcome.at_us:
                    found.append(refused.pop(0))
                if outcome.namespace == namespace:
                    found.append(outcome)
                if len(found) >= limit:
                    break
            else:
                if before is None:
                    found += refused
        found = found[:limit]
        numbers = [each.number for each in found if each.number]
        is_more = len(found) == limit and bool(numbers)
        return TransactionPage(transactions=found, next=numbers[-1] if is_more else None)

    def totals(self) -> TransactionTotals:
        with self._lock:
            return TransactionTotals(
                committed=self._committed_count,
                refused=self._refused_count,
                finishing=len(self._unfinished),
            )

    # What the broker calls.

    def opening(self, topic: Topic) -> None:
        """A topic is opened, and nobody uses it yet: do in it what a crash has left."""
        if not self._unfinished:
            return
        for each in list(self._unfinished.values()):
            if topic.name in each.left:
                try:
                    self._redo_in(each, topic)
                except DiskFull as exc:  # what is there can be read; the rest is tried again
                    _logger.warning("transaction %d waits: %s", each.entry.number, exc)

    def close(self) -> None:
        """The topics are still open: what was done is made to last, so that the next start need
        not look for it."""
        with self._lock:
            try:
                journal = self._journal.opened
                if (
                    self._confirm()
                    and journal is not None
                    and journal.bytes_since_checkpoint > _READ_QUICKLY_BYTES
                ):
                    self._outcomes.ordered()
                    journal.checkpoint(encode_entry(self._state()))
            except PenstockError as exc:
                _logger.warning("transactions are not confirmed: %s", exc)
            finally:
                self._outcomes.close()
                self._journal.close()

    # The chores.

    def _look(self, now_ns: int) -> int | None:
        self._finish_all()
        if self._confirm():
            self._outcomes_retain()
        return now_ns + RECHECK_NS if self._pending else None

    def _finish_all(self) -> None:
        """Do what is missing of those that are committed. No lock is held: topics are opened."""
        for each in list(self._unfinished.values()):
            if each.offsets_left:
                self._commit_offsets(each)
                self._look_if_done(each)
            for name in sorted(each.left):
                try:
                    topic = self._broker.topic(name, create=False)  # which does it, or has done it
                    if name in each.left:
                        self._redo_in(each, topic)
                except TopicNotFound:
                    if each.entry.is_alone:
                        self._resolve(each, None)
                    else:
                        self._done_in(each, name)
                except PenstockError as exc:
                    _logger.warning("transaction %d waits: %s", each.entry.number, exc)

    def _confirm(self) -> bool:
        """Have all that was done last, and note that; False: try again later."""
        with self._lock:
            upto, pending = self._number, list(self._pending.values())
            if self._unfinished:
                first = min(self._unfinished)
                pending = [each for each in pending if each.entry.number < first]
                upto = first - 1
        try:
            for each in pending:
                sync_parts(self._broker, each.entry)
            with self._lock:
                self._store_outcomes(upto)
                self._drop_confirmed(upto)
        except PenstockError as exc:
            _logger.warning("transactions are not confirmed: %s", exc)
            return False
        return not self._pending

    # Committing.

    def _commit_new(
        self, id_: bytes, staged: StagedTransaction, seen: int, charge: Callable[[], None]
    ) -> TransactionOutcome:
        """`seen`: the number of the last transaction when nothing of this id was found."""
        while True:
            plan = TransactionPlan(self._broker, staged)
            try:
                with self._lock:
                    if self._number != seen:  # another attempt may have been quicker
                        known = self._find(id_, staged.namespace)
                        if known is not None:
                            return known
                    self._producers.check(staged)
                    with plan:
                        done = self._carry_out(id_, staged, plan, charge)
                    break
            except NoDeadLetterTopic as exc:
                self._broker.make_dead_letter_topic(exc.args[0])
        self._tell(plan)
        self._broker.plan(self._look, self._broker.clock.monotonic_ns() + CONFIRM_AFTER_NS)
        if self._pending_bytes > UNCONFIRMED_BYTES_MAX:
            self._confirm()
        return self._answer(done)

    def _carry_out(
        self,
        id_: bytes,
        staged: StagedTransaction,
        plan: TransactionPlan,
        charge: Callable[[], None],
    ) -> PendingTransaction:
        """Commit a transaction that was checked, and do it."""
        batches = plan.messages.batches()
        payload_bytes = sum([batch.payload_bytes for _, batch in batches])
        self._check_room(payload_bytes)
        if self._unfinished:
            busy = {
                place for each in self._unfinished.values() for place in partitions_of(each.entry)
            }
            offsets_wait = plan.offsets and any(e.offsets_left for e in self._unfinished.values())
            if busy & plan.partitions or offsets_wait:
                raise Unavailable(
                    "an earlier transaction waits to be finished in one of the partitions"
                )
        charge()  # the last that can refuse it
        if plan.is_synced:
            plan.sync_what_is_settled()
        journal = self._journal.made()
        number = max(self._number, plan.last_number()) + 1
        frames = [ALONE]
        if not plan.is_alone:
            frames = [
                journal.log.append(batch, FrameProducer(STAGED, number)).first_offset
                for _, batch in batches
            ]
        entry = TransactionCommitted(
            number,
            id_,
            plan.now_us,
            staged.namespace,
            staged.producer,
            staged.epoch,
            plan.messages_parts(frames),
            plan.ledger_parts(),
            plan.offsets,
            plan.messages.planned,
            plan.settled,
            self._before,
        )
        end = journal.log.end
        done = nothing_done(entry)
        if entry.is_alone:
            self._commit_alone(done, plan, batches[0][1])
            return done
        try:
            journal.append(encode_entry(entry))
            if plan.is_synced:
                journal.log.sync()
        except BaseException:
            if journal.log.end > end:  # Ctrl-C, or the disk failed: it may be there after a start
                self._committed(done, payload_bytes)
            raise
        journal.bytes_since_checkpoint += payload_bytes
        self._committed(done, payload_bytes)
        self._apply(done, plan, batches)
        return done

    def _commit_alone(self, done: PendingTransaction, plan: TransactionPlan, batch: Batch) -> None:
        """The append to the partition is the commit; the entry comes before it, for `describe`."""
        part, number, journal = done.entry.messages[0], done.entry.number, self._journal.made()
        topic = plan.topics[part.topic]
        partition = topic.partitions[part.partition]
        try:
            journal.append(encode_entry(done.entry))
            if plan.is_synced:
                journal.log.sync()
            append_part(done, 0, topic, batch)
            if plan.is_synced:
                partition.log.sync()
        finally:
            if was_appended(done, topic):
                self._committed(done, 0)
                plan.messages.remember_dedup(done.placed)
                self._done_in(done, part.topic)
            else:
                self._number, self._before = number, [NOT_PLACED]

    def _committed(self, done: PendingTransaction, entry_bytes: int) -> None:
        self._number = done.entry.number
        self._pending[done.entry.id] = self._unfinished[done.entry.number] = done
        self._pending_bytes += entry_bytes
        self._committed_count += 1
        self._before = done.placed

    def _apply(
        self,
        done: PendingTransaction,
        plan: TransactionPlan,
        batches: Sequence[tuple[object, Batch]],
    ) -> None:
        """Do what is committed. What fails is done later."""
        number, failed = done.entry.number, set()
        for nth, (part, (_, batch)) in enumerate(zip(done.entry.messages, batches, strict=True)):
            try:
                append_part(done, nth, plan.topics[part.topic], batch)
            except (PenstockError, OSError) as exc:
                failed.add(part.topic)
                _logger.warning("transaction %d waits: %s", number, exc)
        for (name, partition), decisions in plan.decisions.items():
            try:
                plan.topics[name].partitions[partition].settle_of_transaction(number, decisions)
            except (PenstockError, OSError) as exc:
                failed.add(name)
                _logger.warning("transaction %d waits: %s", number, exc)
        self._commit_offsets(done)
        if not failed:
            plan.messages.remember_dedup(done.placed)
        for name in done.left - failed:
            self._done_in(done, name)
        self._look_if_done(done)

    def _commit_offsets(self, done: PendingTransaction) -> None:
        done.offsets_left = True
        try:
            self._broker.streams.commit_transaction(done.entry.number, done.entry.offsets)
            done.offsets_left = False
        except (PenstockError, OSError) as exc:
            _logger.warning("transaction %d waits: %s", done.entry.number, exc)

    def _tell(self, plan: TransactionPlan) -> None:
        """Notify those who wait for messages, or for room."""
        for name, _, delayed in plan.messages.parts:
            if delayed:
                self._broker.plan_delays(name)
            else:
                plan.topics[name].news()
        for name, number in plan.decisions:
            on_settled = plan.topics[name].partitions[number].on_settled
            if on_settled is not None:
                on_settled()

    def _check_room(self, payload_bytes: int) -> None:
        """Before the commit: what is written afterwards should not fail for want of room."""
        self._unlooked_bytes -= payload_bytes
        if not payload_bytes or self._unlooked_bytes >= 0:
            return  # acks make room; and there was so much more lately
        if not self._broker.has_room_for(3 * payload_bytes + _UNLOOKED_BYTES):
            raise DiskFull(
                f"{self._broker.folder}: too little room on the disk for a transaction of "
                f"{payload_bytes:,} bytes. It can be sent again when there is more."
            )
        self._unlooked_bytes = _UNLOOKED_BYTES // 3

    # Finishing.

    def _redo_in(self, each: PendingTransaction, topic: Topic) -> None:
        """Do in one topic what is missing there."""
        number, name = each.entry.number, topic.name
        if each.entry.is_alone:
            self._resolve(each, topic)
            return
        for nth, part in enumerate(each.entry.messages):
            if part.topic == name and is_same_topic(self._broker, part):
                (batch,) = self._journal.made().log.read(part.staged, 1)
                append_part(each, nth, topic, batch)
                order_part(topic, part)
        for ledger in each.entry.ledgers:
            if ledger.topic == name and is_same_topic(self._broker, ledger):
                topic.partitions[ledger.partition].redo_settle(number, ledger.groups)
        self._done_in(each, name)
        if any(part.topic == name and not part.delayed for part in each.entry.messages):
            topic.news()

    def _resolve(self, each: PendingTransaction, topic: Topic | None) -> None:
        """Find out whether a transaction was committed whose append was the commit. `topic`: the
        one that it goes to, None if that is gone."""
        part = each.entry.messages[0]
        is_there = each.placed[0] != NOT_PLACED
        if topic is not None and is_same_topic(self._broker, part):
            is_there = was_appended(each, topic)
            order_part(topic, part)
        if not is_there and self._pending.get(each.entry.id) is each:
            del self._pending[each.entry.id]
        self._done_in(each, part.topic)

    def _done_in(self, each: PendingTransaction, name: TopicName) -> None:
        each.left.discard(name)
        self._look_if_done(each)

    def _look_if_done(self, each: PendingTransaction) -> None:
        if each.is_done:
            self._unfinished.pop(each.entry.number, None)

    # The lock is held.

    def _store_outcomes(self, upto: int) -> None:
        """The answers are kept elsewhere from now on."""
        done = [each for each in self._pending.values() if each.entry.number <= upto]
        self._outcomes.append([(each.entry.id, self._answer(each)) for each in done])
        for each in done:
            del self._pending[each.entry.id]
        if not self._pending:
            self._pending_bytes = 0

    def _drop_confirmed(self, upto: int) -> None:
        """Keep the journal short: begin a new part of it, and drop the one before once nothing in
        it is waited for."""
        journal = self._journal.opened
        if journal is None:
            return
        if self._mark is not None and self._mark[1] <= upto:
            self._outcomes.ordered()
            journal.drop_before(self._mark[0])
            self._mark = None
        if self._mark is None and journal.bytes_since_checkpoint > _CHECKPOINT_BYTES:
            self._mark = journal.mark(encode_entry(self._state())), self._number
            if self._number <= upto:
                self._drop_confirmed(upto)

    def _outcomes_retain(self) -> None:
        with self._lock:
            self._outcomes.retain(self._broker.clock.wall_ns() // 1000)

    def _state(self) -> JournalState:
        producers = self._producers
        return JournalState(self._number, producers.epoch, producers.epochs, self._before)

    def _find(self, id_: bytes, namespace: str) -> TransactionOutcome | None:
        with self._lock:
            pending = self._pending.get(id_)
            found = self._answer(pending) if pending is not None else self._outcomes.find(id_)
        if found is not None and found.namespace != namespace:
            raise InvalidInput("this id is that of another transaction: make a new ULID for each")
        return found

    def _check_remembered(self, id_: bytes, text: str) -> None:
        """An id that nobody knows is a new one, unless it is from before all that are remembered:
        to do it might be to do it again."""
        made_ms = int.from_bytes(id_[:6], "big")
        with self._lock:
            if (made_ms + 1) * 1000 <= self._outcomes.forgotten_before_us:
                raise TransactionForgotten(text)

    def _answer(self, done: PendingTransaction) -> TransactionOutcome:
        if done.outcome is not None:
            return done.outcome
        if done.is_in_doubt:
            raise Unavailable("whether it was committed is known once its topic can be opened")
        outcome = outcome_of(done.entry, done.placed)
        if not done.is_done:
            return msgspec.structs.replace(outcome, state="finishing")
        done.outcome = outcome
        return outcome

    def _newest(self, before: int | None) -> Iterator[TransactionOutcome]:
        for each in reversed(self._pending.values()):
            if not each.is_in_doubt and (before is None or each.entry.number < before):
                yield self._answer(each)
        yield from self._outcomes.before(before)

    def _note_refused(self, staged: StagedTransaction, reasons: Sequence[RefusedItem]) -> None:
        """One that is sent again is the same, and counts once."""
        name = staged.namespace, staged.id
        with self._lock:
            if self._refused.pop(name, None) is None:
                self._refused_count += 1
            self._refused[name] = TransactionOutcome(
                id=staged.id,
                state="refused",
                at_us=self._broker.clock.wall_ns() // 1000,
                namespace=staged.namespace,
                producer=staged.producer,
                epoch=staged.epoch,
                reasons=list(reasons[:10]),
            )
            if len(self._refused) > REFUSED_MAX:
                del self._refused[next(iter(self._refused))]

    def _recover(self) -> None:
        """Fold the journal. What may not be done is done when its topics are opened."""
        journal = self._journal.opened
        if journal is None:
            return
        known = self._number = self._outcomes.last_number
        last: PendingTransaction | None = None
        for data in entries_of(journal):
            entry = decode_entry(data)
            match entry:
                case TransactionCommitted():
                    if last is not None:
                        last.placed[:] = entry.before
                    self._number, self._before = max(self._number, entry.number), []
                    last = None
                    if entry.number > known:
                        last = nothing_done(entry)
                        self._pending[entry.id] = last
                        self._unfinished[entry.number] = last
                        self._before = last.placed
                case ProducerBegan(producer=name, epoch=epoch):
                    self._producers.began(name, epoch)
                case JournalState():
                    if last is not None and entry.before:
                        last.placed[:] = entry.before
                    self._number = max(self._number, entry.number)
                    self._producers.restore(entry.epoch, entry.producers)
        for each in list(self._unfinished.values()):
            self._commit_offsets(each)
            self._look_if_done(each)
        if self._pending:
            journal.log.ordered()  # what is done from now on must not last longer
            self._broker.plan(self._look, self._broker.clock.monotonic_ns())
