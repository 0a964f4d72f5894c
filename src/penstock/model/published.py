"""Where published messages are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from functools import cached_property
from typing import overload

import msgspec

from penstock.delivery.callers import CALLER_MIN
from penstock.errors import InvalidInput
from penstock.record.schema import ulid_text

_OFFSET_BITS = 48


class ProducerSequence(msgspec.Struct, frozen=True):
    """An idempotent producer, and the number of the batch's first message on its partition."""

    id: int
    epoch: int
    sequence: int
    wraps: bool = False
    """It counts as Kafka's producers do: modulo 2**31, and from any number if it is not known."""


class CallId(msgspec.Struct, frozen=True, gc=False):
    """Names one call of a client, however often it is made again after a lost answer.

    A caller makes one call at a time, and numbers them upwards."""

    caller: int
    number: int

    def __str__(self) -> str:
        return f"{self.caller:x}-{self.number:x}"

    @classmethod
    def parse(cls, text: str) -> CallId:
        caller, dash, number = text.partition("-")
        try:
            found = cls(int(caller, 16), int(number, 16))
        except ValueError:
            found = cls(0, 0)
        if (
            not dash
            or len(text) > 32
            or not (CALLER_MIN <= found.caller < 1 << 62 > found.number >= 0)
        ):
            raise InvalidInput(f"{text!r:.100} is not the id of a call")
        return found


class Placed(msgspec.Struct, frozen=True, gc=False):
    """Where some messages of a batch are."""

    partition: int
    rows: range | list[int]
    first_offset: int
    ulid: int
    durable: Future[None]
    duplicate: bool = False
    deliver_at_us: int = 0
    """Of a duplicate whose message waits: when that falls due."""
    dead_letter: bool = False
    """They do not fit the schema of their topic, and are dead letters with these ids."""


class Published(msgspec.Struct, frozen=True):
    """Where a message is."""

    partition: int
    offset: int
    """-1: it is the duplicate of a message that was delayed, or a dead letter."""
    id: str
    """Of a duplicate that of the message that was stored before; empty if that is gone."""
    duplicate: bool = False
    dead_letter: bool = False
    """It does not fit the schema of its topic, and is a dead letter with this id."""


class Delayed(msgspec.Struct, frozen=True):
    """A message that is delivered later. `cancel` takes its id, which stays the message's own."""

    id: str
    deliver_at_us: int
    """Of a duplicate: when the message that was published before falls due; 0: it did already."""
    duplicate: bool = False
    dead_letter: bool = False
    """It does not fit the schema of its topic, and is a dead letter with this id."""


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
        return ulid_text(each.ulid + nth) if each.ulid else ""

    @cached_property
    def _by_row(self) -> dict[int, tuple[Placed, int]]:
        return {row: (each, nth) for each in self.placed for nth, row in enumerate(each.rows)}


def place(partition: int, offset: int) -> int:
    """Where a message is in its topic, as one number."""
    return partition << _OFFSET_BITS | offset


def place_of(number: int) -> tuple[int, int]:
    """The partition and the offset of a place."""
    return number >> _OFFSET_BITS, number & (1 << _OFFSET_BITS) - 1


class PublishedBatch:
    """Where the messages of a batch are, in the order in which they were given."""

    def __init__(self, placed: Sequence[Placed]) -> None:
        self.placed = placed

    def __len__(self) -> int:
        return sum(len(p.rows) for p in self.placed)

    def __iter__(self) -> Iterator[Published]:
        """One by one; costs more than publishing them did."""
        rows: dict[int, Published] = {}
        for placed in self.placed:
            for number, row in enumerate(placed.rows):
                rows[row] = published(placed, number)
        return (rows[row] for row in sorted(rows))

    def __repr__(self) -> str:
        where = ", ".join(f"{len(p.rows)} in partition {p.partition}" for p in self.placed)
        return f"<PublishedBatch: {where}>"


def published(placed: Placed, number: int = 0) -> Published:
    """One message of what was placed together."""
    id_ = ulid_text(placed.ulid + number) if placed.ulid else ""
    offset = -1 if placed.dead_letter else placed.first_offset + number
    return Published(placed.partition, offset, id_, placed.duplicate, placed.dead_letter)
