"""`spark.read.format("penstock")`: what there is now, between two positions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructType

from penstock.spark.bounds import DurableRange, Range, cut_to_tasks
from penstock.spark.options import Position, ReadOptions
from penstock.spark.positions import present, ranges, resolve
from penstock.spark.range_read import RangeReader, Split, as_tasks
from penstock.spark.tier import ArchivedTopics
from penstock.spark.topic_reader import TopicReader, open_topic_reader

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class BatchReader(DataSourceReader):
    """Plans a batch read and reads its parts."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._reader = RangeReader.of(options, schema)

    def partitions(self) -> list[InputPartition]:
        with closing(open_topic_reader(self._options.target)) as place:
            return self._planned(place)

    def _planned(self, place: TopicReader) -> list[InputPartition]:
        options = self._options
        now = present(place, options.subscription)
        starts = resolve(place, now, options.starting or Position("earliest"))
        ends = resolve(place, now, options.ending)
        history = ArchivedTopics(options, now) if options.lake else None
        wanted, splits = [], []
        for topic, bounds in now.items():
            wanted_incarnation = options.incarnations.get(topic, bounds.incarnation)
            if bounds.incarnation != wanted_incarnation:
                self._reader.recreated(topic)
                return [Split(None)]  # the offsets are those of another topic
        for part in ranges(starts, ends):
            if history is not None:
                part, old = history.take(part)
                splits += [Split(each) for each in old]
            part = self._within(part, now[part.topic][part.partition])
            part = self._narrowed(part, place)
            if part.start < part.end:
                wanted.append(part)
        tasks = cut_to_tasks(wanted, place, options.split_bytes, options.partitions_min)
        topics = {topic: bounds.incarnation for topic, bounds in now.items()}
        return [*splits, *as_tasks(tasks, topics)] or [Split(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._reader.read_split(partition)

    def _within(self, part: Range, bounds: DurableRange) -> Range:
        """Without offsets that are gone, or were never there."""
        if part.start > bounds.end or part.end > bounds.end:
            self._reader.lost(
                f"{part.topic}/{part.partition}: offsets {part.start} up to {part.end} are "
                f"asked for; the log holds {bounds.start} up to {bounds.end}"
            )
            part = part._replace(end=bounds.end)
        if part.start < bounds.start < part.end:
            self._reader.lost(
                f"{part.topic}/{part.partition}: offsets {part.start} up to {bounds.start} are gone"
            )
            part = part._replace(start=bounds.start)
        return part

    def _narrowed(self, part: Range, place: TopicReader) -> Range:
        """Without what filters leave out; all is wanted where there are none."""
        return part


class FilteringReader(BatchReader):
    """A batch read that leaves out what filters on these columns do not want.

    Topic, partition and offset narrow what is planned, and so does the earliest time. Times are
    not always in order in a log, so rows are looked at too, and Spark looks again. Spark refuses
    such a reader unless `spark.sql.python.filterPushdown.enabled` is true: it is opted for.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._topics: set[Any] | None = None
        self._partitions: set[Any] | None = None
        self._first, self._next = 0, (1 << 63) - 1

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        for each in filters:
            if not self._take(each):
                yield each

    def _take(self, wanted: Filter) -> bool:
        """Make use of a filter; whether Spark need not look at it any more."""
        match wanted:
            case EqualTo(("topic",), value):
                self._topics = _both(self._topics, {value})
            case In(("topic",), values):
                self._topics = _both(self._topics, set(values))
            case EqualTo(("partition",), value):
                self._partitions = _both(self._partitions, {value})
            case In(("partition",), values):
                self._partitions = _both(self._partitions, set(values))
            case EqualTo(("offset",), int(value)):
                self._first, self._next = max(self._first, value), min(self._next, value + 1)
            case GreaterThan(("offset",), int(value)):
                self._first = max(self._first, value + 1)
            case GreaterThanOrEqual(("offset",), int(value)):
                self._first = max(self._first, value)
            case LessThan(("offset",), int(value)):
                self._next = min(self._next, value)
            case LessThanOrEqual(("offset",), int(value)):
                self._next = min(self._next, value + 1)
            case GreaterThan(("timestamp",), datetime() as moment) | GreaterThanOrEqual(
                ("timestamp",), datetime() as moment
            ):
                after_us = max(self._reader.after_us or 0, _us(moment))
                self._reader = replace(self._reader, after_us=after_us)
                return False
            case LessThan(("timestamp",), datetime() as moment) | LessThanOrEqual(
                ("timestamp",), datetime() as moment
            ):
                known = self._reader.before_us
                before_us = _us(moment) if known is None else min(known, _us(moment))
                self._reader = replace(self._reader, before_us=before_us)
                return False
            case _:
                return False
        return True

    def _narrowed(self, part: Range, place: TopicReader) -> Range:
        if (self._topics is not None and part.topic not in self._topics) or (
            self._partitions is not None and part.partition not in self._partitions
        ):
            return part._replace(end=part.start)
        start, end = max(part.start, self._first), min(part.end, self._next)
        if self._reader.after_us is not None:
            start = max(start, place.find(part.topic, part.partition, self._reader.after_us))
        return part._replace(start=start, end=max(start, end))


def _both(known: set[Any] | None, wanted: set[Any]) -> set[Any]:
    return wanted if known is None else known & wanted


def _us(moment: datetime) -> int:
    moment = moment if moment.tzinfo else moment.astimezone()
    since = moment - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
