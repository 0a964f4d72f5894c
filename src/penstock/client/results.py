"""What calls return."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from penstock.model.published import Placed
from penstock.record.schema import ulid_text


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


class PublishedBatch:
    """Where the messages of a batch are, in the order in which they were given."""

    def __init__(self, placed: Sequence[Placed]) -> None:
        self._placed = placed

    @property
    def placed(self) -> Sequence[Placed]:
        return self._placed

    def __len__(self) -> int:
        return sum(len(p.rows) for p in self.placed)

    def __iter__(self) -> Iterator[Published]:
        """One by one; costs more than publishing them did."""
        rows: dict[int, Published] = {}
        for placed in self.placed:
            for number, row in enumerate(placed.rows):
                rows[row] = _published(placed, number)
        return (rows[row] for row in sorted(rows))

    def __repr__(self) -> str:
        where = ", ".join(f"{len(p.rows)} in partition {p.partition}" for p in self.placed)
        return f"<PublishedBatch: {where}>"


def published(placed: Placed) -> Published:
    """The first message of what was placed."""
    return _published(placed, 0)


def _published(placed: Placed, number: int) -> Published:
    id_ = ulid_text(placed.ulid + number) if placed.ulid else ""
    return Published(placed.partition, placed.first_offset + number, id_, placed.duplicate)
