"""Lake tables as data frames, without a jar: Spark reads the Parquet files that the table names.

Those in an object store it may have no driver for: there the tasks read them by themselves.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.functions import expr
from pyspark.sql.pandas.types import from_arrow_schema

from penstock.errors import InvalidInput
from penstock.spark.lake import found_lake
from penstock.spark.lake_files import LakeFilesSource, files_option
from penstock.spark.lake_table import Lake, LakeFile, message_column
from penstock.spark.options import in_object_store
from penstock.spark.table_writer import INCARNATION

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_OF = "'^part-(?:([0-9a-z]+)-)?[0-9a-f]{32}[.]parquet$'"


def read_lake(
    spark: SparkSession, table: str, storage: Mapping[str, str] | None = None
) -> DataFrame:
    """The rows of a table as it is now. `storage`: settings of its object store, as deltalake takes
    them; by default from the environment."""
    lake = found_lake(table, storage)
    return read_files(spark, lake, lake.files())


def read_files(
    spark: SparkSession, lake: Lake, files: Sequence[LakeFile], *, incarnations: bool = False
) -> DataFrame:
    """`incarnations`: also the topic that each row is of, which the name of its file says."""
    if not files:
        raise InvalidInput(f"the lake table {lake.folder} has no rows")
    schema = lake.schema()
    if in_object_store(lake.folder):
        if incarnations:
            schema = schema.append(pa.field(INCARNATION, pa.string()))
        spark.dataSource.register(LakeFilesSource)
        reader = spark.read.format(LakeFilesSource.name()).schema(from_arrow_schema(schema))
        return reader.option("files", files_option(lake, files)).load()
    paths = [os.path.join(lake.folder, each.path) for each in files]
    reader = spark.read.schema(from_arrow_schema(schema)).option("basePath", lake.folder)
    frame = reader.parquet(*paths)
    if not incarnations:
        return frame
    return frame.withColumn(INCARNATION, expr(f"regexp_extract(_metadata.file_name, {_OF}, 1)"))


def messages_of(frame: DataFrame, names: Sequence[str]) -> DataFrame:
    """The columns of messages by their own names, though fields of values may have them too."""
    there = {name: message_column(name, frame.columns) for name in names}
    return frame.selectExpr(*(f"{column} as {name}" for name, column in there.items()))
