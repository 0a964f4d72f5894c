"""Partition columns and statistics of lake tables, by choice: what is in them stays the same."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, get_args

import deltalake
import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql.types import (
    DateType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.errors import InvalidInput, LakeConflict
from penstock.spark.lake import LakeFormat, found_lake, open_lake, remove_garbage
from penstock.spark.lake_files import LakeFilesSource, files_option
from penstock.spark.lake_sink import LakeJob, LakeWriter, fitted
from penstock.spark.lake_table import TableChange, archived
from penstock.spark.table_layout import TableLayout

SCHEMA = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", LongType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("city", StringType()),
        StructField("amount", DoubleType()),
        StructField("date", DateType()),
    ]
)
CITIES = ["São Paulo", "a/b=c d%20", None, ""]


@pytest.fixture(params=get_args(LakeFormat))
def kind(request: pytest.FixtureRequest) -> LakeFormat:
    return request.param  # type: ignore[no-any-return]


def rows(start: int, end: int) -> pa.RecordBatch:
    """Of two days, two partitions and four cities."""
    offsets = range(start, end)
    return pa.RecordBatch.from_pydict(
        {
            "topic": ["t"] * len(offsets),
            "partition": pa.array([o % 2 for o in offsets], pa.int64()),
            "offset": pa.array(offsets, pa.int64()),
            "timestamp": pa.array(
                [datetime(2026, 1, 1 + o % 2, 3, tzinfo=UTC) for o in offsets],
                pa.timestamp("us", tz="UTC"),
            ),
            "city": pa.array([CITIES[o % 4] for o in offsets], pa.string()),
            "amount": [float(o) for o in offsets],
            "date": [date(2026, 1, 1 + o % 2) for o in offsets],
        }
    )


def write(table: Path, kind: LakeFormat, start: int, end: int, **given: Any) -> LakeWriter:
    job = LakeJob(
        **{"table": str(table), "format": kind, "topic": "t@1", **given},
        starts={0: start or None},
        ends={0: end},
    )
    writer = LakeWriter(fitted(job, SCHEMA), SCHEMA)
    writer.commit([writer.write(iter([rows(start, end)]))])
    return writer


def found(table: Path, kind: LakeFormat, where: str = "") -> list[dict[str, Any]]:
    """What others see, who know nothing of us."""
    if kind == "delta":
        lake = deltalake.DeltaTable(str(table))
        said = deltalake.QueryBuilder().register("t", lake)
        read = pa.table(said.execute(f"select * from t where {where or 'true'}").read_all())
    else:
        catalog = SqlCatalog("penstock", uri=f"sqlite:///{table}/catalog.db")
        ((name,),) = (catalog.list_tables(*catalog.list_namespaces()),)
        scan = catalog.load_table(name).scan(where) if where else catalog.load_table(name).scan()
        read = scan.to_arrow()
    return sorted(read.to_pylist(), key=lambda row: row["offset"])


@pytest.mark.parametrize(
    "by", [[], ["date"], ["city"], ["partition", "city"], ["city", "date"], ["topic", "offset"]]
)
def test_a_table_is_partitioned_by_any_columns(
    tmp_path: Path, kind: LakeFormat, by: list[str]
) -> None:
    table = tmp_path / "t"
    write(table, kind, 0, 20, partition_by=by)
    write(table, kind, 20, 30)  # who goes on need not know
    read = found(table, kind)
    assert [row["offset"] for row in read] == list(range(30))
    assert [row["date"] for row in read] == [date(2026, 1, 1 + o % 2) for o in range(30)]
    # An empty text as a partition is null, says Delta; that it is empty stands in the files.
    assert [row["city"] or "" for row in read] == [CITIES[o % 4] or "" for o in range(30)]
    lake = found_lake(str(table))
    assert lake.layout() == TableLayout(by)
    values = {tuple(row[name] or None for name in by) for row in read}
    found_in_files = {tuple(value or None for value in f.partition.values()) for f in lake.files()}
    assert len(found_in_files) == len(values)
    assert {file.incarnation for file in lake.files()} == {"1"}
    with pytest.raises(InvalidInput, match="stays so"):
        write(table, kind, 30, 40, partition_by=[*by, "timestamp"])


def test_a_read_by_a_partition_finds_its_rows(tmp_path: Path, kind: LakeFormat) -> None:
    table = tmp_path / "t"
    write(table, kind, 0, 40, partition_by=["city"], statistics=["amount", "timestamp"])
    assert [row["offset"] for row in found(table, kind, "city = 'São Paulo'")] == list(
        range(0, 40, 4)
    )
    assert [row["offset"] for row in found(table, kind, "amount > 37.5")] == [38, 39]


def test_statistics_say_what_is_in_a_file(tmp_path: Path, kind: LakeFormat) -> None:
    table = tmp_path / "t"
    write(table, kind, 0, 20)
    write(table, kind, 20, 30, statistics=["amount", "city", "timestamp", "date"])
    write(table, kind, 30, 40)  # the table remembers the choice
    layout = found_lake(str(table)).layout()
    assert layout is not None
    assert set(layout.statistics) == {"amount", "city", "timestamp", "date"}
    if kind == "delta":
        added = pa.table(deltalake.DeltaTable(str(table)).get_add_actions(flatten=True))
        least = {(row["min.offset"], row.get("min.amount")) for row in added.to_pylist()}
        assert least == {(o, float(o) if o >= 20 else None) for o in (0, 1, 20, 21, 30, 31)}
    write(table, kind, 40, 50, statistics=[])
    layout = found_lake(str(table)).layout()
    assert layout is not None
    assert layout.statistics == []
    assert [row["offset"] for row in found(table, kind, "amount < 25")] == list(range(25))
    assert [row["offset"] for row in found(table, kind, "amount > 24 and city is null")] == [
        26,
        30,
        34,
        38,
        42,
        46,
    ]


def test_what_is_no_number_is_in_no_range(tmp_path: Path) -> None:
    """Spark takes it for the greatest: a file that has it must not be passed over."""
    table = tmp_path / "t"
    job = LakeJob(table=str(table), partition_by=[], statistics=["amount", "city"])
    writer = LakeWriter(fitted(job, SCHEMA), SCHEMA)
    nan = rows(0, 2).set_column(5, "amount", pa.array([1.0, float("nan")]))
    (good,) = (writer.write(iter([nan])).good,)
    assert [set(file.ranges) for file in good] == [{"city"}]


def test_what_a_commit_did_not_add_is_garbage(tmp_path: Path, kind: LakeFormat) -> None:
    table = tmp_path / "t"
    for _ in range(2):
        writer = write(table, kind, 0, 20, partition_by=["city"])
    below = table / "b"
    write(below, kind, 0, 20, partition_by=[])
    writer.write(iter([rows(20, 30)]))
    assert remove_garbage(found_lake(str(table)), older_s=0) == 8
    assert len(found(table, kind)) == 20
    assert len(found(below, kind)) == 20


def test_files_are_replaced_by_such_of_the_same_partition(tmp_path: Path, kind: LakeFormat) -> None:
    table = tmp_path / "t"
    write(table, kind, 0, 20, partition_by=["city"])
    write(table, kind, 20, 40)
    lake = found_lake(str(table))
    old = [file for file in lake.files() if not file.partition["city"]]
    job = LakeJob(table=str(table), format=kind, removed=[file.path for file in old])
    writer = LakeWriter(fitted(job, SCHEMA), SCHEMA)
    some = rows(0, 40)
    has_none = pc.not_equal(pc.fill_null(pc.utf8_length(some["city"]), 0), 0)
    writer.commit([writer.write(iter([some.filter(pc.invert(has_none))]))])
    assert [row["offset"] for row in found(table, kind)] == list(range(40))
    assert archived(found_lake(str(table)), "t@1", [0]) == {0: 40}


def test_of_two_that_make_a_table_otherwise_one_is_refused(
    tmp_path: Path, kind: LakeFormat
) -> None:
    table = tmp_path / "t"
    late = LakeJob(table=str(table), format=kind, partition_by=["city"])
    writer = LakeWriter(fitted(late, SCHEMA), SCHEMA)
    write(table, kind, 0, 20)
    with pytest.raises(LakeConflict, match="another pipeline made it, by date"):
        writer.commit([writer.write(iter([rows(0, 20)]))])
    assert len(found(table, kind)) == 20


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"partition_by": ["town"]}, "no column 'town'"),
        ({"partition_by": ["amount"]}, "of type double"),
        ({"partition_by": ["timestamp"]}, "of type timestamp"),
        ({"partition_by": ["city", "city"]}, "twice"),
        ({"statistics": ["town"]}, "no column 'town'"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_written(
    tmp_path: Path, kind: LakeFormat, given: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidInput, match=said):
        write(tmp_path / "t", kind, 0, 20, **given)
    assert open_lake(str(tmp_path / "t"), kind).layout() is None


def test_too_many_values_are_refused(tmp_path: Path) -> None:
    job = LakeJob(table=str(tmp_path / "t"), partition_by=["offset"])
    writer = LakeWriter(fitted(job, SCHEMA), SCHEMA)
    with pytest.raises(InvalidInput, match="more than 1000 values of offset"):
        writer.write(iter([rows(0, 1001)]))


def test_rows_are_read_back_without_a_driver_of_sparks(tmp_path: Path, kind: LakeFormat) -> None:
    """As from an object store."""
    table = tmp_path / "t"
    write(table, kind, 0, 20, partition_by=["city", "partition"])
    lake = found_lake(str(table))
    source = LakeFilesSource({"files": files_option(lake, lake.files())})
    reader = source.reader(StructType([SCHEMA["offset"], SCHEMA["city"], SCHEMA["date"]]))
    batches: Iterator[Any] = (each for part in reader.partitions() for each in reader.read(part))
    read = sorted(pa.Table.from_batches(batches).to_pylist(), key=lambda row: row["offset"])
    assert [row["city"] for row in read] == [CITIES[o % 4] for o in range(20)]
    assert [row["date"].day for row in read] == [1 + o % 2 for o in range(20)]


def test_a_change_of_marks_alone_does_not_ask_how_a_table_is_partitioned(
    tmp_path: Path, kind: LakeFormat
) -> None:
    table = tmp_path / "t"
    write(table, kind, 0, 20, partition_by=["city"])
    change = TableChange(pa.schema([("offset", pa.int64())]), topic="t@1", ends={0: 25})
    assert msgspec.structs.asdict(change)["added"] == ()
    open_lake(str(table), kind).commit(change)
    assert archived(found_lake(str(table)), "t@1", [0]) == {0: 25}
