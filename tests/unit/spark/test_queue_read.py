"""Queue mode, planned as Spark plans it, on reader objects."""

from __future__ import annotations

import json
import pickle
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StringType, StructField, StructType

import penstock
from penstock.errors import InvalidInput
from penstock.spark.columns import read_schema
from penstock.spark.options import parse_read_options, parse_write_options
from penstock.spark.queue_batches import QueueBatches
from penstock.spark.queue_read import SUSPECTS_MAX, QueueReader, queue_schema
from penstock.spark.supervise import note_failure
from penstock.spark.verdict_sink import VerdictWriter
from tests.inside import broker_of
from tests.integration.server.running import RunningServer
from tests.unit.spark.rows import rows_of
from tests.unit.spark.s3 import s3  # noqa: F401 - a fixture

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
    first = values(again, end)
    assert first == before[:5]  # it has failed: half of it at a time
    assert values(again, end) == first
    second = again.latestOffset(end, LIMIT)
    assert values(again, second) == before[5:]
    assert again.latestOffset(second, LIMIT) == second
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


class Driver:
    """Plays a program that starts its query again whenever a batch of it fails."""

    def __init__(self, folder: str, poison: set[str], told: bool = True, **options: str) -> None:
        self.folder, self.poison, self.told, self.options = folder, poison, told, options
        self.end: dict[str, str] = {"batch": ""}
        self.done: list[str] = []
        self.attempts: Counter[str] = Counter()

    def run(self) -> None:
        while self._query():
            pass

    def _query(self) -> bool:
        """One life of the query; whether it failed."""
        made, start = reader(self.folder, **self.options), self.end
        if self.end["batch"] and self._failed(made):
            return True
        while True:
            self.end = made.latestOffset(start, LIMIT)
            if self.end == start:
                return False
            if self._failed(made):
                return True
            start = self.end

    def _failed(self, made: QueueReader) -> bool:
        rows = values(made, self.end)
        bad = self.poison & set(rows)
        self.attempts.update(bad)
        if bad and self.told:
            storage = json.loads(self.options.get("stagingStorage", "{}"))
            batches = QueueBatches(self.end["staging"], storage)
            batches.note_error(self.end["batch"], f"ValueError: {sorted(bad)[0]} is poison")
        if not bad:
            self.done += rows
        return bool(bad)


def letters(folder: str) -> dict[bytes, str]:
    with penstock.connect(folder) as ps:
        return {letter.value: letter.error for letter in ps.dead_letters("jobs").list()}


@pytest.mark.parametrize("told", [True, False])
def test_poison_stands_alone_in_the_end_and_dies_alone(jobs: str, told: bool) -> None:
    driver = Driver(jobs, {"3", "7"}, told)
    driver.run()
    assert sorted(driver.done) == sorted(set("0123456789") - {"3", "7"})
    found = letters(jobs)
    assert found.keys() == {b"3", b"7"}
    if told:
        assert found[b"7"] == "ValueError: 7 is poison"
    else:
        assert "batches with this message failed, the last had it alone" in found[b"7"]
    assert stats(jobs).depth == 0
    assert not list(Path(jobs, "spark", "queue-spark").iterdir())


def test_messages_may_wait_in_an_object_store(jobs: str, s3: dict[str, str]) -> None:  # noqa: F811
    given = {"staging": "s3://lake/spool", "stagingStorage": json.dumps(s3)}
    made = reader(jobs, **given)
    driver = Driver(jobs, {"3"}, minPartitions="2", **given)
    driver.end = made.latestOffset(made.initialOffset(), LIMIT)
    planned = made.partitions({}, driver.end)
    far_away = pickle.loads(cloudpickle.dumps(made))  # as Spark brings it to an executor
    assert len(rows_of(far_away, planned)) == 10
    driver.run()
    assert sorted(driver.done) == sorted(set("0123456789") - {"3"})
    assert letters(jobs) == {b"3": "ValueError: 3 is poison"}
    assert stats(jobs).depth == 0
    batches = QueueBatches("s3://lake/spool/queue-spark", s3)
    assert (batches.waiting_receipts(), batches.successes) == ([], 0)
    assert not Path(jobs, "spark").exists()


def test_one_poison_row_of_ten_thousand_is_one_dead_letter_after_fifteen_attempts(
    folder: str,
) -> None:
    with penstock.connect(folder) as ps:
        ps.create_topic("jobs")
        ps.publish_batch("jobs", [f"{number}" for number in range(10_000)])
    driver = Driver(folder, {"6789"}, told=False)
    driver.run()
    assert len(driver.done) == 9999
    assert driver.attempts["6789"] <= 15
    assert letters(folder).keys() == {b"6789"}
    assert stats(folder).depth == 0


