"""Batch reads of a folder, on reader objects."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from penstock.client.client import Client
from penstock.errors import DataLost, InvalidInput, TopicNotFound
from penstock.spark.batch_read import BatchReader, FilteringReader
from penstock.spark.columns import read_schema
from penstock.spark.options import parse_read_options
from tests.inside import broker_of
from tests.unit.spark.damage import publish_and_damage
from tests.unit.spark.rows import rows_of

Sync = Callable[[], None]


def reader(folder: str, schema: StructType | None = None, **options: str) -> BatchReader:
    given = parse_read_options({"path": folder, "subscribe": "orders", **options})
    kind = FilteringReader if given.pushdown else BatchReader
    return kind(given, schema or read_schema(given.include_headers))


def read(folder: str, schema: StructType | None = None, **options: str) -> list[dict[str, Any]]:
    made = reader(folder, schema, **options)
    return rows_of(made, made.partitions())


def test_every_column_says_what_the_message_says(folder: str, ps: Client, durable: Sync) -> None:
    ps.create_topic("orders", partitions=3)
    for number in range(50):
        ps.publish("orders", f"v{number}", key=f"k{number}", headers={"n": str(number)}, ttl="1h")
    ps.publish_batch("orders", [b"a", b"b"], priority=["critical", "low"], partition=2)
    ps.publish("orders", None, partition=0)
    durable()
    rows = {(row["partition"], row["offset"]): row for row in read(folder, includeHeaders="true")}
    assert len(rows) == 53
    for partition in range(3):
        for message in ps.peek("orders", partition=partition, limit=100):
            row = rows[partition, message.offset]
            headers = {h["key"]: h["value"] for h in row["headers"] or ()}
            expiry = row["expires_at"] and round(row["expires_at"].timestamp() * 1e6)
            assert (row["topic"], row["timestampType"]) == ("orders", 1)
            assert (row["value"], row["key"], headers) == (
                message.value,
                message.key,
                message.headers,
            )
            assert (row["priority"], row["id"]) == (message.priority, message.id)
            assert round(row["timestamp"].timestamp() * 1e6) == message.timestamp_us
            assert expiry == message.expires_at_us


def test_only_what_is_durable_is_read(folder: str, ps: Client, durable: Sync) -> None:
    ps.create_topic("orders", fsync="never")
    ps.publish_batch("orders", [b"a", b"b"])
    durable()
    ps.publish("orders", b"in the page cache")
    assert [row["value"] for row in read(folder)] == [b"a", b"b"]


def test_a_schema_that_is_handed_in_prunes(folder: str, ps: Client, durable: Sync) -> None:
    ps.create_topic("orders")
    ps.publish("orders", b"a")
    durable()
    schema = StructType([StructField("offset", LongType()), StructField("value", BinaryType())])
    assert read(folder, schema) == [{"offset": 0, "value": b"a"}]
    with pytest.raises(InvalidInput, match="no column 'amount'"):
        reader(folder, StructType([StructField("amount", LongType())]))
    with pytest.raises(InvalidInput, match="'value' is of type binary, not string"):
        reader(folder, StructType([StructField("value", StringType())]))


def test_a_hot_partition_is_split_and_nothing_is_read_twice(
    folder: str, ps: Client, durable: Sync
) -> None:
    ps.create_topic("orders", partitions=2, segment_bytes=16 << 10)
    for start in range(0, 2000, 40):
        ps.publish_batch("orders", [f"{n:0100d}" for n in range(start, start + 40)], partition=1)
    durable()
    made = reader(folder, minPartitions="7")
    assert len(made.partitions()) == 7
    assert [row["offset"] for row in rows_of(made, made.partitions())] == list(range(2000))
    by_size = reader(folder, maxBytesPerPartition="30k").partitions()
    assert 7 <= len(by_size) <= 12


def test_positions_are_offsets_times_and_words(folder: str, ps: Client, durable: Sync) -> None:
    ps.create_topic("orders", partitions=2)
    for number in range(10):
        ps.publish("orders", str(number), partition=number % 2)
    durable()
    third = ps.peek("orders", partition=0, at=2, limit=1)[0]

    def values(**options: str) -> list[int]:
        return sorted(int(row["value"]) for row in read(folder, **options))

    starting = '{"orders": {"0": 3, "1": -1}}'
    assert values(startingOffsets=starting) == [6, 8]
    assert values(endingOffsets='{"orders": {"0": 1}}') == [0, 1, 3, 5, 7, 9]
    assert values(endingOffsets='{"orders": {"0": 1, "1": 0}}') == [0]
    by_time = f'{{"orders": {{"0": {third.timestamp_us // 1000 + 1000}}}}}'
    assert values(startingOffsetsByTimestamp=by_time) == [1, 3, 5, 7, 9]
    moment = datetime.fromtimestamp(third.timestamp_us / 1e6, UTC).isoformat()
    assert values(endingTimestamp=moment) == [0, 1, 2, 3]
    assert 4 in values(startingTimestamp=moment)
    with pytest.raises(InvalidInput, match="orders/7, which this query does not read"):
        values(startingOffsets='{"orders": {"7": 1}}')


def test_topics_by_name_pattern_and_partition(folder: str, ps: Client, durable: Sync) -> None:
    for topic in ("orders", "orders-eu", "billing"):
        ps.create_topic(topic, partitions=2)
        ps.publish("orders" if topic == "x" else topic, topic, partition=1)
    durable()

    def topics(**options: str) -> list[str]:
        made = BatchReader(parse_read_options({"path": folder, **options}), read_schema(False))
        return sorted(row["topic"] for row in rows_of(made, made.partitions()))

    assert topics(subscribe="orders,billing") == ["billing", "orders"]
    assert topics(subscribePattern="orders.*") == ["orders", "orders-eu"]
    assert topics(assign='{"orders": [0], "billing": [1]}') == ["billing"]
    assert topics(subscribePattern="none") == []
    with pytest.raises(InvalidInput, match="there is no data folder"):
        topics(path=f"{folder}-elsewhere", subscribePattern="orders.*")
    with pytest.raises(TopicNotFound):
        topics(subscribe="invoices")
    with pytest.raises(InvalidInput, match="not 5"):
        topics(assign='{"orders": [5]}')


def test_topics_of_another_namespace(folder: str, ps: Client, durable: Sync) -> None:
    other = ps.in_namespace("shop")
    other.create_topic("orders")
    other.publish("orders", b"there")
    durable()
    assert [row["value"] for row in read(folder, namespace="shop")] == [b"there"]
    made = BatchReader(
        parse_read_options({"path": folder, "subscribe": "shop/orders"}), read_schema(False)
    )
    assert [row["topic"] for row in rows_of(made, made.partitions())] == ["shop/orders"]


def test_messages_that_retention_took_are_an_error_unless_told(
    folder: str, ps: Client, durable: Sync
) -> None:
    ps.create_topic("orders")
    ps.publish_batch("orders", [b"a", b"b", b"c"])
    durable()
    planned = reader(folder)
    splits = planned.partitions()
    broker_of(ps).topic(ps._name("orders")).partition(0).trim_to(2)
    with pytest.raises(DataLost, match="offsets 0 up to 2 are gone"):
        rows_of(planned, splits)
    with pytest.raises(DataLost):
        read(folder, startingOffsets='{"orders": {"0": 1}}')
    careless = reader(folder, failOnDataLoss="false", startingOffsets='{"orders": {"0": 0}}')
    assert [row["value"] for row in rows_of(careless, splits)] == [b"c"]
    assert [row["value"] for row in rows_of(careless, careless.partitions())] == [b"c"]
    assert [row["value"] for row in read(folder)] == [b"c"]


def test_damage_is_an_error_unless_told(folder: str, ps: Client) -> None:
    publish_and_damage(ps, "orders")
    with pytest.raises(DataLost, match="offsets 1 up to 2 are lost"):
        read(folder)
    kept = read(folder, failOnDataLoss="false")
    assert [row["offset"] for row in kept] == [0, 2]


@pytest.mark.parametrize(
    ("wanted", "left", "found"),
    [
        ([GreaterThan(("offset",), 7)], 0, {(0, 8), (0, 9), (1, 8), (1, 9)}),
        ([GreaterThanOrEqual(("offset",), 9)], 0, {(0, 9), (1, 9)}),
        ([LessThan(("offset",), 1), EqualTo(("partition",), 1)], 0, {(1, 0)}),
        ([LessThanOrEqual(("offset",), 0), In(("partition",), (0, 5))], 0, {(0, 0)}),
        ([EqualTo(("offset",), 3), EqualTo(("topic",), "orders")], 0, {(0, 3), (1, 3)}),
        ([EqualTo(("topic",), "billing")], 0, set()),
        ([EqualTo(("offset",), 3), IsNotNull(("key",))], 1, {(0, 3), (1, 3)}),
    ],
)
def test_filters_narrow_what_is_read(
    folder: str, ps: Client, durable: Sync, wanted: Any, left: int, found: Any
) -> None:
    ps.create_topic("orders", partitions=2)
    for partition in range(2):
        ps.publish_batch("orders", [b"x"] * 10, partition=partition)
    durable()
    made = reader(folder, pushdown="true")
    assert len(list(made.pushFilters(wanted))) == left
    rows = rows_of(made, made.partitions())
    assert {(row["partition"], row["offset"]) for row in rows} == found


def test_filters_on_time_are_left_to_spark_too_and_need_not_be_in_order(
    folder: str, ps: Client, durable: Sync
) -> None:
    import pyarrow as pa

    from penstock.record.schema import TIMESTAMP

    ps.create_topic("orders")
    stamps = [100, 300, 200, 400]  # a producer may give messages times of its own
    table = pa.table({"value": [b"x"] * 4, "timestamp": pa.array(stamps).view(TIMESTAMP)})
    ps.publish_batch("orders", table)
    durable()
    made = reader(folder, pushdown="true")
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    wanted = [
        GreaterThanOrEqual(("timestamp",), epoch.replace(microsecond=200)),
        LessThan(("timestamp",), epoch.replace(microsecond=300)),
    ]
    assert list(made.pushFilters(wanted)) == wanted
    assert [row["offset"] for row in rows_of(made, made.partitions())] == [1, 2]


def test_many_small_partitions_are_read_by_few_tasks(
    folder: str, ps: Client, durable: Callable[[], None]
) -> None:
    ps.create_topic("wide", partitions=40)
    for number in range(40):
        ps.publish_batch("wide", [f"{number}"] * 3, partition=number)
    durable()
    options = parse_read_options({"path": folder, "subscribe": "wide"})
    reader = BatchReader(options, read_schema(False))
    tasks = reader.partitions()
    assert len(tasks) == 1
    rows = rows_of(reader, tasks)
    assert sorted(int(row["value"]) for row in rows) == sorted(list(range(40)) * 3)
    assert all(int(row["value"]) == row["partition"] for row in rows)
