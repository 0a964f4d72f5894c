"""The sink without a session: what rows become, and that a batch is published once."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    BinaryType,
    DataType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

import penstock
from penstock.client.client import Client
from penstock.errors import DataFolderInUse, InvalidInput, ProducerFenced, TopicNotFound
from penstock.record.batch import Batch
from penstock.spark import connect
from penstock.spark.connect import connected
from penstock.spark.options import Target, parse_write_options
from penstock.spark.outgoing import check_schema, to_messages
from penstock.spark.sink import BatchWriter
from penstock.spark.staging import Staging
from tests.unit.spark.crashing import die_at

NOW_US = 1_000_000_000


def schema(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def rows(topic: str = "out", **columns: Any) -> pa.RecordBatch:
    return to_messages(pa.RecordBatch.from_pydict(columns), topic, NOW_US)


def everything(folder: str, topic: str = "out") -> list[Any]:
    with penstock.connect(folder) as ps:
        partitions = range(ps.describe_topic(topic).partitions)
        return [m for p in partitions for m in ps.peek(topic, partition=p, limit=100_000)]


@pytest.fixture
def out(folder: str) -> str:
    with penstock.connect(folder) as ps:
        ps.create_topic("out", partitions=3)
    return folder


def test_rows_become_messages(out: str) -> None:
    staging = Staging(os.path.join(out, "spark"), "query")
    batch = pa.RecordBatch.from_pydict(
        {
            "value": ["a", "b", None],
            "key": [b"k", None, None],
            "headers": [[{"k": "h", "v": "1"}], None, []],
            "priority": ["high", None, "background"],
            "partition": pa.array([None, 2, 0], pa.int64()),
            "topic": ["out", "out", "other"],
            "expires_at": [None, datetime(2100, 1, 1, tzinfo=UTC), None],
            "offset": [7, 8, 9],
        }
    )
    file = staging.stage(0, 0, [to_messages(batch, "", NOW_US)])
    with penstock.connect(out) as ps:
        ps.create_topic("other")
        assert staging.publish(0, [file], ps) == 3
    found = {m.value: m for m in everything(out)}
    assert set(found) == {b"a", b"b"}
    assert found[b"a"].headers == {"h": b"1"}
    assert (found[b"a"].key, found[b"a"].priority) == (b"k", 1)
    assert found[b"b"].expires_at_us == 4_102_444_800_000_000
    (other,) = everything(out, "other")
    assert (other.value, other.priority, other.headers) == (None, 4, {})


def test_headers_may_be_a_map() -> None:
    kind = pa.map_(pa.string(), pa.string())
    headers = pa.array([[("a", "1"), ("b", None)], None, []], kind)
    made = rows(value=[b"x"] * 3, headers=headers)
    assert made.column("headers").to_pylist() == [
        [{"key": "a", "value": b"1"}, {"key": "b", "value": None}],
        None,
        [],
    ]


def test_delays_are_seconds_text_or_a_time() -> None:
    due = rows(value=[b"x"] * 3, delay=[1.5, None, 0.0]).column("deliver_at")
    assert due.view(pa.int64()).to_pylist() == [NOW_US + 1_500_000, None, None]
    due = rows(value=[b"x"] * 2, delay=["30s", "1h"]).column("deliver_at")
    assert due.view(pa.int64()).to_pylist() == [NOW_US + 30_000_000, NOW_US + 3_600_000_000]


@pytest.mark.parametrize(
    ("columns", "topic", "said"),
    [
        ({"key": BinaryType()}, "out", "column 'value' is needed"),
        ({"value": BinaryType()}, "", "option 'topic'"),
        ({"value": BinaryType(), "amount": LongType()}, "out", "'amount' is none of a message"),
        ({"value": LongType()}, "out", "'value' is of type bigint"),
        (
            {"value": BinaryType(), "delay": LongType(), "deliver_at": TimestampType()},
            "out",
            "not both",
        ),
    ],
)
def test_a_query_that_cannot_be_published_is_refused(
    columns: dict[str, DataType], topic: str, said: str
) -> None:
    with pytest.raises(InvalidInput, match=said):
        check_schema(schema(**columns), topic)


def test_rows_that_cannot_be_published_are_refused() -> None:
    with pytest.raises(InvalidInput, match="no topic"):
        to_messages(pa.RecordBatch.from_pydict({"value": ["a"], "topic": [None]}), "", 0)
    with pytest.raises(InvalidInput, match="priority"):
        rows(value=["a"], priority=["urgent"])
    with pytest.raises(InvalidInput, match="priority"):
        rows(value=["a"], priority=[9])
    with pytest.raises(InvalidInput, match="negative"):
        rows(value=["a"], delay=[-1])


def test_a_batch_is_published_once_however_often_it_runs(out: str) -> None:
    staging = Staging(os.path.join(out, "spark"), "query")
    values = [f"{n}" for n in range(1000)]
    with penstock.connect(out) as ps:
        for _ in range(3):
            files = [staging.stage(4, t, [rows(value=values[t::2])]) for t in range(2)]
            staging.publish(4, files, ps)
        assert staging.done == 4
        staging.publish(5, [staging.stage(5, 0, [rows(value=["next"])])], ps)
    found = Counter(m.value.decode() for m in everything(out))
    assert found == Counter([*values, "next"])
    assert sorted(os.listdir(os.path.join(out, "spark", "query"))) == ["done"]


@pytest.mark.parametrize(
    ("first", "stride"),
    [(1, 7), pytest.param(0, 1, marks=[pytest.mark.torture, pytest.mark.timeout(0)])],
)
def test_a_commit_that_is_killed_at_any_step_is_finished_as_it_was_decided(
    out: str, first: int, stride: int
) -> None:
    """The second attempt has the rows in another order: the two must not be mixed."""
    expected: list[str] = []
    crashes = 0
    for step in count(first, stride):
        staging = Staging(os.path.join(out, "spark"), f"query-{step}")
        values = [f"{step}:{n}" for n in range(300)]

        def attempt(seed: int, values: list[str] = values, staging: Staging = staging) -> None:
            mine = random.Random(seed).sample(values, len(values))
            parts = [rows(value=mine[t::3], key=[v[-1] for v in mine[t::3]]) for t in range(3)]
            files = [staging.stage(0, t, [part]) for t, part in enumerate(parts)]
            with penstock.connect(out) as ps:
                staging.publish(0, files, ps)

        crashed = die_at(step, lambda attempt=attempt: attempt(1))
        attempt(2)
        expected += values
        crashes += crashed
        if not crashed:
            break
    assert crashes * stride > 40
    assert Counter(m.value.decode() for m in everything(out)) == Counter(expected)


class Weighing:
    """A client that notes how many bytes of messages are sent at once."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.sent: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def publish_batch(self, topic: str, batch: Batch, **kwargs: Any) -> None:
        self.sent.append(int(batch.message_bytes().sum()))
        self._client.publish_batch(topic, batch, **kwargs)

    def schedule_batch(self, topic: str, batch: Batch, **kwargs: Any) -> None:
        self.sent.append(int(batch.message_bytes().sum()))
        self._client.schedule_batch(topic, batch, **kwargs)


