"""History from the lake and the rest from the log, on reader objects: no gap, no overlap."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import DateType, StructField, StructType

import penstock
from penstock.client.client import Client
from penstock.errors import DataLost, InvalidInput
from penstock.spark.batch_read import BatchReader
from penstock.spark.bounds import DurableRange, Range, TopicBounds
from penstock.spark.columns import read_schema
from penstock.spark.delta_lake import DeltaLake
from penstock.spark.lake_sink import LakeJob, LakeWriter
from penstock.spark.lake_table import LakeFile, TableChange, new_file_name, topic_mark
from penstock.spark.options import parse_read_options
from penstock.spark.tier import ArchivedTopics
from tests.inside import broker_of
from tests.unit.spark.rows import rows_of
from tests.unit.spark.test_stream_read import Query

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
    job = LakeJob(table=str(table), topic=of(ps), starts={0: None}, ends={0: 60})
    schema = StructType([*read_schema(False).fields, StructField("date", DateType())])
    batches = [batch for split in reader.partitions() for batch in reader.read(split)]
    rows = pa.Table.from_batches(batches)
    dated = rows.append_column("date", rows["timestamp"].cast(pa.date32()))
    writer = LakeWriter(job, schema)
    writer.commit([writer.write(iter(dated.to_batches()))])
    trim(ps, "orders", 40)
    return tmp_path / "lake"


def of(ps: Client, topic: str = "orders") -> str:
    """The topic that there is now, as tables name it."""
    stats = ps.stats(topic)
    return topic_mark(stats.topic, stats.incarnation)


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


def bad_rows(lake: Path, ps: Client, offsets: list[int]) -> LakeFile:
    """A file of them, which is not committed yet."""
    name = new_file_name("2026-01-01", ps.stats("orders").incarnation)
    path = lake / "orders.bad" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"topic": ["orders"] * len(offsets), "offset": offsets}), path)
    return LakeFile(name, {"date": "2026-01-01"}, 1, len(offsets), min(offsets), max(offsets))


def test_a_table_of_bad_rows_counts_when_something_was_committed_to_it(
    folder: str, lake: Path, ps: Client
) -> None:
    bad_rows(lake, ps, [60])  # a task of a first round has written it so far
    assert found(folder, lake) == orders(0, 100)


def test_the_first_bad_rows_are_not_missed_while_they_are_archived(
    folder: str, lake: Path, ps: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round commits to the table of bad rows first, and then to the other."""
    marks, topic = DeltaLake.marks, of(ps)
    bad, schema = bad_rows(lake, ps, [60, 61]), pa.schema([("offset", pa.int64())])

    def late(self: DeltaLake, names: Iterable[str]) -> dict[str, int]:
        monkeypatch.setattr(DeltaLake, "marks", marks)
        change = TableChange(schema, [bad], topic=topic, ends={0: 62})
        DeltaLake(str(lake / "orders.bad")).commit(change)
        DeltaLake(str(lake / "orders")).commit(TableChange(schema, topic=topic, ends={0: 62}))
        return marks(self, names)

    monkeypatch.setattr(DeltaLake, "marks", late)
    given = {"path": folder, "subscribe": "orders", "tier": "lake+log", "lake": str(lake)}
    now = TopicBounds({0: DurableRange(40, 100)}, ps.stats("orders").incarnation)
    history = ArchivedTopics(parse_read_options(given), {"orders": now})
    rest, old = history.take(Range("orders", 0, 40, 100))
    assert rest == Range("orders", 0, 62, 100)
    assert {(part.table, part.path) for part in old} >= {(str(lake / "orders.bad"), bad.path)}


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
        topic = of(shop)
    name = new_file_name("2026-01-01", topic.partition("@")[2])
    when = pa.array([0] * 4, pa.timestamp("us", tz="UTC"))
    columns: dict[str, object] = {field.name: [None] * 4 for field in read_schema(False).fields}
    columns |= {"topic": ["shop/orders", "orders"] * 2, "partition": [0] * 4}
    columns |= {"offset": range(4), "timestamp": when, "value": [b"old"] * 4}
    path = lake / "shop" / "orders" / name
    path.parent.mkdir(parents=True)
    pq.write_table(pa.table(columns), path)
    file = LakeFile(name, {"date": "2026-01-01"}, os.path.getsize(path), 4, 0, 3)
    schema = pa.schema([("offset", pa.int64())])
    DeltaLake(str(lake / "shop" / "orders")).commit(
        TableChange(schema, [file], topic=topic, ends={0: 4})
    )
    assert found(folder, lake, namespace="shop") == orders(0, 10)
    full = [("shop/orders", offset) for offset in range(10)]
    assert found(folder, lake, "shop/orders") == full
    assert found(folder, lake, "shop/orders,orders") == [*orders(0, 100), *full]


@pytest.mark.parametrize("limit", [{}, {"maxOffsetsPerTrigger": "7"}, {"maxBytesPerTrigger": "1k"}])
def test_a_stream_begins_in_the_lake_and_slides_into_the_log(
    folder: str, lake: Path, ps: Client, durable: Callable[[], None], limit: dict[str, str]
) -> None:
    given = {"tier": "lake+log", "lake": str(lake), "startingOffsets": "earliest", **limit}
    given["group"] = "audit"
    query = Query(folder, **given)
    batches = list(query.batches())
    assert sorted(int(v) for batch in batches for v in batch) == list(range(100))
    assert len(batches) > 1 or not limit
    # Retention goes on, and a batch that is run again is what it was.
    trim(ps, "orders", 60)
    later = Query(folder, query.log, **given)
    assert [sorted(later.run(number)) for number in range(len(batches))] == [*map(sorted, batches)]
    ps.publish("orders", "100")
    durable()
    assert list(later.batches()) == [["100"]]
    assert ps.describe_stream_group("audit").lag == {("orders", 0): 0}


def test_a_stream_begins_at_a_time_that_only_the_lake_knows(
    folder: str, lake: Path, ps: Client
) -> None:
    given = {"path": folder, "subscribe": "orders", "tier": "lake+log", "lake": str(lake)}
    reader = BatchReader(parse_read_options(given), read_schema(False))
    times = {r["offset"]: r["timestamp"] for r in rows_of(reader, reader.partitions())}
    since_ms = int(times[25].timestamp() * 1000)
    first = min(n for n, time in times.items() if time.timestamp() * 1000 >= since_ms)
    starting = f'{{"orders": {{"0": {since_ms}}}}}'
    query = Query(folder, tier="lake+log", lake=str(lake), startingOffsetsByTimestamp=starting)
    (values,) = query.batches()
    assert sorted(map(int, values)) == list(range(first, 100))


def test_a_stream_over_both_tiers_says_what_neither_has(
    folder: str, lake: Path, ps: Client
) -> None:
    trim(ps, "orders", 80)  # of which 60 are in the lake
    given = {"tier": "lake+log", "lake": str(lake)}
    query = Query(folder, **given, startingOffsets='{"orders": {"0": 10}}')
    with pytest.raises(DataLost, match="offsets 10 up to 80 are gone"):
        list(query.batches())
