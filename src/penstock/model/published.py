"""Where published messages are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from functools import cached_property
from typing import overload

import msgspec

from penstock.errors import InvalidInput
from penstock.record.schema import parse_ulid, ulid_text

_OFFSET_BITS = 48
_PLACE_DIGITS_MAX = 19


class ProducerSequence(msgspec.Struct, frozen=True):
    """An idempotent producer, and the number of the batch's first message on its partition."""

    id: int
    epoch: int
    sequence: int


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
        if not dash or len(text) > 32 or not (1 < found.caller < 1 << 62 > found.number >= 0):
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


class Published(msgspec.Struct, frozen=True):
    """Where a message is."""

    partition: int
    offset: int
    id: str
    """Of a duplicate that of the message that was stored before; empty if that is gone."""
    duplicate: bool = False


class Delayed(msgspec.Struct, frozen=True):
    """A message that is delivered later. `cancel` takes its id."""

    id: str
    deliver_at_us: int


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
    return Published(placed.partition, placed.first_offset + number, id_, placed.duplicate)
