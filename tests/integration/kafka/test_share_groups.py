"""Share groups of Kafka are queue groups of ours: leases, priorities, retries, dead letters."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import AcknowledgeType, ShareConsumer

from tests.integration.kafka.clients import Message, confluent_publish, confluent_settings

WAIT_S = 25.0
SOME = [Message(b"k%d" % n, b"%d" % n, (), 1_700_000) for n in range(50)]


class Share:
    """A share consumer that acknowledges each message itself."""

    def __init__(self, kafka: str, group: str = "workers") -> None:
        self.consumer = ShareConsumer(
            confluent_settings(kafka, share_acknowledgement_mode="explicit") | {"group.id": group}
        )
        self.consumer.subscribe(["jobs"])

    def take(self, count: int) -> list[Any]:
        found: list[Any] = []
        deadline = time.monotonic() + WAIT_S
        while len(found) < count and time.monotonic() < deadline:
            for message in self.consumer.poll(0.5):
                assert message.error() is None, message.error()
                found.append(message)
        return found

    def settle(self, messages: list[Any], how: AcknowledgeType) -> None:
        for message in messages:
            self.consumer.acknowledge(message, how)
        for result in (self.consumer.commit_sync(10) or {}).values():
            assert result is None, result


@pytest.fixture
def share(kafka: str, ps: Any) -> Iterator[Share]:
    ps.create_topic("jobs", partitions=2, backoff=("10ms", 1.0, "10ms"), max_retries=2)
    ps.seek("jobs", "workers", "earliest")  # or a new group begins with what comes
    share = Share(kafka)
    yield share
    share.consumer.close()


def test_what_is_accepted_is_done(share: Share, kafka: str, ps: Any) -> None:
    confluent_publish(kafka, "jobs", SOME)
    messages = share.take(50)
    assert sorted(m.value() for m in messages) == sorted(each.value for each in SOME)
    assert ps.stats("jobs").groups[0].in_flight == 50
    share.settle(messages, AcknowledgeType.ACCEPT)
    (group,) = ps.stats("jobs").groups
    assert (group.group, group.depth, group.in_flight) == ("workers", 0, 0)


def test_what_is_released_comes_again_and_dies_in_the_end(
    share: Share, kafka: str, ps: Any
) -> None:
    ps.publish("jobs", b"poison")
    for attempt in range(3):
        (message,) = share.take(1)
        assert message.value() == b"poison"
        share.settle([message], AcknowledgeType.RELEASE)
        time.sleep(0.05)
        assert len(list(ps.dead_letters("jobs"))) == (attempt == 2)


def test_what_is_rejected_is_a_dead_letter_at_once(share: Share, ps: Any) -> None:
    ps.publish("jobs", b"bad")
    (message,) = share.take(1)
    share.settle([message], AcknowledgeType.REJECT)
    (letter,) = ps.dead_letters("jobs")
    assert letter.message.value == b"bad"


def test_priorities_come_first(share: Share, ps: Any) -> None:
    """A critical message behind 3,000 others of its partition is among the first."""
    ps.publish_batch("jobs", [b"usual"] * 3000, keys=[b"k"] * 3000)
    ps.publish("jobs", b"now", key=b"k", priority="critical")
    first = share.take(1)
    assert len(first) < 2000
    assert b"now" in [m.value() for m in first]
    assert [m.offset() for m in first] == sorted(m.offset() for m in first)
    share.settle(first, AcknowledgeType.ACCEPT)


def test_two_consumers_and_one_of_ours_share_the_work(share: Share, kafka: str, ps: Any) -> None:
    other = Share(kafka)
    confluent_publish(kafka, "jobs", SOME)
    ours = ps.receive("jobs", group="workers", max_messages=5)
    for message in ours:
        message.ack()
    found = [m.value for m in ours]
    deadline = time.monotonic() + WAIT_S
    while len(found) < len(SOME) and time.monotonic() < deadline:
        for each in (share, other):
            messages = each.consumer.poll(0.2)
            each.settle(messages, AcknowledgeType.ACCEPT) if messages else None
            found += [m.value() for m in messages]
    assert sorted(found) == sorted(each.value for each in SOME)
    other.consumer.close()


def test_what_a_closed_consumer_held_comes_again_at_once(share: Share, kafka: str, ps: Any) -> None:
    other = Share(kafka)
    ps.publish("jobs", b"held")
    deadline = time.monotonic() + WAIT_S
    taken: list[Any] = []
    while not taken and time.monotonic() < deadline:
        taken = other.consumer.poll(0.2) or share.consumer.poll(0.2)
    assert [m.value() for m in taken] == [b"held"]
    other.consumer.close()
    share.consumer.close()
    again = Share(kafka)
    (message,) = again.take(1)
    assert message.value() == b"held"
    again.settle([message], AcknowledgeType.ACCEPT)
    again.consumer.close()
    assert ps.stats("jobs").groups[0].depth == 0


def test_a_new_group_begins_with_what_comes(kafka: str, ps: Any) -> None:
    ps.create_topic("jobs")
    ps.publish("jobs", b"before")
    share = Share(kafka, "late")
    deadline = time.monotonic() + 10
    while not ps.stats("jobs").groups and time.monotonic() < deadline:
        share.consumer.poll(0.2)
    ps.publish("jobs", b"after")
    (message,) = share.take(1)
    assert message.value() == b"after"
    share.consumer.close()
