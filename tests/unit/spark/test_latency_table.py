"""The table of latencies that a roll-up keeps: replaced where it was not final, else added to."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from penstock.broker.api import Api
from penstock.broker.broker import Broker
from penstock.client.client import Client
from penstock.client.local_link import LocalLink
from penstock.clock import ManualClock
from penstock.log.local_engine import LocalEngine
from penstock.spark.pipelines.latencies import LATENCIES, LatencyTable

BEGAN = datetime(2023, 11, 14, 22, 13, tzinfo=UTC)


class Shop:
    """A broker whose time is the test's."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        self.broker = Broker(LocalEngine(folder, clock=self.clock), housekeeping=False)
        self.client = Client(LocalLink(Api(self.broker)), "default")
        self.client.create_topic("orders")

    def sell(self, count: int, wait_s: float, priority: str = "normal") -> None:
        self.client.publish_batch("orders", [b"x"] * count, priority=priority)
        self.clock.advance(wait_s)
        self.client.receive_batch("orders", "billing").ack()
        self.broker.housekeep()


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path / "data")
    yield shop
    shop.client.close()


def run(shop: Shop, path: Path) -> list[dict[str, Any]]:
    """What a roll-up does; the rows that it left."""
    table = LatencyTable(str(path))
    table.update(shop.client, ["orders"])
    table.write()
    written = pq.read_table(path)
    assert written.schema.names == LATENCIES.names
    rows: list[dict[str, Any]] = written.to_pylist()
    assert rows == LatencyTable(str(path)).rows()
    return rows


def waits(rows: list[dict[str, Any]]) -> dict[tuple[int, int | None], tuple[int, float]]:
    """By minute and priority: messages, and how long they waited at the most."""
    return {
        ((row["minute"] - BEGAN) // timedelta(minutes=1), row["priority"]): (
            row["messages"],
            row["max_s"],
        )
        for row in rows
        if row["kind"] == "waited"
    }


def test_a_minute_that_was_not_over_is_replaced(shop: Shop, tmp_path: Path) -> None:
    path = tmp_path / "out" / "latencies" / "rollup.parquet"
    shop.sell(10, 2.0)
    first = run(shop, path)
    assert {row["kind"] for row in first} == {"waited", "handled"}
    assert waits(first) == {(0, None): (10, 2.0), (0, 2): (10, 2.0)}
    waited = next(row for row in first if row["kind"] == "waited")
    assert waited["p50_s"] == waited["p99_s"] == pytest.approx(2.0, rel=1 / 8)
    assert waited["mean_s"] == 2.0
    assert run(shop, path) == first
    shop.sell(5, 3.0, "high")
    second = run(shop, path)
    assert waits(second) == {(0, None): (15, 3.0), (0, 1): (5, 3.0), (0, 2): (10, 2.0)}
    assert run(shop, path) == second


def test_what_the_broker_has_forgotten_stays(shop: Shop, tmp_path: Path) -> None:
    path = tmp_path / "rollup.parquet"
    shop.sell(1, 1.0)
    shop.clock.advance(60)
    shop.sell(2, 1.0)
    before = run(shop, path)
    shop.client.delete_topic("orders")
    shop.client.create_topic("orders")
    assert run(shop, path) == before
    shop.clock.advance(60)
    shop.sell(3, 1.0)
    assert {place: row[0] for place, row in waits(run(shop, path)).items() if not place[1]} == {
        (0, None): 1,
        (1, None): 2,
        (2, None): 3,
    }


def test_only_what_is_new_is_asked_for(shop: Shop, tmp_path: Path) -> None:
    path = tmp_path / "rollup.parquet"
    asked: list[Any] = []

    class Watched:
        def latencies(self, topic: str, since: Any) -> Any:
            asked.append(since)
            return shop.client.latencies(topic, since=since)

    for _ in range(3):
        shop.sell(1, 1.0)
        table = LatencyTable(str(path))
        table.update(Watched(), ["orders"])
        table.write()
        shop.clock.advance(59)
    assert asked == [0, BEGAN, BEGAN + timedelta(minutes=1)]


def test_a_week_is_asked_for_at_first(shop: Shop, tmp_path: Path) -> None:
    shop.sell(1, 1.0)
    shop.clock.advance(5 * 86_400)
    shop.sell(1, 1.0)
    assert len({row["minute"] for row in run(shop, tmp_path / "rollup.parquet")}) == 2
