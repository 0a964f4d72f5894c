"""Lake tables without a session: commits are whole, offsets go with them, kills do no harm."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from itertools import count
from pathlib import Path
from typing import Any, get_args

import deltalake
import msgspec
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DateType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.errors import InvalidInput, LakeConflict
from penstock.spark.delta_lake import DeltaLake
from penstock.spark.lake import LakeFormat, found_lake, open_lake, remove_garbage
from penstock.spark.lake_sink import LakeJob, LakeWriter
from penstock.spark.lake_table import LakeFile, TableChange, new_file_name
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


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """What was brought to stable storage."""
    synced: set[str] = set()

    def noting(sync: Callable[[int], None]) -> Callable[[int], None]:
        def noted(fd: int) -> None:
            synced.add(os.readlink(f"/proc/self/fd/{fd}"))
            sync(fd)

        return noted

    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, noting(getattr(os, name)))
    return synced


def job(
    table: Path, kind: LakeFormat, start: int | None, end: int, rules: int | None = None
) -> LakeJob:
    return LakeJob(
        table=str(table),
        format=kind,
        bad_table=str(table.parent / "bad"),
        topic="t",
        starts={0: start},
        ends={0: end},
        rules=rules,
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
    assert open_lake(str(table), kind).archived("t", [0])[0] is None
    write(table, kind, None, 100)
    write(table, kind, 100, 150)
    assert found_lake(str(table)).archived("t", [0])[0] == 150
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


def test_a_commit_says_how_many_rows_were_found(tmp_path: Path, kind: LakeFormat) -> None:
    """Less than there are offsets, where a read has passed over damage."""
    counted = tmp_path / "rows"
    wanted = msgspec.structs.replace(job(tmp_path / "t", kind, None, 100), counted=str(counted))
    writer = LakeWriter(wanted, SCHEMA)
    writer.commit([writer.write(rows(0, 100, task=0)), writer.write(rows(20, 100, task=1)), None])
    assert counted.read_text() == "90"


def test_a_second_pipeline_is_refused(tmp_path: Path, kind: LakeFormat) -> None:
    table = tmp_path / "t"
    write(table, kind, None, 100)
    with pytest.raises(LakeConflict, match="another pipeline"):
        write(table, kind, 50, 120)
    write(table, kind, 100, 120)
    stale = open_lake(str(table), kind)
    assert stale.archived("t", [0])[0] == 120
    assert offsets_in(table, kind) == good(120)


def test_bad_rows_that_are_there_are_not_written_again(tmp_path: Path, kind: LakeFormat) -> None:
    table = tmp_path / "t"
    write(table, kind, None, 100)
    bad = open_lake(str(tmp_path / "bad"), kind)
    assert bad.archived("t", [0])[0] == 100
    bad.commit(TableChange(pa.schema([("offset", pa.int64())]), topic="t", ends={0: 110}))
    with pytest.raises(LakeConflict, match="another pipeline"):
        write(table, kind, 100, 120)
    assert offsets_in(tmp_path / "bad", kind) == list(range(0, 100, 10))


def test_of_two_that_make_a_table_one_is_refused(tmp_path: Path, kind: LakeFormat) -> None:
    """Each has seen that there is none, and has all the rows that it found."""
    table = tmp_path / "t"
    one, other, elsewhere = (open_lake(str(table), kind) for _ in range(3))
    assert one.archived("t", [0]) == other.archived("t", [0]) == {0: None}
    assert elsewhere.archived("t", [1]) == {1: None}
    schema = pa.schema([("value", pa.binary()), ("offset", pa.int64())])
    one.commit(
        TableChange(schema, [LakeFile(new_file_name("2026-01-01"), "", 1, 9)], (), "t", {0: 9})
    )
    with pytest.raises(LakeConflict):
        other.commit(
            TableChange(schema, [LakeFile(new_file_name("2026-01-01"), "", 1, 9)], (), "t", {0: 9})
        )
    elsewhere.commit(TableChange(schema, topic="t", ends={1: 5}))
    assert [f.rows for f in open_lake(str(table), kind).files()] == [9]
    assert open_lake(str(table), kind).archived("t", [0, 1]) == {0: 9, 1: 5}


def test_of_two_commits_at_the_same_time_one_is_refused(tmp_path: Path, kind: LakeFormat) -> None:
    table = tmp_path / "t"
    write(table, kind, None, 100)
    one, other = (open_lake(str(table), kind) for _ in range(2))
    assert one.archived("t", [0])[0] == other.archived("t", [0])[0] == 100
    schema = pa.schema([("value", pa.binary()), ("offset", pa.int64())])
    one.commit(TableChange(schema, topic="t", ends={0: 110}))
    with pytest.raises(LakeConflict):
        other.commit(TableChange(schema, topic="t", ends={0: 120}))
    assert open_lake(str(table), kind).archived("t", [0])[0] == 110


def test_commits_at_the_same_time_that_do_not_touch_each_other_both_succeed(
    tmp_path: Path, kind: LakeFormat
) -> None:
    """An archive goes on while a compaction replaces files, and the other way round."""
    table = tmp_path / "t"
    write(table, kind, None, 100)
    archive, compaction, late = (open_lake(str(table), kind) for _ in range(3))
    schema = pa.schema([("value", pa.binary()), ("offset", pa.int64())])
    assert archive.archived("t", [0]) == {0: 100}
    old = [f.path for f in compaction.files()]
    assert late.files()
    compaction.commit(TableChange(schema, [LakeFile(new_file_name("2026-01-01"), "", 1, 90)], old))
    archive.commit(TableChange(schema, topic="t", ends={0: 110}))
    with pytest.raises(LakeConflict):
        late.commit(TableChange(schema, removed=old))
    assert open_lake(str(table), kind).archived("t", [0]) == {0: 110}
    assert [f.rows for f in open_lake(str(table), kind).files()] == [90]


def test_how_far_a_table_is_is_said_of_one_moment(
    tmp_path: Path, kind: LakeFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a second archive could slip in between two partitions and not be noticed."""
    table = tmp_path / "t"
    schema = pa.schema([("value", pa.binary()), ("offset", pa.int64())])
    mine, other = (open_lake(str(table), kind) for _ in range(2))
    mine.commit(TableChange(schema, topic="t", ends={0: 10, 1: 10}))

    def partitions() -> Iterator[int]:
        yield 0
        other.archived("t", [0])
        other.commit(TableChange(schema, topic="t", ends={0: 20}))
        yield 1

    assert mine.archived("t", partitions()) == {0: 10, 1: 10}
    with pytest.raises(LakeConflict):
        mine.commit(TableChange(schema, topic="t", ends={0: 15, 1: 15}))


