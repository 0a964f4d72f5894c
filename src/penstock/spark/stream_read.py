"""`spark.readStream.format("penstock")`: micro-batches of offsets.

An offset of the stream is what the Kafka source writes, `{"orders": {"0": 23}}`: the next offset
of each partition. Beside it stands `#from`: where the batch that ends here begins, on partitions
whose beginning no earlier batch states. Spark does not write down where batch 0 begins, and asks
again after a failure, when "latest" is later than it was; so the end has to say it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
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

from penstock.errors import InvalidInput, LogError, PenstockError, TopicNotFound
from penstock.spark.bounds import DurableRange, Range, cut, limited_by_bytes, limited_by_count
from penstock.spark.columns import arrow_schema
from penstock.spark.options import Offsets, Position, ReadOptions
from penstock.spark.positions import present, ranges, resolve
from penstock.spark.progress import commit_progress
from penstock.spark.range_read import RangeReader, Split
from penstock.spark.topic_reader import TopicReader, open_topic_reader

_logger = logging.getLogger("penstock.spark")

StreamOffset: TypeAlias = dict[str, Any]

FROM = "#from"
"""No topic has such a name."""

_ATTEMPTS = 5
_PAUSE_S = 0.2


class MicroBatchReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches and reads their parts.

    Planning happens in one process for the life of a query; the tasks, and the planning of a
    restarted query, know no more than the offsets say.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        if options.lake:
            raise InvalidInput("tier=lake+log is for batch reads: a stream begins in the log")
        self._options = options
        self._reader = RangeReader(options.target, arrow_schema(schema), options.fail_on_data_loss)
        self._opened: TopicReader | None = None
        self._last: dict[str, dict[int, DurableRange]] | None = None
        self._committed: Offsets | None = None

    # What Spark calls to plan.

    def initialOffset(self) -> StreamOffset:
        now = self._present()
        starts = resolve(self._place, now, self._options.starting or Position("latest"))
        return _stream_offset(starts, starts)

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
        ends = {t: {p: b.end for p, b in each.items()} for t, each in self._present().items()}
        return _stream_offset(ends)

    def latestOffset(self, start: StreamOffset, limit: ReadLimit) -> StreamOffset:
        starts = _offsets(start)
        self._report_progress(starts)
        now = self._present() if self._last is None else self._last
        begins, newly = self._begins(starts, now)
        wanted = [
            Range(topic, partition, begins[topic][partition], bounds.end)
            for topic, each in sorted(now.items())
            for partition, bounds in sorted(each.items())
        ]
        wanted = [part for part in wanted if part.start < part.end]
        if not isinstance(limit, ReadAllAvailable):
            options = self._options
            if options.offsets_per_trigger_max is not None:
                wanted = limited_by_count(wanted, options.offsets_per_trigger_max)
            if options.bytes_per_trigger_max is not None:
                wanted = limited_by_bytes(wanted, self._place, options.bytes_per_trigger_max)
        if not wanted:
            return start  # to the letter, or Spark would run a batch for nothing
        ends = {topic: dict(each) for topic, each in begins.items()}
        for part in wanted:
            ends[part.topic][part.partition] = part.end
        return _stream_offset(ends, begins if _is_initial(start) else newly)

    def partitions(self, start: StreamOffset, end: StreamOffset) -> list[InputPartition]:
        starts, ends, said = _offsets(start), _offsets(end), _offsets(end.get(FROM, {}))
        for topic, each in ends.items():
            begin = {**starts.get(topic, {}), **said.get(topic, {})}
            starts[topic] = {partition: begin.get(partition, 0) for partition in each}
        wanted = [part for part in ranges(starts, ends) if part.start < part.end]
        splits = cut(
            self._kept(wanted), self._place, self._options.split_bytes, self._options.partitions_min
        )
        return [Split(part) for part in splits] or [Split(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Split)
        return self._reader.read(partition.part) if isinstance(partition.part, Range) else iter(())

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
        return self._opened

    def _present(self) -> dict[str, dict[int, DurableRange]]:
        """The partitions now. What passes is tried again: an error here ends the query."""
        for attempt in range(_ATTEMPTS):
            try:
                return present(self._place, self._options.subscription)
            except TopicNotFound:
                raise
            except (OSError, LogError) as exc:
                if attempt + 1 == _ATTEMPTS:
                    raise
                _logger.warning("looking at %s: %s; trying again", self._options.target, exc)
                time.sleep(_PAUSE_S * 2**attempt)
        raise AssertionError

    def _begins(
        self, starts: Offsets, now: dict[str, dict[int, DurableRange]]
    ) -> tuple[Offsets, Offsets]:
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

    def _kept(self, wanted: list[Range]) -> list[Range]:
        """Without offsets that are gone. The tasks would notice too, but later."""
        kept = []
        for part in wanted:
            start, end = self._bounds_reaching(part.topic, part.partition, part.end)
            here = part._replace(start=max(part.start, start), end=min(part.end, end))
            if here != part:
                self._reader.lost(
                    f"{part.topic}/{part.partition}: of offsets {part.start} up to {part.end} "
                    f"some are gone; the log holds {start} up to {end}"
                )
            kept.append(here)
        return kept

    def _report_progress(self, starts: Offsets) -> None:
        """All below the start of the next batch is done: Spark plans one after the other."""
        if not self._options.group or starts == self._committed:
            return
        try:
            commit_progress(self._options.target, self._options.group, starts)
            self._committed = starts
        except (OSError, PenstockError) as exc:  # the next batch tells it too
            _logger.warning("group %s was not told of the progress: %s", self._options.group, exc)


def _is_initial(stream_offset: StreamOffset) -> bool:
    """Whether no batch has ended here: it is where the first one begins."""
    return stream_offset.get(FROM) == {t: e for t, e in stream_offset.items() if t != FROM}


def _offsets(stream_offset: StreamOffset) -> Offsets:
    return {
        topic: {int(partition): offset for partition, offset in each.items()}
        for topic, each in stream_offset.items()
        if topic != FROM
    }


def _texts(offsets: dict[int, int]) -> dict[str, int]:
    return {str(partition): offset for partition, offset in sorted(offsets.items())}


def _stream_offset(offsets: Offsets, said: Offsets | None = None) -> StreamOffset:
    """Always in the same order: Spark compares the text."""
    made: StreamOffset = {topic: _texts(each) for topic, each in sorted(offsets.items())}
    if said:
        made[FROM] = {topic: _texts(each) for topic, each in sorted(said.items())}
    return made
