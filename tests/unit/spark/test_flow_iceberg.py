"""Iceberg tables of flows: as Delta's, whole after a kill, and no file replaced without a need."""

from __future__ import annotations

import random
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import InvalidInput, LakeConflict
from penstock.spark.flows.definition import load_flow
from penstock.spark.flows.run import table_of_flow
from penstock.spark.flows.tables import FlowTable
from penstock.spark.flows.upkeep import optimize_flow
from penstock.spark.lake import found_lake
from penstock.spark.lake_table import archived
from tests.unit.spark.crashing import die_at
from tests.unit.spark.test_flow_tables import changes, flow, rows_in, write


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", ["current", "history"])
def test_both_kinds_of_tables_have_the_same_rows(tmp_path: Path, kind: str, seed: int) -> None:
    chance = random.Random(seed)
    tables = [
        table_of_flow(flow(tmp_path / each, kind, key=["id"], order_by="x", format=each))
        for each in ("delta", "iceberg")
    ]
    offset = 0
    for number in range(1, 5):
        some = []
        for _ in range(40):
            order = None if kind == "current" and chance.random() < 0.2 else chance.randrange(30)
            value = None if chance.random() < 0.2 else f"v{offset}"
            some.append((chance.randrange(12), value, order, offset))
            offset += 1
        chance.shuffle(some)
        for table in tables:
            write(table, changes(some), number)
    one, other = (sorted(rows_in(table), key=str) for table in tables)
    assert one == other, seed
    assert tables[0].counts() == tables[1].counts()


def test_a_round_that_is_killed_anywhere_is_whole_or_not_there(tmp_path: Path) -> None:
    first = changes([(key, "a", 1, key) for key in range(6)])
    second = changes([(key, "b", 2, key) for key in range(3, 9)])
    crashes = 0
    for step in count(0, 3):
        declared = flow(tmp_path / str(step), "current", key=["id"], order_by="x", format="iceberg")
        table = table_of_flow(declared)
        write(table, first, 1)
        crashed = die_at(step, lambda table=table: write(table, second, 2))
        again = table_of_flow(declared)
        assert again.round in (1, 2)
        assert archived(again, "t@1", [0]) == {0: again.round}
        if again.round == 1:
            assert {row["v"] for row in rows_in(again)} == {"a"}
            write(again, second, 2)
        found = {row["id"]: row["v"] for row in rows_in(again)}
        assert found == {key: "a" if key < 3 else "b" for key in range(9)}
        assert len(rows_in(again)) == 9
        assert again.counts()["rows"] == 12
        crashes += crashed
        if not crashed:
            break
    assert crashes * 3 > 10


