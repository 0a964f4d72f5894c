"""Spark's own Kafka source and sink, fetched with Maven, against our door: for `make torture`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.peers import kafka as peer

pytestmark = [
    pytest.mark.torture,
    pytest.mark.timeout(900),
    pytest.mark.skipif(shutil.which("java") is None, reason="there is no java on the PATH"),
    pytest.mark.skipif(shutil.which("mvn") is None, reason="there is no mvn on the PATH"),
]

CACHE = Path(__file__).parents[3] / "bench" / ".cache"
ROWS = 1000
RUN_S_MAX = 300


def program(address: str, jars: list[str], folder: Path) -> dict[str, Any]:
    """What is run in a process of its own, with jars that no other test wants."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", ",".join(jars))
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    server = {"kafka.bootstrap.servers": address}
    rows = spark.range(ROWS).select(
        F.col("id").cast("string").alias("key"),
        F.concat(F.lit("value "), F.col("id").cast("string")).alias("value"),
    )
    rows.write.format("kafka").options(**server, topic="orders").save()
    batch = (
        spark.read.format("kafka")
        .options(**server, subscribe="orders", startingOffsets="earliest")
        .load()
        .select(F.col("key").cast("string"), F.col("value").cast("string"), "partition", "offset")
    )
    read = sorted(int(row.key) for row in batch.collect() if row.value == f"value {row.key}")

    def copied() -> int:
        """So many rows the next run of a stream takes to the other topic."""
        source = spark.readStream.format("kafka").options(
            **server, subscribe="orders", startingOffsets="earliest", maxOffsetsPerTrigger=300
        )
        query = (
            source.load()
            .select("key", "value")
            .writeStream.format("kafka")
            .options(**server, topic="copies", checkpointLocation=str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return sum(progress.numInputRows for progress in query.recentProgress)

    first = copied()
    rows.limit(10).write.format("kafka").options(**server, topic="orders").save()
    return {"read": read == [*range(ROWS)], "first": first, "second": copied()}


def test_the_source_and_the_sink_work_as_they_are(kafka: str, ps: Any, tmp_path: Path) -> None:
    if why := peer.fetch(CACHE):
        pytest.skip(why)
    arguments = json.dumps([kafka, peer.source_jars(CACHE), os.fspath(tmp_path)])
    ps.create_topic("orders", partitions=3)
    ps.create_topic("copies")
    done = subprocess.run(
        [sys.executable, "-m", "tests.integration.kafka.test_spark", arguments],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr[:6000]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told == {"read": True, "first": ROWS, "second": 10}
    assert ps.stats("copies").depth == ROWS + 10
    assert {m.value for m in ps.receive("orders", group="g", max_messages=10)} <= {
        b"value %d" % number for number in range(ROWS)
    }


if __name__ == "__main__":
    from penstock.spark import prepare

    prepare()
    where, found, scratch = json.loads(sys.argv[1])
    print(json.dumps(program(where, found, Path(scratch))))
