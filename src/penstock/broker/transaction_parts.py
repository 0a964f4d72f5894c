"""A committed transaction, part by part: what of it is stored, where, and what makes it last.

A part is an append to one log, which knows the number of the last transaction that it has. So it
can be asked whether a part is there, and a part that is there is not stored again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from penstock.broker.journal import Journal
from penstock.broker.ledgered_partition import TRANSACTION
from penstock.broker.topic import Topic
from penstock.broker.transaction_entries import (
    NOT_PLACED,
    STAGED,
    LedgerPart,
    MessagesPart,
    PlacedPart,
    TransactionCommitted,
)
from penstock.delivery.offsets import Offsets
from penstock.errors import PenstockError
from penstock.log.base import PartitionLog
from penstock.model.names import TopicName
from penstock.model.transactions import TransactionOutcome
from penstock.record.batch import Batch

if TYPE_CHECKING:
    from penstock.broker.broker import Broker


class PendingTransaction(msgspec.Struct):
    """A committed transaction of which some may not be done, or may not last."""

    entry: TransactionCommitted
    placed: list[PlacedPart]
    left: set[TopicName]
    """Topics in which something may be missing."""
    offsets_left: bool = False
    """Whether its offsets may be missing in the journal of stream groups."""
    outcome: TransactionOutcome | None = None
    """Once all of it is done."""

    @property
    def is_in_doubt(self) -> bool:
        """Whether nobody knows yet if it was committed."""
        return self.entry.is_alone and bool(self.left)

    @property
    def is_done(self) -> bool:
        return not self.left and not self.offsets_left


def nothing_done(entry: TransactionCommitted) -> PendingTransaction:
    left = {name for name, _ in partitions_of(entry)}
    return PendingTransaction(entry, [NOT_PLACED] * len(entry.messages), left)


def partitions_of(entry: TransactionCommitted) -> set[tuple[TopicName, int]]:
    """The partitions in which it does something."""
    parts: list[MessagesPart | LedgerPart] = [*entry.messages, *entry.ledgers]
    return {(part.topic, part.partition) for part in parts}


def is_same_topic(broker: Broker, part: MessagesPart | LedgerPart) -> bool:
    """Whether the topic of a part is still the one that was meant, and not another of its name."""
    return (broker.topic_times(part.topic).created_us or 0) == part.created_us


def append_part(done: PendingTransaction, nth: int, topic: Topic, batch: Batch) -> None:
    """Store a part, unless it is there."""
    part, number = done.entry.messages[nth], done.entry.number
    if part.delayed:
        appended = topic.delays.of(part.partition).add_of_transaction(batch, number)
    else:
        appended = topic.partitions[part.partition].append_of_transaction(batch, number)
    if appended is not None:
        done.placed[nth] = appended.first_offset, appended.ulid.to_bytes(16, "big")
    elif done.placed[nth] == NOT_PLACED:
        done.placed[nth] = _found(topic, part, number)


def was_appended(done: PendingTransaction, topic: Topic) -> bool:
    """Whether the single part of a transaction is there, whose append was to be its commit."""
    part, number = done.entry.messages[0], done.entry.number
    is_placed = done.placed[0] != NOT_PLACED
    partition = topic.partitions[part.partition]
    stored = partition.transaction_stored
    if stored == number:
        if not is_placed:
            done.placed[0] = _found(topic, part, number)
        return True
    if stored < number:
        return False
    # A later one came: the entry after this one said where this is, unless a power cut took it.
    return is_placed or any(
        header.producer_id == TRANSACTION and header.base_sequence == number
        for header in partition.log.headers(partition.log.start)
    )


def order_part(topic: Topic, part: MessagesPart) -> None:
    """What was done again lasts before anybody builds on it."""
    with suppress(PenstockError):
        _log(topic, part).ordered()


def sync_parts(broker: Broker, entry: TransactionCommitted) -> None:
    """What was done lasts, with every policy but `never`."""
    for log in _logs(broker, entry):
        if log.config.fsync != "never" and log.durable_end < log.end:
            log.ordered()


def entries_of(journal: Journal) -> Iterator[bytes]:
    """All entries, without the messages that lie between them."""
    log = journal.log
    staged = [
        Offsets.run(header.base_offset, header.next_offset)
        for header in log.headers(log.start)
        if header.producer_id == STAGED
    ]
    places = iter([*staged, Offsets.one(1 << 62)])
    skipped = next(places)
    offset = log.start
    while offset < log.end:
        read = log.read(offset)
        for batch in read:
            for at, value in zip(batch.offset_numbers().tolist(), batch.values, strict=True):
                while at >= skipped.stop:
                    skipped = next(places)
                if at < skipped.first:
                    yield value.as_py()
        offset = read.next_offset


def _found(topic: Topic, part: MessagesPart, number: int) -> PlacedPart:
    """Where messages are that were stored before a crash: known if no later transaction came."""
    partition = topic.partitions[part.partition]
    store = topic.delays.of(part.partition) if part.delayed else partition
    offset = store.transaction_offset
    if store.transaction_stored != number or not store.log.start <= offset < store.log.end:
        return NOT_PLACED
    found = store.fetch(Offsets.one(offset))
    return (offset, found[0].ids[0].as_py()) if found else NOT_PLACED


def _log(topic: Topic, part: MessagesPart) -> PartitionLog:
    if part.delayed:
        return topic.delays.of(part.partition).log
    return topic.partitions[part.partition].log


def _logs(broker: Broker, entry: TransactionCommitted) -> Iterator[PartitionLog]:
    for part in entry.messages:
        topic = broker.open_topic_or_none(part.topic)
        if topic is not None:
            yield _log(topic, part)
    for ledger in entry.ledgers:
        topic = broker.open_topic_or_none(ledger.topic)
        if topic is not None:
            yield topic.partitions[ledger.partition].journal.log
    if entry.offsets:
        yield broker.streams.log
