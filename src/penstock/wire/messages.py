"""Messages over the wire as JSON: publishing, receiving, settling, looking."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from penstock.broker.structs import DelayedMessage, Placed
from penstock.log.base import DONE
from penstock.record.batch import Message
from penstock.record.schema import Priority, parse_priority, parse_ulid, ulid_text
from penstock.wire.values import (
    HeaderValue,
    Seconds,
    Short,
    Time,
    headers_to_bytes,
    headers_to_text,
    to_bytes,
    to_text,
)

PRIORITY_NAMES = [priority.name.lower() for priority in Priority]

EACH_ROW = "timestamp"
"""As `deliver_at`: the column of that name says when each row falls due."""

# Whole numbers that the broker can store; what is larger is refused at the door.
Whole = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Small = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]


class NewMessage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message to publish."""

    value: str | None = None
    """As text; anything else goes into `value_base64`."""
    value_base64: str | None = None
    key: str | None = None
    key_base64: str | None = None
    headers: dict[str, HeaderValue] | None = None
    """Each is text, `{"base64": "..."}`, or null."""
    priority: str | int = "normal"
    """critical, high, normal, low or background; or 0 to 4."""
    ttl: Seconds | None = None
    """It is not delivered after this time."""
    delay: Seconds | None = None
    """It is delivered after this time, at most 90 days."""
    deliver_at: Time | None = None
    """It is delivered at or after this moment; `delay` or this, not both."""
    partition: Small | None = None
    """By default that of the key, or the next in turn."""
    dedup_id: str | None = None
    """A message with an id that was seen within the topic's window is not stored again."""

    def value_bytes(self) -> bytes | None:
        return to_bytes("value", self.value, self.value_base64)

    def key_bytes(self) -> bytes | None:
        return to_bytes("key", self.key, self.key_base64)


