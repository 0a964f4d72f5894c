"""Flows to other places than a folder: PostgreSQL, and an object store by the S3 protocol."""

from __future__ import annotations

import random
from contextlib import closing
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from penstock.errors import InvalidInput, LakeConflict
from penstock.spark.flows.definition import Flow, load_flow
from penstock.spark.flows.postgresql import PostgresTable
from penstock.spark.flows.tables import FlowTable
from penstock.spark.lake_table import archived
from tests.integration.outbox.conftest import postgresql_url  # noqa: F401 - a fixture
from tests.unit.spark.s3 import s3  # noqa: F401 - a fixture
from tests.unit.spark.test_flow_tables import change, changes


def to_database(url: str, kind: str, **target: Any) -> Flow:
    return load_flow(
        {
            "name": "f",
            "source": {"place": "./data", "topic": "t"},
            "target": {"kind": kind, "database": url, "table": "customers", **target},
            "state": "./state",
        }
    )


@pytest.fixture
def database(postgresql_url: str) -> str:  # noqa: F811
    with _connected(postgresql_url) as connection:
        connection.execute("drop table if exists customers, penstock_flows")
    return postgresql_url


def _connected(url: str) -> Any:
    psycopg = pytest.importorskip("psycopg")
    return closing(psycopg.connect(url, autocommit=True))


def rows_in(url: str, columns: str = "*") -> list[tuple[Any, ...]]:
    with _connected(url) as connection:
        return list(connection.execute(f"select {columns} from customers order by 1"))


def write(table: Any, rows: pa.Table, number: int) -> None:
    table.write(rows, number, change(rows, number), {"rows": len(rows)})


@pytest.mark.parametrize("seed", range(2))
def test_a_database_has_the_current_state(database: str, seed: int) -> None:
    chance = random.Random(seed)
    table = PostgresTable(to_database(database, "current", key=["id"], order_by="x"))
    model: dict[int, tuple[int, int, str | None]] = {}
    offset = 0
    for number in range(1, 5):
        some = []
        for _ in range(40):
            key, order = chance.randrange(15), chance.randrange(50)
            value = None if chance.random() < 0.2 else f"v{offset}"
            some.append((key, value, order, offset))
            if key not in model or (order, offset) >= model[key][:2]:
                model[key] = (order, offset, value)
            offset += 1
        write(table, changes(some), number)
    assert rows_in(database, "id, v") == [(k, each[2]) for k, each in sorted(model.items())], seed
    assert table.counts()["rows"] == 160
    assert archived(table, "t@1", [0]) == {0: 4}


