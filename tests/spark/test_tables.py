"""Tables of Spark's catalog: created, read, streamed from, and inserted into."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.unit.spark.test_server import url  # noqa: F401 - a fixture

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.client.client import Client

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("where", ["path", "url"])
def test_a_topic_is_a_table(
    spark: SparkSession,
    folder: str,
    ps: Client,
    url: str,  # noqa: F811
    tmp_path: Path,
    where: str,
) -> None:
    place, name = {"path": folder, "url": url}[where], f"orders_{where}"
    spark.sql(
        f"CREATE TABLE {name} USING penstock OPTIONS ({where} '{place}', subscribe 'orders', "
        "topic 'orders')"
    )
    try:
        ps.sync()
        assert spark.sql(f"SELECT count(*) FROM {name}").first()[0] == 200
        spark.sql(
            f"INSERT INTO {name} (key, value) SELECT cast('k' as binary), cast('new' as binary)"
        )
        ps.sync()
        assert spark.read.table(name).where("string(value) = 'new'").count() == 1
        stream = spark.readStream.option("startingOffsets", "earliest").table(name)
        seen: list[int] = []
        query = stream.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = query.foreachBatch(lambda batch, _: seen.append(batch.count()))
        query.trigger(availableNow=True).start().awaitTermination()
        assert sum(seen) == 201
    finally:
        spark.sql(f"DROP TABLE {name}")
