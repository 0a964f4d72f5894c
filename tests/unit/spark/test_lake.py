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
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DateType,
    IntegerType,
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
from penstock.spark.lake_table import (
    LakeFile,
    TableChange,
    archived,
    mark_of,
    new_file_name,
    number_of_files,
    rules_of,
)
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
        catalog = SqlCatalog("penstock", uri=f"sqlite:///{table}/catalog.db")
        ((lake,),) = catalog.list_namespaces()
        (name,) = catalog.list_tables(lake)
        found = catalog.load_table(name).scan().to_arrow()
    return sorted(found.column("offset").to_pylist())


def good(end: int) -> list[int]:
    return [o for o in range(end) if o % 10]


def test_a_table_has_each_row_once_and_knows_how_far_it_is(
    tmp_path: Path, kind: LakeFormat
) -> None:
    table = tmp_path / "t"
    with pytest.raises(InvalidInput, match="no lake table"):
        found_lake(str(table))
    assert archived(open_lake(str(table), kind), "t", [0])[0] is None
    write(table, kind, None, 100)
    write(table, kind, 100, 150)
    assert archived(found_lake(str(table)), "t", [0])[0] == 150
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
    assert counted.read_text() == "90 10"


def test_a_second_pipeline_is_refused(tmp_path: Path, kind: LakeFormat) -> None:
    table = tmp_path / "t"
    write(table, kind, None, 100)
    with pytest.raises(LakeConflict, match="another pipeline"):
        write(table, kind, 50, 120)
    write(table, kind, 100, 120)
    stale = open_lake(str(table), kind)
    assert archived(stale, "t", [0])[0] == 120
    assert offsets_in(table, kind) == good(120)


def test_bad_rows_that_are_there_are_not_written_again(tmp_path: Path, kind: LakeFormat) -> None:
    table = tmp_path / "t"
    write(table, kind, None, 100)
    bad = open_lake(str(tmp_path / "bad"), kind)
    assert archived(bad, "t", [0])[0] == 100
    bad.commit(TableChange(pa.schema([("offset", pa.int64())]), topic="t", ends={0: 110}))
    with pytest.raises(LakeConflict, match="another pipeline"):
        write(table, kind, 100, 120)
    assert offsets_in(tmp_path / "bad", kind) == list(range(0, 100, 10))


def test_of_two_that_make_a_table_one_is_refused(tmp_path: Path, kind: LakeFormat) -> None:
    """Each has seen that there is none, and has all the rows that it found."""
    table = tmp_path / "t"
    one, other, elsewhere = (open_lake(str(table), kind) for _ in range(3))
    assert archived(one, "t", [0]) == archived(other, "t", [0]) == {0: None}
    assert archived(elsewhere, "t", [1]) == {1: None}
    schema = pa.schema([("value", pa.binary()), ("offset", pa.int64())])
    one.commit(
        TableChange(
            schema,
            [LakeFile(new_file_name("2026-01-01"), {"date": "2026-01-01"}, 1, 9)],
            (),
            "t",
            {0: 9},
        )
    )
    with pytest.raises(LakeConflict):
        other.commit(
            TableChange(
                schema,
                [LakeFile(new_file_name("2026-01-01"), {"date": "2026-01-01"}, 1, 9)],
                (),
                "t",
                {0: 9},
            )
        )
    elsewhere.commit(TableChange(schema, topic="t", ends={1: 5}))
    assert [f.rows for f in open_lake(str(table), kind).files()] == [9]
    assert archived(open_lake(str(table), kind), "t", [0, 1]) == {0: 9, 1: 5}


