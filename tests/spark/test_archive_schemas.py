"""What values become in lake tables: any names of fields, schemas that grow and are mended."""

from __future__ import annotations

import json
from contextlib import ExitStack
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pytest

import penstock
from penstock.broker.broker import Broker
from penstock.errors import InvalidInput
from penstock.log.local_engine import LocalEngine
from penstock.schema.framing import prefix
from tests.integration.server.running import RunningServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)

NAMES = "key string, value int, offset string, Partition int, date string, reason string, id bigint"


def publish(folder: str, *values: Any) -> None:
    with penstock.connect(folder) as ps:
        for value in values:
            text = value if isinstance(value, str) else json.dumps(value)
            ps.publish("orders", text, key="k")


@pytest.fixture
def shop(folder: str) -> str:
    with penstock.connect(folder) as ps:
        ps.create_topic("orders")
        ps.create_topic("again")
    return folder


@pytest.mark.parametrize("lake_format", ["delta", "iceberg"])
def test_fields_may_have_the_names_of_a_message(
    spark: SparkSession, shop: str, tmp_path: Path, lake_format: Any
) -> None:
    from penstock.spark.pipelines import archive, compact, read_lake, replay

    lake, table = str(tmp_path / "lake"), str(tmp_path / "lake" / "orders")
    for n in range(4):
        row = {"key": f"a{n}", "value": n, "offset": "x", "Partition": 7, "date": "d", "id": n}
        publish(shop, {**row, "reason": "r"})
        archive(spark, shop, lake, ["orders"], schema=NAMES, lake_format=lake_format)
    frame = read_lake(spark, table).orderBy("value")
    first = frame.first()
    assert (first.key, first.value, first.offset, first.Partition) == ("a0", 0, "x", 7)
    assert (first.value_date, first.value_reason, first.id) == ("d", "r", 0)
    assert (bytes(first.message_key), first.message_offset) == (b"k", 0)
    assert json.loads(first.message_value)["key"] == "a0"
    both = spark.read.format("penstock").options(path=shop, subscribe="orders", lake=lake)
    rows = both.option("tier", "lake+log").load().selectExpr("string(key)", "offset").collect()
    assert sorted((row.key, row.offset) for row in rows) == [("k", n) for n in range(4)]
    assert compact(spark, table, unique_by="key").rows_after == 1
    assert read_lake(spark, table).first().key == "a3"
    replay(spark, table, shop, "again", name="r", lake=True)
    with penstock.connect(shop) as ps:
        assert [json.loads(m.value or b"")["key"] for m in ps.peek("again")] == ["a3"]


def test_values_as_one_struct_grow_inside(spark: SparkSession, shop: str, tmp_path: Path) -> None:
    from penstock.spark.pipelines import archive, read_lake

    lake, table = str(tmp_path / "lake"), str(tmp_path / "lake" / "orders")

    def run(schema: str, **more: Any) -> Any:
        return archive(spark, shop, lake, ["orders"], schema=schema, values_as="struct", **more)

    publish(shop, {"key": 1, "to": {"city": "Oslo"}}, {"key": 5_000_000_000}, "no JSON")
    assert run("key int, to struct<city string>").bad == 2
    publish(shop, {"key": 2, "to": {"city": "Moss", "zip": "15"}}, {"key": 6_000_000_000})
    assert run("key int, to struct<city string, zip string>").bad == 1
    assert read_lake(spark, table).orderBy("data.key").select("data.to.zip").collect()[1][0] == "15"
    publish(shop, {"to": 1})
    with pytest.raises(InvalidInput, match="keep the type"):
        run("key int, to int")


