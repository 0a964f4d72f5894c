"""What a transaction would do: everything is checked, and nothing is done.

While a plan is entered it holds the locks of all that it looked at, so that what was checked is
still so when it is carried out. They are taken in this order, each kind sorted: deduplication ids
of topics, delays of partitions, deliveries of partitions, stream groups. The broker's own lock is
taken before all of these, so topics are opened first.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from penstock.broker.admission import admit
from penstock.broker.check_text import ERROR_LENGTH_MAX, check_text
from penstock.broker.dead_letter_store import NoDeadLetterTopic, to_letters
from penstock.broker.partition import Partition, events_by_group
from penstock.broker.settle import NamedPart, parts_of
from penstock.broker.topic import Topic
from penstock.broker.transaction_checks import GivenMessages, check_messages, check_size
from penstock.broker.transaction_entries import LedgerPart, MessagesPart
from penstock.broker.transaction_messages import PartedMessages
from penstock.config import DELAY_MS_MAX
from penstock.delivery import ledger
from penstock.delivery.offsets import EMPTY, Offsets
from penstock.delivery.queue import Decision, GroupQueue
from penstock.durations import parse_ns
from penstock.errors import (
    DeliveryError,
    InvalidInput,
    InvalidReceipt,
    PenstockError,
    QuotaExceeded,
    RefusedItem,
    RequestTooLarge,
    TransactionRefused,
)
from penstock.group.assignment import TopicPartition
from penstock.group.events import OffsetsCommitted
from penstock.model.groups import offsets_of
from penstock.model.names import TopicName, group_name, parse_topic, stream_group, topic_name
from penstock.model.transactions import (
    PARTS_MAX,
    SettledMessages,
    StagedMessages,
    StagedSettle,
    StagedTransaction,
)
from penstock.model.values import as_duration

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

_REASONS_MAX = 1000


class TransactionPlan:
    """Raises TransactionRefused when it is entered, or before."""

    def __init__(self, broker: Broker, staged: StagedTransaction) -> None:
        self._broker = broker
        self._namespace = staged.namespace
        self._locks = ExitStack()
        self._refused: list[RefusedItem] = []
        self.now_us = broker.clock.wall_ns() // 1000
        self.topics: dict[TopicName, Topic] = {}
        self.messages = PartedMessages(self.topics, self.now_us)
        """The messages that are published, and letters: which go to which partition."""
        self.decisions: dict[tuple[TopicName, int], list[tuple[str, GroupQueue, Decision]]] = {}
        self.settled: list[SettledMessages] = []
        self.offsets: list[OffsetsCommitted] = []
        check_size(staged)
        self._given = self._checked(staged.messages)
        self._named = self._named_parts(staged.settle)
        self._staged_offsets = staged.offsets
        self._raise_refused()
        for nth, given in enumerate(self._given):
            topic = self.topics[given.name] = broker.topic(given.name)
            if topic.settings.schema_on_error == "dead_letter":  # else it was checked
                try:
                    admit(broker, topic, given.batch, whole=True)
                except PenstockError as exc:
                    self._refuse(f"messages[{nth}]", exc)
            if given.dedup_names is not None:
                broker.note_dedup(given.name, given.window_ms)
        self._raise_refused()

    @property
    def partitions(self) -> set[tuple[TopicName, int]]:
        """All that it touches."""
        return {(name, number) for name, number, _ in self.messages.parts} | self.decisions.keys()

    @property
    def is_alone(self) -> bool:
        """Whether all of it is one append to one partition."""
        ((_, _, delayed), *others) = self.messages.parts or [(None, 0, True)]
        return not (delayed or others or self.decisions or self.offsets)

    @cached_property
    def is_synced(self) -> bool:
        """Whether one of the topics wants what is done to survive a power cut, at once."""
        names = {name for name, _ in self.partitions}
        read = {place.topic for event in self.offsets for place in event.offsets}
        return "always" in {
            *(self.topics[name].settings.fsync for name in names),
            *self._broker.fsync_policies(read),
        }

    def __enter__(self) -> Self:
        try:
            self.messages.part(self._given, self._locks)
            for name, number, delayed in sorted(self.messages.parts):
                if delayed:
                    self._locks.enter_context(self.topics[name].delays.of(number).lock)
            self._decide()
            self._decide_offsets()
            self._raise_refused()
        except BaseException:  # Ctrl-C too; nothing is called after this that it could strike
            self._locks.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._locks.close()

    def sync_what_is_settled(self) -> None:
        """Messages last before it does that they are done: or others could get their offsets."""
        ends = {
            (name, number): max(
                event.offsets.stop  # type: ignore[union-attr]
                for _, _, decision in decisions
                for event in decision.events
            )
            for (name, number), decisions in self.decisions.items()
        }
        for event in self.offsets:
            for at, committed in event.offsets.items():
                ends[parse_topic(at.topic), at.partition] = committed.offset
        for (name, number), end in ends.items():
            topic = self._broker.open_topic_or_none(name)
            if topic is not None and number < len(topic.partitions):
                log = topic.partitions[number].log
                if log.durable_end < min(end, log.end):
                    log.ordered()

    def last_number(self) -> int:
        """The highest number of a transaction in the logs that this one goes to. After a power cut
        the journal may know less than they do."""
        known = [self._broker.streams.transaction if self.offsets else 0]
        for name, number, delayed in self.messages.parts:
            topic = self.topics[name]
            store = topic.delays.of(number) if delayed else topic.partitions[number]
            known.append(store.transaction_stored)
        for name, number in self.decisions:
            known.append(self.topics[name].partitions[number].transaction_settled)
        return max(known)

    def messages_parts(self, staged: Sequence[int]) -> list[MessagesPart]:
        """What goes where; `staged`: where each part is in the journal."""
        return [
            MessagesPart(
                name,
                self._broker.topic_times(name).created_us or 0,
                number,
                delayed,
                offset,
            )
            for (name, number, delayed), offset in zip(self.messages.parts, staged, strict=True)
        ]

    def ledger_parts(self) -> list[LedgerPart]:
        return [
            LedgerPart(
                name,
                self._broker.topic_times(name).created_us or 0,
                number,
                [(g, ledger.encode(e)) for g, e in events_by_group(decisions).items()],
            )
            for (name, number), decisions in self.decisions.items()
        ]

    # Checking, without a lock.

    def _refuse(self, item: str, error: PenstockError) -> None:
        if error.retriable:
            raise error  # nothing is wrong with the transaction
        if len(self._refused) < _REASONS_MAX:
            self._refused.append(RefusedItem(item, error.code, str(error)))

    def _raise_refused(self) -> None:
        if self._refused:
            raise TransactionRefused(self._refused)

    def _checked(self, messages: Sequence[StagedMessages]) -> list[GivenMessages]:
        found = []
        delayed: dict[int, int] = {}
        for nth, staged in enumerate(messages):
            try:
                given = check_messages(self._broker, self._namespace, self.now_us, staged)
            except PenstockError as exc:
                self._refuse(f"messages[{nth}]", exc)
                continue
            found.append(given)
            if given.due_us is not None:
                delayed[nth] = len(given.batch)
        if delayed:  # all of them together: each by itself might be allowed
            try:
                self._broker.tenants.check(self._namespace, "delayed", sum(delayed.values()))
            except QuotaExceeded as exc:
                for nth in delayed:
                    self._refuse(f"messages[{nth}]", exc)
        return found

    def _named_parts(
        self, settle: Sequence[StagedSettle]
    ) -> list[tuple[int, StagedSettle, NamedPart]]:
        """What is settled, of topics that are open from now on."""
        found = []
        for nth, staged in enumerate(settle):
            try:
                group_name(staged.group)
                name = None
                if staged.topic is not None:
                    name = topic_name(staged.topic, self._namespace)
                for part in parts_of(name, staged.receipts, staged.leases):
                    if part.name.namespace != self._namespace:
                        raise InvalidReceipt(next(iter(part.receipts.values()), ""))
                    topic = self._broker.topic(part.name, create=False)
                    topic.partition(part.partition)
                    self.topics[part.name] = topic
                    found.append((nth, staged, part))
            except PenstockError as exc:
                self._refuse(f"settle[{nth}]", exc)
        if len({(part.name, part.partition, part.nonce) for _, _, part in found}) > PARTS_MAX:
            raise RequestTooLarge(f"more than {PARTS_MAX:,} leases in one transaction")
        return found

    # Deciding; from here on locks are held.

    def _decide(self) -> None:
        """What becomes of the messages that are settled, and who may not settle them."""
        partitions = {
            (part.name, part.partition): self.topics[part.name].partition(part.partition)
            for _, _, part in self._named
        }
        for key in sorted(partitions):
            self._locks.enter_context(partitions[key].lock)
        now_ns = self._broker.clock.monotonic_ns()
        claimed: dict[tuple[TopicName, int, str], Offsets] = {}
        counts: dict[tuple[str, str, Any], int] = {}
        for nth, staged, part in self._named:
            partition = partitions[part.name, part.partition]
            decision = self._decision(nth, staged, part, partition, now_ns)
            if decision is None:
                continue
            offsets = EMPTY
            for event in decision.events:
                offsets |= event.offsets  # type: ignore[union-attr]
            named = part.name, part.partition, staged.group
            if (claimed.get(named, EMPTY) & offsets).count:
                self._refuse(f"settle[{nth}]", InvalidInput("a message is settled twice"))
                continue
            claimed[named] = claimed.get(named, EMPTY) | offsets
            queue = partition.queue(staged.group)
            of_partition = self.decisions.setdefault((part.name, part.partition), [])
            of_partition.append((staged.group, queue, decision))
            counted = part.name.topic, staged.group, staged.verb
            counts[counted] = counts.get(counted, 0) + offsets.count
            self._add_letters(part.name, partition, staged.group, decision)
        self.settled = [
            SettledMessages(topic=topic, group=group, verb=verb, count=count)
            for (topic, group, verb), count in counts.items()
        ]

    def _decision(
        self, nth: int, staged: StagedSettle, part: NamedPart, partition: Partition, now_ns: int
    ) -> Decision | None:
        queue = partition.known_queue(staged.group)
        offsets = None if part.offsets is None else Offsets.of(part.offsets)
        try:
            decision = _decide(queue, now_ns, staged, part.nonce, offsets)
        except PenstockError as exc:
            self._refuse(f"settle[{nth}]", exc)
            return None
        for offset, kind in decision.refused.items():
            error: DeliveryError = kind(part.receipts.get(offset, offset))  # type: ignore[arg-type]
            self._refuse(f"settle[{nth}]", error)
        return None if decision.refused else decision

    def _add_letters(
        self, name: TopicName, partition: Partition, group: str, decision: Decision
    ) -> None:
        """Dead letters are messages of the transaction, too."""
        for letter, batches in partition.letters_of(decision):
            dead_name = self._broker.dead_letters_of(name)
            dead = self._broker.open_topic_or_none(dead_name)
            if dead is None or partition.number >= len(dead.partitions):
                raise NoDeadLetterTopic(name)
            self.topics[dead_name] = dead
            for batch in batches:
                for letters in to_letters(name.topic, partition.number, group, letter, batch):
                    key = dead_name, partition.number, False
                    self.messages.add(key, dead.with_ttl(letters, self.now_us))

    def _decide_offsets(self) -> None:
        wanted = []
        for staged in self._staged_offsets:
            group = stream_group(staged.group, self._namespace)
            offsets = offsets_of(staged.offsets)
            wanted.append((group, staged.member_id, staged.generation, offsets, staged.number))
        if not wanted:
            return
        found = self._locks.enter_context(self._broker.streams.committing(wanted))
        places: set[tuple[str, TopicPartition]] = set()
        for nth, event in enumerate(found):
            if isinstance(event, PenstockError):
                self._refuse(f"offsets[{nth}]", event)
                continue
            mine = {(event.group, at) for at in event.offsets}
            if places & mine:
                self._refuse(f"offsets[{nth}]", InvalidInput("an offset is committed twice"))
            places |= mine
            self.offsets.append(event)


def _decide(
    queue: GroupQueue, now_ns: int, staged: StagedSettle, nonce: int, offsets: Offsets | None
) -> Decision:
    check_text("error", staged.error)
    error = staged.error[:ERROR_LENGTH_MAX]
    match staged.verb:
        case "ack":
            return queue.ack(now_ns, nonce, offsets)
        case "nack":
            delay_ns = None
            if staged.delay is not None:
                delay_ns = parse_ns(as_duration(staged.delay), "delay")
                if delay_ns > DELAY_MS_MAX * 1_000_000:
                    raise InvalidInput("a message can be delayed by 90 days at the most")
            return queue.nack(
                now_ns,
                nonce,
                offsets,
                delay_ns=delay_ns,
                error=error,
                retries=staged.retries,
            )
        case "reject":
            return queue.reject(now_ns, nonce, offsets, error=error)
