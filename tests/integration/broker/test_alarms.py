"""Messages that wait for too long are told of: in the statistics, and once in the log."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from penstock.errors import InvalidInput
from penstock.model.names import topic_name
from penstock.model.stats import Alarm
from tests.integration.broker.world import World, take

MINUTE, DAY = 60, 86_400


@pytest.fixture(autouse=True)
def warnings(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "penstock.broker")


def alarms(ps: Any, topic: str = "orders") -> list[tuple[str, str | None, str | None]]:
    return [(each.kind, each.mode, each.group) for each in ps.stats(topic).alarms]


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the log was told since this was asked last."""
    messages = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return messages


def test_a_group_that_is_behind_is_an_alarm_until_it_has_caught_up(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    ps = world.ps
    ps.create_topic("orders", partitions=2, lag_alarm="10m")
    ps.publish("orders", b"a", partition=1)
    take(ps)
    world.pass_(30 * MINUTE)
    ps.publish("orders", b"b", partition=1)
    world.pass_(10 * MINUTE - 1)
    assert alarms(ps) == []
    assert said(caplog) == []
    world.pass_(1)
    minutes_us = 10 * MINUTE * 1_000_000
    expected = Alarm(kind="lag", group="g", mode="queue", partition=1, age_us=minutes_us)
    assert ps.stats("orders").alarms == [expected]
    (begun,) = said(caplog)
    assert "topic orders: queue group g has not done a message of partition 1" in begun
    assert "lag_alarm is 10m" in begun
    world.pass_(MINUTE)
    assert said(caplog) == []  # it is on, and was told of
    take(ps)
    assert alarms(ps) == []
    world.pass_(10)
    (over,) = said(caplog)
    assert "queue group g has no message any more that is older" in over


def test_an_alarm_that_comes_and_goes_is_told_of_now_and_then(
    sync: World, caplog: pytest.LogCaptureFixture
) -> None:
    sync.ps.create_topic("orders", lag_alarm="5s")
    take(sync.ps)
    for _ in range(30):
        sync.ps.publish("orders", b"x")
        sync.pass_(5)
        assert alarms(sync.ps) == [("lag", "queue", "g")]
        take(sync.ps)
        sync.pass_(10)
    assert len(said(caplog)) <= 4


def test_a_stream_group_is_behind_by_what_it_has_not_committed(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", lag_alarm="10m")
    ps.publish_batch("orders", [b"a", b"b"])
    ps.reset_stream_group("audit", "orders", 1)
    world.pass_(10 * MINUTE)
    assert alarms(ps) == [("lag", "stream", "audit")]
    ps.reset_stream_group("audit", "orders", 2)
    assert alarms(ps) == []


def test_a_lease_does_not_hide_a_message_that_is_not_done(world: World) -> None:
    world.ps.create_topic("orders", lag_alarm="10m", visibility="1h")
    world.ps.publish("orders", b"a")
    (message,) = world.ps.receive("orders", "g")
    world.pass_(10 * MINUTE)
    assert alarms(world.ps) == [("lag", "queue", "g")]
    message.ack()
    assert alarms(world.ps) == []


def test_the_alarm_can_be_set_and_taken_away_while_messages_wait(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    ps = world.ps
    ps.create_topic("orders")
    ps.publish("orders", b"a")
    ps.receive("orders", "g")[0].nack(delay="1d")
    world.pass_(DAY / 2)
    assert alarms(ps) == []
    ps.alter_topic("orders", lag_alarm="1h")
    world.pass_(0)
    assert alarms(ps) == [("lag", "queue", "g")]
    assert len(said(caplog)) == 1
    ps.alter_topic("orders", lag_alarm=None)
    world.pass_(10)
    assert alarms(ps) == []
    assert len(said(caplog)) == 1


def test_a_topic_that_nobody_opens_after_a_start_has_its_alarm_all_the_same(
    sync: World, caplog: pytest.LogCaptureFixture
) -> None:
    sync.ps.create_topic("orders", lag_alarm="1h")
    sync.ps.publish("orders", b"a")
    sync.broker.topic(topic_name("orders")).partition(0).queue("g")
    sync.restart(down_s=60)
    sync.pass_(59 * MINUTE - 1)
    assert said(caplog) == []
    sync.pass_(2)
    assert len(said(caplog)) == 1


def test_messages_that_nobody_read_are_told_of_before_they_are_dropped(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    ps = world.ps
    ps.create_topic("orders", retention="10d")
    ps.publish("orders", b"a")
    world.pass_(MINUTE)
    world.pass_(8 * DAY - MINUTE - 1)
    assert alarms(ps) == []
    world.pass_(2)
    assert alarms(ps) == [("unread", None, None)]
    (begun,) = said(caplog)
    assert "no group has read a message of partition 0 that is 8d1s old" in begun
    assert "retention drops it after 10d" in begun
    world.pass_(2 * DAY)
    world.pass_(MINUTE)
    assert ps.stats("orders").messages == 0
    assert alarms(ps) == []


@pytest.mark.parametrize("how", ["queue", "stream"])
def test_what_one_group_has_read_may_go(world: World, how: str) -> None:
    ps = world.ps
    ps.create_topic("orders", retention="10d")
    ps.publish_batch("orders", [b"a", b"b"])
    ps.receive("orders", "slow", 1)
    if how == "queue":
        take(ps, group="quick")
    else:
        ps.reset_stream_group("quick", "orders", "latest")
    world.pass_(9 * DAY)
    assert alarms(ps) == []


def test_what_is_read_in_part_is_not_read(world: World) -> None:
    world.ps.create_topic("orders", retention="10d")
    world.ps.publish_batch("orders", [b"a", b"b"])
    world.ps.receive("orders", "g", 1)[0].ack()
    world.pass_(9 * DAY)
    assert alarms(world.ps) == [("unread", None, None)]


@pytest.mark.parametrize(
    "settings",
    [{"retention": None}, {"retention_mode": "consumed"}, {"retention_waits_for": ["a"]}],
)
def test_what_is_not_dropped_by_its_age_is_no_alarm(sync: World, settings: dict[str, Any]) -> None:
    sync.ps.create_topic("orders", **{"retention": "10d"} | settings)
    sync.ps.publish("orders", b"a")
    sync.pass_(30 * DAY)
    assert alarms(sync.ps) == []


def test_dead_letters_that_nobody_looks_at_are_told_of(sync: World) -> None:
    ps = sync.ps
    ps.create_topic("orders", retention="60d")
    for value in (b"a", b"b"):
        ps.publish("orders", value)
        ps.receive("orders", "g")[0].reject("no")
    sync.pass_(13 * DAY)
    assert alarms(ps, "orders.dlq") == [("unread", None, None)]
    ps.dead_letters("orders").redrive()
    assert alarms(ps, "orders.dlq") == []


def test_a_compacted_topic_knows_how_old_its_oldest_message_is(sync: World) -> None:
    sync.ps.create_topic("orders", compacted=True)
    sync.ps.publish("orders", b"a", key="k")
    sync.pass_(MINUTE)
    sync.ps.publish("orders", b"b", key="k")
    sync.ps.compact("orders")
    sync.ps.receive("orders", "g")[0].nack(delay="1h")
    sync.broker.topic(topic_name("orders")).partition(0).seek("g", 0)
    (group,) = sync.ps.stats("orders").groups
    assert group.oldest_age_us == 0


def test_an_alarm_takes_a_second_at_least(world: World) -> None:
    with pytest.raises(InvalidInput, match="lag_alarm"):
        world.ps.create_topic("orders", lag_alarm="10ms")