class Publish(NewMessage, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One message; or many in `messages`, with nothing beside it."""

    messages: list[NewMessage] | None = None


class PublishedMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a message is: its partition and offset, or, if it is delayed, when it falls due."""

    id: str
    """Empty for a duplicate, whose message was stored before. `cancel` takes that of a delay."""
    partition: int | None = None
    offset: int | None = None
    duplicate: bool = False
    deliver_at_us: int | None = None


class PublishedMessages(msgspec.Struct, frozen=True, kw_only=True):
    """Where the messages are, in the order in which they were given."""

    messages: list[PublishedMessage]


class Run(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Some messages of a batch that lie together in a partition, at consecutive offsets."""

    partition: int
    offset: int
    """Of the first of them."""
    count: int
    id: str = ""
    """Of the first of them; the others count on from it. Empty for duplicates."""
    row: int = 0
    """Their first row in the batch, where the others follow it."""
    rows: list[int] | None = None
    """Their rows in the batch, where they are scattered."""
    duplicate: bool = False


class PublishedRuns(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where the rows of an Arrow table are. Delayed ones have ids, and no place yet."""

    runs: list[Run] = []
    partitions: int = 0
    """How many the topic has."""
    delayed_offset: int | None = None
    """Ids of delayed rows are `<offset>-<id>`, both counting on from the first."""
    delayed_id: str | None = None
    delayed_count: int = 0
    deliver_at_us: int | None = None
    """When the delayed rows fall due, if it is the same moment for all."""


class PublishOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to publish a body of Arrow, or one that is the value itself: in the query."""

    partition: Small | None = None
    ttl: Seconds | None = None
    delay: Seconds | None = None
    deliver_at: Time | None = None
    """With Arrow also "timestamp": the column of that name says when each row falls due."""
    key: str | None = None
    """Of the one message whose value is the body."""
    priority: str = "normal"
    """Of the one message whose value is the body."""
    dedup_id: str | None = None
    """Of the one message whose value is the body."""
    producer_id: Annotated[int, msgspec.Meta(ge=1, le=(1 << 63) - 1)] | None = None
    """An idempotent producer; with it go `partition`, `epoch` and `sequence`."""
    epoch: Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)] = 0
    sequence: Whole = 0
    """The number of the first row among all that the producer sent to the partition."""


class MessageView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message as it lies in the log."""

    offset: int
    id: str
    timestamp_us: int
    value: str | None = None
    value_base64: str | None = None
    key: str | None = None
    key_base64: str | None = None
    headers: dict[str, HeaderValue] | None = None
    priority: str = "normal"
    expires_at_us: int | None = None


class ReceivedView(MessageView, frozen=True, kw_only=True, omit_defaults=True):
    """A message under a lease."""

    partition: int
    delivery_count: int
    receipt: str
    """Settle the message by it."""


class LeasePart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Messages of one lease, as the Arrow answer of a receive names it."""

    partition: Small
    lease: Annotated[int, msgspec.Meta(ge=0, lt=1 << 60)]
    offsets: list[Whole] | None = None
    """Some of its messages; by default all."""


class Settle(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Messages by their receipts, by their leases, or both."""

    receipts: list[str] = []
    leases: list[LeasePart] = []


class Receive(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a consumer wants."""

    max_messages: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 10
    wait: Seconds = 0
    """How long to wait for the first message if there is none, at most 30 s."""
    visibility: Seconds | None = None
    """How long the messages are the consumer's; by default the topic's setting."""
    consumer: Short = ""
    """Who it is, for the story of a dead letter."""
    partition: Small | None = None
    ack: Settle | None = None
    """Messages of the same topic and group that are done. They are acked first; if that is refused,
    nothing is received."""


class ReceivedMessages(msgspec.Struct, frozen=True, kw_only=True):
    messages: list[ReceivedView]


class Nack(Settle, frozen=True, kw_only=True, forbid_unknown_fields=True):
    delay: Seconds | None = None
    """By default the topic's backoff."""
    error: str = ""
    """What went wrong; it is kept for the dead letter."""
    retries: Whole | None = None
    """Dead letters after so many, if that is fewer than the topic allows."""


class Reject(Settle, frozen=True, kw_only=True, forbid_unknown_fields=True):
    reason: str = ""


class Extend(Settle, frozen=True, kw_only=True, forbid_unknown_fields=True):
    visibility: Seconds
    """How long the messages are to be held from now on."""


class Refusal(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message that could not be settled."""

    code: str
    detail: str
    partition: int
    offset: int | None = None
    """None: every message of the lease."""
    lease: int = 0
    receipt: str | None = None


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """Everything is settled but what is named here."""

    refused: list[Refusal]


class DamageView(msgspec.Struct, frozen=True, kw_only=True):
    """Offsets that the log should hold and cannot give, and why."""

    segment: str
    position: int
    first_offset: int
    next_offset: int
    reason: str


class MessagePage(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of a partition, and where to read on."""

    messages: list[MessageView]
    next_offset: int
    start: int
    end: int
    damage: list[DamageView] = []
    """What is missing among the messages because it was found damaged."""


class DelayedView(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    deliver_at_us: int
    message: MessageView


class DelayedPage(msgspec.Struct, frozen=True, kw_only=True):
    delayed: list[DelayedView]
    next: int | None
    """The `after` of the next page; null: that was all."""


def view(message: Message) -> MessageView:
    return MessageView(**_parts(message))


def received_view(
    message: Message, partition: int, delivery_count: int, receipt: str
) -> ReceivedView:
    return ReceivedView(
        partition=partition, delivery_count=delivery_count, receipt=receipt, **_parts(message)
    )


def message_of(seen: MessageView) -> Message:
    return Message(
        seen.offset,
        seen.timestamp_us,
        to_bytes("value", seen.value, seen.value_base64),
        to_bytes("key", seen.key, seen.key_base64),
        headers_to_bytes(seen.headers),
        int(parse_priority(seen.priority)),
        seen.expires_at_us,
        parse_ulid(seen.id),
    )


def delayed_of(seen: DelayedView) -> DelayedMessage:
    return DelayedMessage(seen.id, seen.deliver_at_us, message_of(seen.message))


def run_of(placed: Placed) -> Run:
    rows = placed.rows
    return Run(
        partition=placed.partition,
        offset=placed.first_offset,
        count=len(rows),
        id=ulid_text(placed.ulid) if placed.ulid else "",
        row=rows.start if isinstance(rows, range) else 0,
        rows=None if isinstance(rows, range) else rows,
        duplicate=placed.duplicate,
    )


def placed_of(run: Run) -> Placed:
    rows = range(run.row, run.row + run.count) if run.rows is None else run.rows
    ulid = parse_ulid(run.id) if run.id else 0
    return Placed(run.partition, rows, run.offset, ulid, DONE, run.duplicate)


def _parts(message: Message) -> dict[str, Any]:
    value, value_base64 = to_text(message.value)
    key, key_base64 = to_text(message.key)
    return {
        "offset": message.offset,
        "id": message.id,
        "timestamp_us": message.timestamp_us,
        "value": value,
        "value_base64": value_base64,
        "key": key,
        "key_base64": key_base64,
        "headers": headers_to_text(message.headers),
        "priority": PRIORITY_NAMES[message.priority],
        "expires_at_us": message.expires_at_us,
    }
