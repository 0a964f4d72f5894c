"""The source under a real Spark, while a broker holds the folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from penstock.client.client import Client

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(600)


def read(spark: SparkSession, folder: str, **options: str) -> DataFrame:
    reader = spark.read.format("penstock").option("path", folder).option("subscribe", "orders")
    return reader.options(**options).load()


@pytest.fixture
def orders(ps: Client) -> Client:
    ps.create_topic("orders", partitions=2, fsync="always")
    for start in range(0, 1000, 100):
        values = [f"{n}" for n in range(start, start + 100)]
        ps.publish_batch("orders", values, partition=start // 100 % 2)
    ps.publish("orders", "last", key="k", headers={"h": b"1"}, priority="high", partition=0)
    return ps


def test_a_batch_read_is_found_without_registering(
    spark: SparkSession, folder: str, orders: Client
) -> None:
    frame = read(spark, folder, includeHeaders="true")
    assert frame.columns[:7] == [
        "key",
        "value",
        "topic",
        "partition",
        "offset",
        "timestamp",
        "timestampType",
    ]
    assert frame.count() == 1001
    last = frame.where("key is not null").collect()[0]
    (message,) = orders.peek("orders", at=500, limit=1)
    assert (bytes(last.key), bytes(last.value), last.id) == (b"k", b"last", message.id)
    assert [(h.key, bytes(h.value)) for h in last.headers] == [("h", b"1")]
    assert round(last.timestamp.timestamp() * 1e6) == message.timestamp_us


def test_pushed_filters_and_plain_ones_agree(
    spark: SparkSession, folder: str, orders: Client
) -> None:
    wanted = "offset between 100 and 110 and partition = 1 and timestamp < now() + interval 1 day"
    pushed = read(spark, folder, pushdown="true").where(wanted)
    plain = read(spark, folder).where(wanted)
    assert sorted(r.offset for r in pushed.collect()) == list(range(100, 111))
    assert sorted(pushed.select("value").collect()) == sorted(plain.select("value").collect())


def test_a_pruned_read_has_the_columns_of_its_schema(
    spark: SparkSession, folder: str, orders: Client
) -> None:
    reader = spark.read.format("penstock").schema("offset bigint, priority int")
    frame = reader.options(path=folder, subscribe="orders").load()
    assert frame.where("priority = 1").collect() == [(500, 1)]


def test_a_wrong_option_says_so(spark: SparkSession, folder: str, orders: Client) -> None:
    with pytest.raises(Exception, match="did you mean 'startingOffsets'"):
        read(spark, folder, startingOfsets="earliest").count()


def test_a_stream_restarts_where_it_was_and_batch_0_is_what_it_was(
    spark: SparkSession, folder: str, orders: Client, tmp_path: Path
) -> None:
    seen: list[tuple[int, list[str]]] = []
    broken = [0]

    def take(frame: DataFrame, batch: int) -> None:
        rows = sorted(bytes(row.value).decode() for row in frame.collect())
        seen.append((batch, rows))
        if batch in broken:
            broken.remove(batch)
            raise RuntimeError("the sink is broken")

    def run(**options: Any) -> None:
        stream = spark.readStream.format("penstock").option("path", folder)
        frame = stream.options(subscribe="orders", group="audit", **options).load()
        query = frame.writeStream.foreachBatch(take)
        query = query.option("checkpointLocation", str(tmp_path / "checkpoint"))
        started = query.trigger(availableNow=True).start()
        started.awaitTermination()

    latest = f'{{"orders": {{"0": {501}, "1": {500}}}}}'
    orders.publish("orders", "a", partition=0)
    with pytest.raises(Exception, match="the sink is broken"):
        run(startingOffsets=latest)
    orders.publish("orders", "b", partition=1)
    run(startingOffsets="latest")  # what "latest" is now must not matter
    assert seen == [(0, ["a"]), (0, ["a"]), (1, ["b"])]
    assert set(orders.describe_stream_group("audit").lag.values()) == {0}
    run()
    assert len(seen) == 3


def test_a_stream_follows_a_broker_that_writes(
    spark: SparkSession, folder: str, orders: Client
) -> None:
    stream = spark.readStream.format("penstock").option("path", folder)
    frame = stream.options(subscribe="orders", startingOffsets="earliest").load()
    query = frame.writeStream.format("memory").queryName("follows").start()
    try:
        orders.alter_topic("orders", partitions=3)
        orders.publish("orders", "new", partition=2)
        query.processAllAvailable()
        assert spark.table("follows").count() == 1002
        assert spark.table("follows").select("partition", "offset").distinct().count() == 1002
    finally:
        query.stop()


def test_queue_mode_leases_and_acks(spark: SparkSession, folder: str, tmp_path: Path) -> None:
    with penstock.connect(folder) as ps:
        ps.create_topic("jobs")
        ps.publish_batch("jobs", [f"{n}" for n in range(50)])
    seen: list[str] = []

    def take(frame: DataFrame, batch: int) -> None:
        rows = frame.select("value", "receipt").collect()
        poison = [row.receipt for row in rows if bytes(row.value) == b"7"]
        with penstock.connect(folder) as ps:
            ps.reject("spark", poison, reason="poison")
        seen.extend(bytes(row.value).decode() for row in rows)

    stream = spark.readStream.format("penstock").options(path=folder, subscribe="jobs")
    frame = stream.options(mode="queue", group="spark", maxOffsetsPerTrigger="30").load()
    query = frame.writeStream.foreachBatch(take).trigger(availableNow=True)
    query.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
    assert sorted(map(int, seen)) == list(range(50))
    with penstock.connect(folder) as ps:
        assert ps.stats("jobs").groups[0].depth == 0
        assert [letter.value for letter in ps.dead_letters("jobs")] == [b"7"]


def test_values_are_columns_by_their_schema(
    spark: SparkSession, folder: str, ps: Client, tmp_path: Path
) -> None:
    ps.schemas.register(
        "orders-value",
        {"type": "object", "properties": {"id": {"type": "integer"}, "item": {"type": "string"}}},
    )
    ps.create_topic("orders", fsync="always", schema_check="full")
    ps.publish_batch("orders", [f'{{"id": {n}, "item": "i{n % 2}"}}' for n in range(10)])
    frame = read(spark, folder, valueFormat="json")
    counted = frame.groupBy("value.item").sum("value.id").orderBy("item").collect()
    assert [tuple(row) for row in counted] == [("i0", 20), ("i1", 25)]
    stream = spark.readStream.format("penstock").option("path", folder)
    stream = stream.options(subscribe="orders", valueFormat="json", startingOffsets="earliest")
    query = (
        stream.load()
        .selectExpr("value.id as id", "schema_id")
        .writeStream.format("memory")
        .queryName("decoded")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert spark.sql("select sum(id), count(schema_id) from decoded").collect()[0] == (45, 0)
