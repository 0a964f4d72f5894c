"""A stream group belongs to a namespace, and nobody else can speak for its members."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.broker.broker import Broker
from penstock.broker.journal import Journal
from penstock.config import LogConfig
from penstock.errors import GroupNotFound, InvalidInput
from penstock.group.assignment import TopicPartition
from penstock.group.events import Committed, OffsetsCommitted, encode
from penstock.log.local_engine import LocalEngine
from penstock.model.names import topic_name
from penstock.record.batch import Batch
from tests.integration.broker.world import World


def test_groups_of_one_name_in_two_namespaces_are_two(world: World) -> None:
    shop, other = world.ps.in_namespace("shop"), world.ps.in_namespace("other")
    for ps in (shop, other):
        ps.create_topic("orders")
        ps.publish_batch("orders", [b"1", b"2", b"3"])
    shop.reset_stream_group("audit", "orders", 2)
    assert shop.stream_groups() == ["audit"]
    assert other.stream_groups() == world.ps.stream_groups() == []
    with pytest.raises(GroupNotFound):
        other.describe_stream_group("audit")
    other.reset_stream_group("audit", "orders", 1)
    for go_on in (world.restart, world.kill):
        ps = go_on()
        for namespace, offset in (("shop", 2), ("other", 1)):
            described = ps.in_namespace(namespace).describe_stream_group("audit")
            assert described.group == "audit"
            assert list(described.committed.values()) == [offset]
    ps.in_namespace("shop").delete_stream_group("audit")
    assert ps.in_namespace("other").stream_groups() == ["audit"]


def test_a_group_cannot_read_topics_of_another_namespace(sync: World) -> None:
    sync.ps.create_topic("orders")
    with pytest.raises(InvalidInput, match="namespace 'shop'"):
        sync.broker.streams.join("shop/audit", None, [topic_name("orders")])
    with pytest.raises(InvalidInput, match="namespace 'shop'"):
        sync.broker.streams.set_offsets("shop/audit", {TopicPartition("orders", 0): 0})


def test_nobody_is_shown_what_it_takes_to_speak_for_a_member(sync: World) -> None:
    sync.ps.create_topic("orders")
    standing = sync.broker.streams.join("audit", None, [topic_name("orders")])
    (shown,) = sync.ps.describe_stream_group("audit").members
    assert standing.member_id.startswith(shown)
    assert len(standing.member_id) >= len(shown) + 20
    assert not sync.broker.streams.has_member("audit", shown)


def test_groups_of_an_older_folder_are_those_of_the_namespaces_that_they_read(
    tmp_path: Path,
) -> None:
    engine = LocalEngine(tmp_path / "data")
    with Broker(engine) as broker:
        for namespace in ("default", "shop"):
            name = topic_name("orders", namespace)
            broker.create_topic(name, {})
            broker.publish(name, Batch.build([b"1", b"2", b"3"]))
    engine = LocalEngine(tmp_path / "data")
    journal = Journal(engine.open("groups", LogConfig()))
    places = {
        TopicPartition("orders", 0): Committed(1),
        TopicPartition("shop/orders", 0): Committed(2),
    }
    journal.append(b"\x00" + encode(OffsetsCommitted("audit", places)))
    journal.close()
    engine.close()
    for _ in range(2):
        with Broker(LocalEngine(tmp_path / "data")) as broker:
            assert broker.streams.groups() == ["audit", "shop/audit"]
            for group, offset in (("audit", 1), ("shop/audit", 2)):
                committed = broker.streams.committed(group)
                assert [each.offset for each in committed.values()] == [offset]
