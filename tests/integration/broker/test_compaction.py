"""Compaction of every topic: what goes, what stays, when it happens, and what it saves."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.model.names import TopicName
from tests.integration.broker.world import World, drain, take, values

ORDERS = TopicName("default", "orders")


def log_of(world: World, topic: TopicName = ORDERS) -> Any:
    return world.broker.topic(topic).partitions[0].log


def frames(world: World) -> int:
    log = log_of(world)
    return len(list(log.headers(log.start)))


def test_small_frames_of_sealed_segments_are_merged_by_themselves(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", segment_bytes=4096)
    for n in range(100):
        ps.publish("orders", b"%d" % n)
    before = frames(world)
    world.pass_(120)
    assert frames(world) < before / 2
    assert take(ps) == [b"%d" % n for n in range(100)]
    ps = world.kill()
    assert take(ps, group="later") == [b"%d" % n for n in range(100)]


def test_they_are_left_alone_where_that_is_asked_for(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", segment_bytes=4096, compaction_interval=None)
    for n in range(100):
        ps.publish("orders", b"%d" % n)
    before = frames(world)
    world.pass_(7200)
    assert frames(world) == before
    ps.alter_topic("orders", compaction_interval="10m")
    world.pass_(120)
    assert frames(world) < before / 2


def test_no_segment_is_rewritten_while_much_is_published(sync: World) -> None:
    ps = sync.ps
    ps.create_topic("orders", segment_bytes=4096)
    for n in range(100):
        ps.publish("orders", b"%d" % n)
    before = frames(sync)
    for _ in range(12):
        ps.publish_batch("orders", [b""] * 100_000)
        sync.pass_(6)
    assert frames(sync) >= before
    sync.pass_(120)
    sync.pass_(120)
    assert frames(sync) < before


def test_expired_messages_go_from_any_topic(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", segment_bytes=4096)
    ps.publish_batch("orders", [b"x" * 100] * 100, ttl="10s")
    ps.publish_batch("orders", [b"stays"] * 10)
    size_bytes = ps.stats("orders").size_bytes
    world.pass_(60)
    world.pass_(3700)
    ps.publish("orders", b"stays")
    world.pass_(120)
    assert ps.stats("orders").size_bytes < size_bytes / 2
    assert take(ps) == [b"stays"] * 11


def test_what_every_group_has_done_goes_from_between_what_some_have_not(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", segment_bytes=4096, retention_mode="consumed")
    for n in range(100):
        ps.publish("orders", b"%03d" % n + b"x" * 100)
    for group, count in (("a", 91), ("b", 81)):
        _first, *others = ps.receive("orders", group, count, visibility="2h")
        for message in others:
            message.ack()
    size_bytes = ps.stats("orders").size_bytes
    world.pass_(120)
    assert ps.stats("orders").size_bytes < size_bytes / 2
    world.pass_(7200)
    ps = world.restart()  # so that what was read before is read again
    left = {value[:3] for value in take(ps, group="b")}
    assert left == {b"000", *(b"%03d" % n for n in range(81, 100))}
    assert len(take(ps, group="a")) == 10


def test_a_stream_that_is_behind_keeps_what_queues_have_done(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", retention_mode="consumed")
    with ps.stream("orders", "s", start="earliest") as stream:
        stream.next(0)
        ps.publish_batch("orders", [b"%d" % n for n in range(10)])
        assert len(take(ps)) == 10
        ps.compact("orders")
        assert drain(stream) == [b"%d" % n for n in range(10)]


def test_expired_messages_stay_while_dead_letters_may_be_made_of_them(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", dead_letter_expired=True, ttl="10s")
    ps.publish_batch("orders", [b"0", b"1"])
    world.pass_(20)
    ps.compact("orders")
    assert ps.receive("orders", "g") == []
    assert values(ps.dead_letters("orders").list()) == [b"0", b"1"]


def test_an_expired_message_that_is_held_can_still_be_rejected(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", ttl="10s")
    ps.publish("orders", b"x")
    (held,) = ps.receive("orders", "g")
    world.pass_(20)
    ps.compact("orders")
    held.reject("no")
    assert values(ps.dead_letters("orders").list()) == [b"x"]


def test_letters_that_are_gone_take_no_room(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", max_retries=0)
    ps.publish_batch("orders", [b"x" * 1000] * 50)
    ps.receive_batch("orders", "g", 50).nack()
    letters = ps.dead_letters("orders")
    kept = list(letters.list())[10]
    letters.purge(where=lambda letter: letter.id != kept.id)
    saved = ps.compact("orders.dlq")
    assert saved.bytes_freed > 40_000
    assert [letter.id for letter in letters.list()] == [kept.id]


def test_compaction_on_demand_says_what_it_saved(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", segment_bytes=4096, retention_mode="consumed")
    for _ in range(100):
        ps.publish("orders", b"x" * 100)
    before = ps.stats("orders").size_bytes
    segments = log_of(world).segment_count
    assert len(take(ps)) == 100
    saved = ps.compact("orders")
    assert saved.segments_removed == segments - log_of(world).segment_count > 0
    assert saved.bytes_freed == before - ps.stats("orders").size_bytes > 10_000
    again = ps.compact("orders")
    assert (again.segments_removed, again.bytes_freed) == (0, 0)


def test_what_is_left_of_many_files_is_in_one_after_one_call(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", segment_bytes=4096, retention_mode="consumed")
    for _ in range(200):
        ps.publish("orders", b"x" * 100)
    segments = log_of(world).segment_count
    first, *others = ps.receive("orders", "g", 1000)
    for message in others:
        message.ack()
    saved = ps.compact("orders")  # the first one is not done, so nothing is simply dropped
    assert log_of(world).segment_count == 2  # what is left, and what is written to
    assert saved.segments_removed == segments - 2 > 5
    assert (ps.compact("orders").segments_removed, len(ps.peek("orders"))) == (0, 1)
    first.ack()
    assert take(ps) == []


@pytest.mark.parametrize("end", ["restart", "kill"])
def test_what_frames_say_of_their_senders_outlives_compaction(end: str, world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", max_retries=0)
    ps.publish("orders", b"late", delay="1s")
    ps.publish("orders", b"x", dedup_id="one")
    ps.receive("orders", "g")[0].nack()
    ps.dead_letters("orders").redrive()
    world.pass_(2)
    ps.compact("orders")
    ps = getattr(world, end)()
    assert sorted(take(ps)) == [b"late", b"x"]
    assert sorted(take(ps, group="other")) == [b"late", b"x"]
    assert ps.publish("orders", b"x", dedup_id="one").duplicate
