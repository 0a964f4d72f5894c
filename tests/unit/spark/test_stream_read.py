"""Micro-batches of a folder, planned as Spark plans them, on reader objects."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from penstock.client.client import Client
from penstock.errors import DataLost, InvalidInput, Unavailable
from penstock.spark import patience
from penstock.spark.columns import read_schema
from penstock.spark.folder import DataFolder
from penstock.spark.options import parse_read_options
from penstock.spark.stream_read import MicroBatchReader
from tests.inside import broker_of
from tests.unit.spark.rows import rows_of

Sync = Callable[[], None]


class Query:
    """Plays Spark: what it keeps in a checkpoint is the text of offsets, and nothing else."""

    def __init__(self, place: str, log: list[str] | None = None, **options: str) -> None:
        where = {"url" if "://" in place else "path": place}
        given = parse_read_options({**where, "subscribe": "orders", **options})
        self.reader = MicroBatchReader(given, read_schema(given.include_headers))
        self.log = [] if log is None else log
        self.limit = self.reader.getDefaultReadLimit()

    def plan(self) -> bool:
        """Write down where the next batch ends, if there is one."""
        start = self._start(len(self.log))
        end = json.dumps(self.reader.latestOffset(start, self.limit))
        if self.log and json.loads(end) == json.loads(self.log[-1]):
            return False
        self.log.append(end)
        return True

    def run(self, batch: int) -> list[str]:
        splits = self.reader.partitions(self._start(batch), json.loads(self.log[batch]))
        return [row["value"].decode() for row in rows_of(self.reader, splits)]

    def batches(self) -> Iterator[list[str]]:
        while self.plan():
            yield self.run(len(self.log) - 1)

    def _start(self, batch: int) -> dict[str, Any]:
        return json.loads(self.log[batch - 1]) if batch else self.reader.initialOffset()


def publish(ps: Client, *values: str, partition: int = 0) -> None:
    ps.publish_batch("orders", list(values), partition=partition)


@pytest.fixture
def orders(ps: Client) -> Client:
    ps.create_topic("orders", partitions=2)
    return ps


def test_a_stream_starts_at_the_end_and_sees_what_comes(
    folder: str, orders: Client, durable: Sync
) -> None:
    publish(orders, "before")
    durable()
    query = Query(folder)
    assert list(query.batches()) == [[]]
    publish(orders, "a")
    publish(orders, "b", partition=1)
    durable()
    assert list(query.batches()) == [["a", "b"]]
    assert list(query.batches()) == []


def test_the_start_of_batch_0_survives_a_failure(
    folder: str, orders: Client, durable: Sync
) -> None:
    publish(orders, "before")
    durable()
    first = Query(folder)
    start = first.reader.initialOffset()  # "latest", and then messages come before the planning
    publish(orders, "a", "b")
    durable()
    end = json.dumps(first.reader.latestOffset(start, ReadAllAvailable()))
    publish(orders, "c")
    durable()
    # The query fails before batch 0 is done. "latest" is later now, but batch 0 is what it was.
    again = Query(folder, [end])
    assert again.run(0) == ["a", "b"]
    assert list(again.batches()) == [["c"]]


def test_an_empty_batch_0_holds_the_place_too(folder: str, orders: Client, durable: Sync) -> None:
    first = Query(folder)
    assert list(first.batches()) == [[]]
    publish(orders, "a")
    durable()
    assert list(Query(folder, first.log).batches()) == [["a"]]


def test_a_batch_is_the_same_however_often_it_runs(
    folder: str, orders: Client, durable: Sync
) -> None:
    for number in range(100):
        publish(orders, str(number), partition=number % 2)
    durable()
    query = Query(folder, startingOffsets="earliest", maxOffsetsPerTrigger="30")
    batches = list(query.batches())
    assert sorted(int(v) for batch in batches for v in batch) == list(range(100))
    assert all(len(batch) <= 30 for batch in batches)
    assert len(batches) == 4
    later = Query(folder, query.log)
    publish(orders, "100")
    durable()
    assert [later.run(number) for number in range(4)] == batches
    assert list(later.batches()) == [["100"]]


def test_bytes_limit_a_batch(folder: str, orders: Client, durable: Sync) -> None:
    for number in range(60):
        publish(orders, f"{number:01000d}")
    durable()
    query = Query(folder, startingOffsets="earliest", maxBytesPerTrigger="20k")
    assert isinstance(query.limit, ReadMaxBytes)
    sizes = [len(batch) for batch in query.batches()]
    assert sum(sizes) == 60
    assert max(sizes) <= 20
    assert len(sizes) <= 5


def test_both_limits_hold_and_a_trigger_without_limit_ignores_them(
    folder: str, orders: Client, durable: Sync
) -> None:
    for number in range(60):
        publish(orders, f"{number:01000d}")
    durable()
    both = {"maxOffsetsPerTrigger": "50", "maxBytesPerTrigger": "20k"}
    query = Query(folder, startingOffsets="earliest", **both)
    assert query.limit == ReadMaxRows(50)
    assert max(len(batch) for batch in query.batches()) <= 20
    once = Query(folder, startingOffsets="earliest", **both)
    once.limit = ReadAllAvailable()
    assert [len(batch) for batch in once.batches()] == [60]


def test_available_now_stops_where_the_log_ended(
    folder: str, orders: Client, durable: Sync
) -> None:
    publish(orders, "a", "b", "c")
    durable()
    query = Query(folder, startingOffsets="earliest", maxOffsetsPerTrigger="2")
    query.reader.prepareForTriggerAvailableNow()
    publish(orders, "too late")
    orders.alter_topic("orders", partitions=3)
    publish(orders, "too", "late", partition=2)
    durable()
    assert list(query.batches()) == [["a", "b"], ["c"]]
    assert len(list(Query(folder, query.log).batches())) == 1


def test_partitions_and_topics_that_are_added_are_read_from_their_beginning(
    folder: str, orders: Client, durable: Sync
) -> None:
    options = parse_read_options({"path": folder, "subscribePattern": "orders.*"})
    query = Query(folder)
    query.reader = MicroBatchReader(options, read_schema(False))
    assert list(query.batches()) == [[]]
    orders.alter_topic("orders", partitions=4)
    publish(orders, "a", "b", partition=3)
    orders.create_topic("orders-eu")
    orders.publish("orders-eu", "c")
    durable()
    assert [sorted(batch) for batch in query.batches()] == [["a", "b", "c"]]
    publish(orders, "d", partition=3)
    durable()
    assert list(query.batches()) == [["d"]]


def test_retention_that_passed_the_checkpoint(folder: str, orders: Client, durable: Sync) -> None:
    publish(orders, "a")
    durable()
    query = Query(folder, startingOffsets="earliest")
    assert list(query.batches()) == [["a"]]
    publish(orders, "b", "c", "d")
    durable()
    assert query.plan()
    broker_of(orders).topic(orders._name("orders")).partition(0).trim_to(3)
    with pytest.raises(DataLost, match="some are gone"):  # planned, and then it was too late
        query.run(1)
    with pytest.raises(DataLost, match="offsets 1 up to 3 are gone"):
        Query(folder, query.log[:1]).plan()
    careless = Query(folder, query.log, failOnDataLoss="false")
    assert careless.run(1) == ["d"]
    assert list(Query(folder, query.log[:1], failOnDataLoss="false").batches()) == [["d"]]


def test_a_topic_that_was_made_anew_is_another_one(
    folder: str, orders: Client, durable: Sync
) -> None:
    publish(orders, "a", "b")
    durable()
    query = Query(folder, startingOffsets="earliest")
    assert list(query.batches()) == [["a", "b"]]
    orders.delete_topic("orders")
    orders.create_topic("orders", partitions=2)
    publish(orders, "new")
    durable()
    with pytest.raises(DataLost, match="deleted and made again"):
        query.plan()
    careless = Query(folder, query.log, failOnDataLoss="false")
    assert list(careless.batches()) == [["new"]]


def test_progress_is_told_to_the_group_when_a_batch_is_done(
    folder: str, orders: Client, durable: Sync
) -> None:
    publish(orders, "a", "b", "c")
    publish(orders, "d", partition=1)
    durable()
    query = Query(folder, startingOffsets="earliest", maxOffsetsPerTrigger="2", group="lake")

    def lag() -> list[int]:
        return list(orders.describe_stream_group("lake").lag.values())

    assert query.plan()
    assert lag() == [3, 1]
    query.run(0)
    assert lag() == [3, 1]  # not before the next one is planned: this one might have failed
    query.plan()
    assert sum(lag()) < 4
    list(query.batches())
    assert lag() == [0, 0]
    publish(orders, "e")
    assert lag() == [1, 0]


def test_a_group_cannot_have_any_name(folder: str, orders: Client) -> None:
    with pytest.raises(InvalidInput, match="group name"):
        Query(folder, group="../../etc")


def test_bytes_limit_a_batch_also_within_one_long_frame(
    folder: str, orders: Client, durable: Sync
) -> None:
    orders.publish_batch("orders", [f"{number:01000d}" for number in range(1000)], partition=0)
    durable()
    query = Query(folder, startingOffsets="earliest", maxBytesPerTrigger="100k")
    sizes = [len(batch) for batch in query.batches()]
    assert sum(sizes) == 1000
    assert max(sizes[:-1]) - min(sizes[:-1]) <= 10, sizes


def test_a_batch_waits_for_so_many_messages_but_not_for_ever(
    folder: str, orders: Client, durable: Sync, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = {"minOffsetsPerTrigger": "3", "maxTriggerDelay": "1h"}
    query = Query(folder, startingOffsets="earliest", **waits)
    publish(orders, "first")
    durable()
    assert list(query.batches()) == [["first"]]
    publish(orders, "a", "b")
    durable()
    assert list(query.batches()) == []
    publish(orders, "c", partition=1)
    durable()
    assert list(query.batches()) == [["a", "b", "c"]]
    publish(orders, "d")
    durable()
    assert list(query.batches()) == []
    query.reader._next_trigger_s -= 3600
    assert list(query.batches()) == [["d"]]
    publish(orders, "e")
    durable()
    query.reader.prepareForTriggerAvailableNow()
    assert list(query.batches()) == [["e"]]


def test_a_time_behind_the_last_message_is_the_end_or_an_error(
    folder: str, orders: Client, durable: Sync
) -> None:
    publish(orders, "a")
    durable()
    late = {"startingTimestamp": "2100-01-01T00:00:00Z"}
    assert list(Query(folder, **late).batches()) == [[]]
    with pytest.raises(InvalidInput, match="no message at or after"):
        Query(folder, **late, startingOffsetsByTimestampStrategy="error").plan()
    with pytest.raises(InvalidInput, match="error or latest"):
        Query(folder, **late, startingOffsetsByTimestampStrategy="x")


def test_what_is_away_for_a_while_does_not_end_a_query(
    folder: str, orders: Client, durable: Sync, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(orders, "a")
    durable()
    query = Query(folder, startingOffsets="earliest", patience="1m")
    assert list(query.batches()) == [["a"]]
    publish(orders, "b")
    durable()
    seen, topics = [0], DataFolder.topics

    def away(self: DataFolder) -> list[str]:
        seen[0] += 1
        if seen[0] < 4:
            raise Unavailable("nobody is there")
        return topics(self)

    monkeypatch.setattr(DataFolder, "topics", away)
    monkeypatch.setattr(patience.time, "sleep", lambda seconds: None)
    assert list(query.batches()) == [["b"]]
    assert seen[0] >= 4
    query = Query(folder, query.log, patience="1ms")
    query.reader._was_there = True
    seen[0] = -10
    monkeypatch.undo()
    monkeypatch.setattr(DataFolder, "topics", lambda self: (_ for _ in ()).throw(Unavailable("x")))
    with pytest.raises(Unavailable):
        query.plan()
