"""The short ways of a publish and a receive do what the long ones do."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.broker.publishing import publish_each
from penstock.delivery.offsets import Offsets
from penstock.errors import InvalidInput, MessageTooLarge
from penstock.model.messages import NewMessage
from penstock.model.names import TopicName
from penstock.record.batch import Batch
from penstock.record.schema import BITS, parse_ulid
from tests.integration.broker.world import World


def short(here: World, topic: str = "orders") -> bool:
    """Whether a message goes the short way to a topic; it is published."""
    return here.broker.publish_value("default", topic, b"a value") is not None


def test_a_plain_topic_has_them(here: World) -> None:
    here.ps.create_topic("orders")
    here.ps.publish("orders", b"first")
    (first,) = here.ps.receive("orders", group="billing")

    assert short(here)
    told = here.broker.receive_now("default", "orders", "billing", 10)
    assert told is not None
    name, (delivered,) = told
    assert (name, delivered.count) == (TopicName("default", "orders"), 1)
    first.ack()


@pytest.mark.parametrize(
    "settings",
    [{"ttl": "1h"}, {"schema_check": "id"}],
    ids=lambda settings: next(iter(settings)),
)
def test_a_topic_that_asks_for_more_has_none(here: World, settings: dict[str, Any]) -> None:
    here.ps.create_topic("orders")
    here.ps.publish("orders", b"it is open")
    assert short(here)
    here.ps.alter_topic("orders", **settings)
    assert not short(here)


def test_nor_does_one_whose_namespace_has_a_quota(here: World) -> None:
    here.ps.create_topic("orders")
    here.ps.publish("orders", b"it is open")
    here.ps.receive("orders", group="billing")
    here.ps.set_quotas("default", publish_messages=1000)

    assert not short(here)
    assert here.broker.receive_now("default", "orders", "billing", 1) is None


def test_a_value_is_refused_that_is_too_long_however_short_it_is(here: World) -> None:
    here.ps.create_topic("orders", message_bytes_max=10)
    here.ps.publish("orders", b"0123456789")
    with pytest.raises(MessageTooLarge):
        here.ps.publish("orders", b"0123456789a")

    here.ps.alter_topic("orders", message_bytes_max=11)
    here.ps.publish("orders", b"0123456789a")
    assert [m.value for m in here.ps.receive("orders", group="g")] == [
        b"0123456789",
        b"0123456789a",
    ]


def test_ids_of_one_moment_are_in_order(here: World) -> None:
    here.ps.create_topic("orders")  # the clock stands still
    ids = [here.ps.publish("orders", b"") for _ in range(50)]
    ids += [here.ps.publish("orders", b"", key=b"k") for _ in range(50)]

    numbers = [parse_ulid(each.id) for each in ids]
    assert numbers == sorted(set(numbers))
    received = here.ps.receive("orders", group="g", max_messages=100)
    assert [m.id for m in received] == [each.id for each in ids]


def test_values_are_spread_over_partitions(here: World) -> None:
    here.ps.create_topic("orders", partitions=3)
    where = [here.ps.publish("orders", b"%d" % n) for n in range(9)]
    assert sorted((each.partition, each.offset) for each in where) == [
        (partition, offset) for partition in range(3) for offset in range(3)
    ]


@pytest.mark.parametrize("wrong", [["orders"], None, 7, "no/name", ""])
def test_a_wrong_name_is_told_and_not_looked_up(here: World, wrong: Any) -> None:
    here.ps.create_topic("orders")
    here.ps.publish("orders", b"one")
    with pytest.raises(InvalidInput):
        here.ps.publish(wrong, b"one")
    with pytest.raises(InvalidInput):
        here.ps.receive(wrong, group="billing")
    with pytest.raises(InvalidInput):
        here.ps.receive("orders", group=wrong)


@pytest.mark.parametrize("wrong", [{"wait": "soon"}, {"wait": 31}, {"max_messages": 0}])
def test_nothing_is_handed_out_to_who_asks_for_it_wrongly(
    here: World, wrong: dict[str, Any]
) -> None:
    here.ps.create_topic("orders")
    here.ps.publish("orders", b"one")
    here.ps.seek("orders", "billing", "earliest")
    with pytest.raises(InvalidInput):
        here.ps.receive("orders", group="billing", **wrong)
    assert len(here.ps.receive("orders", group="billing")) == 1


def test_neighbours_come_one_by_one_as_they_do_together(here: World) -> None:
    here.ps.create_topic("orders")
    for number in range(100):
        here.ps.publish("orders", b"%d" % number, priority="high" if number % 3 == 0 else "normal")
        if number % 7 == 0:
            here.ps.publish_batch("orders", [b"%d of a batch" % n for n in range(number % 5)])
    together = here.ps.receive("orders", group="together", max_messages=1000)
    apart = [m for _ in together for m in here.ps.receive("orders", group="apart", max_messages=1)]

    def told(m: Any) -> tuple[Any, ...]:
        return m.offset, m.id, m.value, m.timestamp_us, m.priority, m.delivery_count

    assert sorted(map(told, apart)) == sorted(map(told, together))
    assert here.ps.receive("orders", group="apart", max_messages=1) == []


def test_json_messages_of_one_priority_are_stored_as_values_alone(here: World) -> None:
    here.ps.create_topic("orders")
    name = TopicName("default", "orders")

    def stored(*messages: dict[str, Any]) -> Batch:
        new = [NewMessage(value=msgspec.Raw(b'"paid"'), **each) for each in messages]
        (first, *_), _ = publish_each(here.broker, name, new)
        assert first.offset is not None
        partition = here.broker.topic(name).partitions[0]
        return partition.fetch(Offsets.run(first.offset, first.offset + len(new)))[0]

    alike: list[list[dict[str, Any]]] = [[{}], [{}, {}], [{"priority": "high"}] * 2]
    for messages in alike:
        assert stored(*messages).columns == BITS["value"]
    assert stored({}, {"priority": "high"}).columns & BITS["priority"]
