"""Lake tables without a session: commits are whole, offsets go with them, kills do no harm."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, date, datetime
from itertools import count
from pathlib import Path
from typing import get_args

import deltalake
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from pyspark.sql.types import (
    BinaryType,
    DateType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.errors import InvalidInput, LakeConflict
from penstock.spark.lake import LakeFormat, found_lake, open_lake, remove_garbage
from penstock.spark.lake_sink import LakeJob, LakeWriter
from tests.unit.spark.crashing import die_at

SCHEMA = StructType(
    [
        StructField("value", BinaryType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("_bad", StringType()),
        StructField("date", DateType()),
    ]
)


@pytest.fixture(params=get_args(LakeFormat))
def kind(request: pytest.FixtureRequest) -> LakeFormat:
    return request.param  # type: ignore[no-any-return]


def job(table: Path, kind: LakeFormat, start: int | None, end: int) -> LakeJob:
    bad = str(table.parent / "bad")
    starts, ends = {0: start}, {0: end}
    return LakeJob(
        table=str(table), format=kind, bad_table=bad, topic="t", starts=starts, ends=ends
    )


def rows(start: int, end: int, task: int = 0) -> Iterator[pa.RecordBatch]:
    """Every tenth is bad, every second is of the next day."""
    offsets = list(range(start + task, end, 2))
    zone = pa.timestamp("us", tz="America/New_York")
    yield pa.RecordBatch.from_pydict(
        {
            "value": [str(o).encode() for o in offsets],
            "offset": offsets,
            "timestamp": pa.array([datetime(2026, 1, 1, 3, tzinfo=UTC)] * len(offsets), zone),
            "_bad": ["poison" if o % 10 == 0 else None for o in offsets],
            "date": [date(2026, 1, 1 + o % 3) for o in offsets],
        }
    )


def write(table: Path, kind: LakeFormat, start: int | None, end: int) -> None:
    """As Spark does it: two tasks, then a commit."""
    writer = LakeWriter(job(table, kind, start, end), SCHEMA)
    messages = [writer.write(rows(start or 0, end, task)) for task in range(2)]
    writer.commit(messages)


def offsets_in(table: Path, kind: LakeFormat) -> list[int]:
    """What others see, who know nothing of us."""
    if kind == "delta":
        found = deltalake.DeltaTable(str(table)).to_pyarrow_table()
    else:
        found = ds.dataset(str(table), format="parquet", partitioning="hive").to_table()
    return sorted(found.column("offset").to_pylist())


def good(end: int) -> list[int]:
    return [o for o in range(end) if o % 10]


def test_a_table_has_each_row_once_and_knows_how_far_it_is(
    tmp_path: Path, kind: LakeFormat
) -> None:
    table = tmp_path / "t"
    with pytest.raises(InvalidInput, match="no lake table"):
        found_lake(str(table))
    assert open_lake(str(table), kind).archived("t", 0) is None
    write(table, kind, None, 100)
    write(table, kind, 100, 150)
    assert found_lake(str(table)).archived("t", 0) == 150
    assert offsets_in(table, kind) == good(150)
    assert offsets_in(tmp_path / "bad", kind) == [o for o in range(150) if o % 10 == 0]
    dates = {os.path.dirname(f.path) for f in found_lake(str(table)).files()}
    assert dates == {"date=2026-01-01", "date=2026-01-02", "date=2026-01-03"}
    assert sum(f.rows for f in found_lake(str(table)).files()) == 135


def test_a_commit_that_is_repeated_changes_nothing(tmp_path: Path, kind: LakeFormat) -> None:
    table = tmp_path / "t"
    for _ in range(2):
        write(table, kind, None, 100)
    assert offsets_in(table, kind) == good(100)
    assert len(remaining := found_lake(str(table)).files()) == 6
    removed = remove_garbage(found_lake(str(table)), older_s=0)
    assert removed == 6  # of the second attempt
    assert found_lake(str(table)).files() == remaining
    assert offsets_in(table, kind) == good(100)


def test_a_second_pipeline_is_refused(tmp_path: Path, kind: LakeFormat) -> None:
    table = tmp_path / "t"
    write(table, kind, None, 100)
    with pytest.raises(LakeConflict, match="another pipeline"):
        write(table, kind, 50, 120)
    write(table, kind, 100, 120)
    stale = open_lake(str(table), kind)
    assert stale.archived("t", 0) == 120
    assert offsets_in(table, kind) == good(120)


def test_bad_rows_that_are_there_are_not_written_again(tmp_path: Path, kind: LakeFormat) -> None:
    table = tmp_path / "t"
    write(table, kind, None, 100)
    bad = open_lake(str(tmp_path / "bad"), kind)
    assert bad.archived("t", 0) == 100
    bad.commit(pa.schema([("offset", pa.int64())]), [], offsets={("t", 0): 110})
    with pytest.raises(LakeConflict, match="another pipeline"):
        write(table, kind, 100, 120)
    assert offsets_in(tmp_path / "bad", kind) == list(range(0, 100, 10))


def test_of_two_commits_at_the_same_time_one_is_refused(tmp_path: Path, kind: LakeFormat) -> None:
    table = tmp_path / "t"
    write(table, kind, None, 100)
    one, other = (open_lake(str(table), kind) for _ in range(2))
    assert one.archived("t", 0) == other.archived("t", 0) == 100
    schema = pa.schema([("value", pa.binary()), ("offset", pa.int64())])
    one.commit(schema, [], offsets={("t", 0): 110})
    with pytest.raises(LakeConflict):
        other.commit(schema, [], offsets={("t", 0): 120})
    assert open_lake(str(table), kind).archived("t", 0) == 110


def test_files_are_replaced_at_once(tmp_path: Path, kind: LakeFormat) -> None:
    table = tmp_path / "t"
    write(table, kind, None, 100)
    lake = found_lake(str(table))
    old = [f.path for f in lake.files() if f.date == "2026-01-02"]
    writer = LakeWriter(
        LakeJob(table=str(table), format=kind, removed=old),
        StructType([f for f in SCHEMA.fields if f.name != "_bad"]),
    )
    wanted = [o for o in good(100) if o % 3 == 1]
    again = pa.RecordBatch.from_pydict(
        {
            "value": [b"x"] * len(wanted),
            "offset": wanted,
            "timestamp": pa.array([0] * len(wanted), pa.timestamp("us", tz="UTC")),
            "date": [date(2026, 1, 2)] * len(wanted),
        }
    )
    writer.commit([writer.write(iter([again]))])
    assert offsets_in(table, kind) == good(100)
    assert not set(old) & {f.path for f in found_lake(str(table)).files()}
    assert found_lake(str(table)).archived("t", 0) == 100


def test_a_table_of_the_other_kind_is_not_written_to(tmp_path: Path, kind: LakeFormat) -> None:
    table = tmp_path / "t"
    write(table, kind, None, 100)
    other: LakeFormat = "parquet" if kind == "delta" else "delta"
    with pytest.raises(InvalidInput, match=f"is a {kind} table"):
        open_lake(str(table), other)


def test_a_table_gets_new_columns_but_none_changes_its_type(
    tmp_path: Path, kind: LakeFormat
) -> None:
    table = tmp_path / "t"
    write(table, kind, None, 100)
    lake = open_lake(str(table), kind)
    known = [("value", pa.binary()), ("offset", pa.int64())]
    lake.make_room_for(pa.schema([*known, ("city", pa.string())]))
    lake.make_room_for(pa.schema([*known, ("city", pa.string())]))
    if kind == "delta":
        assert deltalake.DeltaTable(str(table)).to_pyarrow_table()["city"].null_count == 90
    with pytest.raises(InvalidInput, match=r"column 'offset' of the table .* is of type"):
        lake.make_room_for(pa.schema([("offset", pa.float64())]))
    assert offsets_in(table, kind) == good(100)


def test_what_readers_of_an_older_version_need_is_not_garbage_yet(tmp_path: Path) -> None:
    table = tmp_path / "t"
    write(table, "delta", None, 100)
    lake = found_lake(str(table))
    old = lake.files()
    for each in old:
        os.utime(table / each.path, (0, 0))  # archived long ago, replaced just now
    lake.commit(pa.schema([("offset", pa.int64())]), [], removed=[f.path for f in old])
    assert remove_garbage(lake) == 0
    before = deltalake.DeltaTable(str(table), version=0).to_pyarrow_table()
    assert len(before) == 90
    assert remove_garbage(lake, older_s=0) == len(old)


@pytest.mark.parametrize("stride", [5, pytest.param(1, marks=pytest.mark.torture)])
def test_a_parquet_commit_that_is_killed_anywhere_is_whole_or_not_there(
    tmp_path: Path, stride: int
) -> None:
    """Delta's commits are one rename of its own library, which a kill cannot split."""
    crashes = 0
    for step in count(0, stride):
        table = tmp_path / str(step) / "t"
        write(table, "parquet", None, 50)
        crashed = die_at(step, lambda table=table: write(table, "parquet", 50, 100))
        lake = open_lake(str(table), "parquet")
        at = lake.archived("t", 0)
        assert at in (50, 100)
        assert offsets_in(table, "parquet") == good(at or 0)
        if at == 50:  # an archive does nothing again that the table has
            write(table, "parquet", 50, 100)
        assert offsets_in(table, "parquet") == good(100)
        assert offsets_in(table.parent / "bad", "parquet") == list(range(0, 100, 10))
        crashes += crashed
        if not crashed:
            break
    assert crashes * stride > 10