def test_rows_and_marks_are_one_transaction(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table = PostgresTable(to_database(database, "append"))
    write(table, pa.table({"a": [1], "tags": [["x", "y"]]}), 1)
    with pytest.raises(LakeConflict, match="another run of flow f"):
        write(table, pa.table({"a": [1], "tags": [["x"]]}), 1)

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(PostgresTable, "_bring", die)
        with pytest.raises(KeyboardInterrupt):
            write(table, pa.table({"a": [2], "b": ["new"]}), 2)
    assert table.round == 1
    assert table.columns() == ["a", "tags"]
    write(table, pa.table({"a": [2], "b": ["new"]}), 2)
    assert rows_in(database) == [(1, ["x", "y"], None), (2, None, "new")]
    with pytest.raises(InvalidInput, match="PostgreSQL refuses"):
        write(table, pa.table({"a": ["text"]}), 3)
    assert table.round == 2


def test_a_column_of_a_database_gets_wider_and_takes_narrower_numbers(database: str) -> None:
    table = PostgresTable(to_database(database, "append"))
    for number, (a, b) in enumerate(((1, 0.5), (1 << 40, 1e300), (2, 1.5)), 1):
        whole, real = (pa.int64(), pa.float64()) if number == 2 else (pa.int32(), pa.float32())
        write(table, pa.table({"a": pa.array([a], whole), "b": pa.array([b], real)}), number)
    assert rows_in(database) == [(1, 0.5), (2, 1.5), (1 << 40, 1e300)]


def test_sums_in_a_database(database: str) -> None:
    measures = {"n": "count(*)", "total": "sum(x)", "most": "max(x)"}
    table = PostgresTable(to_database(database, "aggregate", measures=measures, group_by=["city"]))
    for number, (n, x) in enumerate([(2, 5), (3, -1)], 1):
        row = {"city": None, "n": n, "total": x, "most": x}
        write(table, pa.Table.from_pylist([row, {**row, "city": f"only {number}"}]), number)
    found = {row[0]: row[1:] for row in rows_in(database)}
    assert found[None] == (5, 4, 5)
    assert len(found) == 3


@pytest.mark.parametrize("kind", ["current", "history"])
def test_a_table_in_an_object_store(
    s3: dict[str, str],  # noqa: F811
    tmp_path: Path,
    kind: str,
) -> None:
    flow = load_flow(
        {
            "name": "f",
            "source": {"place": "./data", "topic": "t"},
            "target": {"kind": kind, "table": f"s3://lake/{kind}", "key": ["id"], "order_by": "x"},
            "state": str(tmp_path),
            "storage": s3,
        }
    )
    table, other = FlowTable(flow), FlowTable(flow)
    write(table, changes([(1, "a", 1, 0), (2, "b", 1, 1)]), 1)
    write(other, changes([(1, "c", 2, 2), (2, "late", 0, 3)]), 2)
    with pytest.raises(LakeConflict):
        write(table, changes([(1, "again", 9, 2)]), 2)
    found = deltalake.DeltaTable(f"s3://lake/{kind}", storage_options=s3).to_pyarrow_table()
    rows = {(row["id"], row["v"]) for row in found.to_pylist() if row.get("is_current", True)}
    assert rows == {(1, "c"), (2, "b")}
    assert table.round == 2
    assert archived(table, "t@1", [0]) == {0: 2}


def test_a_column_gets_wider_in_an_object_store(s3: dict[str, str], tmp_path: Path) -> None:  # noqa: F811
    flow = load_flow(
        {
            "name": "f",
            "source": {"place": "./data", "topic": "t"},
            "target": {"kind": "append", "table": "s3://lake/wider"},
            "state": str(tmp_path),
            "storage": s3,
        }
    )
    table = FlowTable(flow)
    write(table, pa.table({"a": pa.array([1], pa.int32())}), 1)
    write(table, pa.table({"a": [1 << 40]}), 2)
    found = deltalake.DeltaTable("s3://lake/wider", storage_options=s3).to_pyarrow_table()
    assert sorted(found["a"].to_pylist()) == [1, 1 << 40]
    assert archived(table, "t@1", [0]) == {0: 2}


def test_of_two_runs_at_once_one_is_refused_by_the_store(
    s3: dict[str, str],  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There is no rename: that a commit is new is said by a conditional put."""
    flow = load_flow(
        {
            "name": "f",
            "source": {"place": "./data", "topic": "t"},
            "target": {"kind": "append", "table": "s3://lake/race"},
            "state": str(tmp_path),
            "storage": s3,
        }
    )
    table = FlowTable(flow)
    write(table, pa.table({"a": [1]}), 1)
    append = FlowTable._append

    def late(self: FlowTable, *args: Any) -> None:
        monkeypatch.setattr(FlowTable, "_append", append)
        write(FlowTable(flow), pa.table({"a": [2]}), 2)
        append(self, *args)

    monkeypatch.setattr(FlowTable, "_append", late)
    with pytest.raises(LakeConflict):
        write(table, pa.table({"a": [99]}), 2)
    found = deltalake.DeltaTable("s3://lake/race", storage_options=s3).to_pyarrow_table()
    assert sorted(found["a"].to_pylist()) == [1, 2]
