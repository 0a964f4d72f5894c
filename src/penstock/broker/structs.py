"""The structs that pass between a broker and its callers.

A client far away makes the same out of what came over the wire, and has no broker: this module
needs neither the broker nor a log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import cached_property
from typing import TYPE_CHECKING, overload

import msgspec

from penstock.errors import DeliveryError, InvalidInput
from penstock.group.assignment import TopicPartition
from penstock.log.base import DONE
from penstock.record.batch import Batch, Message
from penstock.record.schema import parse_ulid, ulid_text

if TYPE_CHECKING:
    from penstock.broker.partition import Partition

ORIGIN_HEADER = "penstock-dead-letter"

_OFFSET_BITS = 48
_PLACE_DIGITS_MAX = 19


class Producer(msgspec.Struct, frozen=True):
    """An idempotent producer, and the number of the batch's first message on its partition."""

    id: int
    epoch: int
    sequence: int


class Placed(msgspec.Struct, frozen=True, gc=False):
    """Where some messages of a batch are."""

    partition: int
    rows: range | list[int]
    first_offset: int
    ulid: int
    durable: Future[None]
    duplicate: bool = False


class DelayedMessage(msgspec.Struct, frozen=True):
    """A message that waits."""

    id: str
    deliver_at_us: int
    message: Message


class DelayStats(msgspec.Struct, frozen=True):
    pending: int
    next_due_us: int | None


class DelayedIds(Sequence[str]):
    """The ids of messages that were delayed together; each is made when somebody asks for it."""

    def __init__(self, placed: Sequence[Placed]) -> None:
        """`placed`: where they wait."""
        self.placed = placed
        self._count = sum(len(each.rows) for each in placed)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        rows = range(self._count)[index]
        return [self._id(row) for row in rows] if isinstance(rows, range) else self._id(rows)

    def __repr__(self) -> str:
        return f"<{self._count} ids of delayed messages>"

    def _id(self, row: int) -> str:
        each, nth = self.placed[0], row
        if len(self.placed) > 1:
            each, nth = self._by_row[row]
        return delayed_id(place(each.partition, each.first_offset + nth), each.ulid + nth)

    @cached_property
    def _by_row(self) -> dict[int, tuple[Placed, int]]:
        return {row: (each, nth) for each in self.placed for nth, row in enumerate(each.rows)}


def place(partition: int, offset: int) -> int:
    """Where a message is in its topic, as one number."""
    return partition << _OFFSET_BITS | offset


def place_of(number: int) -> tuple[int, int]:
    """The partition and the offset of a place."""
    return number >> _OFFSET_BITS, number & (1 << _OFFSET_BITS) - 1


def delayed_id(at: int, ulid: int) -> str:
    """By which a delayed message can be cancelled: the place where it waits, and its own id."""
    return f"{at}-{ulid_text(ulid)}"


def parse_delayed_id(id_: str) -> tuple[int, int, int]:
    """The partition, the offset and the id of the message, or InvalidInput."""
    at, dash, ulid = str(id_).partition("-")
    if not dash or not at.isascii() or not at.isdecimal() or len(at) > _PLACE_DIGITS_MAX:
        raise InvalidInput(f"{id_!r:.100} is not the id of a delayed message")
    return *place_of(int(at)), parse_ulid(ulid)


class Delivered(msgspec.Struct, frozen=True, gc=False):
    """What one receive handed out of one partition, under one lease."""

    partition: int
    nonce: int
    count: int
    pieces: list[tuple[Batch, int]]
    """Messages, and how often they have been delivered, this time included."""
    source: Partition | None = None
    """None far away from the broker."""


class Settled(msgspec.Struct, frozen=True):
    """The outcome of an ack, nack, reject or extend."""

    refused: dict[int, type[DeliveryError]]
    """By offset: why it could not be settled."""
    durable: Future[None]


SETTLED = Settled({}, DONE)
"""The outcome when all is well and there is nothing to wait for, as it nearly always is."""


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Where a dead letter comes from. Fields may be added, never renamed."""

    topic: str
    partition: int
    offset: int
    id: str
    group: str
    reason: str
    attempts: int
    published_at_us: int
    first_delivery_us: int | None = None
    last_delivery_us: int | None = None
    consumer: str = ""
    error: str = ""
    nonce: int = 0
    """Of the lease under which it was given up. A restart knows by it what was half done."""


class Letter(msgspec.Struct, frozen=True):
    """A dead letter: the message, and its story."""

    partition: int
    message: Message
    origin: Origin

    @property
    def value(self) -> bytes | None:
        return self.message.value

    @property
    def key(self) -> bytes | None:
        return self.message.key

    @property
    def headers(self) -> dict[str, bytes | None]:
        """As they were when the message was published."""
        return {k: v for k, v in self.message.headers.items() if k != ORIGIN_HEADER}

    @property
    def reason(self) -> str:
        return self.origin.reason

    @property
    def error(self) -> str:
        return self.origin.error

    @property
    def attempts(self) -> int:
        return self.origin.attempts

    @property
    def id(self) -> str:
        """Of the letter; the message that it was had `origin.id`."""
        return self.message.id


Chosen = Callable[[Letter], bool]


class StreamGroup(msgspec.Struct, frozen=True, kw_only=True):
    """What a group looks like right now."""

    group: str
    phase: str
    generation: int
    members: dict[str, list[TopicPartition]]
    committed: dict[TopicPartition, int]
    lag: dict[TopicPartition, int]
