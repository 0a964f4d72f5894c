"""Tables of flows without a session: the latest of each key, history, sums; each round once."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from penstock.errors import InvalidInput, LakeConflict
from penstock.spark.flows import delta_columns
from penstock.spark.flows.definition import Flow, load_flow
from penstock.spark.flows.run import TargetTable, table_of_flow
from penstock.spark.flows.standing import FlowStatus, as_metrics
from penstock.spark.flows.tables import FlowTable
from penstock.spark.flows.upkeep import optimize_flow
from penstock.spark.lake_table import TableChange, archived

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
US = pa.timestamp("us", tz="UTC")


def flow(tmp_path: Path, kind: str, **target: Any) -> Flow:
    return load_flow(
        {
            "name": "f",
            "source": {"place": "./data", "topic": "t"},
            "target": {"kind": kind, "table": str(tmp_path / "table"), **target},
        }
    )


@pytest.fixture(params=["delta", "iceberg"])
def lake(request: pytest.FixtureRequest) -> str:
    """The kind of table."""
    return str(request.param)


def change(rows: pa.Table, end: int) -> TableChange:
    return TableChange(rows.schema, topic="t@1", ends={0: end})


def write(table: TargetTable, rows: pa.Table, number: int) -> None:
    table.write(rows, number, change(rows, number), {"rows": len(rows)})


def rows_in(table: TargetTable) -> list[dict[str, Any]]:
    """As others see them, who know nothing of us."""
    if isinstance(table, FlowTable):
        found = deltalake.DeltaTable(table.uri).to_pyarrow_table()
    else:
        catalog = SqlCatalog("penstock", uri=f"sqlite:///{table.uri}/catalog.db")
        (name,) = catalog.list_tables(*catalog.list_namespaces())
        found = catalog.load_table(name).scan().to_arrow()
    rows: list[dict[str, Any]] = found.to_pylist()
    return rows


def changes(rows: list[tuple[int, str | None, int | None, int]]) -> pa.Table:
    """Of key, value (None: it is deleted), order, and offset."""
    return pa.table(
        {
            "id": pa.array([row[0] for row in rows], pa.int64()),
            "v": pa.array([row[1] for row in rows], pa.string()),
            "_at": pa.array([EPOCH + timedelta(seconds=row[3]) for row in rows], US),
            "_offset": pa.array([row[3] for row in rows], pa.int64()),
            "_deleted": pa.array([row[1] is None for row in rows]),
            "_order": pa.array([row[2] for row in rows], pa.int64()),
        }
    )


@pytest.mark.parametrize("seed", range(3))
def test_the_current_state_is_that_of_a_plain_dictionary(
    tmp_path: Path, lake: str, seed: int
) -> None:
    """Late rows, repeated ones, and such as come after their key was deleted."""
    chance = random.Random(seed)
    table = table_of_flow(flow(tmp_path, "current", format=lake, key=["id"], order_by="x"))
    model: dict[int, tuple[int, int, str | None]] = {}
    offset = 0
    for number in range(1, 6):
        some = []
        for _ in range(40):
            key, order = chance.randrange(15), chance.randrange(50)
            value = None if chance.random() < 0.2 else f"v{offset}"
            some.append((key, value, order, offset))
            if key not in model or (order, offset) >= model[key][:2]:
                model[key] = (order, offset, value)
            offset += 1
        write(table, changes(some), number)
    found = {row["id"]: row["v"] for row in rows_in(table) if not row["_deleted"]}
    assert found == {key: each[2] for key, each in model.items() if each[2] is not None}, seed
    assert len(rows_in(table)) == len(model)


def test_a_round_is_in_the_table_once_also_if_it_changed_nothing(tmp_path: Path, lake: str) -> None:
    table = table_of_flow(flow(tmp_path, "current", format=lake, key=["id"], order_by="x"))
    write(table, changes([(1, "new", 9, 1)]), 1)
    write(table, changes([(1, "late", 3, 2)]), 2)
    assert [row["v"] for row in rows_in(table)] == ["new"]
    assert table.round == 2
    assert archived(table, "t@1", [0]) == {0: 2}
    assert table.counts() == {"rows": 2, "bad": 0, "dropped": 0, "warned": 0}
    with pytest.raises(LakeConflict, match="another run of flow f"):
        write(table, changes([(1, "twice", 10, 2)]), 2)
    with pytest.raises(LakeConflict):
        write(table, changes([(1, "skipped", 10, 9)]), 4)
    assert [row["v"] for row in rows_in(table)] == ["new"]


@pytest.mark.parametrize("seed", range(3))
def test_history_has_each_version_with_its_time(tmp_path: Path, lake: str, seed: int) -> None:
    chance = random.Random(seed)
    table = table_of_flow(flow(tmp_path, "history", format=lake, key=["id"], order_by="x"))
    model: dict[int, dict[int, str | None]] = {}
    offset = 0
    for number in range(1, 5):
        some = []
        for _ in range(25):
            key, order = chance.randrange(6), chance.randrange(40)
            value = None if chance.random() < 0.15 else f"v{offset}"
            some.append((key, value, order, offset))
            model.setdefault(key, {})[order] = value
            offset += 1
        write(table, changes(some), number)
    expected = []
    for key, versions in model.items():
        orders = sorted(versions)
        for order, following in zip(orders, [*orders[1:], None], strict=True):
            current = following is None and versions[order] is not None
            expected.append((key, order, following, versions[order], current))
    names = ("id", "valid_from", "valid_to", "v", "is_current")
    found = [tuple(row[name] for name in names) for row in rows_in(table)]
    assert sorted(found, key=str) == sorted(expected, key=str), seed


def test_sums_grow_round_by_round(tmp_path: Path, lake: str) -> None:
    measures = {"n": "count(*)", "total": "sum(x)", "least": "min(x)", "most": "max(x)"}
    table = table_of_flow(
        flow(tmp_path, "aggregate", format=lake, measures=measures, group_by=["city"])
    )
    for number, (n, x) in enumerate([(2, 5), (3, -1), (1, 9)], 1):
        row = {"city": None, "n": n, "total": x, "least": x, "most": x}
        other = {**row, "city": f"only {number}"}
        write(table, pa.Table.from_pylist([row, other]), number)
    found = {row["city"]: row for row in rows_in(table)}
    assert found[None] == {"city": None, "n": 6, "total": 13, "least": -1, "most": 9}
    assert len(found) == 4


def test_columns_may_be_added_but_not_change_their_type(tmp_path: Path, lake: str) -> None:
    table = table_of_flow(flow(tmp_path, "append", format=lake))
    write(table, pa.table({"a": [1]}), 1)
    write(table, pa.table({"a": [2], "b": ["x"]}), 2)
    assert sorted(rows_in(table), key=str) == [{"a": 1, "b": None}, {"a": 2, "b": "x"}]
    with pytest.raises(InvalidInput, match="column 'a'"):
        write(table, pa.table({"a": ["text"]}), 3)


@pytest.mark.parametrize("kind", ["append", "current", "history"])
def test_a_column_gets_wider_and_takes_narrower_numbers(
    tmp_path: Path, lake: str, kind: str
) -> None:
    key = {} if kind == "append" else {"key": ["id"], "order_by": "x"}
    target = {"partition_by": ["id"], "statistics": ["v"], **key}
    table = table_of_flow(flow(tmp_path, kind, format=lake, **target))

    def rows(number: int, wide: bool, value: Any) -> pa.Table:
        whole, real = (pa.int64(), pa.float64()) if wide else (pa.int32(), pa.float32())
        some = changes([(key, "", number, number) for key in (number, 9)]).drop_columns(["v"])
        order = some["_order"].cast(whole)
        some = some.set_column(some.schema.get_field_index("_order"), "_order", order)
        return some.append_column("v", pa.array([value] * 2, real))

    for number, wide, value in ((1, False, 0.5), (2, True, 1e300), (3, False, 1.5)):
        write(table, rows(number, wide, value), number)
    found = {row["id"]: row["v"] for row in rows_in(table) if row["id"] != 9}
    assert found == {1: 0.5, 2: 1e300, 3: 1.5}
    assert len(rows_in(table)) == {"append": 6, "current": 4, "history": 6}[kind]
    assert (table.round, table.counts()["rows"]) == (3, 6)
    assert archived(table, "t@1", [0]) == {0: 3}
    if isinstance(table, FlowTable):
        about = deltalake.DeltaTable(table.uri).metadata()
        assert about.partition_columns == ["id"]
        assert "v" in str(about.configuration)


@pytest.mark.parametrize("kind", ["append", "current", "history"])
def test_a_column_that_no_row_lacks_can_be_added(tmp_path: Path, lake: str, kind: str) -> None:
    """Such as a literal, of which Spark says that it is never null."""
    key = {} if kind == "append" else {"key": ["id"], "order_by": "x"}
    table = table_of_flow(flow(tmp_path, kind, format=lake, **key))
    write(table, changes([(1, "a", 1, 1)]), 1)
    for number, name in ((2, "source"), (3, "other")):
        field = pa.field(name, pa.string(), nullable=False)
        rows = changes([(number, "a", number, number)])
        write(table, rows.append_column(field, pa.array(["web"])), number)
    found = {row["id"]: (row["source"], row["other"]) for row in rows_in(table)}
    assert found == {1: (None, None), 2: ("web", None), 3: (None, "web")}


def test_of_two_runs_of_which_one_widens_a_column_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = FlowTable(flow(tmp_path, "append"))
    write(table, pa.table({"a": pa.array([1], pa.int32())}), 1)
    widen = delta_columns._widen

    def after_another(*given: Any) -> None:
        write(FlowTable(table.flow), pa.table({"a": pa.array([2], pa.int32())}), 2)
        widen(*given)

    monkeypatch.setattr(delta_columns, "_widen", after_another)
    with pytest.raises(LakeConflict):
        write(table, pa.table({"a": [3]}), 2)
    assert sorted(row["a"] for row in rows_in(table)) == [1, 2]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"name": "../x"}, "names are made of"),
        ({"source": {"place": "d"}}, "topic"),
        ({"target": {"kind": "current", "table": "t"}}, "'key'"),
        ({"target": {"kind": "append"}}, "'table' and 'topic'"),
        ({"target": {"kind": "aggregate", "table": "t", "measures": {"a": "avg(x)"}}}, "avg"),
        ({"decode": {"format": "json"}}, "'schema'"),
        ({"columns": {"_x": "1"}}, "begin with '_'"),
        ({"unknown": 1}, "unknown"),
    ],
)
def test_a_flow_that_is_wrong_is_refused_before_spark_starts(
    tmp_path: Path, wrong: dict[str, Any], said: str
) -> None:
    good = {
        "name": "f",
        "source": {"place": "./data", "topic": "t"},
        "target": {"kind": "append", "table": str(tmp_path)},
    }
    assert load_flow(good).name == "f"
    with pytest.raises(InvalidInput, match=said):
        load_flow({**good, **wrong})


def test_a_table_is_rewritten_in_fewer_files_and_goes_on(tmp_path: Path, lake: str) -> None:
    declared = flow(tmp_path, "append", format=lake)
    table = table_of_flow(declared)
    with pytest.raises(InvalidInput, match="apply the flow first"):
        optimize_flow(declared)
    for number in range(1, 6):
        write(table, pa.table({"a": [number], "b": [f"{number}"]}), number)
    with pytest.raises(InvalidInput, match="no column 'c'"):
        optimize_flow(declared, z_order=["c"])
    done = optimize_flow(declared, z_order=["a"], vacuum="0s")
    assert (done.files_added, done.files_removed, done.vacuumed) == (1, 5, 5)
    assert table.round == 5
    assert archived(table, "t@1", [0]) == {0: 5}
    write(table, pa.table({"a": [6], "b": ["6"]}), 6)
    assert sorted(row["a"] for row in rows_in(table)) == [1, 2, 3, 4, 5, 6]
    assert optimize_flow(declared).files_removed == 2


def test_a_status_as_metrics() -> None:
    text = as_metrics(FlowStatus(flow="f", target="t", lag=3, lag_s=1.5, rows=7))
    assert 'penstock_flow_lag_messages{flow="f"} 3\n' in text
    assert "# TYPE penstock_flow_rows_total counter\n" in text
    assert "freshness" not in text
