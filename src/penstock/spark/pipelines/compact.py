"""Compact: lake tables with fewer, larger files, and without duplicates if that is wanted."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal

import msgspec

from penstock.errors import InvalidInput
from penstock.spark.lake import found_lake, remove_garbage
from penstock.spark.lake_sink import LakeJob, write_lake
from penstock.spark.lake_table import LakeFile, message_column, number_of_files
from penstock.spark.pipelines.json_columns import quoted_name
from penstock.spark.pipelines.lake_read import read_files
from penstock.spark.pipelines.widen import widen_columns
from penstock.spark.table_layout import DATE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILE_BYTES = 128 << 20

_KEPT_BY = {
    "id": "row_number() over (partition by {id} order by {partition}, {offset})",
    "key": "row_number() over (partition by {key} order by {timestamp} desc, {offset} desc)",
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
    widen: str = "",
    storage: Mapping[str, str] | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> CompactedTable:
    """Merge small files of a date, or of what the table is partitioned by instead; keep one row of
    each message id, or the last of each key.

    A message has the same time, and so the same date, wherever it was written; rows of one key, and
    of one id in tables that are not by date alone, are looked at across all files.
    Readers see the table before or after it; an archive may go on.
    `widen`: columns that are to have wider types, as Spark writes them ("n bigint"). That writes
    all of a Delta table anew, in one commit. `storage`: as for `read_lake`.
    """
    if unique_by not in (None, *_KEPT_BY):
        raise InvalidInput(f"unique_by is {unique_by!r}; it is {' or '.join(_KEPT_BY)}")
    lake = found_lake(table, storage)
    began = time.monotonic()
    if widen:
        widen_columns(spark, lake, widen)
    files = lake.files()
    done = CompactedTable(files_before=len(files), rows_before=sum(f.rows for f in files))
    layout = lake.layout()
    assert layout is not None, "it was found"
    whole = unique_by == "key" or (unique_by is not None and layout.partition_by != [DATE])
    for group, some in _groups(files, unique_by, whole, file_bytes).items():
        mark = f"penstock:compacted:{unique_by or ''}:{group}"
        if lake.marks([mark]).get(mark) == number_of_files(some):
            continue  # these are what the last one left
        frame = read_files(spark, lake, some, incarnations=True)
        if unique_by is not None:
            frame = _unique(frame, unique_by)
        pieces = max(1, -(-sum(f.size_bytes for f in some) // file_bytes))
        own = [message_column(each, frame.columns) for each in ("partition", "offset")]
        order = [quoted_name(name) for name in dict.fromkeys([*layout.partition_by, *own])]
        frame = frame.repartitionByRange(pieces, *order).sortWithinPartitions(*order)
        job = LakeJob(
            table=lake.folder,
            format=lake.kind,
            storage=lake.storage,
            removed=[f.path for f in some],
            compacted=mark,
        )
        write_lake(frame, job)
        report(f"{lake.folder}: {len(some)} files {_said(some[0])}rewritten")
    done.leftovers = remove_garbage(lake)
    after = lake.files()
    done.files_after, done.rows_after = len(after), sum(f.rows for f in after)
    done.seconds = time.monotonic() - began
    return done


def _groups(
    files: list[LakeFile], unique_by: str | None, whole: bool, file_bytes: int
) -> dict[str, list[LakeFile]]:
    """Files that are rewritten together, by what they have in common."""
    if not files:
        return {}
    if whole:
        return {"": files}
    groups: defaultdict[str, list[LakeFile]] = defaultdict(list)
    for each in files:
        if unique_by is not None or each.size_bytes < file_bytes // 2:
            groups[_group_of(each)].append(each)
    return {name: some for name, some in sorted(groups.items()) if unique_by or len(some) > 1}


def _group_of(file: LakeFile) -> str:
    """A null is nobody's text: that of a value has its column before it, unless it is a date."""
    only_date = list(file.partition) == [DATE]
    parts = [
        value if only_date and value else f"{name}={value}" if value is not None else name
        for name, value in file.partition.items()
    ]
    return ":".join([*parts, file.incarnation])


def _said(file: LakeFile) -> str:
    values = [value or "null" for value in file.partition.values()]
    return f"of {', '.join(values)} " if values else ""


def _unique(frame: DataFrame, by: str) -> DataFrame:
    names = ("id", "key", "partition", "offset", "timestamp")
    there = {name: message_column(name, frame.columns) for name in names}
    numbered = frame.selectExpr("*", f"{_KEPT_BY[by].format(**there)} as _number")
    kept = numbered.where(f"_number = 1 or {there[by]} is null")
    return kept.drop("_number")
