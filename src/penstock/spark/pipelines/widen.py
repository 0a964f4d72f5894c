"""Columns of a lake table with wider types: all of its files are written anew, in one commit.

Delta's library has no other way. Iceberg keeps its files, and an archive widens its columns itself.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.errors import ParseException
from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type, to_arrow_schema
from pyspark.sql.types import StructType

from penstock.errors import InvalidInput
from penstock.spark.lake import found_lake
from penstock.spark.lake_sink import LakeJob, write_lake
from penstock.spark.lake_table import Lake, is_narrower
from penstock.spark.pipelines.json_columns import quoted_name
from penstock.spark.pipelines.lake_read import read_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def widen_columns(spark: SparkSession, lake: Lake, columns: str) -> None:
    """Give columns the types that are wanted, as Spark writes them: "n bigint, x double". Those of
    the table of bad rows beside it, too: who is killed in between does it again."""
    wanted, known = _parsed(columns), lake.schema().names
    for field in wanted:
        if field.name not in known:
            raise InvalidInput(
                f"widen: the table has no column {field.name!r}; it has {', '.join(known)}"
            )
    for each in (lake, *_bad(lake)):
        if wider := _wider(each, wanted):
            _widen(spark, each, wider)


def _widen(spark: SparkSession, lake: Lake, wanted: list[pa.Field]) -> None:
    files = lake.files()
    if lake.kind == "iceberg":
        lake.make_room_for(pa.schema(wanted))
        return
    if files:
        frame = read_files(spark, lake, files, incarnations=True)
    else:
        frame = spark.createDataFrame([], from_arrow_schema(lake.schema()))
    for field in wanted:
        column = frame[quoted_name(field.name)].cast(from_arrow_type(field.type))
        frame = frame.withColumn(field.name, column)
    job = LakeJob(
        table=lake.folder,
        storage=lake.storage,
        removed=[each.path for each in files],
        rewrites=True,
    )
    write_lake(frame, job)


def _bad(lake: Lake) -> list[Lake]:
    with suppress(InvalidInput):
        return [found_lake(f"{lake.folder}.bad", lake.storage)]
    return []


def _parsed(columns: str) -> list[pa.Field]:
    try:
        parsed = StructType.fromDDL(columns)
    except ParseException:
        parsed = None
    if not isinstance(parsed, StructType):
        raise InvalidInput(f"widen is {columns!r}; give columns, such as 'n bigint'")
    return list(to_arrow_schema(parsed))


def _wider(lake: Lake, wanted: list[pa.Field]) -> list[pa.Field]:
    """Those of the table that are not so wide yet."""
    known, found = lake.schema(), []
    for field in wanted:
        there = known.field(field.name).type if field.name in known.names else field.type
        if field.type == there:
            continue
        if not is_narrower(there, field.type):
            raise InvalidInput(
                f"widen: column {field.name!r} is of type {there}, and {field.type} is not wider"
            )
        found.append(field)
    return found