def test_a_table_whose_maker_was_killed_before_its_first_commit_can_be_made(tmp_path: Path) -> None:
    table = tmp_path / "t"
    (table / "_delta_log").mkdir(parents=True)
    (table / "_delta_log" / "_commit_5c1f.json.tmp").write_text('{"protocol"')
    with pytest.raises(InvalidInput, match="no lake table"):
        found_lake(str(table))
    write(table, "delta", None, 100)
    assert offsets_in(table, "delta") == good(100)


def test_what_a_table_says_it_has_is_on_stable_storage(
    tmp_path: Path, kind: LakeFormat, synced: set[str]
) -> None:
    """Retention drops messages from the log on the word of the table."""
    table = tmp_path / "t"
    write(table, kind, None, 100)
    staged = Path(open_lake(str(table), kind).staged_folder())
    for file in found_lake(str(table)).files():
        assert str(staged / file.path) in synced
        assert str((staged / file.path).parent) in synced
    (commit,) = table.glob("*/00000000000000000000.json")
    assert str(commit.parent) in synced
    if kind == "delta":  # a Parquet commit is synced under another name
        assert str(commit) in synced
        write(table, kind, 100, 150)
        assert str(commit.with_name("00000000000000000001.json")) in synced


def test_a_commit_whose_writer_was_killed_before_it_synced_it_is_synced_by_the_next(
    tmp_path: Path, kind: LakeFormat, synced: set[str]
) -> None:
    table = tmp_path / "t"
    write(table, kind, None, 100)
    commits = [*tmp_path.glob("*/*/00000000000000000000.json")]
    assert len(commits) == 2

    def check() -> None:
        for commit in commits:
            assert str(commit.parent) in synced
            assert kind == "parquet" or str(commit) in synced
        synced.clear()

    synced.clear()  # as if the one who wrote it had not got to that
    write(table, kind, None, 100)  # the same again: the tables have it already
    check()
    write(table, kind, 100, 150)  # and one that goes on from there
    check()


def test_a_table_with_a_checkpoint_syncs_no_more_than_readers_need(
    tmp_path: Path, synced: set[str]
) -> None:
    table, schema = tmp_path / "t", pa.schema([("offset", pa.int64())])
    for end in range(4):
        open_lake(str(table)).commit(TableChange(schema, topic="t", ends={0: end}))
        if end == 2:
            deltalake.DeltaTable(str(table)).create_checkpoint()
    synced.clear()
    open_lake(str(table)).sync()
    names = sorted(os.path.basename(path) for path in synced)
    assert [name for name in names if name.startswith("0000")] == [
        "00000000000000000002.checkpoint.parquet",
        "00000000000000000002.json",
        "00000000000000000003.json",
    ]


def test_files_that_the_driver_does_not_see_are_not_committed(
    tmp_path: Path, kind: LakeFormat
) -> None:
    """On a cluster whose machines have a lake folder each."""
    table = tmp_path / "t"
    writer = LakeWriter(job(table, kind, None, 100), SCHEMA)
    messages = [writer.write(rows(0, 100, task)) for task in range(2)]
    os.unlink(os.path.join(open_lake(str(table), kind).staged_folder(), messages[1].good[0].path))
    with pytest.raises(InvalidInput, match="the driver does not see it"):
        writer.commit(messages)
    for each in (table, tmp_path / "bad"):
        assert open_lake(str(each), kind).archived("t", [0]) == {0: None}


