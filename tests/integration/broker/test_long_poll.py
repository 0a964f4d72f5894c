"""A receive that waits wakes at once when there is something, and not for nothing."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.errors import BrokerClosed, DiskFull
from penstock.model.names import topic_name
from tests.inside import broker_of
from tests.integration.broker.world import Background, World, until, values


def poll(world: World, group: str = "g", **how: Any) -> Background:
    """A receive in another thread, which has found nothing and waits."""
    waiting = Background(lambda: world.ps.receive("orders", group, **{"wait": "20s"} | how))
    world.polls("orders")
    assert not waiting.done
    return waiting


def test_it_wakes_when_a_message_is_published(world: World) -> None:
    world.ps.create_topic("orders", partitions=3)
    waiting = poll(world)
    world.ps.publish("orders", b"x", partition=2)
    assert values(waiting.result()) == [b"x"]


def test_it_wakes_when_a_producer_sends(world: World) -> None:
    world.ps.create_topic("orders")
    waiting = poll(world)
    with world.ps.producer("orders") as out:
        out.send(b"x")
    assert values(waiting.result()) == [b"x"]


@pytest.mark.parametrize("delay_ms", [20, 10_000])
def test_it_wakes_when_a_retry_falls_due(world: World, delay_ms: int) -> None:
    world.ps.create_topic("orders")
    world.ps.publish("orders", b"x")
    world.ps.receive("orders", "g")[0].nack(delay=f"{delay_ms}ms")
    waiting = poll(world)
    world.pass_(delay_ms * 0.9 / 1000)
    assert not waiting.done
    world.pass_(delay_ms * 0.1 / 1000)
    assert [(m.value, m.delivery_count) for m in waiting.result()] == [(b"x", 2)]


def test_it_wakes_when_a_message_is_given_back_at_once(world: World) -> None:
    world.ps.create_topic("orders")
    world.ps.publish("orders", b"x")
    (message,) = world.ps.receive("orders", "g")
    waiting = poll(world)
    message.nack(delay=0)
    world.pass_(0)
    assert values(waiting.result()) == [b"x"]


def test_it_wakes_when_a_delay_falls_due(world: World) -> None:
    world.ps.create_topic("orders")
    world.ps.publish("orders", b"x", delay="10s")
    waiting = poll(world)
    world.pass_(9.9)
    assert not waiting.done
    world.pass_(0.1)
    assert values(waiting.result()) == [b"x"]


def test_it_wakes_when_a_lease_runs_out(world: World) -> None:
    world.ps.create_topic("orders")
    world.ps.publish("orders", b"x")
    world.ps.receive("orders", "g", visibility="10s")
    waiting = poll(world)
    world.pass_(10)
    assert values(waiting.result()) == [b"x"]


def test_it_wakes_when_there_is_room_in_flight(world: World) -> None:
    world.ps.create_topic("orders", in_flight_max=1)
    world.ps.publish_batch("orders", [b"a", b"b"])
    (held,) = world.ps.receive("orders", "g")
    waiting = poll(world)
    held.ack()
    assert values(waiting.result()) == [b"b"]


def test_it_wakes_when_there_is_room_on_a_partition_that_was_added_with_the_limit(
    world: World,
) -> None:
    world.ps.create_topic("orders")
    world.ps.alter_topic("orders", partitions=2, in_flight_max=1)
    world.ps.publish_batch("orders", [b"a", b"b"], partition=1)
    (held,) = world.ps.receive("orders", "g")
    waiting = poll(world)
    held.ack()
    assert values(waiting.result()) == [b"b"]


def test_it_wakes_on_a_partition_that_was_added_although_the_next_one_could_not_be(
    here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.ps.create_topic("orders", in_flight_max=1)
    store = here.broker._store
    open_partition = store.open_partition

    def open_or_fail(name: Any, number: int, *rest: Any) -> Any:
        if number == 2:
            raise DiskFull("no room for it")
        return open_partition(name, number, *rest)

    monkeypatch.setattr(store, "open_partition", open_or_fail)
    with pytest.raises(DiskFull):
        here.ps.alter_topic("orders", partitions=3)
    here.ps.publish_batch("orders", [b"a", b"b"], partition=1)
    (held,) = here.ps.receive("orders", "g")
    waiting = poll(here)
    held.ack()
    assert values(waiting.result()) == [b"b"]


def test_it_wakes_when_a_key_is_free(world: World) -> None:
    world.ps.create_topic("orders", ordered_by_key=True)
    world.ps.publish_batch("orders", [b"a", b"b"], keys=["k", "k"])
    (held,) = world.ps.receive("orders", "g")
    waiting = poll(world)
    held.ack()
    assert values(waiting.result()) == [b"b"]


def test_it_wakes_when_the_group_is_set_back(world: World) -> None:
    world.ps.create_topic("orders")
    world.ps.publish("orders", b"x")
    world.ps.receive("orders", "g")[0].ack()
    waiting = poll(world)
    world.ps.seek("orders", "g", "earliest")
    assert values(waiting.result()) == [b"x"]


def test_it_wakes_for_a_partition_that_is_added(world: World) -> None:
    world.ps.create_topic("orders")
    waiting = poll(world)
    world.ps.alter_topic("orders", partitions=2)
    world.ps.publish("orders", b"x", partition=1)
    assert values(waiting.result()) == [b"x"]


def test_all_who_wait_get_their_share(world: World) -> None:
    world.ps.create_topic("orders")
    waiting = [Background(lambda: world.ps.receive("orders", "g", 1, wait="20s")) for _ in range(5)]
    world.polls("orders", 5)
    world.ps.publish_batch("orders", [b"%d" % n for n in range(5)])
    got = [message for each in waiting for message in each.result()]
    assert sorted(values(got)) == [b"0", b"1", b"2", b"3", b"4"]


def test_what_another_receiver_leaves_behind_is_not_forgotten(world: World) -> None:
    # The other one notices before the housekeeper that the retries are due, and takes only one.
    world.ps.create_topic("orders")
    world.ps.publish_batch("orders", [b"a", b"b"])
    world.ps.receive_batch("orders", "g").nack(delay="10s")
    waiting = poll(world)
    world.clock.advance(10)
    assert len(world.ps.receive("orders", "g", 1)) == 1
    world.broker.housekeep()
    assert len(waiting.result(5)) == 1


def test_the_wait_ends_with_nothing(world: World) -> None:
    world.ps.create_topic("orders")
    began = time.monotonic()
    assert world.ps.receive("orders", "g", wait="30ms") == []
    assert len(world.ps.receive_batch("orders", "g", wait=0.03)) == 0
    assert time.monotonic() - began >= 0.06
    world.ps.publish("orders", b"x")
    assert values(world.ps.receive("orders", "g", wait="20s")) == [b"x"]  # at once


def test_news_that_are_not_for_it_do_not_end_the_wait(world: World) -> None:
    world.ps.create_topic("orders", partitions=2)
    waiting = poll(world, partition=1)
    world.ps.publish("orders", b"elsewhere", partition=0)
    time.sleep(0.02)
    assert not waiting.done
    world.ps.publish("orders", b"here", partition=1)
    assert values(waiting.result()) == [b"here"]


def test_nobody_is_left_waiting_when_the_broker_closes(here: World) -> None:
    here.ps.create_topic("orders")
    waiting = poll(here)
    here.broker.close()
    with pytest.raises(BrokerClosed):
        waiting.result()


def test_who_gave_up_waiting_leaves_nothing_behind(world: World) -> None:
    world.ps.create_topic("orders")
    for _ in range(3):
        world.ps.receive("orders", "g", wait="1ms")
    topic = world.broker.open_topics()[0]
    assert len(topic.waiters) == 0


# With the housekeeper's own thread, in real time.


def test_a_retry_a_delay_and_a_lost_lease_wake_a_real_broker(tmp_path: Path) -> None:
    with penstock.connect(tmp_path / "data") as ps:
        ps.create_topic("orders", max_retries=None)
        began = time.time()
        ps.publish("orders", b"delayed", delay="40ms")
        (message,) = ps.receive("orders", "g", wait="20s")
        assert time.time() - began >= 0.04
        message.nack(delay="40ms")
        began = time.monotonic()
        (message,) = ps.receive("orders", "g", wait="20s", visibility="40ms")
        assert time.monotonic() - began >= 0.039
        (message,) = ps.receive("orders", "g", wait="20s")
        assert message.delivery_count == 3
        assert time.monotonic() - began < 15


def test_a_publish_wakes_a_real_broker_at_once(tmp_path: Path) -> None:
    with penstock.connect(tmp_path / "data") as ps:
        ps.create_topic("orders")
        waiting = Background(lambda: ps.receive("orders", "g", wait="20s"))
        topic = broker_of(ps).topic(topic_name("orders"))
        until(lambda: len(topic.waiters) > 0)
        began = time.monotonic()
        ps.publish("orders", b"x")
        assert values(waiting.result()) == [b"x"]
        assert time.monotonic() - began < 5
