"""History from the lake and the rest from the log, on reader objects: no gap, no overlap."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import DateType, StructField, StructType

from penstock.client.client import Client
from penstock.errors import DataLost, InvalidInput
from penstock.spark.batch_read import BatchReader
from penstock.spark.columns import read_schema
from penstock.spark.lake_sink import LakeJob, LakeWriter
from penstock.spark.options import parse_read_options
from tests.unit.spark.rows import rows_of

Places = list[tuple[str, int]]


def found(folder: str, lake: Path, topics: str = "orders", **options: str) -> Places:
    """Topic and offset of what a read over both tiers gives."""
    given = {"path": folder, "subscribe": topics, "tier": "lake+log", "lake": str(lake), **options}
    reader = BatchReader(parse_read_options(given), read_schema(False))
    rows = rows_of(reader, reader.partitions())
    return sorted((row["topic"], row["offset"]) for row in rows)


def orders(start: int, end: int) -> Places:
    return [("orders", offset) for offset in range(start, end)]


@pytest.fixture
def lake(folder: str, ps: Client, durable: Callable[[], None], tmp_path: Path) -> Path:
    """Of 100 orders 60 are in the lake, and the log has dropped 40."""
    ps.create_topic("orders")
    for start in range(0, 100, 10):
        ps.publish_batch("orders", [f"{n}" for n in range(start, start + 10)])
    durable()
    given = {"path": folder, "subscribe": "orders", "endingOffsets": '{"orders": {"0": 60}}'}
    reader = BatchReader(parse_read_options(given), read_schema(False))
    table = tmp_path / "lake" / "orders"
    job = LakeJob(table=str(table), topic="orders", starts={0: None}, ends={0: 60})
    schema = StructType([*read_schema(False).fields, StructField("date", DateType())])
    batches = [batch for split in reader.partitions() for batch in reader.read(split)]
    rows = pa.Table.from_batches(batches)
    dated = rows.append_column("date", pa.array([date(2026, 1, 1)] * len(rows)))
    writer = LakeWriter(job, schema)
    writer.commit([writer.write(iter(dated.to_batches()))])
    trim(ps, "orders", 40)
    return tmp_path / "lake"


def trim(ps: Client, topic: str, before: int) -> None:
    ps._broker.topic(ps._name(topic)).partition(0).trim_to(before)


def test_the_tiers_meet_where_the_table_says(folder: str, lake: Path) -> None:
    assert found(folder, lake) == orders(0, 100)
    assert found(folder, lake, startingOffsets='{"orders": {"0": 25}}') == orders(25, 100)
    assert found(folder, lake, startingOffsets='{"orders": {"0": 45}}') == orders(45, 100)
    assert found(folder, lake, startingOffsets='{"orders": {"0": 75}}') == orders(75, 100)
    assert found(folder, lake, endingOffsets='{"orders": {"0": 30}}') == orders(0, 30)
    assert found(folder, lake, endingOffsets='{"orders": {"0": 70}}') == orders(0, 70)
    assert found(folder, lake, startingOffsets="latest") == []


def test_latest_is_latest_also_where_the_log_is_empty(
    folder: str, ps: Client, lake: Path, durable: Callable[[], None]
) -> None:
    trim(ps, "orders", 100)
    durable()
    with pytest.raises(DataLost, match="offsets 60 up to 100 are gone"):
        found(folder, lake)
    assert found(folder, lake, failOnDataLoss="false") == orders(0, 60)
    assert found(folder, lake, startingOffsets='{"orders": {"0": -1}}') == []
    assert found(folder, lake, startingOffsets="latest") == []


def test_a_topic_that_was_never_archived_is_read_from_the_log_if_it_has_all_of_it(
    folder: str, ps: Client, lake: Path, durable: Callable[[], None]
) -> None:
    ps.create_topic("returns")
    assert found(folder, lake, "orders,returns") == orders(0, 100)
    ps.publish_batch("returns", ["a", "b"])
    durable()
    assert found(folder, lake, "orders,returns") == [
        *orders(0, 100),
        ("returns", 0),
        ("returns", 1),
    ]
    trim(ps, "returns", 1)
    with pytest.raises(InvalidInput, match=f"no lake table in {os.path.join(lake, 'returns')}"):
        found(folder, lake, "orders,returns")
