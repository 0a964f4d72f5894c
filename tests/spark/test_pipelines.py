"""The ready pipelines, one after the other on one broker, as an operator would run them."""

from __future__ import annotations

import json
import sys
from collections import Counter
from datetime import UTC
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import deltalake
import pytest

import penstock
from penstock.client.client import Client
from penstock.errors import DataLost, InvalidInput
from tests.inside import broker_of
from tests.unit.spark.damage import publish_and_damage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)


def trim(ps: Client, topic: str, before: int) -> None:
    """What retention does, when it is time."""
    for partition in broker_of(ps).topic(ps._name(topic)).partitions:
        partition.trim_to(before)


def messages(ps: Client, topic: str) -> list[Any]:
    partitions = range(ps.describe_topic(topic).partitions)
    return [m for p in partitions for m in ps.peek(topic, partition=p, limit=100_000)]


@pytest.fixture
def shop(folder: str) -> str:
    with penstock.connect(folder) as ps:
        ps.create_topic("orders", partitions=2)
        ps.create_topic("again")
        for number in range(300):
            body = "{broken" if number % 50 == 7 else json.dumps({"n": number, "city": "x"})
            ps.publish("orders", body, key=f"k{number % 10}", partition=number % 2)
    return folder


@pytest.mark.parametrize("lake_format", ["delta", "iceberg"])
def test_archive_then_tier_then_compact_then_replay(
    spark: SparkSession, shop: str, tmp_path: Path, lake_format: Any
) -> None:
    from penstock.spark.pipelines import archive, compact, found_lake, read_lake, replay

    lake, table = str(tmp_path / "lake"), str(tmp_path / "lake" / "orders")
    schema = "n int not null, city string"

    def run() -> int:
        return archive(spark, shop, lake, ["orders"], lake_format=lake_format, schema=schema).rows

    assert run() == 300
    with penstock.connect(shop) as ps:  # as if it had been killed before it told the group
        ps.reset_stream_group("archive", "orders", "earliest")
    assert run() == 0
    with penstock.connect(shop) as ps:
        assert set(ps.describe_stream_group("archive").lag.values()) == {0}
        assert ps.describe_topic("orders").retention_waits_for == ("archive",)
        trim(ps, "orders", 100)
        for number in range(300, 320):
            ps.publish("orders", json.dumps({"n": number}), partition=number % 2)
    assert sorted(r.n for r in read_lake(spark, table).select("n").collect()) == [
        n for n in range(300) if n % 50 != 7
    ]
    bad = read_lake(spark, f"{table}.bad").select("value", "reason").collect()
    assert {(bytes(r.value), r.reason) for r in bad} == {(b"{broken", "not JSON")}

    # History from the lake, the rest from the log, which has dropped most of it.
    reader = spark.read.format("penstock").options(path=shop, subscribe="orders")
    both = reader.options(tier="lake+log", lake=lake).load()
    places = Counter((r.partition, r.offset) for r in both.select("partition", "offset").collect())
    assert places == Counter((p, o) for p in range(2) for o in range(160))
    moment = both.where("partition = 0 and offset = 50").first().timestamp
    ended = reader.options(tier="lake+log", lake=lake, endingTimestamp=moment.astimezone(UTC))
    wanted = both.where(f"unix_micros(timestamp) < {round(moment.timestamp() * 1e6)}")
    assert ended.load().count() == wanted.count() >= 50  # where the log begins at 100
    assert run() == 20

    small = compact(spark, table, unique_by="id")
    assert small.files_after < small.files_before
    assert small.rows_after == small.rows_before == 314
    files = {each.path for each in found_lake(table).files()}
    compact(spark, table, unique_by="id")  # nothing has come since
    assert {each.path for each in found_lake(table).files()} == files
    assert run() == 0
    assert read_lake(spark, table).count() == 314

    sent = [
        replay(spark, table, shop, "again", name="r1", lake=True, where="n < 10", rate=1000)
        for _ in range(2)  # the second time it is done already
    ]
    assert [(each.messages, each.resumed) for each in sent] == [(9, False), (0, True)]
    assert sent[0].offsets > 300
    with penstock.connect(shop) as ps:
        found = messages(ps, "again")
    assert sorted(json.loads(m.value)["n"] for m in found) == [n for n in range(10) if n != 7]
    assert all(m.headers["penstock-replayed-from"].startswith(b"orders/") for m in found)
    if lake_format == "delta":
        replay(
            *(spark, shop, shop, "again"),
            name="r2",
            from_topic="orders",
            where="offset >= 155",
            priority="background",
        )
        with penstock.connect(shop) as ps:
            assert len(messages(ps, "again")) == len(found) + 10
            assert Counter(m.priority for m in messages(ps, "again")) == {2: len(found), 4: 10}
        last = compact(spark, table, unique_by="key")
        assert last.rows_after == 10 + 20  # the last of each key, and those without one


