"""Deduplication by the caller's own id, over a window of time."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import DiskFull, InvalidInput
from penstock.model.names import TopicName
from tests.integration.broker.world import World, values

MINUTE = 60


def test_an_id_is_stored_once_within_the_window(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", dedup_window="5m")
    first = ps.publish("orders", b"a", dedup_id="order-1")
    again = ps.publish("orders", b"b", dedup_id="order-1")
    assert not first.duplicate
    assert (again.duplicate, again.partition, again.offset) == (True, 0, first.offset)
    assert ps.publish("orders", b"c", dedup_id=b"order-1").duplicate  # text is its UTF-8
    assert not ps.publish("orders", b"d", dedup_id="order-2").duplicate
    assert values(ps.receive("orders", "g")) == [b"a", b"d"]


def test_without_an_id_nothing_is_a_duplicate(ps: Any) -> None:
    ps.create_topic("orders")
    ps.publish("orders", b"a")
    ps.publish("orders", b"a")
    ps.publish_batch("orders", [b"a", b"a"], dedup_ids=[None, None])
    assert len(ps.receive("orders", "g")) == 4


def test_the_window_ends(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", dedup_window="5m")
    ps.publish("orders", b"a", dedup_id="x")
    world.pass_(5 * MINUTE - 1)
    assert ps.publish("orders", b"b", dedup_id="x").duplicate
    world.pass_(MINUTE)  # it may be remembered for a sixteenth longer
    assert not ps.publish("orders", b"c", dedup_id="x").duplicate
    assert ps.publish("orders", b"d", dedup_id="x").duplicate
    assert values(ps.receive("orders", "g")) == [b"a", b"c"]


def test_a_wall_clock_that_jumps_neither_ends_nor_stretches_the_window(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", dedup_window="5m")
    for jump in (3600, -7200):
        ps.publish("orders", b"a", dedup_id=f"x{jump}")
        world.clock.jump_wall(jump)
        assert ps.publish("orders", b"b", dedup_id=f"x{jump}").duplicate
        world.pass_(6 * MINUTE)
        assert not ps.publish("orders", b"c", dedup_id=f"x{jump}").duplicate


def test_another_window_counts_from_when_it_is_set(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", dedup_window="1m")
    ps.publish("orders", b"a", dedup_id="x")
    ps.alter_topic("orders", dedup_window="1h")
    world.pass_(30 * MINUTE)
    assert ps.publish("orders", b"b", dedup_id="x").duplicate


@pytest.mark.parametrize("end", ["restart", "kill"])
def test_ids_are_remembered_after_a_restart(end: str, world: World) -> None:
    world.ps.create_topic("orders", partitions=3, dedup_window="5m")
    stored = {}
    for n in range(6):
        stored[n] = world.ps.publish("orders", b"a", key=f"k{n}", dedup_id=f"id-{n}")
    world.pass_(MINUTE)
    ps = world.restart() if end == "restart" else world.kill()
    for n, first in stored.items():
        again = ps.publish("orders", b"b", key=f"k{n}", dedup_id=f"id-{n}")
        assert again.duplicate
        assert (again.partition, again.offset) == (first.partition, first.offset)
    assert ps.stats("orders").messages == 6
    world.pass_(6 * MINUTE)
    assert not ps.publish("orders", b"c", dedup_id="id-0").duplicate


def test_what_left_the_window_is_not_remembered_after_a_restart(world: World) -> None:
    world.ps.create_topic("orders", dedup_window="5m")
    world.ps.publish("orders", b"a", dedup_id="old")
    world.pass_(6 * MINUTE)
    world.ps.publish("orders", b"b", dedup_id="new")
    ps = world.restart()
    assert not ps.publish("orders", b"c", dedup_id="old").duplicate
    assert ps.publish("orders", b"d", dedup_id="new").duplicate


def test_an_id_twice_in_one_batch_is_stored_once(ps: Any) -> None:
    ps.create_topic("orders", partitions=2)
    ps.publish("orders", b"known", dedup_id="a", partition=1)
    published = list(
        ps.publish_batch(
            "orders",
            [b"0", b"1", b"2", b"3", b"4"],
            dedup_ids=["a", "b", None, "b", "c"],
            partition=0,
        )
    )
    assert [p.duplicate for p in published] == [True, False, False, True, False]
    assert published[3].offset == published[1].offset
    assert (published[0].partition, published[0].offset) == (1, 0)
    assert values(ps.receive("orders", "g", partition=0)) == [b"1", b"2", b"4"]


def test_an_id_counts_for_the_whole_topic_whatever_the_partition(ps: Any) -> None:
    ps.create_topic("orders", partitions=4)
    ps.create_topic("others")
    assert not ps.publish("orders", b"a", partition=0, dedup_id="x").duplicate
    for partition in (1, 2, 3):
        assert ps.publish("orders", b"b", partition=partition, dedup_id="x").duplicate
    assert not ps.publish("others", b"a", dedup_id="x").duplicate


def test_a_message_that_was_acked_or_purged_is_still_known(ps: Any) -> None:
    ps.create_topic("orders")
    ps.publish("orders", b"a", dedup_id="x")
    ps.receive("orders", "g")[0].ack()
    assert ps.publish("orders", b"b", dedup_id="x").duplicate
    ps.purge("orders")
    assert ps.publish("orders", b"b", dedup_id="x").duplicate


def test_a_message_that_could_not_be_stored_is_not_known(sync: World) -> None:
    sync.restart(free_bytes_min=50 << 20)
    ps = sync.ps
    ps.create_topic("orders", partitions=2)
    keys = {ps.publish("orders", b"", key=f"{n}").partition: f"{n}" for n in range(20)}
    ps.purge("orders")
    first, second = sync.broker.topic(TopicName("default", "orders")).partitions
    first.log._roomy_until = second.log._roomy_until = 0
    full = True
    sync.files.free_bytes = lambda folder: (  # type: ignore[union-attr, method-assign]
        0 if full and "00001" in folder else 1 << 40
    )
    batch = {"keys": [keys[0], keys[1]], "dedup_ids": ["here", "there"]}
    with pytest.raises(DiskFull):
        ps.publish_batch("orders", [b"0", b"1"], **batch)
    full = False
    again = list(ps.publish_batch("orders", [b"0", b"1"], **batch))
    assert [p.duplicate for p in again] == [True, False]
    assert sorted(values(ps.receive("orders", "g"))) == [b"0", b"1"]


@pytest.mark.parametrize(
    "ids", [["a"], ["a", "b", "c"], "ab", ["a", 5], ["a", ""], ["a", b""], 7, {"a", "b"}]
)
def test_wrong_ids_are_refused_before_anything_is_stored(ids: Any, ps: Any) -> None:
    ps.create_topic("orders")
    with pytest.raises(InvalidInput, match="deduplication id"):
        ps.publish_batch("orders", [b"1", b"2"], dedup_ids=ids)
    assert ps.stats("orders").messages == 0


@pytest.mark.parametrize("end", ["none", "restart", "kill"])
def test_a_delayed_message_is_stored_once_while_it_waits_and_after(end: str, world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", partitions=3, dedup_window="5m")
    first = ps.publish("orders", b"a", delay="10s", dedup_id="x")
    assert not first.duplicate
    if end != "none":
        ps = getattr(world, end)()
    again = ps.publish("orders", b"b", delay="1h", dedup_id="x")
    assert (again.duplicate, again.id) == (True, first.id)
    assert again.deliver_at_us == first.deliver_at_us
    now = ps.publish("orders", b"c", dedup_id="x")
    assert (now.duplicate, now.id, now.offset) == (True, first.id, -1)
    assert ps.stats("orders").delayed == 1

    world.pass_(10)
    if end != "none":
        ps = getattr(world, end)()
    for how in ({}, {"delay": "10s"}):
        moved = ps.publish("orders", b"d", dedup_id="x", **how)
        assert (moved.duplicate, moved.id) == (True, first.id)
    assert moved.deliver_at_us == 0
    (message,) = ps.receive("orders", "g", 10)
    assert (message.value, message.id) == (b"a", first.id)

    world.pass_(5 * MINUTE)  # the window counts from when it was published, not from when it came
    assert not ps.publish("orders", b"e", delay="10s", dedup_id="x").duplicate


def test_a_message_that_is_not_delayed_is_known_to_one_that_is(ps: Any) -> None:
    ps.create_topic("orders")
    first = ps.publish("orders", b"a", dedup_id="x")
    later = ps.publish("orders", b"b", delay="10s", dedup_id="x")
    assert (later.duplicate, later.id, later.deliver_at_us) == (True, first.id, 0)
    assert ps.stats("orders").delayed == 0


def test_of_a_batch_that_is_delayed_what_is_new_waits(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", partitions=2)
    old = ps.publish("orders", b"old", delay="10s", dedup_id="old")
    ids = ps.publish_batch(
        "orders",
        [b"1", b"2", b"3", b"4"],
        deliver_at=[world.clock.wall_ns() / 1e9 + at for at in (40, 30, 20, 10)],
        keys=["a", "b", "c", "d"],
        dedup_ids=["x", "old", None, "x"],
    )
    assert ids[1] == old.id
    assert ids[3] == ids[0]
    assert len(set(ids)) == 3
    assert {each.message.value: each.id for each in ps.delayed("orders")} == {
        b"old": old.id,
        b"1": ids[0],
        b"3": ids[2],
    }
    world.pass_(20)
    assert values(ps.receive("orders", "g", 10)) == [b"old", b"3"]


def test_the_id_of_a_message_that_was_cancelled_is_new(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders")
    for end in ("none", "restart"):
        first = ps.publish("orders", b"a", delay="10s", dedup_id="x")
        assert ps.cancel("orders", first.id)
        if end == "restart":
            ps = world.restart()
        again = ps.publish("orders", b"b", delay="10s", dedup_id="x")
        assert (again.duplicate, again.id == first.id) == (False, False)
        assert ps.cancel("orders", again.id)


def test_a_delayed_message_that_could_not_be_stored_is_not_known(sync: World) -> None:
    sync.ps.create_topic("orders")
    sync.ps.publish("orders", b"a", delay="1s")
    topic = sync.broker.topic(TopicName("default", "orders"))
    append, topic.delays.of(0).log.append = topic.delays.of(0).log.append, _fail  # type: ignore[method-assign]
    with pytest.raises(DiskFull):
        sync.ps.publish("orders", b"b", delay="1s", dedup_id="x")
    topic.delays.of(0).log.append = append  # type: ignore[method-assign]
    assert not sync.ps.publish("orders", b"b", delay="1s", dedup_id="x").duplicate


def _fail(*args: object) -> None:
    raise DiskFull("no room")


@pytest.mark.parametrize("how", [{}, {"delay": "1s"}])
def test_a_call_may_have_a_window_of_its_own(how: dict[str, Any], world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", partitions=2, dedup_window="5m")
    ps.publish("orders", b"a", dedup_id="long", dedup_window="1h", **how)
    ps.publish("orders", b"b", dedup_id="short", dedup_window="30s", **how)
    ps.publish("orders", b"c", dedup_id="usual", **how)

    def new() -> set[str]:
        """The ids that are; each is asked for with what would be remembered next to nothing."""
        found = set()
        for name in ("long", "short", "usual"):
            sent = ps.publish("orders", b"d", dedup_id=name, dedup_window="1ms", **how)
            if not sent.duplicate:
                found.add(name)
        return found

    assert new() == set()
    world.pass_(31)
    ps = world.kill()
    assert new() == {"short"}
    world.pass_(5 * MINUTE)
    assert new() == {"short", "usual"}
    ps = world.restart()
    world.pass_(50 * MINUTE)
    ps = world.kill()
    assert new() == {"short", "usual"}
    world.pass_(5 * MINUTE)
    assert new() == {"long", "short", "usual"}


def test_messages_stay_as_long_as_the_longest_window_needs_them(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", retention_mode="consumed", dedup_window="1m")
    first = ps.publish("orders", b"a", dedup_id="x", dedup_window="1h")
    (message,) = ps.receive("orders", "g")
    message.ack()
    world.pass_(30 * MINUTE)
    ps.compact("orders")
    ps = world.kill()
    again = ps.publish("orders", b"b", dedup_id="x")
    assert (again.duplicate, again.id) == (True, first.id)


@pytest.mark.parametrize("window", ["0s", "15d", -1, "soon"])
def test_a_window_that_makes_no_sense_is_refused(window: Any, ps: Any) -> None:
    ps.create_topic("orders")
    for how in ({}, {"delay": "1s"}):
        with pytest.raises(InvalidInput, match="dedup_window"):
            ps.publish("orders", b"a", dedup_id="x", dedup_window=window, **how)
        with pytest.raises(InvalidInput, match="dedup_window"):
            ps.publish("orders", b"a", dedup_window="1m", **how)
    assert ps.stats("orders").messages == 0


def test_beyond_the_limit_of_a_topic_the_oldest_ids_go_first(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", dedup_ids_max=3, partitions=2)
    for n in range(5):
        ps.publish("orders", b"a", dedup_id=f"id-{n}", key=f"k{n}")
        world.pass_(1)
    for _ in range(2):
        assert ps.publish_batch("orders", [b"b"] * 3, dedup_ids=["id-2", "id-3", "id-4"]).placed
        assert all(ps.publish("orders", b"b", dedup_id=f"id-{n}").duplicate for n in (2, 3, 4))
        ps = world.kill()
    assert not ps.publish("orders", b"c", dedup_id="id-1").duplicate
    assert not ps.publish("orders", b"c", dedup_id="id-2").duplicate
