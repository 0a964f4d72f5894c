"""One read over lake and log: what an archive has comes from its tables, the rest from the log.

The table says for each partition up to which offset it has everything; the log is read from that
very offset on. So there is neither a gap nor an overlap, whatever retention has dropped.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.errors import InvalidInput
from penstock.spark.bounds import DurableRange, Range
from penstock.spark.lake import found_lake, table_of
from penstock.spark.lake_table import Lake, LakeFile
from penstock.spark.options import EARLIEST, LATEST, ReadOptions

_BATCH_ROWS = 32_768
_LOG_APPEND_TIME = 1


class LakePart(NamedTuple):
    """The rows of one partition in one file, from an offset up to another."""

    path: str
    topic: str
    partition: int
    start: int
    end: int
    after_us: int | None
    before_us: int | None
    """Only messages from a time on, and before another; the log knows no offset for them."""


class ArchivedTopics:
    """What the tables of an archive have of the topics that are read."""

    def __init__(self, options: ReadOptions, now: dict[str, dict[int, DurableRange]]) -> None:
        self._options = options
        self._now = now
        self._archived: dict[str, dict[int, int | None]] = {}
        self._files: dict[str, list[tuple[str, LakeFile]]] = {}
        for topic, partitions in now.items():
            name = options.target.full_name(topic)
            table = table_of(options.lake, name)
            lakes = self._main(table, partitions)
            # Before the files are looked at: of what is archived meanwhile nothing is taken.
            self._archived[topic] = lakes[0].archived(name, partitions) if lakes else {}
            # And before the table of bad rows: what the other has, that one has got first.
            lakes += _bad(table) if lakes else []
            self._files[topic] = [(lake.folder, each) for lake in lakes for each in lake.files()]

    def _main(self, table: str, partitions: dict[int, DurableRange]) -> list[Lake]:
        """That of a topic. One that was never archived has none; if its log has all of it, that is
        no harm."""
        try:
            return [found_lake(table)]
        except InvalidInput:
            if any(bounds.start for bounds in partitions.values()):
                raise
            return []

    def take(self, part: Range) -> tuple[Range, list[LakePart]]:
        """What of a range is left to the log, and what the lake has before it."""
        archived = self._archived[part.topic].get(part.partition)
        start, after_us = self._begin(part)
        if archived is None:
            return part._replace(start=start), []
        before_us = self._end(part)
        stop = min(archived, part.end)
        found = [
            LakePart(
                os.path.join(folder, each.path),
                part.topic,
                part.partition,
                start,
                stop,
                after_us,
                before_us,
            )
            for folder, each in self._files[part.topic]
            if each.offset_min < stop and each.offset_max >= start
        ]
        return part._replace(start=max(archived, start)), found

    def _begin(self, part: Range) -> tuple[int, int | None]:
        """Where the range begins in the lake: the log's first offset is not the first of all."""
        starting = self._options.starting
        oldest = self._now[part.topic][part.partition].start
        if part.start > oldest:
            return part.start, None
        if starting is None or (starting.all == "earliest" and not starting.times_us):
            given = {} if starting is None else starting.offsets.get(part.topic, {})
            named = given.get(part.partition, EARLIEST)
            begins = {EARLIEST: 0, LATEST: part.start}
            return begins.get(named, named), None
        times = starting.times_us.get(part.topic, {})
        time_us = times.get(part.partition, starting.all)
        if time_us == "earliest":
            return 0, None
        return (0, time_us) if isinstance(time_us, int) else (part.start, None)

    def _end(self, part: Range) -> int | None:
        """The time before which the range ends, if that is before all that the log holds."""
        if part.end > self._now[part.topic][part.partition].start:
            return None
        ending = self._options.ending
        time_us = ending.times_us.get(part.topic, {}).get(part.partition, ending.all)
        return time_us if isinstance(time_us, int) else None


def _bad(table: str) -> list[Lake]:
    """The table of rows that did not fit a schema, if there were any: they are history too."""
    with suppress(InvalidInput):
        return [found_lake(f"{table}.bad")]
    return []


def read_part(part: LakePart, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a part of a file, with the columns of a message."""
    with pq.ParquetFile(part.path) as file:
        constants = {
            "topic": pa.scalar(part.topic, pa.string()),
            "timestampType": pa.scalar(_LOG_APPEND_TIME, pa.int32()),
        }
        # An archive has named the topic with or without its namespace.
        same_topic = f"(^|/){re.escape(part.topic.rpartition('/')[2])}$"
        wanted = {field.name for field in schema} - constants.keys()
        columns = sorted(wanted | {"topic", "partition", "offset", "timestamp"})
        for rows in file.iter_batches(_BATCH_ROWS, columns=columns):
            mask = pc.and_(
                pc.and_(pc.equal(rows["partition"], part.partition), _within(rows, part)),
                pc.match_substring_regex(rows["topic"], same_topic),
            )
            rows = rows.filter(mask)
            if len(rows):
                kinds = [
                    pa.repeat(constants[field.name], len(rows))
                    if field.name in constants
                    else rows[field.name].cast(field.type)
                    for field in schema
                ]
                yield pa.RecordBatch.from_arrays(kinds, schema=schema)


def _within(rows: pa.RecordBatch, part: LakePart) -> pa.BooleanArray:
    mask = pc.and_(pc.greater_equal(rows["offset"], part.start), pc.less(rows["offset"], part.end))
    stamps = rows["timestamp"].cast(pa.timestamp("us", tz="UTC")).view(pa.int64())
    if part.after_us is not None:
        mask = pc.and_(mask, pc.greater_equal(stamps, part.after_us))
    if part.before_us is not None:
        mask = pc.and_(mask, pc.less(stamps, part.before_us))
    return mask
