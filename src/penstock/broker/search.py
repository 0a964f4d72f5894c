"""Looking for messages by what is in them, page by page, forward or backward in time.

A page is bounded in the bytes that are read for it and in time; the next page goes on from there.
Each partition is read in its own order; together their messages come in the order of their
timestamps, as far as each partition is in that order itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from penstock.broker.matching import MessageFilter
from penstock.broker.partition import Partition
from penstock.broker.peek import offsets_at, within
from penstock.broker.topic import Topic
from penstock.clock import Clock
from penstock.errors import InvalidInput
from penstock.model.searches import SCAN_BYTES_MAX, SCAN_MS_MAX, FoundMessage, FoundPage
from penstock.model.values import StreamPosition
from penstock.record.batch import Batch

_READ_BYTES = 64 << 10
_WINDOW_BYTES_MAX = 4 << 20
_WINDOW_ROWS_MAX = 16_384
_CURSOR = re.compile(r"([fb])((?:\d{1,9}:\d{1,19},?)*)")


class SearchRange(NamedTuple):
    """Where a search begins, and which way it goes."""

    at: StreamPosition | None
    """None: at the beginning or, backward, at the end."""
    backward: bool


def search(
    topic: Topic,
    partition: int | None,
    begin: SearchRange | str,
    wanted: MessageFilter,
    until_us: int | None,
    limit: int,
    bytes_max: int | None,
    clock: Clock,
) -> FoundPage:
    """A page, from a position or from the `next` of the page before. Of messages at or after
    `until_us` nothing is told; backward, of those before."""
    if isinstance(begin, str):
        backward, starts = _parse_cursor(begin)
    else:
        backward, starts = begin.backward, _starts(topic, partition, begin)
    budget = _Budget(clock)
    scans = [
        _Scan(topic.partition(number), offset, backward, until_us, wanted, budget)
        for number, offset in starts.items()
    ]
    found: list[FoundMessage] = []
    left = 1 << 62 if bytes_max is None else bytes_max
    while len(found) < limit and left > 0:
        scan = _next(scans, budget)
        if scan is None:
            break
        found.append(scan.take())
        left -= found[-1].message.nbytes
    going_on = {scan.partition.number: scan.place for scan in scans if not scan.is_over}
    return FoundPage(
        found=found,
        next=_cursor(backward, going_on) if going_on else None,
        scanned=budget.rows,
        scanned_bytes=budget.bytes,
    )


class _Budget:
    """How much was read for a page, and whether that is enough."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ends_ns = clock.monotonic_ns() + SCAN_MS_MAX * 1_000_000
        self.bytes = 0
        self.rows = 0

    @property
    def is_spent(self) -> bool:
        return self.bytes >= SCAN_BYTES_MAX or self._clock.monotonic_ns() >= self._ends_ns


