"""How a Spark job writes to a lake table: tasks write Parquet files, one commit adds them.

Rows have the table's columns, `date`, and `_bad`: null for the table itself, or the reason why the
row goes to the table of bad rows beside it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.functions import expr
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from penstock.errors import InvalidInput, LakeConflict
from penstock.log.files import DiskFiles
from penstock.spark.lake import LakeFormat, open_lake
from penstock.spark.lake_table import LakeFile, TableChange, new_file_name
from penstock.spark.warm_up import freeze_loaded_modules

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BAD = "_bad"
FILE_BYTES_MAX = 256 << 20


class LakeJob(msgspec.Struct, frozen=True, kw_only=True):
    """What a write is to do, as one option of the sink."""

    table: str
    format: LakeFormat = "delta"
    bad_table: str = ""
    topic: str = ""
    """By its full name."""
    starts: dict[int, int | None] = {}
    """What the table must say of each partition for this write to be the next one."""
    begins: dict[int, int] = {}
    """Where its rows begin, if that is not there: what was between is lost."""
    ends: dict[int, int] = {}
    rules: int | None = None
    """As in a change of the table of bad rows."""
    removed: list[str] = []
    """Files that the rows replace."""
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


def write_lake(frame: DataFrame, job: LakeJob) -> int:
    """Run a job that writes a frame to a lake table, which gets the columns that it has not yet.
    How many rows, good and bad, there were."""
    good, bad = _schemas(frame.schema)
    open_lake(job.table, job.format).make_room_for(good)
    if job.bad_table:
        open_lake(job.bad_table, job.format).make_room_for(bad)
    frame.sparkSession.dataSource.register(LakeDataSource)
    if "headers" in frame.columns:
        # Spark hands over arrays that are null at a quarter of the speed of empty ones.
        frame = frame.withColumn("headers", expr("coalesce(headers, array())"))
    with TemporaryDirectory(prefix="penstock-") as folder:
        job = msgspec.structs.replace(job, counted=os.path.join(folder, "rows"))
        frame.write.format("penstock_lake").option("job", job.text()).mode("append").save()
        with open(job.counted) as file:
            return int(file.read())


def _schemas(schema: StructType) -> tuple[pa.Schema, pa.Schema]:
    """The columns of the table, and of the one beside it for bad rows."""
    every = to_arrow_schema(schema, timezone="UTC")
    good = pa.schema([f for f in every if f.name not in ("date", BAD)])
    return good, good.append(pa.field("reason", pa.string()))


class LakeWriter(DataSourceArrowWriter):
    def __init__(self, job: LakeJob, schema: StructType) -> None:
        self._job = job
        self._good, self._bad = _schemas(schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        freeze_loaded_modules()
        good = _Files(open_lake(self._job.table, self._job.format).staged_folder(), self._good)
        bad = None
        if self._job.bad_table:
            folder = open_lake(self._job.bad_table, self._job.format).staged_folder()
            bad = _Files(folder, self._bad)
        for rows in iterator:
            if bad is not None:
                is_bad = rows.column(BAD).is_valid()
                if pc.any(is_bad).as_py():
                    some = rows.filter(is_bad)
                    bad.write(some.append_column("reason", some.column(BAD)))
                    rows = rows.filter(pc.invert(is_bad))
            if len(rows):
                good.write(rows)
        return Written(good.close(), bad.close() if bad else [])

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        job = self._job
        written = [message for message in messages if isinstance(message, Written)]
        tables = [(job.table, self._good, [f for each in written for f in each.good])]
        if job.bad_table:
            tables.insert(0, (job.bad_table, self._bad, [f for each in written for f in each.bad]))
        for folder, _, files in tables:
            _check_seen(open_lake(folder, job.format).staged_folder(), files)
        for folder, schema, files in tables:
            lake = open_lake(folder, job.format)
            rules = job.rules if folder == job.bad_table else None
            if folder == job.bad_table and not files and not lake.exists():
                continue  # no table for what never happened
            now = lake.archived(job.topic, job.ends)
            if now == job.ends and job.ends:
                if rules is not None and lake.rules(job.topic) not in (None, rules):
                    raise other_rules(folder)
                lake.sync()
                continue  # an earlier attempt got so far
            if not job.follows(now, folder == job.table):
                raise LakeConflict(
                    f"{folder} is at {now}, and this write begins at {job.starts}: another "
                    "pipeline archives the same topic. Run one of them."
                )
            removed = job.removed if folder == job.table else ()
            lake.commit(TableChange(schema, files, removed, job.topic, job.ends, rules))
        if job.counted:
            with open(job.counted, "w") as file:
                file.write(str(sum(f.rows for _, _, files in tables for f in files)))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Files that were not committed are in nobody's way; those that were have to stay."""


