"""A message that has waited for too long is next, whatever its lane and whoever's turn it is."""

from __future__ import annotations

import pytest

from penstock.delivery.queue import STARVING, Policy
from tests.unit.delivery.tiny_broker import SECOND, TinyBroker, must

BACKGROUND, NORMAL, CRITICAL = 4, 2, 0


@pytest.fixture
def broker() -> TinyBroker:
    return TinyBroker(Policy(boost_after_ms=30_000))


def publish(broker: TinyBroker, count: int, priority: int) -> range:
    return broker.source.publish(count, priority=priority, arrived_us=broker.wall_us)


def test_a_message_that_has_waited_is_next_before_the_round_is_finished(
    broker: TinyBroker,
) -> None:
    publish(broker, 1, BACKGROUND)
    broker.wait(29)
    publish(broker, 100, CRITICAL)
    assert broker.got(3) == [1, 2, 3]

    broker.wait(1)
    assert broker.got() == [0]


def test_then_the_timer_of_its_lane_starts_again(broker: TinyBroker) -> None:
    publish(broker, 3, BACKGROUND)
    broker.wait(30)
    publish(broker, 200, CRITICAL)

    assert broker.got(10) == [0, *range(3, 12)]
    broker.wait(29.9)
    assert broker.got() == [12]
    broker.wait(0.1)
    assert broker.got(2) == [1, 13]


def test_the_longest_wait_comes_first_whatever_the_lane(broker: TinyBroker) -> None:
    publish(broker, 1, BACKGROUND)
    broker.wait(1)
    publish(broker, 1, NORMAL)
    broker.wait(30)
    publish(broker, 100, CRITICAL)

    assert [broker.got(), broker.got(), broker.got()] == [[0], [1], [2]]


def test_a_retry_that_is_due_waits_too(broker: TinyBroker) -> None:
    publish(broker, 1, BACKGROUND)
    broker.nack(must(broker.receive()))
    broker.wait(1)  # it falls due
    publish(broker, 100, CRITICAL)
    assert broker.got() == [1]

    broker.wait(30)
    assert broker.got() == [0]


def test_a_decision_that_is_not_carried_out_starts_no_timer(broker: TinyBroker) -> None:
    publish(broker, 1, BACKGROUND)
    broker.wait(30)
    publish(broker, 100, CRITICAL)

    arguments = {"max_messages": 10, "visibility_ns": 1, "consumer": "c", "nonce": 99}
    broker.queue.receive(
        broker.now_ns, broker.wall_us, source=broker.source, end=broker.source.end, **arguments
    )
    assert broker.got() == [0]


def test_a_lane_with_a_message_that_has_waited_makes_its_partition_the_first(
    broker: TinyBroker,
) -> None:
    publish(broker, 2, BACKGROUND)

    def best() -> int:
        return broker.queue.best_ready(
            broker.now_ns, broker.wall_us, broker.source, broker.source.end
        )

    assert best() == BACKGROUND
    broker.wait(30)
    assert best() == STARVING
    assert broker.got() == [0]
    assert best() == BACKGROUND


def test_where_keys_are_ordered_one_whose_key_is_free_is_next() -> None:
    broker = TinyBroker(Policy(ordered_by_key=True, boost_after_ms=30_000))
    for key in (7, 7, 8):
        broker.source.publish(1, priority=BACKGROUND, key=key, arrived_us=broker.wall_us)
    must(broker.receive(visibility_ns=3600 * SECOND))
    broker.wait(31)
    publish(broker, 100, CRITICAL)

    assert broker.got() == [2]
    assert broker.got() == [3]