def test_a_round_that_was_cut_short_is_not_finished_by_other_rules(
    tmp_path: Path, kind: LakeFormat
) -> None:
    """Rows that were bad by the one and not by the other would be in both tables, or in none."""
    table = tmp_path / "t"
    bad, schema = open_lake(str(tmp_path / "bad"), kind), pa.schema([("offset", pa.int64())])
    bad.commit(TableChange(schema, topic="t", ends={0: 100}, rules=1))
    assert (bad.rules("t"), bad.rules("other")) == (1, None)
    for rules, refused in ((2, True), (1, False)):
        writer = LakeWriter(job(table, kind, None, 100, rules), SCHEMA)
        messages = [writer.write(rows(0, 100, task)) for task in range(2)]
        if refused:
            with pytest.raises(InvalidInput, match="with the same schema once more"):
                writer.commit(messages)
            assert open_lake(str(table), kind).archived("t", [0]) == {0: None}
        else:
            writer.commit(messages)
    assert offsets_in(table, kind) == good(100)
    writer = LakeWriter(job(table, kind, 100, 120, rules=2), SCHEMA)  # the next round may
    writer.commit([writer.write(rows(100, 120))])
    assert bad.rules("t") == 2


def test_a_disk_that_fails_to_sync_fails_the_task(
    tmp_path: Path, kind: LakeFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(fd: int) -> None:
        raise OSError(5, "Input/output error")

    writer = LakeWriter(job(tmp_path / "t", kind, None, 100), SCHEMA)
    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="Input/output error"):
        writer.write(rows(0, 100))


def test_an_empty_list_stays_one_and_no_headers_stay_none(tmp_path: Path, kind: LakeFormat) -> None:
    table = tmp_path / "t"
    texts = ArrayType(StringType())
    fields = [StructField("tags", texts), StructField("headers", texts), SCHEMA["date"]]
    writer = LakeWriter(LakeJob(table=str(table), format=kind), StructType(fields))
    lists = pa.array([[], ["a"], None], pa.list_(pa.string()))
    made = pa.RecordBatch.from_pydict(
        {"tags": lists, "headers": lists, "date": [date(2026, 1, 1)] * 3}
    )
    writer.commit([writer.write(iter([made]))])
    (file,) = found_lake(str(table)).files()
    found = pq.read_table(table / file.path, partitioning=None)
    assert found["tags"].to_pylist() == [[], ["a"], None]
    assert found["headers"].to_pylist() == [None, ["a"], None]


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
    assert found_lake(str(table)).archived("t", [0])[0] == 100


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


def test_a_table_that_gets_columns_from_two_at_once_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, schema = tmp_path / "t", pa.schema([("city", pa.string())])
    write(table, "delta", None, 100)
    opened = DeltaLake._open

    def late(self: DeltaLake) -> Any:
        """Somebody else is faster."""
        found = opened(self)
        monkeypatch.setattr(DeltaLake, "_open", opened)
        DeltaLake(str(table)).make_room_for(schema)
        return found

    monkeypatch.setattr(DeltaLake, "_open", late)
    lake = open_lake(str(table))
    with pytest.raises(LakeConflict, match="Try again"):
        lake.make_room_for(schema)
    lake.make_room_for(schema)


def test_files_of_a_table_below_another_are_not_its_garbage(
    tmp_path: Path, kind: LakeFormat
) -> None:
    """A topic may have the name of a namespace."""
    for table in (tmp_path / "a", tmp_path / "a" / "b"):
        write(table, kind, None, 100)
        write(table, kind, None, 100)  # which leaves files that nobody has a use for
    assert remove_garbage(found_lake(str(tmp_path / "a")), older_s=0) == 6
    assert offsets_in(tmp_path / "a" / "b", kind) == good(100)
    assert remove_garbage(found_lake(str(tmp_path / "a" / "b")), older_s=0) == 6


def test_garbage_is_looked_for_while_a_commit_moves_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "t"
    write(table, "parquet", None, 100)
    writer = LakeWriter(job(table, "parquet", 100, 150), SCHEMA)
    messages = [writer.write(rows(100, 150, task)) for task in range(2)]
    age_of = os.path.getmtime

    def late(path: str) -> float:
        monkeypatch.setattr(os.path, "getmtime", age_of)
        writer.commit(messages)
        return age_of(path)

    monkeypatch.setattr(os.path, "getmtime", late)
    assert remove_garbage(open_lake(str(table), "parquet"), older_s=0) == 0
    assert offsets_in(table, "parquet") == good(150)


def test_what_readers_of_an_older_version_need_is_not_garbage_yet(tmp_path: Path) -> None:
    table = tmp_path / "t"
    write(table, "delta", None, 100)
    lake = found_lake(str(table))
    old = lake.files()
    for each in old:
        os.utime(table / each.path, (0, 0))  # archived long ago, replaced just now
    lake.commit(TableChange(pa.schema([("offset", pa.int64())]), removed=[f.path for f in old]))
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
        at = lake.archived("t", [0])[0]
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
