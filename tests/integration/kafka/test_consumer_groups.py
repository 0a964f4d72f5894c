"""Groups in which the broker assigns (`group.protocol=consumer`) are stream groups of ours."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.integration.kafka.clients import (
    Message,
    confluent_publish,
    confluent_settings,
    take,
)

SOME = [Message(b"k%d" % n, b"%d" % n, (), 1_700_000) for n in range(100)]
WAIT_S = 25.0


def joined(kafka: str, **settings: Any) -> Consumer:
    consumer = Consumer(
        confluent_settings(
            kafka, group_protocol="consumer", auto_offset_reset="earliest", **settings
        )
        | {"group.id": "readers"}
    )
    consumer.subscribe(["orders"])
    return consumer


def until(what: Callable[[], bool], *consumers: Consumer) -> None:
    deadline = time.monotonic() + WAIT_S
    while not what():
        assert time.monotonic() < deadline
        for consumer in consumers:
            consumer.poll(0.05)


def test_it_reads_commits_and_goes_on(kafka: str, ps: Any) -> None:
    ps.create_topic("orders", partitions=2)
    confluent_publish(kafka, "orders", SOME)
    consumer = joined(kafka, enable_auto_commit=False)
    assert sorted(take(consumer, 100, WAIT_S)) == sorted(SOME)
    consumer.commit(asynchronous=False)
    seen = ps.describe_stream_group("readers")
    assert sum(seen.committed.values()) == 100
    assert sum(map(len, seen.members.values())) == 2
    consumer.close()
    assert ps.describe_stream_group("readers").members == {}
    confluent_publish(kafka, "orders", SOME[:10])
    again = joined(kafka)
    assert sorted(take(again, 10, WAIT_S)) == sorted(SOME[:10])
    again.close()


def test_partitions_move_to_who_joins_and_back(kafka: str, ps: Any) -> None:
    ps.create_topic("orders", partitions=4)
    first, second = joined(kafka), joined(kafka)
    until(lambda: [len(first.assignment()), len(second.assignment())] == [2, 2], first, second)
    held = {p.partition for p in [*first.assignment(), *second.assignment()]}
    assert held == {0, 1, 2, 3}
    second.close()
    until(lambda: len(first.assignment()) == 4, first)
    first.close()


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_assignors_of_the_broker(kafka: str, ps: Any, assignor: str) -> None:
    ps.create_topic("orders", partitions=3)
    consumer = joined(kafka, group_remote_assignor=assignor)
    until(lambda: len(consumer.assignment()) == 3, consumer)
    consumer.close()


def test_partitions_and_topics_that_are_added_are_read(kafka: str, ps: Any) -> None:
    consumer = joined(kafka)
    consumer.poll(0.5)
    ps.create_topic("orders")
    until(lambda: len(consumer.assignment()) == 1, consumer)
    ps.alter_topic("orders", partitions=3)
    until(lambda: len(consumer.assignment()) == 3, consumer)
    consumer.close()


def test_one_of_ours_and_one_of_theirs_share_a_group(kafka: str, ps: Any) -> None:
    """The group is the same, and so are the rules."""
    ps.create_topic("orders", partitions=2)
    consumer = joined(kafka)
    until(lambda: len(consumer.assignment()) == 2, consumer)
    with ps.stream("orders", group="readers") as stream:
        stream.next(wait="100ms")
        until(lambda: len(consumer.assignment()) == 1, consumer)
        assert len(ps.describe_stream_group("readers").members) == 2
    consumer.close()


def test_members_are_described(kafka: str, ps: Any) -> None:
    ps.create_topic("orders", partitions=2)
    consumer = joined(kafka)
    until(lambda: len(consumer.assignment()) == 2, consumer)
    admin = AdminClient(confluent_settings(kafka))
    assert [g.group_id for g in admin.list_consumer_groups().result().valid] == ["readers"]
    described = admin.describe_consumer_groups(["readers"])["readers"].result()
    assert described.state.name == "STABLE"
    (member,) = described.members
    assert len(member.assignment.topic_partitions) == 2
    consumer.close()


def test_a_position_that_is_not_the_members_is_refused(kafka: str, ps: Any) -> None:
    ps.create_topic("orders", partitions=2)
    first, second = joined(kafka), joined(kafka)
    until(lambda: [len(first.assignment()), len(second.assignment())] == [1, 1], first, second)
    theirs = second.assignment()[0].partition
    ps.publish("orders", b"x", partition=theirs)
    with pytest.raises(Exception, match=r"STALE_MEMBER_EPOCH|member epoch"):
        first.commit(offsets=[TopicPartition("orders", theirs, 1)], asynchronous=False)
    first.close()
    second.close()
