"""A topic that is deleted and made again is another topic, whatever its offsets look like."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import DateType, StructField, StructType

import penstock
from penstock.client.client import Client
from penstock.errors import DataLost, TopicRecreated
from penstock.spark.batch_read import BatchReader
from penstock.spark.bounds import Range
from penstock.spark.columns import read_schema
from penstock.spark.lake import open_lake
from penstock.spark.lake_sink import LakeJob, LakeWriter
from penstock.spark.lake_table import TableChange, archived, topic_mark
from penstock.spark.options import Target, parse_read_options
from penstock.spark.pipelines.archive import _next_round
from penstock.spark.progress import commit_progress
from penstock.spark.range_read import PackedSplit, Split
from penstock.spark.stream_read import FROM, TOPICS
from penstock.spark.topic_reader import open_topic_reader
from tests.inside import broker_of
from tests.integration.server.running import RunningServer
from tests.unit.spark.rows import rows_of
from tests.unit.spark.test_server import url  # noqa: F401 - a fixture
from tests.unit.spark.test_stream_read import Query
from tests.unit.spark.test_tier import trim

Sync = Callable[[], None]
SCHEMA = pa.schema([("offset", pa.int64())])


@pytest.fixture(params=["folder", "url"])
def place(request: pytest.FixtureRequest, folder: str, ps: Client) -> Iterator[str]:
    """Where the topic is read: a data folder, or the server that works on it."""
    if request.param == "folder":
        yield folder
        return
    server = RunningServer(broker_of(ps))
    try:
        yield server.url
    finally:
        server.stop()


lengths = pytest.mark.parametrize("length", [2, 5, 10], ids=["shorter", "equal", "longer"])


def publish(ps: Client, count: int, name: str) -> list[str]:
    values = [f"{name} {n}" for n in range(count)]
    ps.publish_batch("orders", values, partition=0)
    return values


@pytest.fixture
def orders(ps: Client) -> Client:
    ps.create_topic("orders")
    publish(ps, 5, "old")
    return ps


def make_again(ps: Client, length: int, partitions: int = 1) -> list[str]:
    ps.delete_topic("orders")
    ps.create_topic("orders", partitions=partitions)
    return publish(ps, length, "new")


@lengths
def test_a_stream_reads_the_new_one_from_its_beginning_or_refuses_it(
    place: str, orders: Client, durable: Sync, length: int
) -> None:
    durable()
    query = Query(place, startingOffsets="earliest")
    assert [len(batch) for batch in query.batches()] == [5]
    new = make_again(orders, length)
    durable()
    with pytest.raises(DataLost, match="orders was deleted and made again"):
        query.plan()
    careless = Query(place, query.log, failOnDataLoss="false")
    assert list(careless.batches()) == [new]
    assert list(careless.batches()) == []
    stop(query, careless)


@lengths
def test_a_stream_over_lake_and_log_has_nothing_of_the_former_one_in_the_new_one(
    place: str, folder: str, orders: Client, durable: Sync, tmp_path: Path, length: int
) -> None:
    """What the table has of the former one is at the same offsets."""
    durable()
    lake = tmp_path / "lake"
    archived_rows(folder, orders, lake)
    trim(orders, "orders", 3)
    given = {"tier": "lake+log", "lake": str(lake), "startingOffsets": "earliest"}
    query = Query(place, **given)
    assert [sorted(batch) for batch in query.batches()] == [[f"old {n}" for n in range(5)]]
    new = make_again(orders, length)
    durable()
    with pytest.raises(DataLost, match="orders was deleted and made again"):
        query.plan()
    careless = Query(place, query.log, failOnDataLoss="false", **given)
    assert list(careless.batches()) == [new]
    anew = Query(place, **given)
    assert list(anew.batches()) == [new]
    stop(query, careless, anew)


def stop(*queries: Query) -> None:
    for query in queries:
        query.reader.stop()


def archived_rows(folder: str, ps: Client, lake: Path) -> None:
    """The table that an archive makes of what there is."""
    reader = BatchReader(
        parse_read_options({"path": folder, "subscribe": "orders"}), read_schema(False)
    )
    job = LakeJob(table=str(lake / "orders"), topic=of(ps), ends={0: 5})
    schema = StructType([*read_schema(False).fields, StructField("date", DateType())])
    rows = [batch for split in reader.partitions() for batch in reader.read(split)]
    table = pa.Table.from_batches(rows)
    dated = table.append_column("date", table["timestamp"].cast(pa.date32()))
    writer = LakeWriter(job, schema)
    writer.commit([writer.write(iter(dated.to_batches()))])


@lengths
def test_a_batch_that_was_planned_of_the_former_one_has_nothing_of_the_new_one(
    folder: str, orders: Client, durable: Sync, length: int
) -> None:
    durable()
    query = Query(folder, startingOffsets="earliest")
    assert query.plan()
    start, end = query.reader.initialOffset(), json.loads(query.log[0])
    planned = query.reader.partitions(start, end)
    new = make_again(orders, length)
    durable()
    with pytest.raises(DataLost, match="deleted and made again"):
        rows_of(query.reader, planned)
    with pytest.raises(DataLost, match="deleted and made again"):
        query.run(0)
    careless = Query(folder, query.log, failOnDataLoss="false")
    assert careless.run(0) == []
    assert list(careless.batches()) == [new]


def test_a_topic_with_fewer_partitions_leaves_none_of_the_former_ones_behind(
    folder: str, ps: Client, durable: Sync
) -> None:
    ps.create_topic("orders", partitions=3)
    for partition in range(3):
        ps.publish_batch("orders", ["old"] * 5, partition=partition)
    durable()
    query = Query(folder, startingOffsets="earliest", failOnDataLoss="false")
    assert [len(batch) for batch in query.batches()] == [15]
    make_again(ps, 1)
    durable()
    assert list(query.batches()) == [["new 0"]]
    ps.alter_topic("orders", partitions=3)
    ps.publish_batch("orders", ["third"] * 7, partition=2)
    durable()
    assert list(query.batches()) == [["third"] * 7]


def test_a_checkpoint_without_ids_opens_and_gets_them(
    folder: str, orders: Client, durable: Sync
) -> None:
    durable()
    first = Query(folder, startingOffsets="earliest")
    list(first.batches())
    former = {name: each for name, each in json.loads(first.log[0]).items() if name != TOPICS}
    again = Query(folder, [json.dumps(former)])
    assert list(again.batches()) == [[]]
    assert json.loads(again.log[-1])[TOPICS] == {"orders": orders.stats("orders").incarnation}
    publish(orders, 1, "more")
    durable()
    assert list(again.batches()) == [["more 0"]]
    assert FROM not in json.loads(again.log[-1])


@lengths
def test_offsets_of_a_batch_read_may_be_meant_for_one_topic(
    folder: str, orders: Client, durable: Sync, length: int
) -> None:
    former = json.dumps({"orders": orders.stats("orders").incarnation})
    make_again(orders, length)
    durable()
    given = {"path": folder, "subscribe": "orders", "incarnations": former}
    with pytest.raises(DataLost, match="deleted and made again"):
        BatchReader(parse_read_options(given), read_schema(False)).partitions()
    careless = BatchReader(
        parse_read_options({**given, "failOnDataLoss": "false"}), read_schema(False)
    )
    assert rows_of(careless, careless.partitions()) == []


def of(ps: Client) -> str:
    return topic_mark("orders", ps.stats("orders").incarnation)


def next_round(at: str, table: str, lost: list[str]) -> Any:
    def note(what: str, cure: str) -> None:
        lost.append(what)

    target = Target(url=at) if "://" in at else Target(path=at)
    with closing(open_topic_reader(target)) as place:
        return _next_round(place, [open_lake(table)], "orders", "orders", 1 << 30, note)


@lengths
def test_an_archive_brings_the_new_one_from_its_beginning_or_refuses_it(
    place: str, orders: Client, durable: Sync, tmp_path: Path, length: int
) -> None:
    table, lost = str(tmp_path / "orders"), list[str]()
    open_lake(table).commit(TableChange(SCHEMA, topic=of(orders), ends={0: 5}))
    make_again(orders, length)
    durable()
    following = next_round(place, table, lost)
    assert following.parts == [Range("orders", 0, 0, length)]
    assert following.starts == {0: None}
    assert ["deleted and made again" in line for line in lost] == [True]
    open_lake(table).commit(TableChange(SCHEMA, topic=of(orders), ends={0: length}))
    assert next_round(place, table, lost).parts == []
    assert len(lost) == 1


def test_a_table_of_a_topic_without_an_id_is_not_one_of_a_topic_with_one(
    folder: str, orders: Client, durable: Sync, tmp_path: Path
) -> None:
    """A topic of an earlier version was archived by this one, and then made again."""
    table, lost = str(tmp_path / "orders"), list[str]()
    open_lake(table).commit(TableChange(SCHEMA, topic="orders", ends={0: 3}))
    durable()
    assert next_round(folder, table, lost).parts == [Range("orders", 0, 0, 5)]
    assert lost


class _FormerChange(TableChange, frozen=True):
    """As a version wrote it that knew no ids."""

    def marks(self) -> dict[str, int]:
        return {f"penstock:{self.topic}:{number}": end for number, end in self.ends.items()}


def test_a_table_without_ids_goes_on_with_the_topic_that_is_there(
    folder: str, orders: Client, durable: Sync, tmp_path: Path
) -> None:
    table, lost = str(tmp_path / "orders"), list[str]()
    orders.alter_topic("orders", partitions=2)
    orders.publish_batch("orders", ["x"] * 4, partition=1)
    open_lake(table).commit(_FormerChange(SCHEMA, topic="orders", ends={0: 3, 1: 4}))
    durable()
    following = next_round(folder, table, lost)
    assert following.parts == [Range("orders", 0, 3, 5)]
    assert following.adopted
    change = TableChange(SCHEMA, topic=of(orders), ends={0: 5}, adopted=True)
    open_lake(table).commit(change)
    assert next_round(folder, table, lost).parts == []
    assert archived(open_lake(table), of(orders), [0, 1]) == {0: 5, 1: 4}
    assert lost == []
    make_again(orders, 9)
    durable()
    assert next_round(folder, table, lost).parts == [Range("orders", 0, 0, 9)]
    assert lost


@lengths
def test_progress_of_the_former_one_is_not_that_of_the_new_one(
    folder: str, orders: Client, durable: Sync, length: int
) -> None:
    """Or retention would drop from the new one what nobody has read."""
    incarnation = {"orders": orders.stats("orders").incarnation}
    commit_progress(Target(path=folder), "lake", {"orders": {0: 5}}, incarnation)
    make_again(orders, length)
    with pytest.raises(penstock.errors.GroupNotFound):
        orders.describe_stream_group("lake")
    commit_progress(Target(path=folder), "lake", {"orders": {0: 4}}, incarnation)
    here = {"orders": orders.stats("orders").incarnation}
    commit_progress(Target(path=folder), "lake", {"orders": {0: 1}}, here)
    assert list(orders.describe_stream_group("lake").committed.values()) == [1]


@lengths
def test_a_server_refuses_progress_of_the_former_one(
    url: str,  # noqa: F811
    length: int,
) -> None:
    target = Target(url=url)
    with penstock.connect(url) as ps:
        former = {"orders": ps.stats("orders").incarnation}
        commit_progress(target, "lake", {"orders": {0: 5, 1: 500}}, former)
        assert sorted(ps.describe_stream_group("lake").lag.values())[0] == 0
        make_again(ps, length, partitions=2)
        with pytest.raises(TopicRecreated, match="deleted and made again"):
            commit_progress(target, "lake", {"orders": {0: 5, 1: 0}}, former)
        here = {"orders": ps.stats("orders").incarnation}
        commit_progress(target, "lake", {"orders": {0: 1, 1: 0}}, here)
        assert sum(ps.describe_stream_group("lake").lag.values()) == length - 1


def test_a_task_notices_a_topic_that_is_made_again_while_it_reads(
    folder: str, orders: Client, durable: Sync
) -> None:
    durable()
    options = parse_read_options({"path": folder, "subscribe": "orders", "failOnDataLoss": "false"})
    reader = BatchReader(options, read_schema(False))
    (split,) = reader.partitions()
    assert isinstance(split, Split)
    reads = reader._reader._reads(Range("orders", 0, 0, 5), split.incarnation)
    next(reads)
    make_again(orders, 5)
    durable()
    with pytest.raises(DataLost, match="deleted and made again"):
        list(reads)


def test_a_task_of_many_partitions_notices_it_too(folder: str, ps: Client, durable: Sync) -> None:
    """It asks once for all of them."""
    ps.create_topic("orders", partitions=20)
    for partition in range(20):
        ps.publish("orders", f"{partition}", partition=partition)
    durable()

    def planned(**more: str) -> tuple[BatchReader, PackedSplit]:
        given = {"path": folder, "subscribe": "orders", **more}
        reader = BatchReader(parse_read_options(given), read_schema(False))
        (split,) = reader.partitions()
        assert isinstance(split, PackedSplit)
        return reader, split

    reader, split = planned()
    (rows,) = reader.read(split)
    assert sorted(rows["value"].to_pylist()) == sorted(b"%d" % n for n in range(20))
    for more, message in (({}, "again"), ({"failOnDataLoss": "false"}, None)):
        reader, split = planned(**more)
        ranges = reader._reader._packed(split, open_topic_reader(Target(path=folder)))
        next(ranges)  # in the middle
        ps.delete_topic("orders")
        ps.create_topic("orders", partitions=20)
        ps.publish("orders", "new", partition=7)
        durable()
        with pytest.raises(DataLost, match=r"deleted and made again|are gone"):
            list(ranges)
        if message:
            with pytest.raises(DataLost, match="deleted and made again"):
                list(reader.read(split))
        else:
            assert list(reader.read(split)) == []
        for partition in range(20):
            ps.publish("orders", f"{partition}", partition=partition)
        durable()
