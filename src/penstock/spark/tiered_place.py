"""A log that begins where its archive does, for streams: what the log has dropped is in the lake.

A batch that begins below the first offset of the log is read from the lake as far as its archive
goes, and from the log behind that; any other from the log alone. An offset means the same in both,
so a batch that runs again may find more of it in the lake than it did before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from penstock.log.base import Batches
from penstock.log.reader import Int64s
from penstock.spark.bounds import Range, TopicBounds
from penstock.spark.options import Target
from penstock.spark.tier import LakeHistory, LakePart, read_part
from penstock.spark.topic_reader import TopicReader

_OFFSET = pa.schema([pa.field("offset", pa.int64())])


class _KnownTopic(NamedTuple):
    """What was seen of a topic at the last look."""

    log: TopicBounds
    history: LakeHistory | None


class TieredPlace:
    """A `TopicReader` over lake and log."""

    def __init__(
        self, log: TopicReader, lake: str, storage: dict[str, str], target: Target
    ) -> None:
        self._log = log
        self._lake = lake
        self._storage = storage
        self._target = target
        self._known: dict[str, _KnownTopic] = {}

    def topics(self) -> list[str]:
        return self._log.topics()

    def incarnation(self, topic: str) -> str:
        return self._log.incarnation(topic)

    def bounds(self, topic: str) -> TopicBounds:
        log = self._log.bounds(topic)
        history = self._history(topic, log)
        self._known[topic] = _KnownTopic(log, history)
        if history is None:
            return log
        whole = {
            partition: bounds._replace(start=min(bounds.start, history.start))
            if history.reaches(partition, bounds.start)
            else bounds
            for partition, bounds in log.items()
        }
        return TopicBounds(whole, log.incarnation)

    def find(self, topic: str, partition: int, timestamp_us: int) -> int:
        log, history = self._looked_at(topic)
        start = log[partition].start
        if history is not None and history.reaches(partition, start):
            day = datetime.fromtimestamp(timestamp_us / 1e6, UTC).date().isoformat()
            parts = history.parts(Range(topic, partition, 0, start), after_us=timestamp_us, day=day)
            found = [
                int(rows["offset"].to_numpy().min())
                for part in parts
                for rows in read_part(part, _OFFSET)
            ]
            if found:
                return min(found)
        return self._log.find(topic, partition, timestamp_us)

    def marks(self, topic: str, partition: int, start: int, end: int) -> tuple[Int64s, Int64s]:
        log, history = self._looked_at(topic)
        middle = min(end, max(start, log[partition].start))
        if history is None or middle == start:
            return self._log.marks(topic, partition, start, end)
        old = round((middle - start) * history.row_bytes)
        if middle == end:
            return np.array([start, end]), np.array([0, old])
        offsets, before = self._log.marks(topic, partition, middle, end)
        return np.concatenate([[start], offsets]), np.concatenate([[0], before + old])

    def read(self, topic: str, partition: int, start: int, end: int) -> Iterator[Batches]:
        return self._log.read(topic, partition, start, end)

    def divided(self, parts: Sequence[Range]) -> tuple[list[LakePart], list[Range]]:
        """What of some ranges comes from the lake, and what from the log."""
        old, new = [], []
        for part in parts:
            log, history = self._looked_at(part.topic)
            start = log[part.partition].start
            if history is not None and part.start < start:
                middle = max(start, min(part.end, history.ends.get(part.partition) or 0))
                old += history.parts(part._replace(end=min(part.end, middle)))
                part = part._replace(start=min(part.end, middle))
            if part.start < part.end:
                new.append(part)
        return old, new

    def close(self) -> None:
        self._log.close()

    def _looked_at(self, topic: str) -> _KnownTopic:
        if topic not in self._known:
            self.bounds(topic)
        return self._known[topic]

    def _history(self, topic: str, log: TopicBounds) -> LakeHistory | None:
        """Looked up again only where the log has dropped more than the archive was known to have,
        for that takes a look at all of the table."""
        dropped = {partition: bounds.start for partition, bounds in log.items() if bounds.start}
        known = self._known.get(topic)
        history = known.history if known and known.log.incarnation == log.incarnation else None
        if not dropped or (history and all(map(history.reaches, dropped, dropped.values()))):
            return history
        return LakeHistory.of(self._lake, self._storage, self._target.full_name(topic), log)
