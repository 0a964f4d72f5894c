"""The sink under a real Spark: a stream that is broken off and begun again publishes once."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from penstock import outbox

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)


def everything(folder: str, topic: str) -> list[Any]:
    with penstock.connect(folder) as ps:
        partitions = range(ps.describe_topic(topic).partitions)
        return [m for p in partitions for m in ps.peek(topic, partition=p, limit=100_000)]


def test_a_batch_write_publishes_every_row(spark: SparkSession, folder: str) -> None:
    with penstock.connect(folder) as ps:
        ps.create_topic("out", partitions=2)
    frame = spark.sql(
        "select cast(id as string) value, 'k' key, 'high' priority, map('n', 'x') headers, "
        "if(id = 7, '1h', null) delay from range(0, 100, 1, 3)"
    )
    frame.write.format("penstock").mode("append").options(path=folder, topic="out").save()
    found = everything(folder, "out")
    assert sorted(int(m.value) for m in found) == [n for n in range(100) if n != 7]
    assert {(m.key, m.priority, m.headers["n"]) for m in found} == {(b"k", 1, b"x")}
    with penstock.connect(folder) as ps:
        assert [d.message.value for d in ps.delayed("out")] == [b"7"]


def test_a_stream_publishes_once_though_batches_are_run_again(
    spark: SparkSession, folder: str, tmp_path: Path
) -> None:
    with penstock.connect(folder) as ps:
        ps.create_topic("orders", partitions=2)
        ps.create_topic("out", partitions=3)
        for start in range(0, 600, 100):
            ps.publish_batch("orders", [f"{n}" for n in range(start, start + 100)])
    checkpoint = tmp_path / "checkpoint"

    def run() -> None:
        stream = spark.readStream.format("penstock").option("path", folder)
        frame = stream.options(
            subscribe="orders", startingOffsets="earliest", maxOffsetsPerTrigger="250"
        ).load()
        # A shuffle: the order of the rows, and which task has them, is not always the same.
        out = frame.repartition(2).selectExpr("value", "value as key").writeStream
        query = out.format("penstock").options(path=folder, topic="out")
        started = query.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        started.start().awaitTermination()

    run()
    first = Counter(int(m.value) for m in everything(folder, "out"))
    assert first == Counter(range(600))
    # As if Spark had died right after the commit of the sink, before it wrote that down.
    last = max(int(p.name) for p in (checkpoint / "commits").iterdir() if p.name.isdigit())
    for name in (f"{last}", f".{last}.crc"):
        (checkpoint / "commits" / name).unlink()
    run()
    with penstock.connect(folder) as ps:
        ps.publish("orders", "600")
    run()
    assert Counter(int(m.value) for m in everything(folder, "out")) == Counter(range(601))


def test_rows_are_in_a_database_once_though_batches_are_run_again(
    spark: SparkSession, folder: str, tmp_path: Path
) -> None:
    with penstock.connect(folder) as ps:
        ps.create_topic("orders")
        ps.publish_batch("orders", [f"{n}" for n in range(100)])
    checkpoint, ran = tmp_path / "checkpoint", list[int]()

    def into_shop(rows: Any, number: int) -> None:
        ran.append(number)
        with closing(sqlite3.connect(tmp_path / "shop.db")) as shop, shop:
            outbox.create_inbox(shop)
            shop.execute("CREATE TABLE IF NOT EXISTS orders (n INTEGER)")
            if outbox.first_time(shop, str(number), consumer="orders-to-shop"):
                found = rows.selectExpr("int(string(value)) as n").collect()
                shop.executemany("INSERT INTO orders VALUES (?)", [(row.n,) for row in found])

    def run() -> None:
        stream = spark.readStream.format("penstock").options(path=folder, subscribe="orders")
        query = stream.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "40")
        out = query.load().writeStream.foreachBatch(into_shop)
        out = out.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        out.start().awaitTermination()

    run()
    last = max(int(p.name) for p in (checkpoint / "commits").iterdir() if p.name.isdigit())
    for name in (f"{last}", f".{last}.crc"):
        (checkpoint / "commits" / name).unlink()
    run()
    assert ran == [0, 1, 2, 2]
    with closing(sqlite3.connect(tmp_path / "shop.db")) as shop:
        numbers = [n for (n,) in shop.execute("SELECT n FROM orders ORDER BY n")]
    assert numbers == list(range(100))
