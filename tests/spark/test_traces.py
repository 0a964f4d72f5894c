"""The lives of messages as a data frame, as a stream, and rolled up by the minute."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from tests.integration.server.process import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def shop(tmp_path: Path) -> str:
    """Ten orders, of which a group has acked six and rejected four; one of the latter came back."""
    folder = str(tmp_path / "data")
    with penstock.connect(folder) as ps:
        ps.create_topic("orders", trace_sample=1)
        ps.create_topic("mail", trace_sample=1)
        ps.publish_batch("orders", [b"%d" % n for n in range(10)])
        ps.publish("mail", b"x", delay="1h", headers={"traceparent": f"00-{7:032x}-{8:016x}-01"})
        for message in ps.receive("orders", "billing", max_messages=10):
            if message.offset < 6:
                message.ack()
            else:
                message.reject("no ink")
        letters = ps.dead_letters("orders")
        letters.redrive(next(iter(letters.list())))
    return folder


def told(ps: Any) -> set[tuple[Any, ...]]:
    """The same events, as the broker tells them one life after the other."""
    return {
        (e.event, e.topic, e.partition, e.offset, e.id, e.group or None, e.error or None)
        for topic in ("orders", "mail")
        for life in ps.trace(topic, limit=1000)
        for e in life.events
    }


def rows(frame: Any) -> set[tuple[Any, ...]]:
    # A letter that is published is said better by another event, so that `trace` leaves it out.
    names = ("event", "topic", "partition", "offset", "id", "group", "error")
    return {tuple(row) for row in frame.select(*names).collect()}


@pytest.mark.parametrize("by_url", [False, True])
def test_events_are_rows(spark: SparkSession, shop: str, tmp_path: Path, by_url: bool) -> None:
    def check(option: str, place: str) -> None:
        frame = spark.read.format("penstock").option(option, place).option("mode", "trace").load()
        with penstock.connect(place) as ps:
            expected = told(ps)
        found = rows(frame)
        assert expected <= found
        assert {each[0] for each in found - expected} <= {"published"}
        counted = {row[0]: row[1] for row in frame.groupBy("event").count().collect()}
        assert (counted["delivered"], counted["acked"], counted["rejected"]) == (10, 6, 4)
        assert (counted["dead_lettered"], counted["redriven"]) == (4, 1)
        (redriven,) = frame.where("event = 'redriven'").collect()
        assert (redriven.topic, redriven.origin_topic) == ("orders", "orders.dlq")
        (mail,) = frame.where("topic = 'mail'").collect()
        assert (mail.event, mail.trace_id, mail.until > mail.at) == (
            "scheduled",
            f"{7:032x}",
            True,
        )
        only = spark.read.format("penstock").option(option, place).option("mode", "trace")
        assert only.option("subscribe", "mail").load().count() == 1
        assert only.option("startingOffsets", "latest").load().count() == 0
        assert only.option("startingTimestamp", "2100-01-01T00:00:00Z").load().count() == 0

    if by_url:
        with ServerProcess(shop) as server:
            check("url", server.url)
    else:
        check("path", shop)


def test_a_stream_goes_on_where_it_was(spark: SparkSession, shop: str, tmp_path: Path) -> None:
    def run() -> None:
        stream = spark.readStream.format("penstock").option("path", shop)
        stream = stream.option("mode", "trace").option("startingOffsets", "earliest")
        writing = stream.load().writeStream.format("parquet")
        writing = writing.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writing.trigger(availableNow=True).start(str(tmp_path / "events"))
        query.awaitTermination()

    def acked() -> int:
        return spark.read.parquet(str(tmp_path / "events")).where("event = 'acked'").count()

    run()
    assert acked() == 6
    run()
    assert acked() == 6
    with penstock.connect(shop) as ps:
        (back,) = ps.receive("orders", "billing")
        back.ack()
    run()
    assert acked() == 7


def test_a_rollup_counts_each_event_once(spark: SparkSession, shop: str, tmp_path: Path) -> None:
    from penstock.spark.pipelines import rollup

    def counted() -> dict[tuple[str, str], int]:
        table = spark.read.parquet(str(tmp_path / "out" / "traces"))
        summed = table.groupBy("topic", "event").sum("messages").collect()
        return {(row[0], row[1]): row[2] for row in summed}

    done = rollup(spark, shop, ["orders"], str(tmp_path / "out"))
    first = counted()
    assert first["orders", "delivered"] == 10
    assert first["orders", "acked"] == 6
    assert first["orders.dlq", "dead_lettered"] == 4
    assert done.trace_events == sum(first.values())
    assert rollup(spark, shop, ["orders"], str(tmp_path / "out")).trace_events == 0
    with penstock.connect(shop) as ps:
        (back,) = ps.receive("orders", "billing")
        back.ack()
    assert rollup(spark, shop, ["orders"], str(tmp_path / "out")).trace_events == 2
    assert counted() == {**first, ("orders", "delivered"): 11, ("orders", "acked"): 7}


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("startingOffsets", '{"orders": {"0": 1}}', "earliest or latest"),
        ("endingOffsets", "latest", "unknown option 'endingoffsets'"),
        ("startingTimestamp", "soon", "startingTimestamp"),
    ],
)
def test_what_is_no_option_of_traces_is_told(
    spark: SparkSession, shop: str, option: str, value: str, said: str
) -> None:
    reading = spark.read.format("penstock").option("path", shop).option("mode", "trace")
    with pytest.raises(Exception, match=said):
        reading.option(option, value).load()
