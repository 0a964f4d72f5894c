"""The JSON forms of what holds messages.

A message's value, key and headers are bytes. In JSON what is UTF-8 goes as text, anything else as
base64 under a name of its own. Everything else that the API takes and gives is JSON as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import msgspec

from penstock.errors import ProtocolError
from penstock.log.base import Damage
from penstock.model.dead_letters import Letter, LetterPage, Origin
from penstock.model.groups import (
    Fetched,
    FetchedPart,
    StreamGroup,
    StreamGroupView,
    group_of,
    group_view,
)
from penstock.model.messages import DelayedMessage, DelayedPage, MessagePage
from penstock.model.searches import FoundMessage, FoundPage
from penstock.model.values import (
    HeaderValue,
    headers_to_bytes,
    headers_to_text,
    to_bytes,
    to_text,
)
from penstock.record.batch import Batch, Message
from penstock.record.schema import Priority, parse_priority, parse_ulid

PRIORITY_NAMES = [priority.name.lower() for priority in Priority]


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


class ReceivedMessages(msgspec.Struct, frozen=True, kw_only=True):
    messages: list[ReceivedView]


class DamageView(msgspec.Struct, frozen=True, kw_only=True):
    """Offsets that the log should hold and cannot give, and why."""

    segment: str
    position: int
    first_offset: int
    next_offset: int
    reason: str


class PeekedView(MessageView, frozen=True, kw_only=True, omit_defaults=True):
    """A message, and in which partition it lies."""

    partition: int


class MessagePageView(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of a partition, or of all, and where to read on."""

    messages: list[PeekedView]
    partitions: list[int] | msgspec.UnsetType = msgspec.UNSET
    """As Arrow: of each batch."""
    partition: int | None
    """Null: they are of several, where nobody can go on from an offset."""
    next_offset: int
    start: int
    end: int
    damage: list[DamageView] = []
    """What is missing among the messages because it was found damaged."""


