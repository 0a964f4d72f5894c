"""Reading from a server, and publishing to it: the same as with a folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from penstock.client.client import Client
from penstock.errors import DataLost
from penstock.spark.batch_read import BatchReader
from penstock.spark.bounds import Range
from penstock.spark.columns import arrow_schema, read_schema
from penstock.spark.connect import connected
from penstock.spark.options import Target, parse_read_options, parse_write_options
from penstock.spark.range_read import RangeReader
from penstock.spark.sink import BatchWriter
from penstock.spark.stream_read import MicroBatchReader
from tests.inside import broker_of
from tests.integration.server.running import RunningServer
from tests.unit.spark.damage import publish_and_damage
from tests.unit.spark.rows import rows_of

Sync = Callable[[], None]


@pytest.fixture
def url(ps: Client) -> Iterator[str]:
    ps.create_topic("orders", partitions=2)
    for number in range(200):
        ps.publish("orders", f"{number}", key=f"k{number}", headers={"n": b"1"}, ttl="1h")
    server = RunningServer(broker_of(ps))
    try:
        yield server.url
    finally:
        server.stop()


def test_rows_are_those_of_the_folder(folder: str, ps: Client, url: str, durable: Sync) -> None:
    durable()
    found = []
    for where in ({"path": folder}, {"url": url}):
        options = parse_read_options({**where, "subscribe": "orders", "includeHeaders": "true"})
        reader = BatchReader(options, read_schema(True))
        rows = rows_of(reader, reader.partitions())
        found.append(sorted(rows, key=lambda row: (row["partition"], row["offset"])))
    assert len(found[0]) == 200
    assert found[0] == found[1]


def test_positions_splits_and_limits(ps: Client, url: str, durable: Sync) -> None:
    ps.publish("orders", "later", partition=1)
    durable()
    (last,) = ps.peek("orders", partition=1, at="earliest", limit=1000)[-1:]
    moment = datetime.fromtimestamp(last.timestamp_us / 1e6, UTC).isoformat()
    options = parse_read_options({"url": url, "subscribe": "orders", "startingTimestamp": moment})
    reader = BatchReader(options, read_schema(False))
    assert b"later" in [row["value"] for row in rows_of(reader, reader.partitions())]
    many = parse_read_options({"url": url, "subscribe": "orders", "minPartitions": "6"})
    reader = BatchReader(many, read_schema(False))
    assert len(reader.partitions()) == 6
    assert len(rows_of(reader, reader.partitions())) == 201


def test_damage_behind_a_server_is_an_error_unless_told(ps: Client, url: str) -> None:
    publish_and_damage(ps, "hurt")

    def read(**options: str) -> list[int]:
        given = parse_read_options({"url": url, "subscribe": "hurt", **options})
        reader = BatchReader(given, read_schema(False))
        return [row["offset"] for row in rows_of(reader, reader.partitions())]

    with pytest.raises(DataLost, match="offsets 1 up to 2 are lost"):
        read()
    assert read(failOnDataLoss="false") == [0, 2]


def test_a_log_that_is_shorter_than_it_was_is_an_error_and_no_wait_without_end(
    ps: Client, url: str, durable: Sync
) -> None:
    """As after a server was begun anew with less; the stream stands just at the new end."""
    durable()
    end = ps.stats("orders").partitions[0].end
    part = Range("orders", 0, end - 5, end + 5)
    for fail in (True, False):
        reader = RangeReader(Target(url=url), arrow_schema(read_schema(False)), fail)
        if fail:
            with pytest.raises(DataLost, match=f"the log holds 0 up to {end}"):
                list(reader.read(part))
        else:
            assert sum(map(len, reader.read(part))) == 5


def test_a_stream_from_a_server_tells_its_group(ps: Client, url: str, durable: Sync) -> None:
    durable()
    options = parse_read_options(
        {"url": url, "subscribe": "orders", "startingOffsets": "earliest", "group": "lake"}
    )
    reader = MicroBatchReader(options, read_schema(False))
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert len(rows_of(reader, reader.partitions(start, end))) == 200
    assert reader.latestOffset(end, reader.getDefaultReadLimit()) == end
    assert set(ps.describe_stream_group("lake").lag.values()) == {0}
    reader.stop()


def test_rows_are_published_through_a_server_once(ps: Client, url: str, tmp_path: Path) -> None:
    schema = StructType([StructField("value", StringType()), StructField("key", StringType())])
    values = [f"{n}" for n in range(500)]
    rows = pa.RecordBatch.from_pydict({"value": values, "key": values})
    for _ in range(2):
        options = {"url": url, "topic": "orders", "sinkId": "s", "staging": str(tmp_path / "stage")}
        writer = BatchWriter(parse_write_options(options), schema, overwrite=False)
        writer.commit([writer.write(iter([rows]))])
    found = Counter(
        m.value.decode()
        for p in range(2)
        for m in ps.peek("orders", partition=p, limit=10_000)
        if not m.headers
    )
    assert found == Counter(values)


def test_a_folder_that_a_server_holds_is_reached_through_it(
    folder: str, ps: Client, url: str
) -> None:
    (Path(folder) / "LOCK").write_text(f"the server at {url} (process 1 on here)")
    with connected(Target(path=folder)) as client:
        client.publish("orders", "over there", partition=0)
    assert ps.peek("orders", limit=1000)[-1].value == b"over there"
