"""History from the lake and the rest from the log, on reader objects: no gap, no overlap."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import DateType, StructField, StructType

import penstock
from penstock.client.client import Client
from penstock.errors import DataLost, InvalidInput
from penstock.spark.batch_read import BatchReader
from penstock.spark.bounds import DurableRange, Range
from penstock.spark.columns import read_schema
from penstock.spark.delta_lake import DeltaLake
from penstock.spark.lake_sink import LakeJob, LakeWriter
from penstock.spark.lake_table import LakeFile, TableChange, new_file_name
from penstock.spark.options import parse_read_options
from penstock.spark.tier import ArchivedTopics
from tests.inside import broker_of
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
    broker_of(ps).topic(ps._name(topic)).partition(0).trim_to(before)


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


def bad_rows(lake: Path, offsets: list[int]) -> LakeFile:
    """A file of them, which is not committed yet."""
    name = new_file_name("2026-01-01")
    path = lake / "orders.bad" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"topic": ["orders"] * len(offsets), "offset": offsets}), path)
    return LakeFile(name, "2026-01-01", 1, len(offsets), min(offsets), max(offsets))


def test_a_table_of_bad_rows_counts_when_something_was_committed_to_it(
    folder: str, lake: Path
) -> None:
    bad_rows(lake, [60])  # a task of a first round has written it so far
    assert found(folder, lake) == orders(0, 100)


def test_the_first_bad_rows_are_not_missed_while_they_are_archived(
    folder: str, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round commits to the table of bad rows first, and then to the other."""
    archived = DeltaLake.archived
    bad, schema = bad_rows(lake, [60, 61]), pa.schema([("offset", pa.int64())])

    def late(self: DeltaLake, topic: str, partitions: Iterable[int]) -> dict[int, int | None]:
        monkeypatch.setattr(DeltaLake, "archived", archived)
        change = TableChange(schema, [bad], topic="orders", ends={0: 62})
        DeltaLake(str(lake / "orders.bad")).commit(change)
        DeltaLake(str(lake / "orders")).commit(TableChange(schema, topic="orders", ends={0: 62}))
        return self.archived(topic, partitions)

    monkeypatch.setattr(DeltaLake, "archived", late)
    given = {"path": folder, "subscribe": "orders", "tier": "lake+log", "lake": str(lake)}
    history = ArchivedTopics(parse_read_options(given), {"orders": {0: DurableRange(40, 100)}})
    rest, old = history.take(Range("orders", 0, 40, 100))
    assert rest == Range("orders", 0, 62, 100)
    assert {os.path.relpath(part.path, lake) for part in old} >= {f"orders.bad/{bad.path}"}


def test_partitions_that_no_time_is_given_for_begin_with_their_history(
    folder: str, ps: Client, lake: Path, durable: Callable[[], None]
) -> None:
    ps.create_topic("returns")
    durable()
    times = '{"returns": {"0": 1000}}'
    assert found(folder, lake, "orders,returns", startingOffsetsByTimestamp=times) == orders(0, 100)


def test_what_was_dropped_of_a_partition_that_was_never_archived_is_lost(
    folder: str, ps: Client, lake: Path, durable: Callable[[], None]
) -> None:
    ps.alter_topic("orders", partitions=2)
    ps.publish_batch("orders", ["x"] * 5, partition=1)
    ps.publish_batch("orders", ["x"] * 5, partition=1)
    durable()
    assert len(found(folder, lake)) == 110
    broker_of(ps).topic(ps._name("orders")).partition(1).trim_to(5)
    with pytest.raises(DataLost, match="orders/1: offsets 0 up to 5 are gone"):
        found(folder, lake)
    assert len(found(folder, lake, failOnDataLoss="false")) == 105
    assert found(folder, lake, startingOffsets="latest") == []


def test_a_topic_of_another_namespace_has_a_history_of_its_own(
    folder: str, ps: Client, lake: Path
) -> None:
    """By whichever name it was archived, and is read."""
    ps.close()
    with penstock.connect(folder, namespace="shop") as shop:
        shop.create_topic("orders")
        for _ in range(5):
            shop.publish_batch("orders", ["x"] * 2)
        trim(shop, "orders", 2)
    name, when = new_file_name("2026-01-01"), pa.array([0] * 4, pa.timestamp("us", tz="UTC"))
    columns: dict[str, object] = {field.name: [None] * 4 for field in read_schema(False).fields}
    columns |= {"topic": ["shop/orders", "orders"] * 2, "partition": [0] * 4}
    columns |= {"offset": range(4), "timestamp": when, "value": [b"old"] * 4}
    path = lake / "shop" / "orders" / name
    path.parent.mkdir(parents=True)
    pq.write_table(pa.table(columns), path)
    file = LakeFile(name, "2026-01-01", os.path.getsize(path), 4, 0, 3)
    schema = pa.schema([("offset", pa.int64())])
    DeltaLake(str(lake / "shop" / "orders")).commit(
        TableChange(schema, [file], topic="shop/orders", ends={0: 4})
    )
    assert found(folder, lake, namespace="shop") == orders(0, 10)
    full = [("shop/orders", offset) for offset in range(10)]
    assert found(folder, lake, "shop/orders") == full
    assert found(folder, lake, "shop/orders,orders") == [*orders(0, 100), *full]
