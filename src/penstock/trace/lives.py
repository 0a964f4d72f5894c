"""The life of a message, put together from the rows that are about it.

One life goes on through delays, retries, dead letters and redrives: a message keeps its id when a
delay is over, and rows of letters and redrives name the place that a message came from. So a life
is all that can be reached from an id or a place. Where a place was used twice, because a topic was
deleted and made again or lost its end in a power cut, only the time of the message counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple, Protocol, TypeAlias

from penstock.trace.events import OUTSIDE, TraceKind, TraceRow

LINKS_MAX = 200
"""Ids and places that one life is followed through."""

BIRTHS = {
    TraceKind.PUBLISHED,
    TraceKind.MOVED,
    TraceKind.DEAD_LETTERED,
    TraceKind.REDRIVEN,
}
"""With these a message comes to lie at a place."""


class Place(NamedTuple):
    topic: str
    partition: int
    offset: int


class LocatedRow(NamedTuple):
    """A row, and where it is stored: what is stored later happened later."""

    location: int
    row: TraceRow


class Lived(NamedTuple):
    """What happened to one message, among those of a row."""

    location: int
    row: TraceRow
    nth: int

    @property
    def place(self) -> Place:
        return Place(self.row.topic, self.row.partition, self.row.offset(self.nth))

    @property
    def origin(self) -> Place | None:
        row = self.row
        if not row.origin_topic:
            return None
        return Place(row.origin_topic, row.origin_partition, row.origin_offset(self.nth))

    @property
    def ulid(self) -> int | None:
        return self.row.ulid(self.nth)


class RowSource(Protocol):
    """Where rows are found. What is found may be too much; `life` looks at each."""

    def of_id(self, ulid: int) -> list[LocatedRow]: ...
    def of_place(self, place: Place) -> list[LocatedRow]: ...


Link: TypeAlias = int | Place
"""The id of a message, or where it lies."""


def life(rows: RowSource, start: Link) -> list[Lived]:
    """All that happened to the message, in the order of time; nothing if nobody knows of it."""
    todo: list[Link] = [start]
    seen: set[Link] = {start}
    found: dict[tuple[int, int], Lived] = {}
    while todo and len(seen) <= LINKS_MAX:
        link = todo.pop()
        for lived in of_id(rows, link) if isinstance(link, int) else of_place(rows, link, found):
            found.setdefault((lived.location, lived.nth), lived)
            for other in _links(lived):
                if other not in seen:
                    seen.add(other)
                    todo.append(other)
    return _in_order(found.values())


def _in_order(lived: Iterable[Lived]) -> list[Lived]:
    """By time. A letter is stored before the ledger says why; in the same microsecond that would
    be told the wrong way round."""
    ordered = sorted(lived, key=lambda each: (each.row.at_us, each.location))
    for nth, (one, other) in enumerate(pairwise(ordered)):
        if (
            one.row.kind == TraceKind.DEAD_LETTERED
            and other.row.kind in (TraceKind.REJECTED, TraceKind.EXPIRED)
            and one.row.at_us == other.row.at_us
        ):
            ordered[nth : nth + 2] = other, one
    return ordered


def of_id(rows: RowSource, ulid: int) -> Iterator[Lived]:
    for location, row in rows.of_id(ulid):
        nth = row.nth_of_id(ulid)
        if nth is not None:
            yield Lived(location, row, nth)


def of_place(
    rows: RowSource, place: Place, known: dict[tuple[int, int], Lived] | None = None
) -> Iterator[Lived]:
    """What happened at a place, or to what came from there; during the time of the message that is
    `known`, or else of the last one there."""
    located = rows.of_place(place)
    here = [Lived(*each, nth) for each in located if (nth := _nth_at(each.row, place)) is not None]
    here.sort(key=lambda lived: (lived.row.at_us, lived.location))
    since, until = _time_of(here, {lived.ulid for lived in (known or {}).values()})
    for nth, lived in enumerate(here):
        if since <= nth < until:
            yield lived
    times = [lived.row.at_us for lived in here]
    for location, row in located:
        from_here = row.nth_of_origin(place.offset) if _is_origin(row, place) else None
        if from_here is not None:
            before = sum(at_us <= row.at_us for at_us in times)
            if since < before <= until or not here:
                yield Lived(location, row, from_here)


def _time_of(here: list[Lived], ids: set[int | None]) -> tuple[int, int]:
    """Which of the rows of a place, in order of time, are about the message that is meant."""
    births = [nth for nth, lived in enumerate(here) if lived.row.kind in BIRTHS]
    if len({here[nth].ulid for nth in births}) < 2:
        return 0, len(here)
    mine = [nth for nth in births if here[nth].ulid in ids] or births[-1:]
    after = [nth for nth in births if nth > mine[-1]]
    return mine[0], after[0] if after else len(here)


def _links(lived: Lived) -> Iterator[Link]:
    ulid, origin = lived.ulid, lived.origin
    if ulid is not None:
        yield ulid
    if lived.row.kind not in OUTSIDE:
        yield lived.place
    if origin is not None:
        yield origin


def _nth_at(row: TraceRow, place: Place) -> int | None:
    if row.kind in OUTSIDE or row.topic != place.topic or row.partition != place.partition:
        return None
    return row.nth(place.offset)


def _is_origin(row: TraceRow, place: Place) -> bool:
    return row.origin_topic == place.topic and row.origin_partition == place.partition
