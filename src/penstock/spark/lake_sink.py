"""How a Spark job writes to a lake table: tasks write Parquet files, one commit adds them.

Rows have the table's columns, with `date`, and `_bad`: null for the table itself, or the reason
why the row goes to the table of bad rows beside it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.functions import expr
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import StructType

from penstock.errors import InvalidInput, LakeConflict
from penstock.spark.lake import LakeFormat, open_lake
from penstock.spark.lake_table import (
    Lake,
    LakeFile,
    TableChange,
    archived,
    incarnation_of,
    is_narrower,
    lay_out,
    message_column,
    rules_of,
)
from penstock.spark.table_files import TableFiles
from penstock.spark.table_layout import DATE, TableLayout
from penstock.spark.table_writer import INCARNATION, LakeFilesWriter
from penstock.spark.warm_up import freeze_loaded_modules

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter

BAD = "_bad"


class LakeJob(msgspec.Struct, frozen=True, kw_only=True):
    """What a write is to do, as one option of the sink."""

    table: str
    format: LakeFormat = "delta"
    storage: dict[str, str] = {}
    """Settings of the object store that the tables lie in."""
    bad_table: str = ""
    topic: str = ""
    """As `topic_mark` writes it."""
    adopted: bool = False
    """As in a change of a table."""
    starts: dict[int, int | None] = {}
    """What the table must say of each partition for this write to be the next one."""
    begins: dict[int, int] = {}
    """Where its rows begin, if that is not there: what was between is lost."""
    ends: dict[int, int] = {}
    rules: int | None = None
    """As in a change of the table of bad rows."""
    removed: list[str] = []
    """Files that the rows replace."""
    rewrites: bool = False
    compacted: str = ""
    noted: dict[str, int] = {}
    """These as in a change of the table."""
    partition_by: list[str] | None = None
    statistics: list[str] | None = None
    """Of the table, if they were chosen."""
    layout: TableLayout = msgspec.field(default_factory=TableLayout)
    """The one that it has, or gets; that of bad rows is partitioned by `date`."""
    counted: str = ""
    """A file of the driver where the commit, which Spark runs in another process, is to leave how
    many rows there were."""

    def follows(self, now: Mapping[int, int | None], exactly: bool) -> bool:
        """Whether this write is the next one for a table that is so far.

        The table of bad rows may be behind: it is there only since there are any.
        """
        if exactly:
            return all(now[partition] == self.starts.get(partition) for partition in self.ends)
        return all(
            (now[partition] or 0) <= self.begins.get(partition, self.starts.get(partition) or 0)
            for partition in self.ends
        )

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> LakeJob:
        return msgspec.json.decode(options["job"], type=cls)

    def open(self, table: str) -> Lake:
        return open_lake(table, self.format, self.storage)

    def text(self) -> str:
        return msgspec.json.encode(self).decode()


@dataclass
class Written(WriterCommitMessage):
    good: list[LakeFile] = field(default_factory=list)
    bad: list[LakeFile] = field(default_factory=list)


class LakeDataSource(DataSource):
    """Registered by the pipelines that use it; people read the tables with any Delta reader."""

    @classmethod
    def name(cls) -> str:
        return "penstock_lake"

    def writer(self, schema: StructType, overwrite: bool) -> LakeWriter:
        return LakeWriter(LakeJob.parse(self.options), schema)


class RowsWritten(NamedTuple):
    every: int
    bad: int


def write_lake(frame: DataFrame, job: LakeJob) -> RowsWritten:
    """Run a job that writes a frame to a lake table, which gets the columns that it has not yet.
    How many rows, good and bad, there were."""
    job = fitted(job, frame.schema)
    lake = job.open(job.table)
    if lake.exists():
        frame = _widened(frame, _schemas(frame.schema)[0], lake.schema())
    frame.sparkSession.dataSource.register(LakeDataSource)
    headers = message_column("headers", frame.columns)
    if headers in frame.columns:
        # Spark hands over arrays that are null at a quarter of the speed of empty ones.
        frame = frame.withColumn(headers, expr(f"coalesce({headers}, array())"))
    return saved(frame.write.format("penstock_lake"), job)


def fitted(job: LakeJob, schema: StructType) -> LakeJob:
    """Give the tables the columns that they have not yet; the job, as the table is laid out."""
    good, bad = _schemas(schema)
    lake = job.open(job.table)
    if job.rewrites:
        return msgspec.structs.replace(job, layout=lake.layout() or TableLayout())
    layout = lay_out(lake, good, job.partition_by, job.statistics)
    if job.bad_table:
        job.open(job.bad_table).make_room_for(bad)
    return msgspec.structs.replace(job, layout=layout)


def saved(writer: DataFrameWriter, job: LakeJob) -> RowsWritten:
    with TemporaryDirectory(prefix="penstock-") as folder:
        job = msgspec.structs.replace(job, counted=os.path.join(folder, "rows"))
        writer.option("job", job.text()).mode("append").save()
        with open(job.counted) as file:
            every, bad = file.read().split()
            return RowsWritten(int(every), int(bad))


def _widened(frame: DataFrame, given: pa.Schema, known: pa.Schema) -> DataFrame:
    """Numbers as the table has them, if that is wider."""
    for name in set(given.names) & set(known.names):
        wider = known.field(name).type
        if is_narrower(given.field(name).type, wider):
            frame = frame.withColumn(name, frame[f"`{name}`"].cast(from_arrow_type(wider)))
    return frame


def _schemas(schema: StructType) -> tuple[pa.Schema, pa.Schema]:
    """The columns of the table, and of the one beside it for bad rows."""
    every = to_arrow_schema(schema, timezone="UTC")
    good = pa.schema([f for f in every if f.name not in ("date", BAD, INCARNATION)])
    return good, good.append(pa.field("reason", pa.string()))


class LakeWriter(DataSourceArrowWriter):
    def __init__(self, job: LakeJob, schema: StructType) -> None:
        self._job = job
        self._good, self._bad = _schemas(schema)
        if not job.layout.has_dated_paths:
            self._good = self._good.append(pa.field(DATE, pa.date32()))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        freeze_loaded_modules()
        incarnation = incarnation_of(self._job.topic)
        storage = self._job.storage
        files = TableFiles(self._job.table, storage)
        good = LakeFilesWriter(files, self._good, incarnation, self._job.layout)
        bad = None
        if self._job.bad_table:
            bad = LakeFilesWriter(TableFiles(self._job.bad_table, storage), self._bad, incarnation)
        for rows in self._rows(iterator):
            if bad is not None:
                is_bad = rows.column(BAD).is_valid()
                if pc.any(is_bad).as_py():
                    some = rows.filter(is_bad)
                    bad.write(some.append_column("reason", some.column(BAD)))
                    rows = rows.filter(pc.invert(is_bad))
            if len(rows):
                good.write(rows)
        return Written(good.close(), bad.close() if bad else [])

    def _rows(self, iterator: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return iterator

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        job = self._job
        written = [message for message in messages if isinstance(message, Written)]
        tables = [(job.table, self._good, [f for each in written for f in each.good])]
        if job.bad_table:
            tables.insert(0, (job.bad_table, self._bad, [f for each in written for f in each.bad]))
        for folder, _, files in tables:
            _check_seen(TableFiles(folder, job.storage), files)
        for folder, schema, files in tables:
            lake = job.open(folder)
            rules = job.rules if folder == job.bad_table else None
            if folder == job.bad_table and not files and not lake.exists():
                continue  # no table for what never happened
            now = archived(lake, job.topic, job.ends)
            if now == job.ends and job.ends:
                if rules is not None and rules_of(lake, job.topic) not in (None, rules):
                    raise other_rules(folder)
                lake.sync()
                continue  # an earlier attempt got so far
            if not job.follows(now, folder == job.table):
                raise LakeConflict(
                    f"{folder} is at {now}, and this write begins at {job.starts}: another "
                    "pipeline archives the same topic. Run one of them."
                )
            change = TableChange(schema, files, (), job.topic, job.ends, rules, job.adopted)
            if folder == job.table:
                change = msgspec.structs.replace(
                    change,
                    removed=job.removed,
                    rewrites=job.rewrites,
                    compacted=job.compacted,
                    noted=job.noted,
                    layout=job.layout,
                )
            lake.commit(change)
        if job.counted:
            with open(job.counted, "w") as file:
                every = sum(f.rows for _, _, files in tables for f in files)
                bad = sum(f.rows for each in written for f in each.bad)
                file.write(f"{every} {bad}")

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Files that were not committed are in nobody's way; those that were have to stay."""


def other_rules(bad_table: str) -> InvalidInput:
    return InvalidInput(
        f"a round with a schema was cut short, and {bad_table} has its bad rows already: "
        "run the archive with the same schema once more"
    )


def _check_seen(place: TableFiles, files: Sequence[LakeFile]) -> None:
    """What tasks wrote on other machines has to be here too, or the table would name nothing."""
    missing = [each.path for each in files if not place.exists(each.path)]
    if missing:
        raise InvalidInput(
            f"the tasks have written {missing[0]} to {place.table}, but the driver does not see "
            "it: the lake has to be a folder that all machines share"
        )
