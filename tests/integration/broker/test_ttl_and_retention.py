"""What is too old is not delivered, and what is kept no longer goes."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.model.names import TopicName
from tests.integration.broker.world import World, take, values

DAY = 86_400
MINUTE = 60
ORDERS = TopicName("default", "orders")


def start(world: World, partition: int = 0) -> int:
    return int(world.broker.topic(ORDERS).partition(partition).log.start)


# TTL.


def test_an_expired_message_is_not_delivered(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders")
    ps.publish("orders", b"short", ttl="10s")
    ps.publish("orders", b"long", ttl="1h")
    ps.publish("orders", b"endless")
    world.pass_(10)
    assert take(ps) == [b"long", b"endless"]
    assert ps.stats("orders").depth == 0
    assert list(ps.dead_letters("orders").list()) == []


def test_a_message_lives_until_its_time_is_up(world: World) -> None:
    world.ps.create_topic("orders")
    world.ps.publish("orders", b"x", ttl="10s")
    world.pass_(9.999)
    assert take(world.ps) == [b"x"]


def test_the_topics_ttl_is_for_messages_that_bring_none(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", ttl="10s")
    ps.publish("orders", b"own", ttl="1h")
    ps.publish("orders", b"single")
    ps.publish_batch("orders", [b"batch"])
    ps.publish("orders", b"once", dedup_id="x")
    with ps.producer("orders") as out:
        out.send(b"produced")
    world.pass_(9)
    assert len(ps.receive("orders", "early", 100)) == 5
    world.pass_(1)
    assert take(ps) == [b"own"]


def test_the_ttl_of_a_delayed_message_counts_from_when_it_is_due(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", ttl="1m")
    ps.publish("orders", b"own", ttl="10s", delay="1h")
    ps.publish("orders", b"topic", delay="1h")
    world.pass_(3600 + 9)
    assert values(ps.receive("orders", "early", 100)) == [b"own", b"topic"]
    world.pass_(1)
    assert take(ps) == [b"topic"]
    ps.publish("orders", b"nobody looked", ttl="10s", delay="1h")
    world.pass_(2 * 3600)
    assert take(ps, group="late") == []


def test_a_message_may_expire_while_it_waits_for_a_retry(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", dead_letter_expired=True)
    ps.publish("orders", b"x", ttl="10s")
    ps.receive("orders", "g", consumer="w")[0].nack(delay="20s", error="busy")
    world.pass_(20)
    assert ps.receive("orders", "g") == []
    (letter,) = ps.dead_letters("orders").list()
    assert (letter.reason, letter.attempts, letter.error) == ("expired", 1, "busy")
    assert letter.origin.consumer == "w"


def test_who_holds_a_message_when_it_expires_may_finish_it(world: World) -> None:
    world.ps.create_topic("orders")
    world.ps.publish("orders", b"x", ttl="10s")
    (message,) = world.ps.receive("orders", "g")
    world.pass_(15)
    message.ack()


def test_expired_messages_become_dead_letters_where_that_is_asked_for(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", ttl="10s", dead_letter_expired=True)
    ps.publish("orders", b"x", key="k")
    world.pass_(10)
    assert ps.receive("orders", "g") == []
    (letter,) = ps.dead_letters("orders").list()
    assert (letter.value, letter.reason, letter.attempts) == (b"x", "expired", 0)
    assert letter.origin.first_delivery_us is None
    assert ps.dead_letters("orders").redrive() == 1
    assert take(ps) == [b"x"]  # with a new life


def test_thousands_that_are_expired_do_not_hide_what_is_not(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders")
    ps.publish_batch("orders", [b"old"] * 5000, ttl="1s")
    ps.publish("orders", b"new")
    world.pass_(1)
    assert values(ps.receive("orders", "g", 1)) == [b"new"]
    world.kill()
    assert world.ps.receive("orders", "g") == []


def test_expired_messages_are_not_read_by_streams_either(world: World) -> None:
    world.ps.create_topic("orders")
    world.ps.publish("orders", b"old", ttl="10s")
    world.ps.publish("orders", b"new")
    world.pass_(10)
    with world.ps.stream("orders", "s") as stream:
        assert stream.next(0).value == b"new"


@pytest.mark.parametrize("jump_s", [-3600, 3600])
def test_expiry_is_by_the_wall_clock(jump_s: float, world: World) -> None:
    world.ps.create_topic("orders")
    world.ps.publish("orders", b"x", ttl="30m")
    world.clock.jump_wall(jump_s)
    assert len(world.ps.receive("orders", "g")) == (jump_s < 0)


# Retention by time.


def test_messages_are_kept_for_seven_days(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders")
    ps.publish("orders", b"old")
    world.pass_(3 * DAY)
    ps.publish("orders", b"new")
    world.pass_(4 * DAY + 2 * MINUTE)
    assert take(ps, visibility="12h") == [b"old", b"new"]  # one segment: it goes as a whole
    world.pass_(3 * DAY)
    assert ps.stats("orders").messages == 0
    assert take(ps, group="late") == []
    ps.publish("orders", b"again")
    assert take(ps, group="late") == [b"again"]


def test_segments_that_are_too_old_go_and_take_the_groups_along(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", retention="1d", segment_bytes=4096)
    for n in range(10):
        ps.publish("orders", b"%d" % n + b"x" * 3000)
        world.pass_(0.25 * DAY)
    left = start(world)
    assert 5 <= left <= 7
    assert ps.stats("orders").messages == 10 - left
    assert [m.offset for m in ps.receive("orders", "g", 100)] == list(range(left, 10))
    world.kill()
    assert start(world) == left


def test_a_held_message_that_retention_took_is_settled_already(world: World) -> None:
    world.ps.create_topic("orders", retention="1h", max_retries=None)
    world.ps.publish("orders", b"x")
    (message,) = world.ps.receive("orders", "g", visibility="12h")
    world.pass_(2 * 3600)
    assert world.ps.stats("orders").messages == 0
    with pytest.raises(Exception, match="already done"):
        message.ack()


def test_limits_by_bytes_and_by_segments(world: World) -> None:
    for topic, limit in (
        ("bytes", {"retention_bytes": 20_000}),
        ("few", {"retention_segments": 3}),
    ):
        world.ps.create_topic(topic, segment_bytes=4096, **limit)
        for _ in range(20):
            world.ps.publish(topic, b"x" * 3000)
        world.pass_(2 * MINUTE)
        assert 2 <= world.ps.stats(topic).messages <= 7


def test_without_a_limit_everything_stays(world: World) -> None:
    world.ps.create_topic("orders", retention=None)
    world.ps.publish("orders", b"x")
    world.pass_(1000 * DAY)
    assert take(world.ps) == [b"x"]


def test_retention_wakes_when_something_is_too_old_and_not_every_minute(world: World) -> None:
    world.ps.create_topic("orders", retention="1d")
    assert world.broker.next_deadline() is None
    world.ps.publish("orders", b"x")
    take(world.ps)  # or somebody would be told before that nobody has read it
    world.pass_(MINUTE)
    deadline_ns = world.broker.next_deadline()
    assert deadline_ns is not None
    assert deadline_ns - world.clock.monotonic_ns() > (DAY - 2 * MINUTE) * 1_000_000_000
    world.pass_(DAY)
    assert world.ps.stats("orders").messages == 0
    assert world.broker.next_deadline() is None


# Retention `consumed`.


def test_what_every_group_has_done_goes(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", retention_mode="consumed")
    ps.publish_batch("orders", [b"%d" % n for n in range(10)])
    quick = ps.receive("orders", "quick", 10)
    slow = ps.receive("orders", "slow", 10)
    for message in quick:
        message.ack()
    for message in slow[:4]:
        message.ack()
    world.pass_(2 * MINUTE)
    assert start(world) == 4
    for message in ps.receive("orders", "slow", 10):
        message.ack()
    world.pass_(2 * MINUTE)
    assert start(world) == 10
    assert ps.stats("orders").messages == 0


def test_without_a_group_nothing_is_consumed(world: World) -> None:
    world.ps.create_topic("orders", retention_mode="consumed", retention="1s")
    world.ps.publish("orders", b"x")
    world.pass_(30 * DAY)
    assert take(world.ps) == [b"x"]


def test_a_group_that_was_never_on_a_partition_has_not_consumed_it(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", partitions=2, retention_mode="consumed")
    ps.publish("orders", b"0", partition=0)
    ps.publish("orders", b"1", partition=1)
    assert take(ps, group="half", partition=0) == [b"0"]
    assert sorted(take(ps, group="whole")) == [b"0", b"1"]
    world.pass_(2 * MINUTE)
    assert (start(world, 0), start(world, 1)) == (1, 0)
    assert take(ps, group="half") == [b"1"]


def test_a_stream_group_counts_too(here: World) -> None:
    ps = here.ps
    ps.create_topic("orders", partitions=2, retention_mode="consumed")
    ps.publish_batch("orders", [b"a", b"b"], partition=0)
    ps.publish_batch("orders", [b"c"], partition=1)
    assert len(take(ps, group="queue")) == 3
    with ps.stream("orders", "audit", commit_every=None) as stream:
        here.pass_(2 * MINUTE)
        assert (start(here, 0), start(here, 1)) == (0, 0)  # it is here, and has committed nothing
        assert stream.next(0).value == b"a"
        stream.commit()
        here.pass_(2 * MINUTE)
        assert (start(here, 0), start(here, 1)) == (1, 0)
    here.restart()
    here.pass_(2 * MINUTE)
    assert (start(here, 0), start(here, 1)) == (1, 0)
    with here.ps.stream("orders", "audit", commit_every=None) as stream:
        assert [stream.next(0).value, stream.next(0).value] == [b"b", b"c"]
        stream.commit()
    here.pass_(2 * MINUTE)
    assert (start(here, 0), start(here, 1)) == (2, 1)


def test_a_group_that_is_deleted_holds_nothing_back(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", retention_mode="consumed")
    ps.publish("orders", b"x")
    ps.receive("orders", "gone", 1)
    take(ps)
    ps.delete_group("orders", "gone")
    ps.publish("orders", b"y")
    world.pass_(2 * MINUTE)
    assert start(world) == 1


# Compaction.


def test_a_compacted_topic_keeps_the_last_of_each_key(world: World) -> None:
    ps = world.ps
    ps.create_topic("prices", compacted=True, segment_bytes=4096, retention=None)
    for n in range(30):
        ps.publish("prices", b"%d" % n + b" " * 500, key=f"k{n % 3}")
    world.pass_(2 * MINUTE)
    got: Any = ps.receive("prices", "g", 100)
    newest = {m.key: int(m.value) for m in got}
    assert newest == {b"k0": 27, b"k1": 28, b"k2": 29}
    assert len(got) < 20
    for message in got:
        message.ack()
    assert ps.receive("prices", "g") == []
    assert ps.stats("prices").groups[0].depth == 0