@pytest.mark.parametrize("lake_format", ["delta", "iceberg"])
def test_an_archive_by_other_columns_is_read_and_compacted_alike(
    spark: SparkSession, shop: str, tmp_path: Path, lake_format: Any
) -> None:
    from penstock.spark.lake import found_lake
    from penstock.spark.pipelines import archive, compact, read_lake

    lake, table = str(tmp_path / "lake"), str(tmp_path / "lake" / "orders")
    given: dict[str, Any] = {"lake_format": lake_format, "schema": "n int not null, city string"}
    layout = {"partition_by": ["city", "partition"], "statistics": ["n"]}
    assert archive(spark, shop, lake, ["orders"], **given, **layout).rows == 300
    with penstock.connect(shop) as ps:
        trim(ps, "orders", 100)
        for number in range(300, 320):
            ps.publish("orders", json.dumps({"n": number}), partition=number % 2)
    assert archive(spark, shop, lake, ["orders"], **given).rows == 20
    small = compact(spark, table, unique_by="id")
    assert (small.rows_before, small.rows_after) == (314, 314)
    files = found_lake(table).files()
    assert compact(spark, table, unique_by="id").files_after == small.files_after
    assert found_lake(table).files() == files  # nothing has changed, so nothing was done
    rows = read_lake(spark, table).select("n", "city", "partition", "date").collect()
    assert sorted(row.n for row in rows) == [n for n in range(320) if n % 50 != 7 or n >= 300]
    assert {(row.city, row.partition) for row in rows if row.n >= 300} == {(None, 0), (None, 1)}
    assert all(row.date for row in rows)
    reader = spark.read.format("penstock").options(path=shop, subscribe="orders")
    both = reader.options(tier="lake+log", lake=lake).load()
    places = Counter((r.partition, r.offset) for r in both.select("partition", "offset").collect())
    assert places == Counter((p, o) for p in range(2) for o in range(160))

    with penstock.connect(shop) as ps:
        ps.publish("orders", json.dumps({"n": 1 << 40}), partition=0)
    given["schema"] = "n bigint not null, city string"
    if lake_format == "delta":
        with pytest.raises(InvalidInput, match="--widen"):
            archive(spark, shop, lake, ["orders"], **given)
        with pytest.raises(InvalidInput, match="is not wider"):
            compact(spark, table, widen="n smallint")
        assert compact(spark, table, widen="n bigint").rows_after == 314
    assert archive(spark, shop, lake, ["orders"], **given).rows == 1
    found = read_lake(spark, table).selectExpr("count(*)", "max(n)", "sum(n) - max(n)").first()
    assert tuple(found) == (315, 1 << 40, sum(row.n for row in rows))
    assert archive(spark, shop, lake, ["orders"], **given).rows == 0