def test_of_two_commits_at_the_same_time_one_is_refused(tmp_path: Path, kind: LakeFormat) -> None:
    table = tmp_path / "t"
    write(table, kind, None, 100)
    one, other = (open_lake(str(table), kind) for _ in range(2))
    assert archived(one, "t", [0])[0] == archived(other, "t", [0])[0] == 100
    schema = pa.schema([("value", pa.binary()), ("offset", pa.int64())])
    one.commit(TableChange(schema, topic="t", ends={0: 110}))
    with pytest.raises(LakeConflict):
        other.commit(TableChange(schema, topic="t", ends={0: 120}))
    assert archived(open_lake(str(table), kind), "t", [0])[0] == 110


def test_commits_at_the_same_time_that_do_not_touch_each_other_both_succeed(
    tmp_path: Path, kind: LakeFormat
) -> None:
    """An archive goes on while a compaction replaces files, and the other way round."""
    table = tmp_path / "t"
    write(table, kind, None, 100)
    archive, compaction, late = (open_lake(str(table), kind) for _ in range(3))
    schema = pa.schema([("value", pa.binary()), ("offset", pa.int64())])
    assert archived(archive, "t", [0]) == {0: 100}
    old = [f.path for f in compaction.files()]
    assert late.files()
    compaction.commit(
        TableChange(
            schema, [LakeFile(new_file_name("2026-01-01"), {"date": "2026-01-01"}, 1, 90)], old
        )
    )
    archive.commit(TableChange(schema, topic="t", ends={0: 110}))
    with pytest.raises(LakeConflict):
        late.commit(TableChange(schema, removed=old))
    assert archived(open_lake(str(table), kind), "t", [0]) == {0: 110}
    assert [f.rows for f in open_lake(str(table), kind).files()] == [90]


