"""`spark.readStream.format("penstock")`: micro-batches of offsets.

An offset of the stream is what the Kafka source writes, `{"orders": {"0": 23}}`: the next offset
of each partition. Beside it stands `#from`: where the batch that ends here begins, on partitions
whose beginning no earlier batch states. Spark does not write down where batch 0 begins, and asks
again after a failure, when "latest" is later than it was; so the end has to say it. `#topics` has
the incarnation of each topic: what was deleted and made again is another topic, however long it is.
An offset without it was written by an earlier version, and goes on with the topic that is there.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.errors import PenstockError
from penstock.spark.bounds import (
    DurableRange,
    Range,
    TopicBounds,
    cut_to_tasks,
    limited_by_bytes,
    limited_by_count,
)
from penstock.spark.options import Offsets, Position, ReadOptions
from penstock.spark.patience import patiently
from penstock.spark.positions import present, ranges, resolve
from penstock.spark.progress import commit_progress
from penstock.spark.range_read import RangeReader, Split, as_tasks
from penstock.spark.tier import LakePart
from penstock.spark.tiered_place import TieredPlace
from penstock.spark.topic_reader import TopicReader, open_topic_reader

_logger = logging.getLogger("penstock.spark")

StreamOffset: TypeAlias = dict[str, Any]

FROM = "#from"
TOPICS = "#topics"
"""No topic has such names."""

_ATTEMPTS = 5
_FIRST_PATIENCE_S = 5.0
_PAUSE_S = 0.2


class MicroBatchReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches and reads their parts.

    Planning happens in one process for the life of a query; the tasks, and the planning of a
    restarted query, know no more than the offsets say.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._reader = RangeReader.of(options, schema, options.patience_s)
        self._opened: TopicReader | None = None
        self._last: dict[str, TopicBounds] | None = None
        self._committed: Offsets | None = None
        self._was_there = False
        self._next_trigger_s = 0.0

    # What Spark calls to plan.

    def initialOffset(self) -> StreamOffset:
        now = self._present()
        starts = resolve(self._place, now, self._options.starting or Position("latest"))
        return _stream_offset(starts, starts, _incarnations(now))

    def getDefaultReadLimit(self) -> ReadLimit:
        options = self._options
        if options.offsets_per_trigger_max is not None:
            return ReadMaxRows(options.offsets_per_trigger_max)
        if options.bytes_per_trigger_max is not None:
            return ReadMaxBytes(options.bytes_per_trigger_max)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._last = self._present()

    def reportLatestOffset(self) -> StreamOffset | None:
        now = self._present()
        ends = {topic: {p: b.end for p, b in each.items()} for topic, each in now.items()}
        return _stream_offset(ends, topics=_incarnations(now))

    def latestOffset(self, start: StreamOffset, limit: ReadLimit) -> StreamOffset:
        starts, known = _offsets(start), start.get(TOPICS, {})
        self._report_progress(starts, known)
        now = self._present() if self._last is None else self._last
        for topic, bounds in now.items():
            if known.get(topic, bounds.incarnation) != bounds.incarnation:
                self._reader.recreated(topic)
                starts.pop(topic, None)
        topics = {**known, **_incarnations(now)}
        begins, newly = self._begins(starts, now)
        wanted = [
            Range(topic, partition, begins[topic][partition], bounds.end)
            for topic, each in sorted(now.items())
            for partition, bounds in sorted(each.items())
        ]
        wanted = [part for part in wanted if part.start < part.end]
        if not isinstance(limit, ReadAllAvailable) and not self._is_too_early(wanted):
            options = self._options
            if options.offsets_per_trigger_max is not None:
                wanted = limited_by_count(wanted, options.offsets_per_trigger_max)
            if options.bytes_per_trigger_max is not None:
                wanted = limited_by_bytes(wanted, self._place, options.bytes_per_trigger_max)
        if self._is_too_early(wanted) or (not wanted and topics == known):
            return start  # to the letter, or Spark would run a batch for nothing
        self._next_trigger_s = time.monotonic() + self._options.trigger_delay_s
        ends = {topic: dict(each) for topic, each in begins.items()}
        for part in wanted:
            ends[part.topic][part.partition] = part.end
        return _stream_offset(ends, begins if _is_initial(start) else newly, topics)

    def partitions(self, start: StreamOffset, end: StreamOffset) -> list[InputPartition]:
        starts, ends, said = _offsets(start), _offsets(end), _offsets(end.get(FROM, {}))
        topics = end.get(TOPICS, {})
        return patiently(
            lambda: self._planned(starts, ends, said, topics),
            self._options.patience_s,
            f"planning a batch of {self._options.target}",
        )

    def _planned(
        self, starts: Offsets, ends: Offsets, said: Offsets, topics: Mapping[str, str]
    ) -> list[InputPartition]:
        starts = {topic: dict(each) for topic, each in starts.items()}
        for topic, each in ends.items():
            begin = {**starts.get(topic, {}), **said.get(topic, {})}
            starts[topic] = {partition: begin.get(partition, 0) for partition in each}
        wanted = [part for part in ranges(starts, ends) if part.start < part.end]
        kept = self._kept(wanted, topics)
        old: list[LakePart] = []
        if isinstance(self._place, TieredPlace):
            old, kept = self._place.divided(kept)
        tasks = cut_to_tasks(
            *(kept, self._place, self._options.split_bytes, self._options.partitions_min)
        )
        return [*map(Split, old), *as_tasks(tasks, topics)] or [Split(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._reader.read_split(partition)

    def commit(self, end: StreamOffset) -> None:
        """Nothing: it comes late, and never for the last batch. See `latestOffset`."""

    def stop(self) -> None:
        if self._opened is not None:
            self._opened.close()

    # Inside.

    @property
    def _place(self) -> TopicReader:
        """Opened when something is planned: this object is also sent to tasks, which plan not."""
        if self._opened is None:
            self._opened = open_topic_reader(self._options.target)
            if lake := self._options.lake:
                options = self._options
                self._opened = TieredPlace(self._opened, lake, options.lake_storage, options.target)
        return self._opened

    def _present(self) -> dict[str, TopicBounds]:
        """The partitions now. What passes is tried again: an error here ends the query. A place
        that was never there is said to be wrong much sooner."""
        patience_s = self._options.patience_s if self._was_there else _FIRST_PATIENCE_S
        found = patiently(
            lambda: present(self._place, self._options.subscription),
            patience_s,
            f"looking at {self._options.target}",
        )
        self._was_there = True
        return found

    def _is_too_early(self, wanted: list[Range]) -> bool:
        """Whether a batch waits for more messages, and has not waited too long."""
        least = self._options.offsets_per_trigger_min
        if least is None or self._last is not None or time.monotonic() >= self._next_trigger_s:
            return False
        return sum(part.end - part.start for part in wanted) < least

    def _begins(self, starts: Offsets, now: Mapping[str, TopicBounds]) -> tuple[Offsets, Offsets]:
        """Where the next batch begins, and that of partitions where no batch has been."""
        begins = {topic: dict(each) for topic, each in starts.items()}
        newly: Offsets = {}
        for topic, each in now.items():
            for partition, bounds in each.items():
                begin = begins.setdefault(topic, {}).get(partition)
                if begin is not None and begin > bounds.end:
                    bounds = self._bounds_reaching(topic, partition, begin)
                if begin is not None and begin > bounds.end:
                    self._reader.lost(
                        f"{topic}/{partition}: the query stands at offset {begin}, but the log "
                        f"holds {bounds.start} up to {bounds.end}: it is another one"
                    )
                    begin = None
                elif begin is not None and begin < bounds.start:
                    self._reader.lost(
                        f"{topic}/{partition}: offsets {begin} up to {bounds.start} are gone"
                    )
                    begin = None
                if begin is None:
                    begins[topic][partition] = bounds.start
                    newly.setdefault(topic, {})[partition] = bounds.start
        return begins, newly

    def _bounds_reaching(self, topic: str, partition: int, offset: int) -> DurableRange:
        """The bounds of a partition, looked at again if they end too early: a broker that starts at
        this moment may be writing down where they are."""
        for _ in range(_ATTEMPTS):
            bounds = self._place.bounds(topic).get(partition, DurableRange(0, 0))
            if bounds.end >= offset:
                break
            time.sleep(_PAUSE_S)
        return bounds

    def _kept(self, wanted: list[Range], topics: Mapping[str, str]) -> list[Range]:
        """Without offsets that are gone. The tasks would notice too, but later."""
        kept = []
        others = {
            topic
            for topic in sorted({part.topic for part in wanted} & topics.keys())
            if self._place.incarnation(topic) != topics[topic]
        }
        for topic in others:
            self._reader.recreated(topic)
        for part in wanted:
            if part.topic in others:
                continue
            start, end = self._bounds_reaching(part.topic, part.partition, part.end)
            here = part._replace(start=max(part.start, start), end=min(part.end, end))
            if here != part:
                self._reader.lost(
                    f"{part.topic}/{part.partition}: of offsets {part.start} up to {part.end} "
                    f"some are gone; the log holds {start} up to {end}"
                )
            kept.append(here)
        return kept

    def _report_progress(self, starts: Offsets, topics: Mapping[str, str]) -> None:
        """All below the start of the next batch is done: Spark plans one after the other."""
        if not self._options.group or starts == self._committed:
            return
        try:
            commit_progress(self._options.target, self._options.group, starts, topics)
            self._committed = starts
        except (OSError, PenstockError) as exc:  # the next batch tells it too
            _logger.warning("group %s was not told of the progress: %s", self._options.group, exc)


def _is_initial(stream_offset: StreamOffset) -> bool:
    """Whether no batch has ended here: it is where the first one begins."""
    return FROM in stream_offset and _offsets(stream_offset[FROM]) == _offsets(stream_offset)


def _incarnations(now: Mapping[str, TopicBounds]) -> dict[str, str]:
    return {topic: bounds.incarnation for topic, bounds in now.items()}


def _offsets(stream_offset: StreamOffset) -> Offsets:
    return {
        topic: {int(partition): offset for partition, offset in each.items()}
        for topic, each in stream_offset.items()
        if topic not in (FROM, TOPICS)
    }


def _texts(offsets: dict[int, int]) -> dict[str, int]:
    return {str(partition): offset for partition, offset in sorted(offsets.items())}


def _stream_offset(
    offsets: Offsets, said: Offsets | None = None, topics: Mapping[str, str] | None = None
) -> StreamOffset:
    """Always in the same order: Spark compares the text."""
    made: StreamOffset = {topic: _texts(each) for topic, each in sorted(offsets.items())}
    if said:
        made[FROM] = {topic: _texts(each) for topic, each in sorted(said.items())}
    if topics:
        made[TOPICS] = dict(sorted(topics.items()))
    return made
