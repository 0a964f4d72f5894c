"""Lake tables as data frames, without a jar: Spark reads the Parquet files that the table names."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.errors import InvalidInput
from penstock.spark.lake import found_lake
from penstock.spark.lake_table import Lake, LakeFile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_lake(spark: SparkSession, table: str) -> DataFrame:
    """The rows of a table as it is now."""
    lake = found_lake(table)
    return read_files(spark, lake, lake.files())


def read_files(spark: SparkSession, lake: Lake, files: Sequence[LakeFile]) -> DataFrame:
    if not files:
        raise InvalidInput(f"the lake table {lake.folder} has no rows")
    paths = [os.path.join(lake.folder, each.path) for each in files]
    return spark.read.option("basePath", lake.folder).option("mergeSchema", "true").parquet(*paths)
