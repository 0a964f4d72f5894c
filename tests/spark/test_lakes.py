"""Lakes in an object store and of Iceberg under a real Spark, and streams that begin in them."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from tests.spark.test_pipelines import trim
from tests.unit.spark.s3 import s3  # noqa: F401 - a fixture
from tests.unit.spark.test_server import url  # noqa: F401 - a fixture

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.client.client import Client

pytestmark = pytest.mark.timeout(600)


def test_an_archive_from_a_server_into_a_store_needs_no_folder_in_common(
    spark: SparkSession,
    ps: Client,
    url: str,  # noqa: F811
    s3: dict[str, str],  # noqa: F811
) -> None:
    """Tasks ask the server by its address, and write to the store."""
    from penstock.spark.pipelines import archive, compact, read_lake

    lake, table = "s3://lake/shop", "s3://lake/shop/orders"
    done = archive(spark, url, lake, ["orders"], storage=s3, schema="n int")
    assert (done.rows, done.bad) == (200, 200)  # values are no objects
    ps.publish_batch("orders", [json.dumps({"n": n}) for n in range(50)], partition=0)
    ps.sync()
    for rows in (50, 0):
        assert archive(spark, url, lake, ["orders"], storage=s3, schema="n int").rows == rows
    ps.publish_batch("orders", [json.dumps({"n": n}) for n in range(50, 60)], partition=0)
    ps.sync()
    assert archive(spark, url, lake, ["orders"], storage=s3, schema="n int").rows == 10
    numbers = [row.n for row in read_lake(spark, table, s3).select("n").collect()]
    assert sorted(numbers) == list(range(60))
    small = compact(spark, table, unique_by="id", storage=s3)
    assert small.files_after < small.files_before
    assert read_lake(spark, table, s3).count() == small.rows_after == 60
    assert archive(spark, url, lake, ["orders"], storage=s3, schema="n int").rows == 0

    trim(ps, "orders", 90)
    reader = spark.read.format("penstock").options(url=url, subscribe="orders", tier="lake+log")
    both = reader.options(lake=lake, lakeStorage=json.dumps(s3)).load()
    places = Counter((r.partition, r.offset) for r in both.select("partition", "offset").collect())
    assert len(places) == places.total() == 260


@pytest.mark.parametrize("lake_format", ["delta", "iceberg"])
def test_a_stream_slides_from_the_lake_into_the_log_though_it_is_killed_in_the_middle(
    spark: SparkSession, folder: str, tmp_path: Path, lake_format: Any
) -> None:
    from penstock.spark.pipelines import archive

    lake, checkpoint = str(tmp_path / "lake"), tmp_path / "checkpoint"
    with penstock.connect(folder) as ps:
        ps.create_topic("orders", partitions=2)
        for start in (0, 100):
            ps.publish_batch("orders", [f"{n}" for n in range(start, start + 100)], partition=0)
            ps.publish_batch(
                "orders", [f"{n}" for n in range(200 + start, 300 + start)], partition=1
            )
            ps.sync()
            if start == 0:
                done = archive(spark, folder, lake, ["orders"], lake_format=lake_format)
                assert done.rows == 200
                trim(ps, "orders", 60)
    written: dict[int, list[int]] = {}

    def note(batch: DataFrame, number: int) -> None:
        found = sorted(int(row.value) for row in batch.selectExpr("string(value) value").collect())
        assert written.setdefault(number, found) == found, "a batch that ran again is another one"

    def run() -> None:
        reader = spark.readStream.format("penstock").options(path=folder, subscribe="orders")
        reader = reader.options(tier="lake+log", lake=lake, startingOffsets="earliest")
        frame = reader.option("maxOffsetsPerTrigger", 50).load()
        query = frame.writeStream.option("checkpointLocation", str(checkpoint))
        query.foreachBatch(note).trigger(availableNow=True).start().awaitTermination()

    run()
    assert sorted(n for each in written.values() for n in each) == list(range(400))
    # As if it had been killed in the middle, in a batch that is of both; retention went on since.
    with penstock.connect(folder) as ps:
        trim(ps, "orders", 90)
    for name in ("commits", "offsets"):
        for path in (checkpoint / name).iterdir():
            number = path.name.strip(".").split(".")[0]
            if number.isdigit() and int(number) >= (3 if name == "offsets" else 2):
                path.unlink()
    shutil.rmtree(checkpoint / "sources", ignore_errors=True)
    kept = {number: values for number, values in written.items() if number < 3}
    written.clear()
    written.update(kept)
    run()
    assert sorted(n for each in written.values() for n in each) == list(range(400))


def test_a_flow_has_its_table_its_plans_and_its_staging_in_a_store(
    spark: SparkSession,
    folder: str,
    s3: dict[str, str],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from penstock.spark.flows import apply_flow, read_current, run

    with penstock.connect(folder) as ps:
        ps.create_topic("customers")
        ps.create_topic("copy")
        ps.publish_batch("customers", [json.dumps({"id": n % 5, "n": n}) for n in range(20)])
    flow = {
        "name": "now",
        "source": {"place": folder, "topic": "customers"},
        "decode": {"format": "json", "schema": "id int, n int"},
        "target": {
            "kind": "current",
            "table": "s3://lake/flows/now",
            "key": ["id"],
            "partition_by": ["id"],
        },
        "storage": s3,
    }
    copy = {**flow, "name": "copy", "target": {"kind": "topic", "topic": "copy"}}
    copy["state"] = "s3://lake/flows/state"

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    for each in (flow, copy):
        with monkeypatch.context() as patch:  # committed or published, and not yet told
            patch.setattr(run, "commit_progress", die)
            with pytest.raises(KeyboardInterrupt):
                apply_flow(spark, each)
        assert apply_flow(spark, each).rows == 0
    rows = read_current(spark, "s3://lake/flows/now", s3).collect()
    assert {row.id: row.n for row in rows} == {n % 5: n for n in range(15, 20)}
    with penstock.connect(folder) as ps:
        assert len(ps.peek("copy", limit=100)) == 20