def other_rules(bad_table: str) -> InvalidInput:
    return InvalidInput(
        f"a round with a schema was cut short, and {bad_table} has its bad rows already: "
        "run the archive with the same schema once more"
    )


def _check_seen(folder: str, files: Sequence[LakeFile]) -> None:
    """What tasks wrote on other machines has to be here too, or the table would name nothing."""
    missing = [each.path for each in files if not os.path.exists(os.path.join(folder, each.path))]
    if missing:
        raise InvalidInput(
            f"the tasks have written {missing[0]} to {folder}, but the driver does not see it: the "
            "lake has to be a folder that all machines share"
        )


class _Files:
    """The files of one task in one table, one for each date."""

    def __init__(self, folder: str, schema: pa.Schema) -> None:
        self._folder = folder
        self._schema = schema
        self._open: dict[str, _OpenFile] = {}
        self._done: list[LakeFile] = []

    def write(self, rows: pa.RecordBatch) -> None:
        dates = rows.column("date")
        for date in dates.unique().to_pylist():
            some = rows if len(dates.unique()) == 1 else rows.filter(pc.equal(dates, date))
            file = self._open.get(str(date))
            if file is None:
                file = self._open[str(date)] = _OpenFile(self._folder, str(date), self._schema)
            file.write(some)
            if file.size_bytes > FILE_BYTES_MAX:
                self._done.append(self._open.pop(str(date)).close())

    def close(self) -> list[LakeFile]:
        return self._done + [file.close() for file in self._open.values()]


class _OpenFile:
    def __init__(self, folder: str, date: str, schema: pa.Schema) -> None:
        self._date = date
        self._schema = schema
        self._name = new_file_name(date)
        self._path = os.path.join(folder, self._name)
        self._files = DiskFiles()
        self._files.make_folder(os.path.dirname(self._path))
        self._out = pq.ParquetWriter(self._path, schema, compression="zstd")
        self._rows = 0
        self._offsets: list[int] = []
        self.size_bytes = 0

    def write(self, rows: pa.RecordBatch) -> None:
        # Spark hands over times in the zone of the session; it is the same moment in UTC.
        columns = {f.name: rows.column(f.name).cast(f.type) for f in self._schema}
        if "headers" in columns:
            columns["headers"] = _or_null(columns["headers"])
        arrays = list(columns.values())
        self._out.write_batch(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
        self._rows += len(rows)
        self.size_bytes = os.path.getsize(self._path)
        if "offset" in rows.schema.names:
            least_and_most = pc.min_max(rows.column("offset")).as_py()
            self._offsets += [least_and_most["min"], least_and_most["max"]]

    def close(self) -> LakeFile:
        """On stable storage, under its name: retention goes by what the table says it has."""
        self._out.close()
        with open(self._path, "rb") as file:
            os.fsync(file.fileno())
        self._files.sync_folder(os.path.dirname(self._path))
        offsets = self._offsets or [0]
        size = os.path.getsize(self._path)
        return LakeFile(self._name, self._date, size, self._rows, min(offsets), max(offsets))


def _or_null(column: pa.Array) -> pa.Array:
    """Lists that are empty as null, which is what the log has for no headers."""
    filled = pc.greater(pc.list_value_length(column), 0)
    return pc.if_else(filled, column, pa.scalar(None, column.type))
