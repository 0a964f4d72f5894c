"""Progress that is left in a folder, and what the broker makes of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import penstock
from penstock.client.client import Client
from penstock.spark.options import Target
from penstock.spark.progress import commit_progress, leave_progress
from penstock.spark.query_progress import source_progress
from tests.inside import broker_of


def committed(ps: Client, group: str = "lake") -> dict[str, int]:
    known = ps.describe_stream_group(group).committed
    return {str(place): offset for place, offset in known.items()}


@pytest.fixture
def orders(ps: Client) -> Client:
    ps.create_topic("orders", partitions=2, segment_bytes=4096)
    for number in range(200):
        ps.publish("orders", bytes(100), partition=number % 2)
    return ps


def test_a_live_broker_takes_it_in_when_somebody_asks(folder: str, orders: Client) -> None:
    commit_progress(Target(path=folder), "lake", {"orders": {0: 5, 1: 7}})
    assert orders.stream_groups() == ["lake"]
    assert committed(orders) == {"orders/0": 5, "orders/1": 7}
    assert os.listdir(os.path.join(folder, "progress")) == []
    assert list(orders.describe_stream_group("lake").lag.values()) == [95, 93]


def test_without_a_broker_it_waits_for_the_next_and_only_the_last_counts(
    folder: str, orders: Client
) -> None:
    orders.close()
    for offset in (5, 6, 7):
        leave_progress(folder, "lake", {"orders": {0: offset}})
    assert len(os.listdir(os.path.join(folder, "progress"))) == 1
    with penstock.connect(folder) as ps:
        assert committed(ps) == {"orders/0": 7}
    with penstock.connect(folder) as ps:  # from the broker's own journal
        assert committed(ps) == {"orders/0": 7}


def test_what_was_said_of_other_topics_and_partitions_still_counts(
    folder: str, orders: Client
) -> None:
    orders.create_topic("bills")
    orders.publish_batch("bills", [b"x"] * 9)
    orders.close()
    leave_progress(folder, "lake", {"orders": {0: 5, 1: 6}})
    leave_progress(folder, "lake", {"bills": {0: 9}})
    leave_progress(folder, "lake", {"orders": {1: 7}})
    assert len(os.listdir(os.path.join(folder, "progress"))) == 1
    with penstock.connect(folder) as ps:
        assert committed(ps) == {"orders/0": 5, "orders/1": 7, "bills/0": 9}


def test_an_operator_may_set_it_back(folder: str, orders: Client) -> None:
    leave_progress(folder, "lake", {"orders": {0: 5}})
    orders.reset_stream_group("lake", "orders", 2, partition=0)
    assert committed(orders)["orders/0"] == 2


def test_what_is_not_progress_is_passed_over(
    folder: str, orders: Client, caplog: pytest.LogCaptureFixture
) -> None:
    inbox = Path(folder) / "progress"
    leave_progress(folder, "lake", {"orders": {0: 5, 9: 1}, "gone": {0: 3}})
    (inbox / f"junk.{1:020d}.json").write_bytes(b"{not json")
    (inbox / "lake.00000000000000000009.json.tmp").write_bytes(b"half of a file")
    assert committed(orders) == {"orders/0": 5}
    assert [path.name for path in inbox.iterdir()] == ["lake.00000000000000000009.json.tmp"]
    assert "not what a reader leaves" in caplog.text


def test_a_group_with_members_is_not_moved(folder: str, orders: Client) -> None:
    stream = orders.stream("orders", "lake")
    next(iter(stream))
    leave_progress(folder, "lake", {"orders": {0: 50}})
    orders.stream_groups()
    assert committed(orders).get("orders/0", 0) < 50
    stream.close()


def test_retention_waits_for_the_groups_that_the_topic_names(folder: str, orders: Client) -> None:
    orders.alter_topic("orders", retention_segments=1, retention_waits_for=["lake"])
    name = orders._name("orders")
    topic = broker_of(orders).topic(name)

    def starts() -> list[int]:
        broker_of(orders)._retention.apply(topic)
        return [partition.log.start for partition in topic.partitions]

    assert starts() == [0, 0]
    leave_progress(folder, "lake", {"orders": {0: 40}})
    kept_from, other = starts()
    assert 0 < kept_from <= 40
    assert other == 0
    leave_progress(folder, "lake", {"orders": {0: 100, 1: 100}})
    assert min(starts()) > 40


def test_the_progress_of_a_query_says_how_far_behind_it_is() -> None:
    topics = {"orders": "1", "returns": "2"}
    told = {
        "sources": [
            {"description": "FileSource", "endOffset": {"logOffset": 1}},
            {
                "numInputRows": 7,
                "endOffset": {"orders": {"0": 5}, "returns": {"0": 1}, "#topics": topics},
                "latestOffset": '{"orders": {"0": 9, "1": 2}, "returns": {"0": 1}}',
            },
        ]
    }
    (found,) = source_progress(told)
    assert found.behind == {"orders": 6, "returns": 0}
    assert str(found) == "penstock: orders, returns: 7 rows, 6 messages behind"
    assert source_progress(None) == []
