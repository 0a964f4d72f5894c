"""The messages of a transaction, by partition: which go where, and which are duplicates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np

from penstock.broker.topic import Topic
from penstock.broker.topic_dedup import place_of_delayed, waiting_at, with_dedup_ids
from penstock.broker.transaction_checks import GivenMessages
from penstock.broker.transaction_entries import PlannedMessages, PlannedRun
from penstock.delivery.dedup import Original, Sifted
from penstock.errors import RequestTooLarge
from penstock.model.messages import Run
from penstock.model.names import TopicName
from penstock.model.published import place, place_of
from penstock.model.transactions import PARTS_MAX
from penstock.record.batch import Batch
from penstock.record.schema import BITS, ulid_text
from penstock.record.writing import check_frame

_SURELY_FITS_BYTES = 16 << 20

PartKey: TypeAlias = tuple[TopicName, int, bool]
"""A topic, a partition, and whether it is its delay log."""


class PlannedPart(msgspec.Struct):
    """Messages for one partition, from all over the transaction."""

    index: int
    batches: list[Batch] = []
    count: int = 0

    def add(self, batch: Batch) -> int:
        """Returns where they begin."""
        start = self.count
        self.batches.append(batch)
        self.count += len(batch)
        return start


class PartedMessages:
    """The messages of a transaction, parted: one batch for each partition."""

    def __init__(self, topics: Mapping[TopicName, Topic], now_us: int) -> None:
        self._topics = topics
        self._now_us = now_us
        self._placed_rows: dict[tuple[TopicName, int], tuple[PlannedRun, int]] = {}
        """Of topics with deduplication ids: where a row of the topic is."""
        self._record_dedup: list[Callable[[Sequence[_StoredPart]], None]] = []
        self.parts: dict[PartKey, PlannedPart] = {}
        self.planned: list[PlannedMessages] = []

    def part(self, messages: Sequence[GivenMessages], locks: ExitStack) -> None:
        """Which messages go to which partition, without those whose deduplication id is known.

        What locks the deduplication ids of topics is entered into `locks`."""
        sifted: dict[TopicName, tuple[Sifted, Any]] = {}
        first_rows: list[int] = []
        names: dict[TopicName, list[bytes | None]] = {}
        with_ids = {given.name for given in messages if given.dedup_names is not None}
        for given in messages:
            if given.name in with_ids:
                of_topic = names.setdefault(given.name, [])
                first_rows.append(len(of_topic))
                of_topic += given.dedup_names or [None] * len(given.batch)
            else:
                first_rows.append(0)
        for name in sorted(with_ids):
            sifting = self._topics[name].dedup.sifting(names[name])
            sifted[name] = locks.enter_context(sifting)
        for given, first in zip(messages, first_rows, strict=True):
            if given.name in sifted:
                self._part_once(given, first, *sifted[given.name])
            else:
                runs = self._part_rows(given, given.batch, range(len(given.batch)))
                self._plan(given, runs)

    def add(self, key: PartKey, batch: Batch) -> tuple[int, int]:
        """Returns the number of the part, and where in it the messages begin."""
        part = self.parts.setdefault(key, PlannedPart(len(self.parts)))
        return part.index, part.add(batch)

    def batches(self) -> list[tuple[PartKey, Batch]]:
        """What goes where, a batch for each partition; raises if one is too large."""
        found = []
        for key, part in self.parts.items():
            batch = _joined(part.batches, self._now_us)
            if batch.payload_bytes > _SURELY_FITS_BYTES:
                check_frame(batch)
            found.append((key, batch))
        return found

    def remember_dedup(self, placed: Sequence[tuple[int, bytes]]) -> None:
        """The messages are stored: their ids are known from now on."""
        keys = list(self.parts)
        places = [
            _StoredPart(*key[1:], offset, int.from_bytes(ulid, "big"))
            for key, (offset, ulid) in zip(keys, placed, strict=True)
        ]
        for record in self._record_dedup:
            record(places)

    def _part_once(self, given: GivenMessages, first: int, sifted: Sifted, record: Any) -> None:
        """Of messages with deduplication ids, those that are new; `first`: the number of their
        first among those of the topic."""
        rows, end = len(given.batch), first + len(given.batch)
        new = [row - first for row in sifted.new if first <= row < end]
        runs: list[PlannedRun] = []
        if new:
            batch = given.batch
            if given.dedup_names is not None:
                batch = with_dedup_ids(batch, given.dedup_names, given.window_ms)
            if len(new) == rows:
                runs = self._part_rows(given, batch, range(rows))
            else:
                runs = self._part_rows(given, batch.take(new), new)
        delayed = given.due_us is not None

        def remember(places: Sequence[_StoredPart]) -> None:
            for run in runs:
                at = places[run.part]
                where = place(at.partition, at.offset + run.start)
                of_run = _rows_of(run)
                where = place_of_delayed(where) if delayed else where
                record([first + row for row in of_run], where, at.ulid + run.start, given.window_ms)

        self._record_dedup.append(remember)
        known = [
            self._known(row - first, original)
            for row, original in sifted.known.items()
            if first <= row < end
        ]
        for run in runs:
            for nth, row in enumerate(_rows_of(run)):
                self._placed_rows[given.name, first + row] = run, nth
        repeated = [
            self._repeated(row - first, *self._placed_rows[given.name, original])
            for row, original in sifted.repeated.items()
            if first <= row < end
        ]
        self._plan(given, runs + repeated, known)

    def _repeated(self, row: int, run: PlannedRun, nth: int) -> PlannedRun:
        return PlannedRun(run.part, run.start + nth, 1, row, None, True)

    def _known(self, row: int, original: Original) -> Run:
        waiting = waiting_at(original)
        number, offset = waiting or place_of(original.place)
        return Run(
            partition=number,
            offset=-1 if waiting else offset,
            count=1,
            id=ulid_text(original.ulid) if original.ulid else "",
            row=row,
            duplicate=True,
        )

    def _part_rows(
        self, given: GivenMessages, batch: Batch, rows: range | list[int]
    ) -> list[PlannedRun]:
        """Add messages to the parts; `rows` are theirs among those that were given."""
        topic, due = self._topics[given.name], given.due_us
        if due is None:
            batch = topic.with_ttl(batch, self._now_us)
        else:
            if not isinstance(due, int):
                due = np.asarray(due)[list(rows)]
            batch = topic.with_ttl(batch, due).stamped(due)
        runs = []
        for number, chosen, part in topic.split(batch, given.partition):
            key = given.name, number, given.due_us is not None
            if key not in self.parts and len(self.parts) >= PARTS_MAX:
                raise RequestTooLarge(f"more than {PARTS_MAX:,} partitions in one transaction")
            index, start = self.add(key, part)
            in_rows = isinstance(chosen, range) and isinstance(rows, range)
            where = None if in_rows else [rows[row] for row in chosen]
            runs.append(PlannedRun(index, start, len(part), chosen[0] if in_rows else 0, where))
        return runs

    def _plan(
        self,
        given: GivenMessages,
        runs: list[PlannedRun],
        known: Sequence[Run] = (),
    ) -> None:
        at_us = given.due_us if isinstance(given.due_us, int) else None
        self.planned.append(
            PlannedMessages(
                given.name.topic,
                given.due_us is not None,
                runs,
                list(known),
                at_us,
            )
        )


def _rows_of(run: PlannedRun) -> Sequence[int]:
    return run.rows or range(run.row, run.row + run.count)


class _StoredPart(NamedTuple):
    """Where a part is that was stored."""

    partition: int
    delayed: bool
    offset: int
    ulid: int


def _joined(batches: Sequence[Batch], now_us: int) -> Batch:
    """One batch; if only some bring a time, the others get that of now."""
    dated = [b.timestamp_us is not None or b.columns & BITS["timestamp"] for b in batches]
    if any(dated) and not all(dated):
        batches = [
            batch if has else batch.stamped(now_us)
            for batch, has in zip(batches, dated, strict=True)
        ]
    return Batch.concat(batches)