def test_when_everything_fails_nothing_dies_of_it(folder: str) -> None:
    """The database is down: the messages are given back, and come again."""
    with penstock.connect(folder) as ps:
        ps.create_topic("jobs", max_retries=3, backoff=("1h", 1.0, "1h"))
        ps.publish_batch("jobs", [f"{number}" for number in range(18)])
    driver = Driver(folder, {f"{number}" for number in range(18)})
    driver.run()
    assert (driver.done, letters(folder)) == ([], {})
    assert (stats(folder).depth, stats(folder).retrying) == (18, 18)
    assert sum(driver.attempts.values()) < 18 * 5 + SUSPECTS_MAX


def test_a_message_alone_in_its_queue_is_tried_as_often_as_its_topic_says(folder: str) -> None:
    with penstock.connect(folder) as ps:
        ps.create_topic("jobs", max_retries=2, backoff=("1ms", 1.0, "1ms"))
        ps.publish("jobs", "only")
    driver = Driver(folder, {"only"})
    for _ in range(3):
        driver.run()
        time.sleep(0.02)
    assert letters(folder) == {b"only": "ValueError: only is poison"}
    assert driver.attempts["only"] == 3


def test_a_crash_while_a_batch_is_halved_does_no_message_twice(
    jobs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = reader(jobs).latestOffset({"batch": ""}, LIMIT)
    rows = values(reader(jobs), end)
    with monkeypatch.context() as patch:
        patch.setattr(QueueBatches, "write", die)  # the second half is written under a new name
        patch.setattr(QueueBatches, "add", QueueBatches.add)
        with pytest.raises(ZeroDivisionError):
            reader(jobs).partitions({}, end)
    batches = QueueBatches(str(Path(jobs, "spark", "queue-spark")))
    whole = batches.read(end["batch"])
    QueueBatches.write(batches, "f" * 32, whole.slice(5), "waiting")  # which is as far as it got
    driver = Driver(jobs, set())
    driver.end = end
    driver.run()
    assert sorted(driver.done) == sorted(rows)
    assert stats(jobs).depth == 0


def die(*_: object, **__: object) -> None:
    raise ZeroDivisionError


def test_what_a_query_ended_with_is_kept_for_the_dead_letter(jobs: str) -> None:
    end = reader(jobs).latestOffset({"batch": ""}, LIMIT)
    said = f"boom\nCurrent Available Offsets: {{PythonMicroBatchStream: {json.dumps(end)}}}"
    assert note_failure(StreamingQueryException(said))
    assert "boom" in QueueBatches(end["staging"]).error_of(end["batch"])
    assert not note_failure(StreamingQueryException("no batch"))


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


VERDICT = StructType([StructField(n, StringType()) for n in ("receipt", "verdict", "error")])


def test_rows_decide_what_becomes_of_their_messages(jobs: str) -> None:
    made = reader(jobs)
    end = made.latestOffset({"batch": ""}, LIMIT)
    rows = rows_of(made, made.partitions({}, end))
    said = {b"1": ("reject", "no such customer"), b"2": ("retry", "later"), b"3": ("ack", None)}
    verdicts = [
        {
            "receipt": row["receipt"],
            "verdict": said[row["value"]][0],
            "error": said[row["value"]][1],
        }
        for row in rows
        if row["value"] in said
    ]
    options = parse_write_options({"path": jobs, "mode": "queue", "group": "spark"}, stream=True)
    writer = VerdictWriter(options, VERDICT)
    told = writer.write(iter([pa.RecordBatch.from_pylist(verdicts)]))
    for _ in range(2):  # the second time there is nothing left to settle
        writer.commit([told, None], 0)
    assert letters(jobs) == {b"1": "no such customer"}
    time.sleep(0.01)
    again = made.latestOffset(end, LIMIT)
    assert values(made, again) == ["2"]
    assert made.latestOffset(again, LIMIT) == again
    assert stats(jobs).depth == 0


def test_a_verdict_that_is_none_is_refused(jobs: str) -> None:
    options = parse_write_options({"path": jobs, "mode": "queue", "group": "spark"})
    row = {"receipt": "x", "verdict": "maybe", "error": None}
    with pytest.raises(InvalidInput, match="not one of ack, retry, reject"):
        VerdictWriter(options, VERDICT).write(iter([pa.RecordBatch.from_pylist([row])]))
    with pytest.raises(InvalidInput, match="column 'verdict' is needed"):
        VerdictWriter(options, StructType(VERDICT.fields[:1]))
    for wrong in ({"mode": "queue"}, {"group": "spark"}, {"mode": "x", "group": "spark"}):
        with pytest.raises(InvalidInput):
            parse_write_options({"path": jobs, **wrong})


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