@pytest.mark.parametrize("due_s", [None, 3600], ids=["now", "later"])
def test_a_few_long_rows_among_many_short_ones_are_not_sent_at_once(
    out: str, due_s: float | None
) -> None:
    """A broker would refuse them for ever, since they are decided on."""
    due = datetime.fromtimestamp(time.time() + due_s, UTC) if due_s else None
    long = [bytes([n]) * (3 << 20) for n in range(4)]
    values = [*[b"short"] * 2000, *long, b"z" * (9 << 20), *[b"short"] * 2000]
    staging = Staging(os.path.join(out, "spark"), "query")
    part = rows(value=values, deliver_at=[due] * len(values), partition=[0] * len(values))
    with penstock.connect(out) as ps:
        weighing = Weighing(ps)
        staging.publish(0, [staging.stage(0, 0, [part])], weighing)
        waiting = [each.message.value for each in ps.delayed("out")]
    assert max(weighing.sent) < 10 << 20
    assert len(weighing.sent) == 4
    stored = [m.value for m in everything(out)]
    assert (stored, waiting) == (([], values) if due else (values, []))


class Dying:
    """A client whose process ends right after delayed messages were stored."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def schedule_batch(self, *args: Any, **kwargs: Any) -> None:
        self._client.schedule_batch(*args, **kwargs)
        raise SystemExit


@pytest.mark.parametrize("due_s", [3600, 0.1])
def test_delayed_rows_are_sent_once_too(out: str, due_s: float) -> None:
    """Also when they have fallen due before the batch runs again."""
    due = datetime.fromtimestamp(time.time() + due_s, UTC)
    part = rows(value=["now", "late"], deliver_at=[None, due])
    staging = Staging(os.path.join(out, "spark"), "late")
    with penstock.connect(out) as ps:
        with pytest.raises(SystemExit):
            staging.publish(0, [staging.stage(0, 0, [part])], Dying(ps))
        deadline = time.monotonic() + 30
        while due_s < 1 and list(ps.delayed("out")) and time.monotonic() < deadline:
            time.sleep(0.02)
        staging.publish(0, [staging.stage(0, 0, [part])], ps)
        waiting = [each.message.value for each in ps.delayed("out")]
    stored = sorted(m.value for m in everything(out))
    assert (stored, waiting) == (([b"now"], [b"late"]) if due_s > 1 else ([b"late", b"now"], []))


def test_delayed_rows_of_many_pieces_are_sent_once_wherever_it_dies(out: str) -> None:
    due = datetime.fromtimestamp(time.time() + 3600, UTC)
    values = [bytes([n]) * (5 << 20) for n in range(3)]
    staging = Staging(os.path.join(out, "spark"), "late")
    files = [staging.stage(0, 0, [rows(value=values, deliver_at=[due] * 3)])]
    with penstock.connect(out) as ps:
        for _ in values:  # one piece more each time
            with pytest.raises(SystemExit):
                staging.publish(0, files, Dying(ps))
        assert staging.publish(0, files, ps) == 3
        waiting = [each.message.value for each in ps.delayed("out")]
    assert sorted(waiting) == values


def test_a_partition_that_is_added_meanwhile_moves_nothing(out: str) -> None:
    staging = Staging(os.path.join(out, "spark"), "query")
    values = [f"{n}" for n in range(200)]
    files = [staging.stage(0, 0, [rows(value=values, key=values)])]
    with penstock.connect(out) as ps:
        staging._decide(0, files, ps)
        ps.alter_topic("out", partitions=5)
        staging.publish(0, [], ps)
        assert [p.end > 0 for p in ps.stats("out").partitions] == [True] * 3 + [False] * 2
    assert Counter(m.value.decode() for m in everything(out)) == Counter(values)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"value": ["a", "b"], "partition": [0, 7]}, "partition 7 of out; there are 0 to 2"),
        ({"value": ["a", "b"], "partition": [-1, 0]}, "partition -1 of out"),
        ({"value": ["a", "b" * (11 << 20)]}, "message of 11534336 bytes; out takes at most"),
        ({"value": ["a"], "deliver_at": [datetime.now(UTC) + timedelta(days=91)]}, "90 days"),
    ],
    ids=["beyond", "below", "too-long", "too-late"],
)
def test_a_batch_that_is_refused_can_be_mended(out: str, wrong: dict[str, Any], said: str) -> None:
    """A decision on what no broker takes would stop the query for ever."""
    staging = Staging(os.path.join(out, "spark"), "query")
    with penstock.connect(out) as ps:
        files = [staging.stage(0, 0, [rows(**wrong)])]
        with pytest.raises(InvalidInput, match=said):
            staging.publish(0, files, ps)
        staging.discard(0, files)
        staging.publish(0, [staging.stage(0, 0, [rows(value=["mended"])])], ps)
    assert [m.value for m in everything(out)] == [b"mended"]


def test_files_that_the_driver_does_not_see_are_an_error_that_says_so(out: str) -> None:
    staging = Staging(os.path.join(out, "spark"), "query")
    with penstock.connect(out) as ps, pytest.raises(InvalidInput, match="option 'staging'"):
        staging.publish(0, ["000000-elsewhere.arrow"], ps)


def test_a_driver_of_the_past_is_fenced_off(out: str) -> None:
    old = Staging(os.path.join(out, "spark"), "query")
    new = Staging(os.path.join(out, "elsewhere"), "query")
    part = rows(value=["a"], partition=[0])
    with penstock.connect(out) as ps:
        new.publish(1, [new.stage(1, 0, [part])], ps)
        with pytest.raises(ProducerFenced):
            old.publish(0, [old.stage(0, 0, [part])], ps)
    assert len(everything(out)) == 1


def test_abort_leaves_what_was_decided(out: str) -> None:
    staging = Staging(os.path.join(out, "spark"), "query")
    files = [staging.stage(0, 0, [rows(value=["a"])])]
    staging.discard(0, files)
    with penstock.connect(out) as ps:
        files = [staging.stage(0, 0, [rows(value=["b"], topic="missing")])]
        with pytest.raises(TopicNotFound):
            staging.publish(0, files, ps)
        ps.create_topic("missing")
        staging._decide(0, files, ps)
        staging.discard(0, files)
        staging.publish(0, [], ps)
    assert [m.value for m in everything(out, "missing")] == [b"b"]


def test_a_batch_write_leaves_nothing_behind_and_a_named_one_is_repeatable(out: str) -> None:
    def write(**options: str) -> None:
        given = parse_write_options({"path": out, "topic": "out", **options})
        writer = BatchWriter(given, schema(value=StringType()), overwrite=False)
        writer.commit([writer.write(iter([pa.RecordBatch.from_pydict({"value": ["a"]})]))])

    write()
    assert os.listdir(os.path.join(out, "spark")) == []
    write()
    assert len(everything(out)) == 2
    for batch in ("0", "1", "1", "0"):
        write(sinkId="replay", batchId=batch)
    assert len(everything(out)) == 4
    given = parse_write_options({"path": out, "topic": "out"})
    with pytest.raises(InvalidInput, match="append"):
        BatchWriter(given, schema(value=StringType()), overwrite=True)


def test_a_folder_that_a_program_works_on_is_reached_through_it(ps: Client, folder: str) -> None:
    ps.create_topic("shared")
    with connected(Target(path=folder)) as client:
        client.publish("shared", b"x")
    assert ps.peek("shared")[0].value == b"x"


def test_a_folder_that_a_program_has_for_itself_cannot_be_written_to(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(connect, "_PATIENCE_S", 0.1)
    folder = str(tmp_path / "held")
    with (
        penstock.connect(folder, exclusive=True),
        pytest.raises(DataFolderInUse),
        connected(Target(path=folder)),
    ):
        pass
    with pytest.raises(InvalidInput, match="no data folder"), connected(Target(path="/nowhere")):
        pass
    other = tmp_path / "letters"
    other.mkdir()
    with pytest.raises(InvalidInput, match="is no data folder"), connected(Target(path=str(other))):
        pass
    assert os.listdir(other) == []


def test_a_sink_id_with_another_checkpoint_is_refused(out: str) -> None:
    """Its batches begin with number 0 again, and would be left out as published."""
    staging = Staging(os.path.join(out, "spark"), "totals")
    staging.check_query("one")
    staging.check_query("one")
    with pytest.raises(InvalidInput, match="is that of query one, with another checkpoint"):
        staging.check_query("two")
