"""Flows under a real Spark: decoded, checked, and each message once, whatever is cut short."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import penstock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)


def declared(folder: str, tmp_path: Path, name: str = "customers", **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "source": {"place": folder, "topic": "customers"},
        "decode": {"format": "json", "schema": "id bigint, city string, at bigint"},
        "expectations": [{"name": "has_city", "check": "city is not null"}],
        "target": {
            "kind": "current",
            "table": str(tmp_path / "lake" / name),
            "key": ["id"],
            "order_by": "data.at",
        },
        **more,
    }


def publish(folder: str, *values: Any) -> None:
    with penstock.connect(folder) as ps:
        for value in values:
            text = None if value is None else value if isinstance(value, str) else json.dumps(value)
            ps.publish("customers", text)


@pytest.fixture
def customers(folder: str) -> str:
    with penstock.connect(folder) as ps:
        ps.create_topic("customers", partitions=2)
    return folder


def current(spark: SparkSession, table: Path) -> dict[int, str]:
    from penstock.spark.flows import read_current

    return {row["id"]: row["city"] for row in read_current(spark, str(table)).collect()}


def test_the_current_state_by_key_with_a_quarantine_that_is_a_queue(
    spark: SparkSession, customers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.spark.flows import apply_flow, flow_status, plan_flow
    from penstock.spark.flows import run as running
    from penstock.spark.flows.tables import FlowTable

    flow, table = declared(customers, tmp_path), tmp_path / "lake" / "customers"
    publish(
        customers,
        {"id": 1, "city": "Bergen", "at": 5},
        {"id": 2, "city": "Oslo", "at": 5},
        {"id": 3, "at": 5},
        "no JSON",
        {"id": 1, "city": "late", "at": 2},
    )
    plan = plan_flow(spark, flow)
    assert (plan.exists, plan.messages) == (False, 5)
    assert plan.columns == {"id": "bigint", "city": "string", "at": "bigint"}
    whole = declared(customers, tmp_path, columns={"id": "data.id", "row": "data"})
    whole["target"] |= {"order_by": "data.at"}
    whole["expectations"] = [{"name": "is_there", "check": "to_json(row) not like '%corrupt%'"}]
    plan = plan_flow(spark, whole)
    assert plan.columns["row"] == "struct<id:bigint,city:string,at:bigint>"
    assert not table.exists()

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:  # after the letters are published, before the commit
        patch.setattr(FlowTable, "write", die)
        with pytest.raises(KeyboardInterrupt):
            apply_flow(spark, flow)
    publish(customers, {"id": 4, "city": "Moss", "at": 5})
    with monkeypatch.context() as patch:  # after the commit, before the group is told
        patch.setattr(running, "commit_progress", die)
        with pytest.raises(KeyboardInterrupt):
            apply_flow(spark, flow)
    done = apply_flow(spark, flow)
    assert current(spark, table) == {1: "Bergen", 2: "Oslo", 4: "Moss"}
    assert done.rows == 1
    with penstock.connect(customers) as ps:
        letters = {letter.error: letter for letter in ps.dead_letters("customers").list()}
        assert set(letters) == {
            "flow customers: has_city does not hold",
            "flow customers: not JSON",
        }
        lag = ps.describe_stream_group("flow-customers").lag
        assert sum(lag.values()) == 0
        # The rule is mended, and what it kept out comes back.
        assert ps.dead_letters("customers").redrive() == 2
    lenient = declared(customers, tmp_path, expectations=[])
    assert apply_flow(spark, lenient).bad == 1
    assert apply_flow(spark, lenient).messages == 0
    assert current(spark, table) == {1: "Bergen", 2: "Oslo", 3: None, 4: "Moss"}
    status = flow_status(lenient)
    assert (status.lag, status.bad) == (0, 3)
    assert status.freshness_s is not None

    # The table has bigint and text: what gets wider, what is new, and what cannot be.
    other = declared(
        *(customers, tmp_path),
        columns={"id": "data.id", "city": "length(data.city)", "at": "data.at", "n": "int(1)"},
    )
    plan = plan_flow(spark, other)
    assert (plan.new_columns, plan.wider_columns) == (["n"], {})
    assert plan.notes == [
        "column 'city' of the table is string, and int is not wider: to apply the flow will be "
        "refused"
    ]
    other["columns"] |= {"city": "data.city"}
    assert apply_flow(spark, other).messages == 0
    publish(customers, {"id": 9, "city": "Voss", "at": 1})
    assert apply_flow(spark, other).rows == 1
    other["columns"]["n"] = "bigint(1) << 40"
    assert plan_flow(spark, other).wider_columns == {"n": "int"}
    publish(customers, {"id": 10, "city": "Voss", "at": 1})
    assert apply_flow(spark, other).rows == 1
    assert plan_flow(spark, other).wider_columns == {}


@pytest.mark.parametrize("lake_format", ["delta", "iceberg"])
def test_changes_of_debezium_and_a_topic_that_is_made_again(
    spark: SparkSession, customers: str, tmp_path: Path, lake_format: str
) -> None:
    from penstock.errors import DataLost
    from penstock.spark.flows import apply_flow

    flow = declared(
        customers,
        tmp_path,
        decode={"format": "debezium", "schema": "id bigint, city string"},
        expectations=[],
    )
    flow["target"] |= {"order_by": "ts_ms", "format": lake_format}
    table = tmp_path / "lake" / "customers"

    def row(city: str) -> dict[str, Any]:
        return {"id": 1 if city != "Moss" else 2, "city": city}

    publish(
        customers,
        {"op": "c", "ts_ms": 1, "before": None, "after": row("Oslo")},
        {"payload": {"op": "u", "ts_ms": 3, "before": row("Oslo"), "after": row("Bergen")}},
        {"op": "c", "ts_ms": 2, "before": None, "after": row("Moss")},
        {"op": "d", "ts_ms": 9, "before": row("Moss"), "after": None},
        {"op": "u", "ts_ms": 4, "before": row("Moss"), "after": row("Moss")},
    )
    apply_flow(spark, flow)
    assert current(spark, table) == {1: "Bergen"}
    with penstock.connect(customers) as ps:
        ps.delete_topic("customers")
        ps.create_topic("customers", partitions=2)
    publish(customers, {"op": "c", "ts_ms": 10, "before": None, "after": row("Moss")})
    with pytest.raises(DataLost, match="deleted and made again"):
        apply_flow(spark, flow)
    flow["source"]["skip_lost"] = True
    assert apply_flow(spark, flow).rows == 1
    assert current(spark, table) == {1: "Bergen", 2: "Moss"}


def test_a_tombstone_removes_the_key_of_its_message(
    spark: SparkSession, customers: str, tmp_path: Path
) -> None:
    from penstock.spark.flows import apply_flow, read_current

    row = {"id": 1, "city": "Oslo"}
    with penstock.connect(customers) as ps:
        for key, value in (
            (b'{"id": 1}', {"op": "c", "ts_ms": 1, "before": None, "after": row}),
            (b'{"payload": {"id": 2}}', {"op": "c", "ts_ms": 2, "after": row | {"id": 2}}),
            (b'{"id": 3}', {"op": "c", "ts_ms": 3, "after": row | {"id": 3}}),
            (b'{"id": 1}', {"op": "d", "ts_ms": 4, "before": row, "after": None}),
            (b'{"id": 1}', None),
            (b'{"id": 1}', {"op": "u", "ts_ms": 3, "before": row, "after": row}),  # late
            (b'{"payload": {"id": 2}}', None),  # a compaction has taken its delete
            (b'{"id": 4}', {"op": "c", "ts_ms": 5, "after": row | {"id": 4}}),
            (b'{"id": 4}', {"op": "d", "ts_ms": 6, "before": None, "after": None}),
        ):
            ps.publish("customers", value and json.dumps(value), key=key, partition=0)
    debezium = {"format": "debezium", "schema": "id bigint, city string"}
    flow = declared(customers, tmp_path, decode=debezium, expectations=[])
    flow["target"]["order_by"] = "ts_ms"
    assert apply_flow(spark, flow).bad == 0
    assert current(spark, tmp_path / "lake" / "customers") == {3: "Oslo"}
    versions = tmp_path / "lake" / "versions"
    history = {**flow, "name": "versions"}
    history["target"] = {**flow["target"], "kind": "history", "table": str(versions)}
    done = apply_flow(spark, history)
    assert (done.bad, done.rows) == (0, 7)
    there = read_current(spark, str(versions)).where("is_current")
    assert {each["id"] for each in there.collect()} == {2, 3}

    # Where the key of a message is the key itself, or is no key at all.
    with penstock.connect(customers) as ps:
        ps.create_topic("tags")
        for key, each in ((b"7", "x"), (b"8", "x"), (b"7", ""), (b"no number", "")):
            ps.publish("tags", json.dumps({"name": each}) if each else None, key=key)
    plain = declared(
        *(customers, tmp_path, "tags"),
        source={"place": customers, "topic": "tags"},
        decode={"format": "json", "schema": "name string not null"},
        columns={"id": "try_cast(string(key) as int)", "name": "data.name"},
        expectations=[],
    )
    del plain["target"]["order_by"]
    done = apply_flow(spark, plain)
    assert (done.rows, done.bad) == (3, 1)
    found = read_current(spark, plain["target"]["table"]).collect()
    assert [(each["id"], each["name"]) for each in found] == [(8, "x")]
    every = {**plain, "name": "every", "columns": {}}
    every["target"] = {"kind": "append", "table": str(tmp_path / "lake" / "every")}
    done = apply_flow(spark, every)  # where nothing is removed, what must be there must be there
    assert (done.rows, done.bad) == (2, 2)


def test_sums_by_window_and_another_topic(
    spark: SparkSession, customers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.sql import functions as F

    from penstock.spark.flows import apply_flow
    from penstock.spark.flows import run as running
    from penstock.spark.pipelines import read_lake

    publish(customers, *({"id": n, "city": "Oslo" if n % 2 else "Moss", "at": n} for n in range(9)))
    sums = declared(
        customers,
        tmp_path,
        "sums",
        target={
            "kind": "aggregate",
            "table": str(tmp_path / "lake" / "sums"),
            "group_by": ["city"],
            "window": "1 day",
            "measures": {"n": "count(*)", "most": "max(id)"},
        },
    )
    target = {**sums["target"], "table": str(tmp_path / "lake" / "other")}
    target |= {"format": "iceberg", "partition_by": ["city"]}
    other = {**sums, "name": "other", "target": target}
    for each in (sums, sums, other):
        apply_flow(spark, each)
    publish(customers, {"id": 99, "city": "Moss", "at": 1}, {"id": 5, "at": 1})
    for each in (sums, other):
        assert apply_flow(spark, each).bad == 1
        rows = read_lake(spark, each["target"]["table"]).groupBy("city")
        summed = rows.agg(F.sum("n"), F.max("most")).collect()
        found = {row[0]: (row[1], row[2]) for row in summed}
        assert found == {"Oslo": (4, 7), "Moss": (6, 99)}

    with penstock.connect(customers) as ps:
        ps.create_topic("moss")
    copy = declared(
        customers,
        tmp_path,
        "copy",
        columns={"key": "string(data.id)", "value": "concat(data.city, '!')"},
        expectations=[{"name": "of_moss", "check": "value = 'Moss!'", "on_fail": "drop"}],
        target={"kind": "topic", "topic": "moss"},
    )

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:  # published, and not yet noted
        patch.setattr(running, "standing_of", _Twice(running.standing_of))
        with pytest.raises(KeyboardInterrupt):
            apply_flow(spark, copy)
    done = apply_flow(spark, copy)
    assert done.dropped == 5
    with penstock.connect(customers) as ps:
        values = [message.value for message in ps.peek("moss", limit=100)]
    assert values == [b"Moss!"] * 6


class _Twice:
    """Answers once, and is interrupted the second time."""

    def __init__(self, function: Any) -> None:
        self.function, self.calls = function, 0

    def __call__(self, *args: Any) -> Any:
        self.calls += 1
        if self.calls > 3:
            raise KeyboardInterrupt
        return self.function(*args)
