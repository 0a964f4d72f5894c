"""What an archive plans to do next, from what the log and its tables say; without a session."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

import penstock
from penstock.client.client import Client
from penstock.errors import GroupNotFound, InvalidInput
from penstock.spark.bounds import Range
from penstock.spark.lake import open_lake
from penstock.spark.lake_sink import LakeWriter
from penstock.spark.lake_table import TableChange, archived, topic_mark
from penstock.spark.options import Target, ValueFormat
from penstock.spark.pipelines.archive import (
    Archived,
    _next_round,
    _Work,
    archive,
    as_target,
)
from penstock.spark.pipelines.json_columns import Field, number_of_fields
from penstock.spark.pipelines.registry_values import reader_of
from penstock.spark.topic_reader import open_topic_reader
from tests.inside import broker_of

SCHEMA = pa.schema([("offset", pa.int64())])


@pytest.fixture
def lost() -> list[str]:
    """What planning found missing."""
    return []


@pytest.fixture
def plan(
    folder: str, ps: Client, durable: Callable[[], None], tmp_path: Path, lost: list[str]
) -> Callable[..., list[Range]]:
    """Plan a round with tables that have got to these offsets."""
    ps.create_topic("orders", partitions=2)
    for partition in range(2):
        ps.publish_batch("orders", [b"x"] * 100, partition=partition)
    durable()

    def planned(good: dict[int, int], bad: dict[int, int]) -> list[Range]:
        lakes = []
        for name, ends in (("good", good), ("bad", bad)):
            lakes.append(open_lake(str(tmp_path / name)))
            if ends:
                lakes[-1].commit(TableChange(SCHEMA, topic=of(ps, "orders"), ends=ends))
        with closing(open_topic_reader(Target(path=folder))) as place:
            found = _next_round(
                place, lakes, "orders", "orders", 1 << 30, lambda what, cure: lost.append(what)
            )
        assert found.starts == {part: good.get(part) for part in found.starts}
        assert found.again == any(end > good.get(part, 0) for part, end in bad.items())
        return found.parts

    return planned


def of(ps: Any, topic: str) -> str:
    """The topic that there is now, as tables name it."""
    stats = ps.stats(topic)
    return topic_mark(stats.topic, stats.incarnation)


def test_a_round_goes_on_where_the_table_is(plan: Callable[..., list[Range]]) -> None:
    assert plan({}, {}) == [Range("orders", 0, 0, 100), Range("orders", 1, 0, 100)]
    assert plan({0: 40, 1: 100}, {0: 10}) == [Range("orders", 0, 40, 100)]


def test_a_round_that_was_cut_short_between_its_tables_comes_again_as_it_was(
    plan: Callable[..., list[Range]],
) -> None:
    assert plan({0: 40, 1: 50}, {0: 70, 1: 50}) == [Range("orders", 0, 40, 70)]


def test_a_table_that_the_log_does_not_fit_is_an_error(
    plan: Callable[..., list[Range]],
) -> None:
    with pytest.raises(InvalidInput, match="it is another log"):
        plan({0: 101}, {})


def test_what_was_dropped_before_it_was_archived_is_said_and_passed_over(
    plan: Callable[..., list[Range]], ps: Client, lost: list[str]
) -> None:
    """Whoever is told decides whether that is an error."""
    broker_of(ps).topic(ps._name("orders")).partition(1).trim_to(10)
    assert plan({0: 100, 1: 5}, {}) == [Range("orders", 1, 10, 100)]
    assert lost == ["orders/1: offsets 5 up to 10 were dropped before they were archived"]


def work(folder: str, lake: Path, **more: Any) -> _Work:
    given = {"namespace": "default", "fields": [], "fail_on_data_loss": True, **more}
    return _Work(
        spark=None,  # type: ignore[arg-type] - planning needs none
        target=Target(path=folder, namespace=given["namespace"]),
        lake=str(lake),
        lake_format="delta",
        storage={},
        fields=given["fields"],
        registered=given.get("registered"),
        values_as=given.get("values_as", "columns"),
        group="archive",
        fail_on_data_loss=given["fail_on_data_loss"],
        round_bytes=1 << 30,
        report=print,
        done=Archived(),
    )


def test_topics_of_two_namespaces_have_tables_of_their_own(folder: str, tmp_path: Path) -> None:
    for namespace in ("default", "a", "b"):
        with penstock.connect(folder, namespace=namespace) as ps:
            ps.create_topic("orders")
            ps.publish_batch("orders", [b"x"] * 10)
    lake = tmp_path / "lake"
    jobs = [
        work(folder, lake, namespace=space).plan(topic)[0]
        for space, topic in [("default", "orders"), ("a", "orders"), ("b", "orders")]
    ]
    assert [job.table for job in jobs] == [
        str(lake / name) for name in ("orders", "a/orders", "b/orders")
    ]
    assert len({job.topic for job in jobs}) == 3
    for job in jobs[:2]:
        open_lake(job.table).commit(TableChange(SCHEMA, topic=job.topic, ends=job.ends))
    assert not work(folder, lake).plan("orders")[1]
    assert not work(folder, lake).plan("a/orders")[1]
    assert not work(folder, lake, namespace="a").plan("orders")[1]
    assert work(folder, lake, namespace="b").plan("orders")[1] == [Range("orders", 0, 0, 10)]
    assert work(folder, lake, namespace="a").plan("b/orders")[0] == jobs[2]


@pytest.fixture
def ten(folder: str) -> str:
    """A data folder that nobody holds, with ten messages."""
    with penstock.connect(folder) as ps:
        ps.create_topic("t")
        ps.publish_batch("t", [b"x"] * 10)
    return folder


def mark(folder: str, topic: str = "t") -> str:
    with penstock.connect(folder) as ps:
        return of(ps, topic)


def test_a_table_of_another_log_tells_the_group_nothing(ten: str, tmp_path: Path) -> None:
    """Or retention would drop what was never archived."""
    lake = tmp_path / "lake"
    open_lake(str(lake / "t")).commit(TableChange(SCHEMA, topic=mark(ten), ends={0: 1000}))
    with pytest.raises(InvalidInput, match="it is another log"):
        archive(None, ten, str(lake), ["t"])  # type: ignore[arg-type]
    with penstock.connect(ten) as ps, pytest.raises(GroupNotFound):
        ps.describe_stream_group("archive")


def test_what_a_group_is_told_again_is_on_stable_storage(
    ten: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who was killed before it told the group may have been killed before it synced the table."""
    lake = tmp_path / "lake"
    open_lake(str(lake / "t")).commit(TableChange(SCHEMA, topic=mark(ten), ends={0: 10}))
    synced, sync = [], os.fsync

    def noted(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        sync(fd)

    monkeypatch.setattr(os, "fsync", noted)
    assert archive(None, ten, str(lake), ["t"]).rows == 0  # type: ignore[arg-type]
    first = next(n for n, path in enumerate(synced) if "/progress" in path)
    log = str(lake / "t" / "_delta_log")
    assert {log, f"{log}/00000000000000000000.json"} <= set(synced[:first])
    with penstock.connect(ten) as ps:
        assert list(ps.describe_stream_group("archive").committed.values()) == [10]


def test_a_round_that_was_cut_short_wants_the_schema_that_it_had(ten: str, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    numbers, texts = [Field("n", "int", True)], [Field("n", "string", False)]
    bad = open_lake(str(lake / "t.bad"))
    bad.commit(TableChange(SCHEMA, topic=mark(ten), ends={0: 4}, rules=number_of_fields(numbers)))
    for fields in ([], texts):
        with pytest.raises(InvalidInput, match="with the same schema once more"):
            work(ten, lake, fields=fields).plan("t")
    job, parts = work(ten, lake, fields=numbers).plan("t")
    assert parts == [Range("t", 0, 0, 4)]
    assert job.rules == number_of_fields(numbers)


def test_a_round_that_was_cut_short_goes_on_with_the_version_that_was_the_newest_then(
    ten: str, tmp_path: Path
) -> None:
    closed = {"type": "object", "additionalProperties": False}
    with penstock.connect(ten) as ps:
        first = ps.schemas.register("t-value", {**closed, "properties": {}})
    registered = ValueFormat(kind="json", subject="")
    lake = tmp_path / "lake"
    rules = work(ten, lake, registered=registered).plan("t")[0].rules
    assert rules is not None
    assert reader_of(rules) == first.id
    bad = open_lake(str(lake / "t.bad"))
    bad.commit(TableChange(SCHEMA, topic=mark(ten), ends={0: 4}, rules=rules))
    with penstock.connect(ten) as ps:
        ps.schemas.register("t-value", {**closed, "properties": {"n": {"type": "integer"}}})
    assert work(ten, lake, registered=registered).plan("t")[0].rules == rules
    with pytest.raises(InvalidInput, match="with the same schema once more"):
        work(ten, lake, registered=ValueFormat(kind="json", subject=""), values_as="struct").plan(
            "t"
        )


def test_a_round_that_was_cut_short_and_then_dropped_can_be_passed_over(
    ten: str, tmp_path: Path
) -> None:
    lake, numbers = tmp_path / "lake", [Field("n", "int", True)]
    topic = mark(ten)
    open_lake(str(lake / "t")).commit(TableChange(SCHEMA, topic=topic, ends={0: 2}))
    open_lake(str(lake / "t.bad")).commit(TableChange(SCHEMA, topic=topic, ends={0: 5}))
    with penstock.connect(ten) as ps:
        broker_of(ps).topic(ps._name("t")).partition(0).trim_to(7)
    job, parts = work(ten, lake, fields=numbers, fail_on_data_loss=False).plan("t")
    assert parts == [Range("t", 0, 7, 10)]
    LakeWriter(job, StructType([StructField("offset", LongType())])).commit([])
    for table in (job.table, job.bad_table):
        assert archived(open_lake(table), topic, [0]) == {0: 10}


def test_a_place_is_a_folder_or_a_url() -> None:
    assert as_target("http://h:1", "shop", "key") == Target("", "http://h:1", "shop", "key")
    # With the key: a server that wants one may hold the folder.
    assert as_target("file:///a%20b", "shop", "key") == Target("/a b", "", "shop", "key")