class DelayedView(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    deliver_at_us: int
    message: MessageView


class DelayedPageView(msgspec.Struct, frozen=True, kw_only=True):
    delayed: list[DelayedView]
    next: int | None
    """The `after` of the next page; null: that was all."""


class LetterView(msgspec.Struct, frozen=True, kw_only=True):
    """A dead letter, and the story of its failure."""

    partition: int
    message: MessageView
    origin: Origin


class LetterPageView(msgspec.Struct, frozen=True, kw_only=True):
    letters: list[LetterView]
    count: int
    """All letters that are neither redriven nor purged."""
    next: str | None
    """The `after` of the next page; null: that was all."""


class FoundView(msgspec.Struct, frozen=True, kw_only=True):
    """A message, and where it lies."""

    partition: int
    message: MessageView
    schema_id: int | None = None
    """Of the schema that its value names, if that could be read."""
    decoded: str | None = None
    """What the value says by this schema, as JSON."""


class FoundPageView(msgspec.Struct, frozen=True, kw_only=True):
    """What a search has found so far."""

    found: list[FoundView]
    next: str | None
    """The `after` of the next page; null: all was looked through."""
    scanned: int
    """Messages that were looked at for this page."""
    scanned_bytes: int


class FetchedPartView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one partition gave. As Arrow, `rows` says how many rows of the table are from it."""

    topic: str
    partition: int
    next_offset: int
    start: int
    end: int
    out_of_range: bool = False
    """The position is no longer, or not yet, in the log."""
    rows: int = 0
    messages: list[MessageView] = []


class FetchedView(msgspec.Struct, frozen=True, kw_only=True):
    parts: list[FetchedPartView]
    woken: bool
    """The member should heartbeat now."""


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


def page_view(page: MessagePage, *, with_messages: bool = True) -> MessagePageView:
    """Without its messages where they go beside it, as columns."""
    return MessagePageView(
        messages=[
            PeekedView(partition=message.partition, **_parts(message))
            for message in page.messages()
        ]
        if with_messages
        else [],
        partitions=msgspec.UNSET if with_messages else page.partitions,
        partition=page.partition,
        next_offset=page.next_offset,
        start=page.start,
        end=page.end,
        damage=[DamageView(**each._asdict()) for each in page.damage],
    )


def page_of(seen: MessagePageView, batches: list[Batch]) -> MessagePage:
    if seen.partitions is msgspec.UNSET or len(seen.partitions) != len(batches):
        raise ProtocolError("the answer does not say in which partition its messages lie")
    return MessagePage(
        batches=batches,
        partitions=seen.partitions,
        partition=seen.partition,
        next_offset=seen.next_offset,
        start=seen.start,
        end=seen.end,
        damage=[Damage(**msgspec.structs.asdict(each)) for each in seen.damage],
    )


def fetched_view(fetched: Fetched, *, with_messages: bool = True) -> FetchedView:
    """Without its messages where they go beside it, as columns."""
    parts = [
        FetchedPartView(
            topic=part.topic,
            partition=part.partition,
            next_offset=part.next_offset,
            start=part.start,
            end=part.end,
            out_of_range=part.out_of_range,
            rows=sum(map(len, part.batches)),
            messages=[view(message) for batch in part.batches for message in batch.messages()]
            if with_messages
            else [],
        )
        for part in fetched.parts
    ]
    return FetchedView(parts=parts, woken=fetched.woken)


def fetched_of(seen: FetchedView, batches: Iterable[Batch]) -> Fetched:
    """The batches are those of the parts, one after the other."""
    left = iter(batches)
    parts = []
    for part in seen.parts:
        some: list[Batch] = []
        while sum(map(len, some)) < part.rows:
            batch = next(left, None)
            if batch is None:
                raise ProtocolError("the answer has fewer messages than it says")
            some.append(batch)
        parts.append(
            FetchedPart(
                topic=part.topic,
                partition=part.partition,
                next_offset=part.next_offset,
                start=part.start,
                end=part.end,
                out_of_range=part.out_of_range,
                batches=some,
            )
        )
    return Fetched(parts=parts, woken=seen.woken)


def letter_view(letter: Letter) -> LetterView:
    return LetterView(
        partition=letter.partition, message=view(letter.message), origin=letter.origin
    )


def letter_of(seen: LetterView) -> Letter:
    return Letter(seen.partition, message_of(seen.message), seen.origin)


def _letter_page_view(page: LetterPage) -> LetterPageView:
    letters = [letter_view(letter) for letter in page.letters]
    return LetterPageView(letters=letters, count=page.count, next=page.next)


def _letter_page_of(seen: LetterPageView) -> LetterPage:
    letters = [letter_of(each) for each in seen.letters]
    return LetterPage(letters=letters, count=seen.count, next=seen.next)


def _delayed_page_view(page: DelayedPage) -> DelayedPageView:
    shown = [
        DelayedView(id=each.id, deliver_at_us=each.deliver_at_us, message=view(each.message))
        for each in page.delayed
    ]
    return DelayedPageView(delayed=shown, next=page.next)


def _delayed_page_of(seen: DelayedPageView) -> DelayedPage:
    delayed = [
        DelayedMessage(each.id, each.deliver_at_us, message_of(each.message))
        for each in seen.delayed
    ]
    return DelayedPage(delayed=delayed, next=seen.next)


def _found_page_view(page: FoundPage) -> FoundPageView:
    return FoundPageView(
        found=[
            FoundView(
                partition=each.partition,
                message=view(each.message),
                schema_id=each.schema_id,
                decoded=each.decoded,
            )
            for each in page.found
        ],
        next=page.next,
        scanned=page.scanned,
        scanned_bytes=page.scanned_bytes,
    )


def _found_page_of(seen: FoundPageView) -> FoundPage:
    return FoundPage(
        found=[
            FoundMessage(each.partition, message_of(each.message), each.schema_id, each.decoded)
            for each in seen.found
        ],
        next=seen.next,
        scanned=seen.scanned,
        scanned_bytes=seen.scanned_bytes,
    )


class JsonForm(NamedTuple):
    """What a type looks like in JSON, and the way there and back."""

    kind: Any
    to: Callable[[Any], Any]
    of: Callable[[Any], Any]


def _itself(value: Any) -> Any:
    return value


_FORMS = {
    Letter: JsonForm(LetterView, letter_view, letter_of),
    LetterPage: JsonForm(LetterPageView, _letter_page_view, _letter_page_of),
    FoundPage: JsonForm(FoundPageView, _found_page_view, _found_page_of),
    DelayedPage: JsonForm(DelayedPageView, _delayed_page_view, _delayed_page_of),
    StreamGroup: JsonForm(StreamGroupView, group_view, group_of),
    # A page that goes as columns is not made from its JSON form: see `page_of`.
    MessagePage: JsonForm(MessagePageView, page_view, _itself),
}


def form_of(kind: Any) -> JsonForm:
    """How values of a type are written in JSON; most of them as they are."""
    return _FORMS.get(kind) or JsonForm(kind, _itself, _itself)