class _Scan:
    """One partition: what was found in it and not taken yet, and where to read on."""

    def __init__(
        self,
        partition: Partition,
        offset: int,
        backward: bool,
        until_us: int | None,
        wanted: MessageFilter,
        budget: _Budget,
    ) -> None:
        self.partition = partition
        self._place = within(partition, offset)
        self._backward = backward
        self._until_us = until_us
        self._wanted = wanted
        self._budget = budget
        self._gone = partition.passed_over()
        self._end = partition.log.end
        self._over = False
        self._found: list[FoundMessage] = []  # the next one last
        self._rows = _rows_of(partition, _READ_BYTES)

    @property
    def is_empty(self) -> bool:
        return not self._found

    @property
    def may_read(self) -> bool:
        log = self.partition.log
        return not self._over and (
            self._place > log.start if self._backward else self._place < self._end
        )

    @property
    def is_over(self) -> bool:
        return self.is_empty and not self.may_read

    @property
    def place(self) -> int:
        """Where the next page goes on."""
        if self.is_empty:
            return self._place
        offset = self._found[-1].message.offset
        return offset + 1 if self._backward else offset

    @property
    def rank(self) -> int:
        """The earlier it is wanted, the lower."""
        stamp_us = self._found[-1].message.timestamp_us
        return -stamp_us if self._backward else stamp_us

    def take(self) -> FoundMessage:
        return self._found.pop()

    def read(self) -> None:
        """Some more of the log; perhaps nothing of it is wanted."""
        batches = self._read_back() if self._backward else self._read_on()
        for batch in batches:
            self._budget.rows += len(batch)
            self._budget.bytes += batch.payload_bytes
            chosen = self._chosen(batch)
            self._found += [FoundMessage(self.partition.number, each) for each in chosen.messages()]
        if not self._backward:
            self._found.reverse()

    def _read_on(self) -> Sequence[Batch]:
        log = self.partition.log
        read = log.read(max(self._place, log.start), _READ_BYTES)
        self._place = read.next_offset
        return list(read)

    def _read_back(self) -> Sequence[Batch]:
        """A window of offsets that ends where we are; a smaller one if it holds too much."""
        log = self.partition.log
        while True:
            first = max(self._place - self._rows, log.start)
            batches = _between(self.partition, first, self._place)
            if batches is not None or self._rows == 1:
                break
            self._rows = max(1, self._rows // 4)
        self._place = first
        self._rows = min(self._rows * 2, _WINDOW_ROWS_MAX)
        return batches or ()

    def _chosen(self, batch: Batch) -> Batch:
        mask = ~np.isin(batch.offset_numbers(), self._gone.array()) if self._gone.count else None
        if self._until_us is not None:
            stamps = batch.timestamps_us()
            inside = stamps >= self._until_us if self._backward else stamps < self._until_us
            self._over = self._over or (len(batch) > 0 and not inside.any())
            mask = inside if mask is None else mask & inside
        return self._wanted.of(batch if mask is None or mask.all() else batch.filter(mask))


def _next(scans: Sequence[_Scan], budget: _Budget) -> _Scan | None:
    """That which has the next message; None: there is none, or enough was read."""
    for scan in scans:
        while scan.is_empty and scan.may_read and not budget.is_spent:
            scan.read()
    return min((each for each in scans if not each.is_empty), key=lambda s: s.rank, default=None)


def _between(partition: Partition, first: int, end: int) -> Sequence[Batch] | None:
    """What lies between two offsets; None: it is too much at once."""
    found: list[Batch] = []
    at, size = first, 0
    while at < end:
        if size > _WINDOW_BYTES_MAX:
            return None
        read = partition.log.read(max(at, partition.log.start), _READ_BYTES)
        for batch in read:
            size += batch.payload_bytes
            found.append(_before(batch, end))
        at = read.next_offset
    return [batch for batch in found if len(batch)]


def _before(batch: Batch, end: int) -> Batch:
    return batch if batch.next_offset <= end else batch.filter(batch.offset_numbers() < end)


def _rows_of(partition: Partition, size: int) -> int:
    """About how many messages have so many bytes."""
    log = partition.log
    messages = max(1, log.end - log.start)
    return min(max(1, size * messages // max(1, log.size_bytes)), 1024)


def _starts(topic: Topic, partition: int | None, begin: SearchRange) -> dict[int, int]:
    at = begin.at
    if at is None:
        at = "latest" if begin.backward else "earliest"
    return offsets_at(topic, at, partition)


def _cursor(backward: bool, places: dict[int, int]) -> str:
    return ("b" if backward else "f") + ",".join(f"{n}:{at}" for n, at in places.items())


def _parse_cursor(text: str) -> tuple[bool, dict[int, int]]:
    found = _CURSOR.fullmatch(text)
    if found is None or not found[2]:
        raise InvalidInput(f"after is {text!r:.100}; give the `next` of the page before")
    return found[1] == "b", dict(_places(found[2]))


def _places(text: str) -> Iterator[tuple[int, int]]:
    for part in text.rstrip(",").split(","):
        number, _, offset = part.partition(":")
        yield int(number), min(int(offset), (1 << 63) - 1)
