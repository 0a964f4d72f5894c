"""The journal of transactions, `transactions/journal/` in the data folder, entry by entry.

The messages of a transaction come first, each part as a frame of its own (producer id `STAGED`).
They count for nothing until its entry is there, which is one append: all of the transaction is
there, or nothing. It says what is to be done in which partition, so that a start can do what a
crash has left, and what is to be answered to whoever sends the transaction again. New fields go to
the end and need a default; none is renamed or removed.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.group.events import OffsetsCommitted
from penstock.model.messages import Run
from penstock.model.names import TopicName
from penstock.model.transactions import SettledMessages, StoredMessages, TransactionOutcome
from penstock.record.schema import ulid_text

STAGED = -4
"""In place of a producer id."""

ALONE = -1
"""In place of where messages are staged: all of the transaction is one append to one partition, and
that is the commit. The entry comes before it, and says only what may be there."""

PlacedPart = tuple[int, bytes]
"""The first offset of a part, or -1 if nobody knows, and the id of its first message."""
NOT_PLACED: PlacedPart = (-1, bytes(16))


class MessagesPart(msgspec.Struct, frozen=True, array_like=True):
    """Messages for a partition, or, delayed, for its delay log."""

    topic: TopicName
    created_us: int
    """When the topic was made: another one of its name is not meant."""
    partition: int
    delayed: bool
    staged: int
    """The offset of their frame in this journal; ALONE: there is none."""


class LedgerPart(msgspec.Struct, frozen=True, array_like=True):
    """What queue groups did on a partition: the events of each, as in the ledger."""

    topic: TopicName
    created_us: int
    partition: int
    groups: list[tuple[str, bytes]]


class PlannedRun(msgspec.Struct, frozen=True, array_like=True):
    """Some messages of a call, and where they are in a part."""

    part: int
    start: int
    count: int
    row: int
    rows: list[int] | None = None
    duplicate: bool = False
    """Their deduplication ids are those of messages that come before them in the transaction."""


class PlannedMessages(msgspec.Struct, frozen=True, array_like=True):
    """What is answered about messages that were given together."""

    topic: str
    delayed: bool
    runs: list[PlannedRun]
    known: list[Run] = []
    """Duplicates of messages that were stored before."""
    deliver_at_us: int | None = None


class TransactionCommitted(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """A transaction. From this entry on it will be done."""

    number: int
    id: bytes
    at_us: int
    namespace: str
    producer: str | None
    epoch: int
    messages: list[MessagesPart]
    ledgers: list[LedgerPart]
    offsets: list[OffsetsCommitted]
    planned: list[PlannedMessages]
    settled: list[SettledMessages]
    before: list[PlacedPart]
    """Where the messages of the transaction before are."""

    @property
    def is_alone(self) -> bool:
        return bool(self.messages) and self.messages[0].staged == ALONE


class ProducerBegan(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A producer's name has a new holder. Synced before anybody hears of it."""

    producer: str
    epoch: int


class JournalState(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The checkpoint: every transaction before it is done, once nothing before it is kept."""

    number: int
    epoch: int
    producers: dict[str, int]
    before: list[PlacedPart] = []


JournalEntry = TransactionCommitted | ProducerBegan | JournalState
encode_entry = msgspec.msgpack.Encoder().encode
decode_entry = msgspec.msgpack.Decoder(JournalEntry).decode


def outcome_of(entry: TransactionCommitted, placed: Sequence[PlacedPart]) -> TransactionOutcome:
    """What is answered, once it is known where the messages are."""
    return TransactionOutcome(
        id=ulid_text(int.from_bytes(entry.id, "big")),
        state="committed",
        at_us=entry.at_us,
        namespace=entry.namespace,
        number=entry.number,
        producer=entry.producer,
        epoch=entry.epoch,
        published=[_stored(entry, each, placed) for each in entry.planned],
        settled=entry.settled,
        offsets=[event.group for event in entry.offsets],
    )


def _stored(
    entry: TransactionCommitted, planned: PlannedMessages, placed: Sequence[PlacedPart]
) -> StoredMessages:
    runs = [_run(entry, run, placed) for run in planned.runs]
    runs += planned.known
    return StoredMessages(
        topic=planned.topic,
        runs=[] if planned.delayed else runs,
        delayed=runs if planned.delayed else [],
        deliver_at_us=planned.deliver_at_us,
    )


def _run(entry: TransactionCommitted, run: PlannedRun, placed: Sequence[PlacedPart]) -> Run:
    offset, ulid = placed[run.part] if run.part < len(placed) else NOT_PLACED
    number = int.from_bytes(ulid, "big")
    return Run(
        partition=entry.messages[run.part].partition,
        offset=offset + run.start if offset >= 0 else -1,
        count=run.count,
        id=ulid_text(number + run.start) if number else "",
        row=run.row,
        rows=run.rows,
        duplicate=run.duplicate,
    )
