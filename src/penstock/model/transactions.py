"""Transactions: what is done in one, and what became of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, TypeAlias

import msgspec

from penstock.delivery.offsets import Int64s
from penstock.durations import Duration, Moment
from penstock.errors import InvalidInput, RefusedItem
from penstock.model.deliveries import Settle
from penstock.model.groups import PartitionOffset
from penstock.model.messages import NewMessage, Run
from penstock.model.values import Seconds, Short, Small, Time, Whole
from penstock.record.batch import Batch
from penstock.record.schema import parse_ulid

MESSAGES_MAX = 100_000
BYTES_MAX = 64 << 20
PARTS_MAX = 10_000
"""Partitions that a transaction publishes to, and leases that it settles."""
KEPT_MS = 24 * 3600 * 1000
KEPT_MAX = 1_000_000
"""For so long, and for so many transactions, an id that is sent again gets the first answer."""

SettleVerb: TypeAlias = Literal["ack", "nack", "reject"]
TransactionState: TypeAlias = Literal["committed", "finishing", "refused"]


class StagedMessages(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of a transaction that go to one topic in the same way."""

    topic: str
    batch: Batch
    partition: int | None = None
    ttl: Duration | None = None
    delay: Duration | None = None
    deliver_at: Moment | Int64s | None = None
    dedup_ids: Sequence[str | bytes | None] | None = None
    dedup_window: Duration | None = None


class StagedSettle(Settle, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Messages of a queue group that are settled with a transaction."""

    verb: SettleVerb = "ack"
    topic: str | None = None
    """Of the leases; receipts name theirs."""
    group: str
    delay: Seconds | None = None
    """Of a nack; by default the topic's backoff."""
    error: str = ""
    """What went wrong: of a nack or a reject."""
    retries: Whole | None = None
    """Of a nack: dead letters after so many, if that is fewer than the topic allows."""


class StagedOffsets(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Offsets of a stream group that are committed with a transaction, by a member of it."""

    group: str
    member_id: str
    """Empty: of a group that has no members, from outside."""
    generation: Whole
    offsets: list[PartitionOffset]
    number: Whole | None = None
    """Counts the commits of a member, so that a late one does not undo a newer one."""


class StagedTransaction(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is done together, or not at all."""

    id: str
    namespace: str
    producer: str | None = None
    epoch: int = 0
    messages: Sequence[StagedMessages] = ()
    settle: Sequence[StagedSettle] = ()
    offsets: Sequence[StagedOffsets] = ()


class TransactionMessages(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Messages for a topic of the namespace."""

    topic: str
    messages: list[NewMessage]


class NewTransaction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A transaction as JSON."""

    id: Short
    """A ULID of the caller's. Sent again within 24 hours, it gets the first answer."""
    producer: Short | None = None
    """A name of which only the newest holder may commit; with it goes its `epoch`."""
    epoch: Whole = 0
    publish: list[TransactionMessages] = []
    settle: list[StagedSettle] = []
    offsets: list[StagedOffsets] = []


class MessagesHead(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """What goes with one of the Arrow streams of a transaction."""

    topic: str
    bytes: Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
    """How long the stream is."""
    partition: Small | None = None
    ttl: Seconds | None = None
    delay: Seconds | None = None
    deliver_at: Time | None = None
    """Or "timestamp": the column of that name says when each row falls due."""
    dedup_window: Seconds | None = None


class TransactionHead(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A transaction whose messages are Arrow streams, which follow it one after the other."""

    id: Short
    producer: Short | None = None
    epoch: Whole = 0
    messages: list[MessagesHead] = []
    settle: list[StagedSettle] = []
    offsets: list[StagedOffsets] = []


class StoredMessages(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where messages of a transaction are that were given together."""

    topic: str
    runs: list[Run] = []
    delayed: list[Run] = []
    """Where delayed ones wait."""
    deliver_at_us: int | None = None
    """When the delayed ones fall due, if it is the same moment for all."""

    @property
    def count(self) -> int:
        return sum(run.count for run in (*self.runs, *self.delayed))


class SettledMessages(msgspec.Struct, frozen=True, kw_only=True):
    """How many messages of a topic a transaction settled for a group."""

    topic: str
    group: str
    verb: SettleVerb
    count: int


class TransactionOutcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of a transaction."""

    id: str
    state: TransactionState
    """`finishing`: it is committed, and some of it waits, for room on the disk say."""
    at_us: int
    """When it was committed or refused, in microseconds since 1970."""
    namespace: str = "default"
    number: int = 0
    """Counts the transactions of the broker."""
    producer: str | None = None
    epoch: int = 0
    published: list[StoredMessages] = []
    settled: list[SettledMessages] = []
    offsets: list[str] = []
    """Stream groups whose offsets it committed."""
    reasons: list[RefusedItem] = []
    """Why it was refused."""


class TransactionPage(msgspec.Struct, frozen=True, kw_only=True):
    """Transactions, the newest first."""

    transactions: list[TransactionOutcome]
    next: int | None
    """The `before` of the next page; null: that was all."""


class TransactionTotals(msgspec.Struct, frozen=True, kw_only=True):
    """All transactions since the broker was opened."""

    committed: int
    refused: int
    finishing: int
    """Committed ones of which some waits."""


class ProducerEpoch(msgspec.Struct, frozen=True, kw_only=True):
    """The holder of a producer's name: those with a lower epoch are fenced."""

    producer: str
    epoch: int


def parse_transaction_id(text: str) -> bytes:
    try:
        return parse_ulid(text).to_bytes(16, "big")
    except InvalidInput:
        raise InvalidInput(f"{text!r:.100} is not the id of a transaction: give a ULID") from None
