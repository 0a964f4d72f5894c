"""Queue mode, planned as Spark plans it, on reader objects."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

import penstock
from penstock.errors import InvalidInput
from penstock.spark.columns import read_schema
from penstock.spark.options import parse_read_options
from penstock.spark.queue_read import RUNS_MAX, QueueReader, queue_schema
from tests.inside import broker_of
from tests.integration.server.running import RunningServer
from tests.unit.spark.rows import rows_of

LIMIT = ReadAllAvailable()


def reader(folder: str, **options: str) -> QueueReader:
    given = {"path": folder, "subscribe": "jobs", "mode": "queue", "group": "spark", **options}
    return QueueReader(parse_read_options(given), queue_schema(read_schema(False)))


def values(made: QueueReader, end: dict[str, str]) -> list[str]:
    planned = made.partitions({"batch": "whatever"}, json.loads(json.dumps(end)))
    return [row["value"].decode() for row in rows_of(made, planned)]


def stats(folder: str) -> Any:
    with penstock.connect(folder) as ps:
        return ps.stats("jobs").groups[0]


@pytest.fixture
def jobs(folder: str) -> str:
    with penstock.connect(folder) as ps:
        ps.create_topic("jobs", max_retries=1, backoff=("1ms", 1.0, "1ms"))
        for number in range(10):
            ps.publish("jobs", f"{number}", priority="low" if number < 8 else "critical")
        ps.publish("jobs", "late", delay="1h")
    return folder


def test_a_batch_is_leased_by_priority_and_acked_when_the_next_is_planned(jobs: str) -> None:
    made = reader(jobs, maxOffsetsPerTrigger="4", minPartitions="2")
    first = made.latestOffset(made.initialOffset(), LIMIT)
    assert {"8", "9"} <= set(values(made, first))
    assert len(made.partitions({}, first)) == 2
    assert (stats(jobs).in_flight, stats(jobs).depth) == (4, 10)
    second = made.latestOffset(first, LIMIT)
    assert (stats(jobs).in_flight, stats(jobs).depth) == (4, 6)
    third = made.latestOffset(second, LIMIT)
    assert len(values(made, third)) == 2
    assert made.latestOffset(third, LIMIT) == third
    assert (stats(jobs).in_flight, stats(jobs).depth) == (0, 0)


def test_a_query_that_is_started_again_runs_the_same_batch(jobs: str) -> None:
    end = reader(jobs).latestOffset({"batch": ""}, LIMIT)
    before = values(reader(jobs), end)
    again = reader(jobs)
    assert again.initialOffset() == {"batch": ""}
    assert values(again, end) == before
    assert again.latestOffset(end, LIMIT) == end
    assert stats(jobs).depth == 0
    assert values(again, end) == []


def test_messages_of_a_failed_batch_come_back_and_then_die(jobs: str, tmp_path: Path) -> None:
    """On a server: the time of a lease runs while a broker is at work."""
    with penstock.connect(jobs) as ps, RunningServer(broker_of(ps)) as server:

        def query() -> QueueReader:
            return reader("", url=server.url, staging=str(tmp_path), visibility="500ms")

        def leases_are_over() -> None:
            deadline = time.monotonic() + 30
            while ps.stats("jobs").in_flight and time.monotonic() < deadline:
                time.sleep(0.02)

        first = query().latestOffset({"batch": ""}, LIMIT)
        leases_are_over()
        # Nobody came back for the batch in time: another query gets the messages.
        other = query()
        second = other.latestOffset({"batch": ""}, LIMIT)
        assert second["batch"] not in ("", first["batch"])
        path = Path(tmp_path, "queue-spark", f"{second['batch']}.arrow")
        counts = pa.ipc.open_file(path.read_bytes()).read_all().column("delivery_count")
        assert set(counts.to_pylist()) == {2}
        assert values(query(), first) == []
        leases_are_over()
        query().latestOffset({"batch": ""}, LIMIT)
        assert len(ps.dead_letters("jobs")) == 10


def test_a_batch_that_fails_again_and_again_is_given_back_and_dies(jobs: str) -> None:
    end = {"batch": ""}
    for _ in range(2):  # so often a message of this topic is tried
        time.sleep(0.01)  # the backoff
        end = reader(jobs).latestOffset(end, LIMIT)
        for _ in range(RUNS_MAX):
            assert len(values(reader(jobs), end)) == 10
        assert values(reader(jobs), end) == []
    assert reader(jobs).latestOffset(end, LIMIT) == end
    with penstock.connect(jobs) as ps:
        errors = {letter.error for letter in ps.dead_letters("jobs")}
        assert errors == {"a batch of 10 with this message failed 3 times"}
        assert len(ps.dead_letters("jobs")) == 10
    assert not list(Path(jobs, "spark", "queue-spark").iterdir())


def test_poison_is_rejected_and_the_rest_is_acked(jobs: str) -> None:
    made = reader(jobs)
    end = made.latestOffset({"batch": ""}, LIMIT)
    rows = rows_of(made, made.partitions({}, end))
    with penstock.connect(jobs) as ps:
        ps.reject("spark", [r["receipt"] for r in rows if r["value"] == b"3"], reason="poison")
    assert made.latestOffset(end, LIMIT) == end
    with penstock.connect(jobs) as ps:
        (letter,) = ps.dead_letters("jobs").list()
    assert (letter.value, letter.error) == (b"3", "poison")
    assert stats(jobs).depth == 0


def test_available_now_ends(jobs: str) -> None:
    made = reader(jobs, maxOffsetsPerTrigger="8")
    made.prepareForTriggerAvailableNow()
    first = made.latestOffset({"batch": ""}, LIMIT)
    with penstock.connect(jobs) as ps:
        ps.publish_batch("jobs", ["more"] * 5)
    second = made.latestOffset(first, LIMIT)
    assert len(values(made, first)) + len(values(made, second)) <= 10
    assert made.latestOffset(second, LIMIT) == second


@pytest.mark.parametrize(
    "wrong",
    [
        {"group": ""},
        {"startingOffsets": "earliest"},
        {"mode": "bag"},
        {"visibility": "soon"},
        {"path": "", "url": "http://127.0.0.1:1"},
    ],
)
def test_wrong_options_are_refused(jobs: str, wrong: dict[str, str]) -> None:
    with pytest.raises(InvalidInput):
        reader(jobs, **wrong)
