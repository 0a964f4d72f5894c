"""Rows that remove their key and do not say when, as tombstones: against a plain dictionary."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.spark.flows.postgresql import PostgresTable
from penstock.spark.flows.run import TargetTable, table_of_flow
from tests.integration.outbox.conftest import postgresql_url  # noqa: F401 - a fixture
from tests.unit.spark.test_flow_places import database, to_database  # noqa: F401 - a fixture
from tests.unit.spark.test_flow_places import rows_in as rows_in_database
from tests.unit.spark.test_flow_tables import changes, flow, rows_in, write


@pytest.fixture(params=["delta", "iceberg", "postgresql"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> TargetTable:
    if request.param == "postgresql":
        url = request.getfixturevalue("database")
        return PostgresTable(to_database(url, "current", key=["id"], order_by="x"))
    return table_of_flow(flow(tmp_path, "current", format=request.param, key=["id"], order_by="x"))


def present(table: TargetTable) -> dict[int, str]:
    if isinstance(table, PostgresTable):
        url = table.flow.target.database
        return {key: v for key, v, gone in rows_in_database(url, "id, v, _deleted") if not gone}
    return {row["id"]: row["v"] for row in rows_in(table) if not row["_deleted"]}


@pytest.mark.parametrize("seed", range(3))
def test_a_tombstone_removes_what_was_published_before_it_and_no_more(
    table: TargetTable, seed: int
) -> None:
    chance = random.Random(seed)
    model: dict[int, tuple[int, str | None]] = {}
    offset = 0
    for number in range(1, 7):
        some: list[tuple[int, str | None, int | None, int]] = []
        for _ in range(25):
            key, order = chance.randrange(10), chance.randrange(40)
            if chance.random() < 0.2:
                some.append((key, None, None, offset))
                model[key] = (model.get(key, (-1,))[0], None)
            else:
                value = None if chance.random() < 0.2 else f"v{offset}"
                some.append((key, value, order, offset))
                if key not in model or order >= model[key][0]:
                    model[key] = (order, value)
            offset += 1
        chance.shuffle(some)
        write(table, changes(some), number)
        expected = {key: value for key, (_, value) in model.items() if value is not None}
        assert present(table) == expected, (seed, number)


def test_who_comes_late_does_not_bring_back_what_a_tombstone_removed(table: TargetTable) -> None:
    write(table, changes([(1, "a", 9, 0), (2, "a", 9, 1)]), 1)
    write(table, changes([(1, None, None, 2), (2, None, None, 3)]), 2)
    write(table, changes([(1, "late", 5, 4), (2, "made again", 10, 5)]), 3)
    assert present(table) == {2: "made again"}


def test_rows_with_lists_have_a_history(tmp_path: Path) -> None:
    for kind in ("delta", "iceberg"):
        table = table_of_flow(flow(tmp_path / kind, "history", format=kind, key=["id"]))
        for number in (1, 2):
            rows = changes([(1, "a", number, number)])
            rows = rows.append_column("tags", pa.array([["x", str(number)]]))
            write(table, rows, number)
        found = sorted(rows_in(table), key=lambda row: row["valid_from"])
        assert [(row["tags"][1], row["valid_to"]) for row in found] == [("1", 2), ("2", None)]
