"""Messages: what is published, where it went, and what is looked at."""

from __future__ import annotations

from typing import Annotated

import msgspec

from penstock.errors import InvalidInput
from penstock.log.base import DONE, Damage
from penstock.model.published import Placed, published
from penstock.model.values import (
    HeaderValue,
    Seconds,
    Small,
    Time,
    Whole,
    headers_to_bytes,
    to_bytes,
)
from penstock.record.batch import Batch, Message
from penstock.record.json_values import with_content_type
from penstock.record.schema import parse_ulid, ulid_text

EACH_ROW = "timestamp"
"""As `deliver_at`: the column of that name says when each row falls due."""


_ABSENT = msgspec.Raw()
_texts = msgspec.json.Decoder(str | None)


class NewMessage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message to publish."""

    # As it stands in the body: objects of it could fill the memory.
    value: msgspec.Raw = msgspec.field(default_factory=lambda: _ABSENT)
    """Text is the value itself; any other JSON is stored as JSON, with the header `content-type`.
    What is neither goes into `value_base64`."""
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
    dedup_window: Seconds | None = None
    """How long this `dedup_id` is remembered, if not for the topic's window."""

    def value_bytes(self) -> bytes | None:
        raw = bytes(self.value)
        try:
            if not self._is_json:
                return to_bytes("value", _texts.decode(raw) if raw else None, self.value_base64)
            raw.decode()
        except (UnicodeDecodeError, msgspec.DecodeError) as exc:
            raise InvalidInput(f"value: {exc}") from None
        if self.value_base64 is not None:
            raise InvalidInput("give value or value_base64, not both")
        return raw

    @property
    def _is_json(self) -> bool:
        """Whether the value is neither text nor absent."""
        return bytes(memoryview(self.value)[:1]) not in (b"", b'"', b"n")

    def header_bytes(self) -> dict[str, bytes | None]:
        headers = headers_to_bytes(self.headers)
        if not self._is_json:
            return headers
        named: dict[str, bytes | None] = with_content_type(headers)
        return named

    def key_bytes(self) -> bytes | None:
        return to_bytes("key", self.key, self.key_base64)


class Publish(NewMessage, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One message; or many in `messages`, with nothing beside it."""

    messages: list[NewMessage] | None = None


class PublishedMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a message is: its partition and offset, or, if it is delayed, when it falls due."""

    id: str
    """Of a duplicate that of the message that was stored before; empty if that is gone."""
    partition: int | None = None
    offset: int | None = None
    duplicate: bool = False
    deliver_at_us: int | None = None
    dead_letter: bool = False
    """It does not fit the schema of its topic, and is a dead letter with this id."""


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
    """Of the first of them; the others count on from it. Of a duplicate that of the message that
    was stored before; empty if that is gone."""
    row: int = 0
    """Their first row in the batch, where the others follow it."""
    rows: list[int] | None = None
    """Their rows in the batch, where they are scattered."""
    duplicate: bool = False
    dead_letter: bool = False
    """They do not fit the schema of their topic, and are dead letters with these ids."""


class PublishedRuns(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where the rows of an Arrow table are. Delayed ones have ids, and no place yet."""

    runs: list[Run] = []
    partitions: int = 0
    """How many the topic has."""
    delayed: list[Run] = []
    """Where delayed rows wait."""
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
    dedup_window: Seconds | None = None
    """How long each `dedup_id` is remembered, if not for the topic's window."""
    producer_id: Annotated[int, msgspec.Meta(ge=1, le=(1 << 63) - 1)] | None = None
    """An idempotent producer; with it go `partition`, `epoch` and `sequence`."""
    epoch: Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)] = 0
    sequence: Whole = 0
    """The number of the first row among all that the producer sent to the partition."""


class PeekedMessage(Message, frozen=True, gc=False):
    """A message, and in which partition it lies."""

    partition: int


class MessagePage(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of a partition, or of all, and where to read on."""

    batches: list[Batch]
    partitions: list[int]
    """Of each batch."""
    partition: int | None
    """Of which the messages are; None: of several, where nobody can go on from an offset."""
    next_offset: int
    """Of the partition; of several, how many messages there are here."""
    start: int
    end: int
    damage: list[Damage] = []
    """What is missing among the messages because it was found damaged."""

    def messages(self) -> list[PeekedMessage]:
        return [
            PeekedMessage(**msgspec.structs.asdict(message), partition=partition)
            for partition, batch in zip(self.partitions, self.batches, strict=True)
            for message in batch.messages()
        ]


class DelayedMessage(msgspec.Struct, frozen=True):
    """A message that waits."""

    id: str
    deliver_at_us: int
    message: Message


class DelayedPage(msgspec.Struct, frozen=True, kw_only=True):
    delayed: list[DelayedMessage]
    next: int | None
    """The `after` of the next page; None: that was all."""


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
        dead_letter=placed.dead_letter,
    )


def placed_of(run: Run) -> Placed:
    rows = range(run.row, run.row + run.count) if run.rows is None else run.rows
    ulid = parse_ulid(run.id) if run.id else 0
    return Placed(
        run.partition, rows, run.offset, ulid, DONE, run.duplicate, dead_letter=run.dead_letter
    )


def published_message(placed: Placed, number: int = 0) -> PublishedMessage:
    at = published(placed, number)
    return PublishedMessage(
        id=at.id,
        partition=at.partition,
        offset=None if at.offset < 0 else at.offset,
        duplicate=at.duplicate,
        dead_letter=at.dead_letter,
    )
