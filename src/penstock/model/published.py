"""Where published messages are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import overload

import msgspec

from penstock.record.schema import ulid_text


class ProducerSequence(msgspec.Struct, frozen=True):
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


class Published(msgspec.Struct, frozen=True):
    """Where a message is."""

    partition: int
    offset: int
    id: str
    """Empty for a duplicate, whose message was stored before."""
    duplicate: bool = False


class Delayed(msgspec.Struct, frozen=True):
    """A message that is delivered later. `cancel` takes its id."""

    id: str
    deliver_at_us: int


class DelayedIds(Sequence[str]):
    """The ids of messages that were delayed together; each is made when somebody asks for it."""

    def __init__(self, first_offset: int, ulid: int, count: int) -> None:
        self.first_offset = first_offset
        self.ulid = ulid
        self._count = count

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
        return delayed_id(self.first_offset + row, self.ulid + row)


def delayed_id(offset: int, ulid: int) -> str:
    return f"{offset}-{ulid_text(ulid)}"


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