def test_a_replay_may_follow_what_comes_and_sends_it_once(
    spark: SparkSession, shop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.spark.pipelines import replay

    wanted = "get_json_object(string(value), '$.n') >= 298"

    def run(most: int) -> int:
        lines: list[str] = []

        def report(line: str) -> None:
            lines.append(line)
            with penstock.connect(shop) as ps:
                ps.publish("orders", json.dumps({"n": 1000 + len(lines)}))
            if len(lines) == most:
                raise KeyboardInterrupt

        done = replay(
            *(spark, shop, shop, "again"),
            name="f",
            from_topic="orders",
            where=wanted,
            every_s=0.05,
            report=report,
        )
        return done.messages

    assert run(most=2) == 3
    assert run(most=1) == 1
    waited: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: 0.0, sleep=waited.append)
    monkeypatch.setattr(sys.modules[replay.__module__], "time", clock)
    given: dict[str, Any] = {"from_topic": "orders", "rate": 40}
    nothing = replay(spark, shop, shop, "again", name="n", where="1 = 0", **given)
    assert (nothing.messages, nothing.offsets) == (0, 303)
    assert sum(waited) == 0, "what is not sent takes no time"
    with penstock.connect(shop) as ps:
        ps.create_topic("slowly")
    replay(spark, shop, shop, "slowly", name="m", where=wanted, **given)
    assert sum(waited) == pytest.approx(5 / 40)
    with penstock.connect(shop) as ps:
        found = sorted(json.loads(m.value)["n"] for m in messages(ps, "again"))
    assert found == [298, 299, 1001, 1002]


def test_rows_that_are_no_json_of_the_schema_say_why(
    spark: SparkSession, folder: str, tmp_path: Path
) -> None:
    from penstock.spark.pipelines import archive, read_lake

    why = {
        '{"n": 1, "city": "x"}': None,
        '{"n": 2}': None,
        "": "the value is empty",
        "  ": "the value is empty",
        "apples": "not JSON",
        "5": "JSON, but not an object",
        "[]": "JSON, but not an object",
        '{"n": "one"}': "field n is not int",
        '{"n": 1.5}': "field n is not int",
        '{"city": "x"}': "field n is missing",
        '{"n": 3} and more': "there is more behind the JSON",
    }
    with penstock.connect(folder) as ps:
        ps.create_topic("orders", retention="1h")
        ps.publish("orders", '{"n": 0}')
    lake = str(tmp_path / "lake")
    archive(spark, folder, lake, ["orders"])  # a schema is thought of later
    with penstock.connect(folder) as ps:
        ps.publish_batch("orders", list(why))
        ps.publish("orders", None)
    archive(spark, folder, lake, ["orders"], schema="n int not null, city string")
    bad = read_lake(spark, f"{lake}/orders.bad").select("value", "reason").collect()
    found = {
        row.value if row.value is None else bytes(row.value).decode(): row.reason for row in bad
    }
    assert found.pop(None) == "there is no value"
    assert found == {value: reason for value, reason in why.items() if reason}
    table = deltalake.DeltaTable(f"{lake}/orders").to_pyarrow_table()
    assert sorted(n for n in table["n"].to_pylist() if n) == [1, 2]
    assert len(table) == 3
    with penstock.connect(folder) as ps:
        ps.publish("orders", '{"n": 4.5}')
    with pytest.raises(InvalidInput, match="column 'n' of the table"):
        archive(spark, folder, lake, ["orders"], schema="n double")
    with penstock.connect(folder) as ps:  # retention may not drop what is not in the lake
        assert set(ps.describe_stream_group("archive").lag.values()) == {1}


