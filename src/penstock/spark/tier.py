"""One read over lake and log: what an archive has comes from its tables, the rest from the log.

The table says for each partition up to which offset it has everything; the log is read from that
very offset on. So there is neither a gap nor an overlap, whatever retention has dropped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InvalidInput
from penstock.spark.bounds import Range, TopicBounds
from penstock.spark.lake import found_lake, table_of
from penstock.spark.lake_table import Lake, LakeFile, message_column, stand_of
from penstock.spark.options import EARLIEST, LATEST, ReadOptions
from penstock.spark.table_files import TableFiles

_BATCH_ROWS = 32_768
_OFFSET_MAX = (1 << 63) - 1
_LOG_APPEND_TIME = 1


class LakePart(NamedTuple):
    """The rows of one partition in one file, from an offset up to another."""

    table: str
    path: str
    storage: dict[str, str]
    topic: str
    partition: int
    start: int
    end: int
    after_us: int | None
    before_us: int | None
    """Only messages from a time on, and before another; the log knows no offset for them."""


class LakeHistory(NamedTuple):
    """What the tables of an archive have of one topic that is there."""

    files: list[tuple[Lake, LakeFile]]
    """Of the table and of that of bad rows, each with its table."""
    ends: dict[int, int | None]

    @classmethod
    def of(
        cls, lake: str, storage: dict[str, str], name: str, now: TopicBounds
    ) -> LakeHistory | None:
        """None: it was never archived."""
        table = table_of(lake, name)
        try:
            main = found_lake(table, storage)
        except InvalidInput:
            return None
        stand = stand_of(main, name, now.incarnation, now)
        own = {now.incarnation, "" if stand.is_adopted else None}
        lakes = [main, *_bad(table, storage)]
        files = [(each, file) for each in lakes for file in each.files()]
        return cls([each for each in files if each[1].incarnation in own], stand.ends)

    def reaches(self, partition: int, offset: int) -> bool:
        return (self.ends.get(partition) or 0) >= offset

    @property
    def start(self) -> int:
        return min((file.offset_min for _, file in self.files), default=_OFFSET_MAX)

    @property
    def row_bytes(self) -> float:
        rows = sum(file.rows for _, file in self.files)
        return sum(file.size_bytes for _, file in self.files) / max(1, rows)

    def parts(self, part: Range, *, after_us: int | None = None, day: str = "") -> list[LakePart]:
        """A range as parts of files; only messages from a time on, and files from a day on."""
        return [
            _lake_part(place, part, part.start, part.end, after_us, None)
            for place in self.files
            if place[1].offset_min < part.end
            and place[1].offset_max >= part.start
            and (not place[1].date or place[1].date >= day)
        ]


class ArchivedTopics:
    """What the tables of an archive have of the topics that are read."""

    def __init__(self, options: ReadOptions, now: Mapping[str, TopicBounds]) -> None:
        self._options = options
        self._now = now
        self._archived: dict[str, dict[int, int | None]] = {}
        self._files: dict[str, list[tuple[Lake, LakeFile]]] = {}
        self._former: dict[str, list[tuple[Lake, LakeFile]]] = {}
        """Those with rows of topics that had the name before."""
        own: dict[str, set[str | None]] = {}
        for topic, partitions in now.items():
            name = options.target.full_name(topic)
            table = table_of(options.lake, name)
            lakes = self._main(table, partitions)
            # Before the files are looked at: of what is archived meanwhile nothing is taken.
            if lakes:
                stand = stand_of(lakes[0], name, partitions.incarnation, partitions)
                self._archived[topic] = stand.ends
                own[topic] = {partitions.incarnation, "" if stand.is_adopted else None}
            # And before the table of bad rows: what the other has, that one has got first.
            lakes += _bad(table, options.lake_storage) if lakes else []
            for place in ((lake, each) for lake in lakes for each in lake.files()):
                which = self._files if place[1].incarnation in own[topic] else self._former
                which.setdefault(topic, []).append(place)

    def _main(self, table: str, partitions: TopicBounds) -> list[Lake]:
        """That of a topic. One that was never archived has none; if its log has all of it, that is
        no harm."""
        try:
            return [found_lake(table, self._options.lake_storage)]
        except InvalidInput:
            if any(bounds.start for bounds in partitions.values()):
                raise
            return []

    def take(self, part: Range) -> tuple[Range, list[LakePart]]:
        """What of a range is left to the log, and what the lake has before it."""
        archived = self._archived.get(part.topic, {}).get(part.partition) or 0
        start, after_us = self._begin(part)
        before_us = self._end(part)
        stop = min(archived, part.end)
        found = [
            _lake_part(place, part, start, stop, after_us, before_us)
            for place in self._files.get(part.topic, ())
            if place[1].offset_min < stop and place[1].offset_max >= start
        ]
        if start == 0:  # from the beginning: also what topics of this name had that are deleted
            found = [
                _lake_part(place, part, 0, _OFFSET_MAX, after_us, before_us)
                for place in self._former.get(part.topic, ())
            ] + found
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


def _lake_part(
    place: tuple[Lake, LakeFile],
    part: Range,
    start: int,
    stop: int,
    after_us: int | None,
    before_us: int | None,
) -> LakePart:
    lake, file = place
    return LakePart(
        *(lake.folder, file.path, lake.storage, part.topic, part.partition, start, stop),
        *(after_us, before_us),
    )


def _bad(table: str, storage: dict[str, str]) -> list[Lake]:
    """The table of rows that did not fit a schema, if there were any: they are history too."""
    with suppress(InvalidInput):
        return [found_lake(f"{table}.bad", storage)]
    return []


def read_part(part: LakePart, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a part of a file, with the columns of a message."""
    with TableFiles(part.table, part.storage).parquet(part.path) as file:
        constants = {
            "topic": pa.scalar(part.topic, pa.string()),
            "timestampType": pa.scalar(_LOG_APPEND_TIME, pa.int32()),
        }
        # An archive has named the topic with or without its namespace.
        same_topic = f"(^|/){re.escape(part.topic.rpartition('/')[2])}$"
        wanted = {field.name for field in schema} - constants.keys()
        there = {
            name: message_column(name, file.schema_arrow.names)
            for name in wanted | {"topic", "partition", "offset", "timestamp"}
        }
        for rows in file.iter_batches(_BATCH_ROWS, columns=sorted(there.values())):
            rows = rows.select(list(there.values())).rename_columns(list(there))
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