def test_how_far_a_table_is_is_said_of_one_moment(
    tmp_path: Path, kind: LakeFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a second archive could slip in between two partitions and not be noticed."""
    table = tmp_path / "t"
    schema = pa.schema([("value", pa.binary()), ("offset", pa.int64())])
    mine, other = (open_lake(str(table), kind) for _ in range(2))
    mine.commit(TableChange(schema, topic="t", ends={0: 10, 1: 10}))

    def names() -> Iterator[str]:
        yield mark_of("t", 0)
        archived(other, "t", [0])
        other.commit(TableChange(schema, topic="t", ends={0: 20}))
        yield mark_of("t", 1)

    assert list(mine.marks(names()).values()) == [10, 10]
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
    for file in found_lake(str(table)).files():
        assert str(table / file.path) in synced
        assert str((table / file.path).parent) in synced
    before = {*table.glob("_delta_log/*"), *table.glob("metadata/*")}
    write(table, kind, 100, 150)
    after = {*table.glob("_delta_log/*"), *table.glob("metadata/*")}
    assert before < after
    assert {str(path) for path in after} <= synced
    assert {str(path.parent) for path in after} <= synced


def test_a_commit_whose_writer_was_killed_before_it_synced_it_is_synced_by_the_next(
    tmp_path: Path, synced: set[str]
) -> None:
    """Of Delta; a catalog names what was synced before."""
    table, kind = tmp_path / "t", "delta"
    write(table, kind, None, 100)
    commits = [*tmp_path.glob("*/*/00000000000000000000.json")]
    assert len(commits) == 2

    def check() -> None:
        for commit in commits:
            assert str(commit.parent) in synced
            assert str(commit) in synced
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
    os.unlink(table / messages[1].good[0].path)
    with pytest.raises(InvalidInput, match="the driver does not see it"):
        writer.commit(messages)
    for each in (table, tmp_path / "bad"):
        assert archived(open_lake(str(each), kind), "t", [0]) == {0: None}


def test_a_round_that_was_cut_short_is_not_finished_by_other_rules(
    tmp_path: Path, kind: LakeFormat
) -> None:
    """Rows that were bad by the one and not by the other would be in both tables, or in none."""
    table = tmp_path / "t"
    bad, schema = open_lake(str(tmp_path / "bad"), kind), pa.schema([("offset", pa.int64())])
    bad.commit(TableChange(schema, topic="t", ends={0: 100}, rules=1))
    assert (rules_of(bad, "t"), rules_of(bad, "other")) == (1, None)
    for rules, refused in ((2, True), (1, False)):
        writer = LakeWriter(job(table, kind, None, 100, rules), SCHEMA)
        messages = [writer.write(rows(0, 100, task)) for task in range(2)]
        if refused:
            with pytest.raises(InvalidInput, match="with the same schema once more"):
                writer.commit(messages)
            assert archived(open_lake(str(table), kind), "t", [0]) == {0: None}
        else:
            writer.commit(messages)
    assert offsets_in(table, kind) == good(100)
    writer = LakeWriter(job(table, kind, 100, 120, rules=2), SCHEMA)  # the next round may
    writer.commit([writer.write(rows(100, 120))])
    assert rules_of(bad, "t") == 2


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
    assert archived(found_lake(str(table)), "t", [0])[0] == 100


def test_a_table_keeps_which_files_a_compaction_has_left(tmp_path: Path, kind: LakeFormat) -> None:
    """So that the next one has nothing to do."""
    table = tmp_path / "t"
    write(table, kind, None, 100)
    lake = found_lake(str(table))
    old = [f.path for f in lake.files()]
    given = LakeJob(table=str(table), format=kind, removed=old, compacted="done")
    (some,) = rows(1, 20)
    writer = LakeWriter(given, SCHEMA)
    writer.commit([writer.write(iter([some]))])
    assert lake.marks(["done"]) == {"done": number_of_files(lake.files())}


def test_a_table_of_the_other_kind_is_not_written_to(tmp_path: Path, kind: LakeFormat) -> None:
    table = tmp_path / "t"
    write(table, kind, None, 100)
    other: LakeFormat = "iceberg" if kind == "delta" else "delta"
    with pytest.raises(InvalidInput, match=f"is a table of {kind}"):
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


def test_what_readers_of_an_older_version_need_is_not_garbage_yet(
    tmp_path: Path, kind: LakeFormat
) -> None:
    table = tmp_path / "t"
    write(table, kind, None, 100)
    lake = found_lake(str(table))
    old = lake.files()
    for each in old:
        os.utime(table / each.path, (0, 0))  # archived long ago, replaced just now
    lake.commit(TableChange(pa.schema([("offset", pa.int64())]), removed=[f.path for f in old]))
    assert remove_garbage(lake) == 0
    if kind == "delta":
        before = deltalake.DeltaTable(str(table), version=0).to_pyarrow_table()
        assert len(before) == 90
    assert remove_garbage(lake, older_s=0) == len(old)


@pytest.mark.parametrize("stride", [9, pytest.param(1, marks=pytest.mark.torture)])
def test_an_iceberg_commit_that_is_killed_anywhere_is_whole_or_not_there(
    tmp_path: Path, stride: int
) -> None:
    """Delta's commits are one rename of its own library, which a kill cannot split."""
    crashes = 0
    for step in count(0, stride):
        table = tmp_path / str(step) / "t"
        write(table, "iceberg", None, 50)
        crashed = die_at(step, lambda table=table: write(table, "iceberg", 50, 100))
        at = archived(open_lake(str(table), "iceberg"), "t", [0])[0]
        assert at in (50, 100)
        assert offsets_in(table, "iceberg") == good(at or 0)
        if at == 50:  # an archive does nothing again that the table has
            write(table, "iceberg", 50, 100)
        assert offsets_in(table, "iceberg") == good(100)
        assert offsets_in(table.parent / "bad", "iceberg") == list(range(0, 100, 10))
        crashes += crashed
        if not crashed:
            break
    assert crashes * stride > 10


def test_delta_columns_get_nested_fields_and_take_narrower_numbers(tmp_path: Path) -> None:
    table = tmp_path / "t"
    write(table, "delta", None, 100)
    lake = open_lake(str(table))
    for kind, city in (
        (pa.int64(), [("name", pa.string())]),
        (pa.int32(), [("name", pa.string()), ("zip", pa.string())]),
        (pa.int64(), [("zip", pa.string())]),
    ):
        lake.make_room_for(pa.schema([("n", kind), ("cities", pa.list_(pa.struct(city)))]))
    schema = open_lake(str(table)).schema()
    assert schema.field("n").type == pa.int64()
    inside = schema.field("cities").type.value_type
    assert [each.name for each in inside] == ["name", "zip"]
    for kind in (pa.list_(pa.struct([("zip", pa.int32())])), pa.string()):
        with pytest.raises(InvalidInput, match="keep the type"):
            lake.make_room_for(pa.schema([("cities", kind)]))
    assert offsets_in(table, "delta") == good(100)


def test_a_delta_table_is_rewritten_with_a_wider_column_in_one_commit(tmp_path: Path) -> None:
    table = tmp_path / "t"
    narrow = [StructField("n", IntegerType()) if f.name == "value" else f for f in SCHEMA.fields]

    def some(offsets: range) -> Iterator[pa.RecordBatch]:
        (made,) = rows(offsets.start, offsets.stop)
        yield made.set_column(0, "n", pa.array(made["offset"].to_pylist(), pa.int32()))

    def write_some(offsets: range) -> None:
        given = LakeJob(
            table=str(table), topic="t", starts={0: offsets.start}, ends={0: offsets.stop}
        )
        writer = LakeWriter(given, StructType(narrow))
        writer.commit([writer.write(some(offsets))])

    first = LakeJob(table=str(table), topic="t", ends={0: 20})
    writer = LakeWriter(first, StructType(narrow))
    writer.commit([writer.write(some(range(20)))])
    old = [file.path for file in found_lake(str(table)).files()]
    wide = [StructField("n", LongType()) if f.name == "n" else f for f in narrow]
    again = LakeWriter(
        LakeJob(table=str(table), removed=old, rewrites=True),
        StructType([f for f in wide if f.name != "_bad"]),
    )
    messages = [again.write(some(range(20)))]
    write_some(range(20, 30))  # an archive goes on meanwhile
    with pytest.raises(LakeConflict, match="written to it meanwhile"):
        again.commit(messages)
    lake = found_lake(str(table))
    again = LakeWriter(
        LakeJob(table=str(table), removed=[file.path for file in lake.files()], rewrites=True),
        StructType([f for f in wide if f.name != "_bad"]),
    )
    again.commit([again.write(some(range(30)))])
    assert lake.schema().field("n").type == pa.int64()
    assert offsets_in(table, "delta") == list(range(0, 30, 2))
    assert archived(lake, "t", [0]) == {0: 30}
    assert [file.incarnation for file in lake.files()] == [""] * 3
    lake.make_room_for(pa.schema([("x", pa.int32())]))
    with pytest.raises(InvalidInput, match="--widen"):
        lake.make_room_for(pa.schema([("x", pa.int64())]))


def test_iceberg_columns_get_wider_types_and_nested_fields(tmp_path: Path) -> None:
    table = tmp_path / "t"
    write(table, "iceberg", None, 100)
    lake = open_lake(str(table), "iceberg")
    for kind, city in (
        (pa.int32(), [("name", pa.string())]),
        (pa.int64(), [("name", pa.string()), ("zip", pa.string())]),
        (pa.int32(), [("zip", pa.string())]),  # is no step back
    ):
        lake.make_room_for(pa.schema([("n", kind), ("city", pa.struct(city))]))
    schema = open_lake(str(table), "iceberg").schema()
    assert schema.field("n").type == pa.int64()
    assert [each.name for each in schema.field("city").type] == ["name", "zip"]
    assert offsets_in(table, "iceberg") == good(100)


def test_a_table_of_parquet_of_an_earlier_version_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "t" / "_penstock").mkdir(parents=True)
    for opened in (open_lake, found_lake):
        with pytest.raises(InvalidInput, match="earlier version"):
            opened(str(tmp_path / "t"))
