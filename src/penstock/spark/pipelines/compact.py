"""Compact: lake tables with fewer, larger files, and without duplicates if that is wanted."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import msgspec

from penstock.errors import InvalidInput
from penstock.spark.delta_lake import DeltaLake
from penstock.spark.lake import LakeFormat, found_lake, remove_garbage
from penstock.spark.lake_sink import LakeJob, write_lake
from penstock.spark.lake_table import LakeFile
from penstock.spark.pipelines.lake_read import read_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILE_BYTES = 128 << 20

_KEPT_BY = {
    "id": "row_number() over (partition by id order by partition, offset)",
    "key": "row_number() over (partition by key order by timestamp desc, offset desc)",
}


class CompactedTable(msgspec.Struct, kw_only=True):
    """What a compaction did."""

    files_before: int = 0
    files_after: int = 0
    rows_before: int = 0
    rows_after: int = 0
    leftovers: int = 0
    """Files of attempts that failed, or that were replaced, long ago; they were removed."""
    seconds: float = 0.0


def compact(
    spark: SparkSession,
    table: str,
    *,
    unique_by: Literal["id", "key"] | None = None,
    file_bytes: int = FILE_BYTES,
    report: Callable[[str], None] = lambda line: None,
) -> CompactedTable:
    """Merge small files of a date; keep one row of each message id, or the last of each key.

    A message has the same time, and so the same date, wherever it was written; rows of one key are
    looked at across all dates. Readers see the table before or after it; an archive may go on.
    """
    if unique_by not in (None, *_KEPT_BY):
        raise InvalidInput(f"unique_by is {unique_by!r}; it is {' or '.join(_KEPT_BY)}")
    lake = found_lake(table)
    files = lake.files()
    began = time.monotonic()
    done = CompactedTable(files_before=len(files), rows_before=sum(f.rows for f in files))
    for some in _groups(files, unique_by, file_bytes):
        frame = read_files(spark, lake, some)
        if unique_by is not None:
            frame = _unique(frame, unique_by)
        pieces = max(1, -(-sum(f.size_bytes for f in some) // file_bytes))
        frame = frame.repartitionByRange(pieces, "date", "partition", "offset")
        frame = frame.sortWithinPartitions("date", "partition", "offset")
        lake_format: LakeFormat = "delta" if isinstance(lake, DeltaLake) else "parquet"
        job = LakeJob(table=lake.folder, format=lake_format, removed=[f.path for f in some])
        write_lake(frame, job)
        report(f"{lake.folder}: {len(some)} files of {some[0].date} rewritten")
    done.leftovers = remove_garbage(lake)
    after = found_lake(table).files()
    done.files_after, done.rows_after = len(after), sum(f.rows for f in after)
    done.seconds = time.monotonic() - began
    return done


def _groups(files: list[LakeFile], unique_by: str | None, file_bytes: int) -> list[list[LakeFile]]:
    """Files that are rewritten together."""
    if not files:
        return []
    if unique_by == "key":
        return [files]
    by_date: defaultdict[str, list[LakeFile]] = defaultdict(list)
    for each in files:
        if unique_by is not None or each.size_bytes < file_bytes // 2:
            by_date[each.date].append(each)
    return [some for _, some in sorted(by_date.items()) if unique_by or len(some) > 1]


def _unique(frame: DataFrame, by: str) -> DataFrame:
    numbered = frame.selectExpr("*", f"{_KEPT_BY[by]} as _number")
    kept = numbered.where(f"_number = 1 or {by} is null")
    return kept.drop("_number")
