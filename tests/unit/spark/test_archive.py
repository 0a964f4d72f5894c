"""What an archive plans to do next, from what the log and its tables say; without a session."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.client.client import Client
from penstock.errors import InvalidInput
from penstock.spark.bounds import Range
from penstock.spark.lake import open_lake
from penstock.spark.lake_table import Change
from penstock.spark.options import Target
from penstock.spark.pipelines.archive import _next_parts, as_target
from penstock.spark.place import open_place

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
            lakes.append(open_lake(str(tmp_path / name), "parquet"))
            if ends:
                lakes[-1].commit(Change(SCHEMA, topic="orders", ends=ends))
        with closing(open_place(Target(path=folder))) as place:
            parts, starts, again = _next_parts(place, lakes, "orders", 1 << 30, lost.append)
        assert starts == {part: good.get(part) for part in starts}
        assert again == any(end > good.get(part, 0) for part, end in bad.items())
        return parts

    return planned


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
    ps._broker.topic(ps._name("orders")).partition(1).trim_to(10)
    assert plan({0: 100, 1: 5}, {}) == [Range("orders", 1, 10, 100)]
    assert lost == ["orders/1: offsets 5 up to 10"]


def test_a_place_is_a_folder_or_a_url() -> None:
    assert as_target("http://h:1", "shop", "key") == Target("", "http://h:1", "shop", "key")
    # With the key: a server that wants one may hold the folder.
    assert as_target("file:///a%20b", "shop", "key") == Target("/a b", "", "shop", "key")