def test_bad_rows_that_fit_by_now_are_in_the_table_once_though_it_is_killed(
    spark: SparkSession, shop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.spark.pipelines import archive, read_lake

    lake, table = str(tmp_path / "lake"), str(tmp_path / "lake" / "orders")
    publish(shop, {"n": 1}, {"n": None}, {"n": 2}, "no JSON")
    strict, mended = "n int not null", "n int"
    assert archive(spark, shop, lake, ["orders"], schema=strict).bad == 2
    archiving = import_module("penstock.spark.pipelines.archive")
    write = archiving.write_lake

    def die(frame: Any, job: Any) -> Any:
        if job.table.endswith(".bad"):
            raise KeyboardInterrupt
        return write(frame, job)

    with monkeypatch.context() as patch:
        patch.setattr(archiving, "write_lake", die)
        with pytest.raises(KeyboardInterrupt):
            archive(spark, shop, lake, ["orders"], schema=mended, reread=True)
    with pytest.raises(InvalidInput, match="the same schema once more"):
        archive(spark, shop, lake, ["orders"], schema=strict, reread=True)
    publish(shop, "worse")
    assert archive(spark, shop, lake, ["orders"], schema=mended, reread=True).reread == 0
    for _ in range(2):
        assert archive(spark, shop, lake, ["orders"], schema=mended, reread=True).reread == 0
    found = sorted(row.n or 0 for row in read_lake(spark, table).collect())
    assert found == [0, 1, 2]
    bad = sorted(bytes(row.value) for row in read_lake(spark, f"{table}.bad").collect())
    assert bad == [b"no JSON", b"worse"]


OLD = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}
NEW: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "item", "type": "string", "default": "-"},
        {"name": "to", "type": {"type": "array", "items": "string"}, "default": []},
    ],
}


NEWER = {**NEW, "fields": [*NEW["fields"], {"name": "note", "type": "string", "default": "?"}]}


def framed(id_: int, schema: Any, datum: Any) -> bytes:
    out = BytesIO()
    fastavro.schemaless_writer(out, schema, datum)
    return prefix(id_) + out.getvalue()


@pytest.mark.parametrize("by_url", [False, True])
def test_values_are_decoded_by_the_registry(
    spark: SparkSession,
    shop: str,
    tmp_path: Path,
    by_url: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of every version that was written, to the columns of the newest; and what does not fit goes
    beside the table, and comes back."""
    from penstock.spark.pipelines import archive, read_lake

    lake, table = str(tmp_path / "lake"), str(tmp_path / "lake" / "orders")

    def run(**more: Any) -> Any:
        with ExitStack() as stack:
            place = shop
            if by_url:
                broker = stack.enter_context(Broker(LocalEngine(shop)))
                place = stack.enter_context(RunningServer(broker)).url
            return archive(spark, place, lake, ["orders"], value_format="avro", **more)

    with penstock.connect(shop) as ps:
        assert ps.schemas.register("orders-value", OLD, "avro").id == 1
        later = framed(2, NEW, {"id": 3, "item": "x", "to": ["Oslo"]})
        ps.publish_batch("orders", [framed(1, OLD, {"id": 1}), b"no Avro", later])
        ps.publish_batch("orders", [framed(1, OLD, {"id": 2}), None])
    done = run()
    assert (done.rows, done.bad) == (5, 3)
    bad = {row.offset: row.reason for row in read_lake(spark, f"{table}.bad").collect()}
    assert bad[1] == "it does not begin with the id of a schema"
    assert "2" in bad[2]
    assert bad[4] == "there is no value"
    with penstock.connect(shop) as ps:
        assert ps.schemas.register("orders-value", NEW, "avro").id == 2
        ps.publish("orders", framed(1, OLD, {"id": 4}))
    archiving = import_module("penstock.spark.pipelines.archive")
    write = archiving.write_lake

    def die(frame: Any, job: Any) -> Any:
        if job.table.endswith(".bad"):
            raise KeyboardInterrupt
        return write(frame, job)

    with monkeypatch.context() as patch:
        patch.setattr(archiving, "write_lake", die)
        with pytest.raises(KeyboardInterrupt):
            run(reread=True)
    with penstock.connect(shop) as ps:  # which whoever starts it again knows nothing of
        assert ps.schemas.register("orders-value", NEWER, "avro").id == 3
    done = run(reread=True)
    assert (done.rows, done.bad, done.reread) == (1, 0, 0)
    names = ("id", "item", "to", "note", "offset")
    rows = read_lake(spark, table).orderBy("id").select(*names).collect()
    assert [tuple(row) for row in rows] == [
        (1, None, None, None, 0),
        (2, None, None, None, 3),
        (3, "x", ["Oslo"], None, 2),
        (4, "-", [], "?", 5),
    ]
    assert run(value_version=1).rows == 0
    with pytest.raises(InvalidInput, match="not by both"):
        run(schema="id int")