def test_of_two_runs_at_once_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the other one comes in between."""
    for name in ("files", "marks", "commit"):
        declared = flow(tmp_path / name, "append", format="iceberg")
        table = table_of_flow(declared)
        write(table, pa.table({"a": [1]}), 1)
        lake = type(table._lake)  # type: ignore[union-attr]
        real = getattr(lake, name)

        def late(self: Any, *args: Any, declared: Any = declared, real: Any = real) -> Any:
            found = real(self, *args) if real.__name__ != "commit" else None
            undo.undo()
            write(table_of_flow(declared), pa.table({"a": [2]}), 2)
            return found if real.__name__ != "commit" else real(self, *args)

        with monkeypatch.context() as undo:
            undo.setattr(lake, name, late)
            with pytest.raises(LakeConflict):
                write(table, pa.table({"a": [99]}), 2)
        assert sorted(row["a"] for row in rows_in(table)) == [1, 2], name
        assert table_of_flow(declared).round == 2


def test_files_without_a_key_that_changes_stay(tmp_path: Path) -> None:
    declared = flow(
        tmp_path,
        "current",
        key=["id"],
        format="iceberg",
        partition_by=["v"],
        statistics=["id"],
        properties={"write.target-file-size-bytes": "1000"},
    )
    table = table_of_flow(declared)
    rows = changes([(1, "a", None, 1), (2, "b", None, 2), (3, "b", None, 3)])
    write(table, rows.drop_columns(["_order"]), 1)
    lake = found_lake(table.uri)
    before = {file.path: file.partition for file in lake.files()}
    assert sorted(each["v"] or "" for each in before.values()) == ["a", "b"]
    write(table, changes([(2, "c", None, 4)]).drop_columns(["_order"]), 2)
    after = {file.path: file.partition for file in lake.files()}
    (kept,) = before.keys() & after.keys()
    assert before[kept] == {"v": "a"}
    assert {row["id"]: row["v"] for row in rows_in(table)} == {1: "a", 2: "c", 3: "b"}
    write(table, changes([(2, "late", None, 0)]).drop_columns(["_order"]), 3)
    assert {file.path for file in lake.files()} == after.keys()
    assert table.round == 3
    layout = lake.layout()
    assert layout is not None
    assert layout.statistics == ["id"]
    assert optimize_flow(declared).files_removed == 3
    assert len(rows_in(table)) == 3


def test_columns_come_and_go_and_numbers_get_wider(tmp_path: Path) -> None:
    key = {"key": ["id"], "format": "iceberg"}
    table = table_of_flow(flow(tmp_path, "current", **key))
    one = changes([(1, "a", None, 1), (2, "b", None, 2)]).drop_columns(["_order"])
    write(table, one.append_column("n", pa.array([1, 2], pa.int32())), 1)
    other = changes([(2, "c", None, 3)]).drop_columns(["_order", "v"])
    write(table, other.append_column("n", pa.array([1 << 40])), 2)
    found = {row["id"]: (row["v"], row["n"]) for row in rows_in(table)}
    assert found == {1: ("a", 1), 2: (None, 1 << 40)}
    with pytest.raises(InvalidInput, match="column 'n'"):
        write(table, other.append_column("n", pa.array(["text"])), 3)
    assert table.round == 2


def test_all_rows_may_be_one_group_and_keys_may_be_several(tmp_path: Path) -> None:
    measures = {"n": "count(*)", "most": "max(x)"}
    table = table_of_flow(flow(tmp_path, "aggregate", measures=measures, format="iceberg"))
    for number in (1, 2, 3):
        write(table, pa.table({"n": [2], "most": pa.array([None], pa.int64())}), number)
    assert rows_in(table) == [{"n": 6, "most": None}]
    both = flow(tmp_path / "both", "current", key=["id", "v"], format="iceberg")
    table = table_of_flow(both)
    for number, offset in ((1, 1), (2, 4)):
        rows = changes([(1, "a", None, offset), (1, None, None, offset + 1)])
        write(table, rows.drop_columns(["_order"]), number)
    assert sorted(row["_offset"] for row in rows_in(table)) == [4, 5]


def test_a_table_stays_of_its_kind(tmp_path: Path) -> None:
    rows = pa.table({"a": [1]})
    for kind, other in (("delta", "iceberg"), ("iceberg", "delta")):
        write(table_of_flow(flow(tmp_path / kind, "append", format=kind)), rows, 1)
        with pytest.raises(InvalidInput, match=f"is a table of {kind}"):
            write(table_of_flow(flow(tmp_path / kind, "append", format=other)), rows, 1)


def test_the_choice_of_statistics_is_that_of_delta_too(tmp_path: Path) -> None:
    declared = flow(tmp_path, "append", statistics=["b"])
    table = table_of_flow(declared)
    assert isinstance(table, FlowTable)
    write(table, pa.table({"a": [1], "b": [2]}), 1)
    layout = found_lake(table.uri).layout()
    assert layout is not None
    assert (layout.partition_by, layout.statistics) == ([], ["b"])
    names = pa.table(table.open().get_add_actions(flatten=True)).column_names  # type: ignore[union-attr]
    assert "min.b" in names
    assert "min.a" not in names


def test_what_files_are_like_makes_no_other_rows() -> None:
    target: dict[str, Any] = {"kind": "append", "table": "t"}
    given = {"name": "f", "source": {"place": "d", "topic": "t"}, "target": target}
    plain = load_flow(given)
    other = load_flow({**given, "target": {**target, "statistics": ["a"], "format": "iceberg"}})
    assert plain.number == other.number == 5458025958247072788
    with pytest.raises(InvalidInput, match="'format' is for a table of a lake"):
        load_flow({**given, "target": {"kind": "topic", "topic": "x", "format": "iceberg"}})