def test_dead_letters_and_rollup(spark: SparkSession, shop: str, tmp_path: Path) -> None:
    from penstock.spark.pipelines import dead_letters, rollup

    with penstock.connect(shop) as ps:
        for message in ps.receive("orders", "billing", max_messages=30):
            if message.offset % 3 == 0:
                message.reject("no such customer")
            else:
                message.ack()
        rejected = len(ps.dead_letters("orders"))
    triaged = dead_letters(spark, shop, ["orders"])
    assert triaged.letters == triaged.chosen == rejected > 0
    assert {(c.reason, c.error) for c in triaged.causes} == {("rejected", "no such customer")}
    assert all(1 <= len(c.samples) <= 3 for c in triaged.causes)
    chosen = "cast(get_json_object(cast(value as string), '$.n') as int) < 10"
    some = dead_letters(spark, shop, ["orders"], action="redrive", where=chosen)
    assert 0 < some.redriven == some.chosen < rejected
    gone = dead_letters(spark, shop, ["orders"], action="discard")
    assert gone.discarded == rejected - some.redriven
    with penstock.connect(shop) as ps:
        assert len(ps.dead_letters("orders")) == 0
        assert len(messages(ps, "orders")) == 300 + some.redriven

    out = tmp_path / "out"
    done = rollup(spark, shop, ["orders"], str(out))
    assert done.messages == done.new_messages == 300 + some.redriven
    assert done.groups == 1
    page = Path(done.chart).read_text()
    assert "Messages by priority" in page
    assert "billing" in page
    groups = spark.read.parquet(str(out / "groups"))
    (total,) = groups.where("priority is null").collect()
    assert total.lag == sum(row.lag for row in groups.where("priority is not null").collect())
    assert total.oldest_age_s > 0
    assert done.latency_minutes >= 1
    assert "How long messages take" in page
    latencies = spark.read.parquet(str(out / "latencies")).where("priority is null")
    counted: Counter[str] = Counter()
    for row in latencies.collect():
        counted[row.kind] += row.messages
    assert counted == {"waited": 30, "handled": 30 - rejected}

    with penstock.connect(shop) as ps:  # what was counted stays counted when the log drops it
        trim(ps, "orders", 150)
        ps.publish("orders", "x" * 1000, priority="high", partition=0)
        ps.reset_stream_group("audit", "orders", "earliest")
    again = rollup(spark, shop, ["orders"], str(out))
    assert (again.messages, again.new_messages) == (done.messages + 1, 1)
    assert again.bytes == done.bytes + 1000
    assert again.groups == 2
    assert again.latency_minutes == done.latency_minutes  # nothing was handed out since
    table = spark.read.parquet(str(out / "per_minute"))
    assert table.selectExpr("sum(messages)").first()[0] == again.messages
    assert [r.bytes for r in table.where("priority = 1").collect()] == [1000]
    assert rollup(spark, shop, ["orders"], str(out)).new_messages == 0
    with penstock.connect(shop, exclusive=True):
        alone = rollup(spark, shop, ["orders"], str(tmp_path / "alone"))
    assert (alone.groups, alone.latency_minutes) == (0, 0)
    assert "no lag of groups and no latencies" in alone.notes[0]
    assert not (tmp_path / "alone" / "latencies").exists()


def test_an_archive_goes_on_behind_what_was_lost_if_it_is_told_to(
    spark: SparkSession, shop: str, tmp_path: Path
) -> None:
    from penstock.spark.pipelines import archive, read_lake

    lake = str(tmp_path / "lake")
    assert archive(spark, shop, lake, ["orders"]).rows == 300
    with penstock.connect(shop) as ps:
        for number in range(100):
            ps.publish("orders", f"{number}", partition=0)
        trim(ps, "orders", 200)
    with pytest.raises(DataLost, match="orders/0: offsets 150 up to 200 were dropped"):
        archive(spark, shop, lake, ["orders"])
    done = archive(spark, shop, lake, ["orders"], fail_on_data_loss=False)
    assert done.topics == {"orders": 50}
    assert done.notes == ["orders/0: offsets 150 up to 200 were dropped before they were archived"]
    assert read_lake(spark, f"{lake}/orders").count() == 350
    assert archive(spark, shop, lake, ["orders"]).rows == 0

    with penstock.connect(shop) as ps:
        publish_and_damage(ps, "hurt")
    done = archive(spark, shop, lake, ["hurt"], fail_on_data_loss=False)
    assert done.topics == {"hurt": 2}
    (note,) = done.notes
    assert note.startswith("hurt: 1 of 3 messages could not be read")
    assert archive(spark, shop, lake, ["hurt"]).notes == []
