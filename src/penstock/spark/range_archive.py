"""How an archive writes messages as they are: each task reads its ranges, and writes them.

They do not go through Spark, which would make rows of them and columns again of the rows, and takes
longer for that than both ends take together. What it does is to spread, repeat and count the tasks.
"""

from __future__ import annotations

import base64
import json
import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSource, InputPartition
from pyspark.sql.types import DateType, StructField, StructType

from penstock.spark.batch_read import BatchReader
from penstock.spark.lake_sink import LakeJob, LakeWriter, RowsWritten, fitted, saved
from penstock.spark.options import parse_read_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass
class _Tasks:
    reader: BatchReader
    splits: list[InputPartition]
    """One for each task."""


def archive_ranges(
    spark: SparkSession, job: LakeJob, columns: StructType, options: Mapping[str, str]
) -> RowsWritten:
    """As `write_lake` of what a batch read with these options gives, and the date of each row."""
    reader = BatchReader(parse_read_options(options), columns)
    tasks = _Tasks(reader, list(reader.partitions()))
    schema = StructType([*columns.fields, StructField("date", DateType())])
    job = fitted(job, schema)
    spark.dataSource.register(_RangesSource)
    frame = spark.range(0, len(tasks.splits), 1, len(tasks.splits))
    writer = frame.write.format(_RangesSource.name())
    writer = writer.option("tasks", base64.b64encode(pickle.dumps(tasks)).decode())
    return saved(writer.option("schema", schema.json()), job)


class _RangesSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "penstock_ranges"

    def writer(self, schema: StructType, overwrite: bool) -> _RangesWriter:
        tasks = pickle.loads(base64.b64decode(self.options["tasks"]))
        columns = StructType.fromJson(json.loads(self.options["schema"]))
        return _RangesWriter(LakeJob.parse(self.options), columns, tasks)


class _RangesWriter(LakeWriter):
    """Its rows are the numbers of ranges."""

    def __init__(self, job: LakeJob, schema: StructType, tasks: _Tasks) -> None:
        super().__init__(job, schema)
        self._tasks = tasks

    def _rows(self, iterator: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for numbers in iterator:
            for number in numbers.column(0).to_pylist():
                for rows in self._tasks.reader.read(self._tasks.splits[number]):
                    yield rows.append_column("date", rows.column("timestamp").cast(pa.date32()))
