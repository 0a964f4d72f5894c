"""How long messages waited and were worked on: by minute, group and priority."""

from __future__ import annotations

import errno
import logging
from datetime import UTC, datetime
from typing import Any

import pytest

from penstock.errors import InvalidInput, TopicNotFound
from penstock.log.files import is_out_of_room
from tests.integration.broker.world import World, take

MINUTE_S = 60
S = 1_000_000
BEGAN_S = 1_699_999_980
"""When the minute began in which a world comes into being, twenty seconds later."""


def rows(ps: Any, topic: str = "orders", **within: Any) -> dict[tuple[int, str, Any, str], Any]:
    """By minute (from the first one of the world on), group, priority and kind."""
    found = ps.latencies(topic, **within)
    places = [(r.minute_us // S - BEGAN_S, r.group, r.priority, r.kind) for r in found]
    assert len(set(places)) == len(places)
    assert places == sorted(places, key=lambda place: place[:2])
    return {
        (start_s // MINUTE_S, *rest): row
        for (start_s, *rest), row in zip(places, found, strict=True)
    }


def about(us: int) -> Any:
    return pytest.approx(us, rel=1 / 8)


def test_waiting_ends_with_the_hand_out_and_handling_with_the_ack(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders")
    ps.publish("orders", b"x")
    world.pass_(3)
    (message,) = ps.receive("orders", "g")
    world.pass_(2)
    message.ack()
    found = rows(ps)
    assert set(found) == {
        (0, "g", priority, kind) for priority in (None, "normal") for kind in ("waited", "handled")
    }
    for priority in (None, "normal"):
        waited = found[0, "g", priority, "waited"]
        assert (waited.count, waited.mean_us, waited.max_us) == (1, 3 * S, 3 * S)
        assert waited.p50_us == waited.p95_us == waited.p99_us == about(3 * S)
        handled = found[0, "g", priority, "handled"]
        assert (handled.count, handled.mean_us, handled.max_us) == (1, 2 * S, 2 * S)


def test_a_batch_counts_each_message_once(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", partitions=2)
    ps.publish_batch("orders", [b"x"] * 90, partition=0)
    world.pass_(4)
    for _ in range(10):
        ps.publish("orders", b"x", partition=1)
    world.pass_(1)
    batch = ps.receive_batch("orders", "g", 100)
    world.pass_(1)
    batch.ack()
    waited, handled = (rows(ps)[0, "g", None, kind] for kind in ("waited", "handled"))
    assert (waited.count, waited.mean_us, waited.max_us) == (100, 4_600_000, 5 * S)
    assert (waited.p50_us, waited.p99_us) == (about(5 * S), about(5 * S))
    assert (handled.count, handled.max_us) == (100, 1 * S)


def test_priorities_and_groups_are_counted_apart(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders")
    ps.publish_batch("orders", [b"x"] * 3, priority="high")
    world.pass_(2)
    ps.publish_batch("orders", [b"x"] * 2, priority="low")
    assert len(take(ps, group="a")) == 5
    world.pass_(5)
    assert len(take(ps, group="b")) == 5
    found = {place: row for place, row in rows(ps).items() if place[3] == "waited"}
    assert {(place[1:3], row.count, row.max_us) for place, row in found.items()} == {
        (("a", None), 5, 2 * S),
        (("a", "high"), 3, 2 * S),
        (("a", "low"), 2, 0),
        (("b", None), 5, 7 * S),
        (("b", "high"), 3, 7 * S),
        (("b", "low"), 2, 5 * S),
    }


def test_a_retry_is_no_waiting_and_is_handled_from_its_own_hand_out(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders")
    ps.publish("orders", b"x")
    world.pass_(1)
    ps.receive("orders", "g")[0].nack(delay="10s")
    world.pass_(10)
    ps.receive("orders", "g", visibility="5s")  # and its lease runs out
    world.pass_(6)
    (message,) = ps.receive("orders", "g")
    assert message.delivery_count == 3
    world.pass_(3)
    message.ack()
    found = rows(ps)
    assert (found[0, "g", None, "waited"].count, found[0, "g", None, "waited"].max_us) == (1, S)
    handled = found[0, "g", None, "handled"]
    assert (handled.count, handled.max_us) == (1, 3 * S)


def test_what_is_given_up_is_not_handled(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders")
    ps.publish_batch("orders", [b"x"] * 2)
    first, second = ps.receive("orders", "g")
    first.reject("no")
    second.nack()
    assert {place[3] for place in rows(ps)} == {"waited"}


def test_a_delayed_message_waits_from_when_it_fell_due(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders")
    ps.publish("orders", b"x", delay="30s")
    world.pass_(30)
    world.pass_(4)
    assert take(ps) == [b"x"]
    (row,) = [row for place, row in rows(ps).items() if place[2:] == (None, "waited")]
    assert (row.count, row.max_us) == (1, 4 * S)


def test_timestamps_in_a_column_are_taken_one_by_one(sync: World) -> None:
    from penstock.record.batch import Batch

    ps = sync.ps
    ps.create_topic("orders")
    now_us = sync.clock.wall_ns() // 1000
    stamps = [now_us - 9 * S, now_us - 1 * S, now_us + 5 * S]  # the last one comes from the future
    ps.publish_batch("orders", Batch.build([b"a", b"b", b"c"], timestamps_us=stamps))
    ps.publish("orders", b"d")
    assert len(take(ps)) == 4
    row = rows(ps)[0, "g", None, "waited"]
    assert (row.count, row.mean_us, row.max_us) == (4, 2_500_000, 9 * S)


def test_some_messages_of_a_mixed_lease(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders")
    ps.publish_batch("orders", [b"x"] * 2, priority="high")
    ps.publish_batch("orders", [b"x"] * 2, priority="low")
    messages = ps.receive("orders", "g", 4)
    world.pass_(1)
    for message in messages[:3]:
        message.ack()
    found = rows(ps)
    assert found[0, "g", "high", "handled"].count == 2
    assert found[0, "g", "low", "handled"].count == 1


def test_a_clock_that_is_set_back_makes_no_time_negative(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders")
    ps.publish_batch("orders", [b"x"] * 2)
    (message,) = ps.receive("orders", "g", 1)
    world.clock.jump_wall(-3600)
    message.ack()
    take(ps)
    found = rows(ps, since=BEGAN_S - 7200)
    assert {(place[0], place[3]): row.count for place, row in found.items() if not place[2]} == {
        (0, "waited"): 1,
        (-60, "waited"): 1,
        (-60, "handled"): 2,
    }
    assert {row.max_us for row in found.values()} == {0}


def test_minutes_add_up_when_the_clock_comes_by_again(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders")
    for _ in range(3):
        ps.publish("orders", b"x")
        take(ps)
        world.pass_(60)  # it is stored
        world.clock.jump_wall(-60)
    ps.publish("orders", b"x")
    take(ps)
    assert {place[0]: row.count for place, row in rows(ps).items()} == {0: 4}
    world.restart()
    assert {place[0]: row.count for place, row in rows(world.ps).items()} == {0: 4}


def test_each_minute_has_rows_of_its_own(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders")
    for count in (1, 2, 3):
        ps.publish_batch("orders", [b"x"] * count)
        take(ps)
        world.pass_(60)
    found = rows(ps)
    waited = {place[0]: row.count for place, row in found.items() if place[2:] == (None, "waited")}
    assert waited == {0: 1, 1: 2, 2: 3}


def test_since_and_until(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders")
    for _ in range(90):
        ps.publish("orders", b"x")
        take(ps)
        world.pass_(60)

    def minutes(**within: Any) -> list[int]:
        return sorted({place[0] for place in rows(ps, **within)})

    assert minutes() == list(range(30, 90))  # the last hour
    assert minutes(since=0) == list(range(90))
    assert minutes(since=BEGAN_S + 85 * 60 + 59) == [85, 86, 87, 88, 89]
    assert minutes(since=BEGAN_S + 3 * 60, until=BEGAN_S + 5 * 60) == [3, 4]
    assert minutes(since=BEGAN_S + 3 * 60, until=BEGAN_S + 5 * 60 + 0.5) == [3, 4, 5]
    assert minutes(until=datetime.fromtimestamp(BEGAN_S + 120, UTC)) == [0, 1]
    assert minutes(since=BEGAN_S + 100, until=BEGAN_S) == []
    assert minutes(since=datetime(1960, 1, 1, tzinfo=UTC), until=BEGAN_S + 1) == [0]
    with pytest.raises(InvalidInput, match="since"):
        ps.latencies("orders", since=datetime(2030, 1, 1))  # noqa: DTZ001
    with pytest.raises(TopicNotFound):
        ps.latencies("payments")


def test_they_survive_a_restart_with_the_unfinished_minute(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders")
    ps.publish_batch("orders", [b"x"] * 5)
    take(ps)
    world.pass_(60)
    ps.publish_batch("orders", [b"x"] * 2)
    batch = ps.receive_batch("orders", "g")
    before = rows(ps)
    ps = world.restart()
    assert rows(ps) == before
    batch = ps.receive_batch("orders", "g")
    assert not len(batch)  # they are still leased
    ps.publish("orders", b"x")
    take(ps)
    found = rows(ps)
    assert found[1, "g", None, "waited"].count == 3  # two rows of the same minute


def test_a_kill_loses_the_present_minute_and_no_other(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders")
    ps.publish("orders", b"x")
    take(ps)
    world.pass_(60)
    stored = rows(ps)
    ps.publish("orders", b"x")
    take(ps)
    assert len(rows(ps)) == 2 * len(stored)
    assert rows(world.kill()) == stored


def test_a_new_topic_has_nothing_of_an_old_one_of_its_name(world: World) -> None:
    ps = world.ps
    for _ in range(2):
        ps.create_topic("orders")
        ps.create_topic("other", exist_ok=True)
        assert ps.latencies("orders") == []
        ps.publish("orders", b"x")
        ps.publish("other", b"x")
        take(ps)
        take(ps, "other")
        world.pass_(60)
        ps.publish("orders", b"x")
        take(ps)
        assert rows(ps)
        ps.delete_topic("orders")
    assert {place[0] for place in rows(ps, "other")} == {0, 1}
    ps = world.restart()
    ps.create_topic("orders")
    assert ps.latencies("orders") == []
    assert ps.stats("orders").groups == []


def test_namespaces_are_kept_apart(world: World) -> None:
    other = world.client("team-a")
    for client, count in ((world.ps, 1), (other, 2)):
        client.create_topic("orders")
        client.publish_batch("orders", [b"x"] * count)
        take(client)
    world.pass_(60)
    assert rows(world.ps)[0, "g", None, "waited"].count == 1
    assert rows(other)[0, "g", None, "waited"].count == 2


def test_a_group_says_how_long_the_last_minutes_took(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders")

    def group() -> Any:
        (found,) = ps.stats("orders").groups
        return found

    for wait_s in (1, 2):
        ps.publish("orders", b"x", priority="high" if wait_s == 1 else "low")
        world.pass_(wait_s)
        (message,) = ps.receive("orders", "g", visibility="2m")
        world.pass_(60 - wait_s)
        message.ack()
    waited = group().waited
    assert (waited.count, waited.mean_us, waited.max_us) == (2, 1_500_000, 2 * S)
    assert waited.p50_us == about(1 * S)
    assert waited.p95_us == waited.p99_us == about(2 * S)
    assert group().handled.max_us == 59 * S
    world.pass_(4 * 60)
    assert group().waited.count == 1  # the other one was in the minute before
    world.pass_(60)
    assert group().waited is None
    world.pass_(60)
    assert group().handled is None


def test_what_was_recent_before_a_restart_still_is(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders")
    ps.publish_batch("orders", [b"x"] * 2)
    take(ps, max_messages=1)
    world.pass_(60)
    ps = world.restart()
    take(ps, max_messages=1)
    for _ in range(2):
        (group,) = ps.stats("orders").groups
        assert (group.waited.count, group.waited.max_us) == (2, 60 * S)
        world.pass_(60)  # the minute is stored
    assert sum(total.histogram.count for total in world.broker.latencies.totals()) == 2
    ps = world.restart(down_s=6 * 60)
    (group,) = ps.stats("orders").groups
    assert group.waited is None


def test_a_deleted_group_begins_anew_but_its_past_stays(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders")
    ps.publish("orders", b"x")
    take(ps)
    world.pass_(60)
    ps.publish("orders", b"y")
    take(ps)
    assert ps.delete_group("orders", "g")
    assert set(rows(ps)) >= {(minute, "g", None, "waited") for minute in (0, 1)}
    assert list(world.broker.latencies.totals()) == []


def test_an_idle_broker_has_nothing_to_do(sync: World) -> None:
    ps = sync.ps
    ps.create_topic("orders", retention=None)
    assert not (sync.folder / "latencies").exists()
    sync.pass_(3600)
    ps.publish("orders", b"x")
    sync.pass_(3600)
    assert sync.broker.next_deadline() is None
    take(ps)
    assert sync.broker.next_deadline() is not None
    assert not (sync.folder / "latencies").exists()
    sync.pass_(60)
    assert (sync.folder / "latencies").exists()
    sync.pass_(60)
    sync.pass_(60)
    assert sync.broker.next_deadline() is None


def test_a_disk_that_does_not_take_them_stops_nobody(
    sync: World, caplog: pytest.LogCaptureFixture
) -> None:
    ps = sync.ps
    ps.create_topic("orders")

    def full(path: str) -> None:
        if "latencies" in path:
            raise OSError(errno.ENOSPC, "no room", path)

    sync.files.before_append = full  # type: ignore[attr-defined]
    with caplog.at_level(logging.WARNING, "penstock.broker"):
        for _ in range(3):
            ps.publish("orders", b"x")
            take(ps)
            sync.pass_(60)
    said = [record for record in caplog.records if "latencies" in record.getMessage()]
    assert len(said) == 1
    sync.files.before_append = None  # type: ignore[attr-defined]
    ps.publish("orders", b"x")
    take(ps)
    sync.pass_(60)
    counts = {m: row.count for (m, _, p, k), row in rows(ps).items() if (p, k) == (None, "waited")}
    assert counts == {0: 1, 1: 1, 2: 1, 3: 1}  # what waited for room is stored after all
    assert rows(sync.kill()) == rows(ps)


def test_a_disk_that_fails_is_tried_again_later(
    sync: World, caplog: pytest.LogCaptureFixture
) -> None:
    ps = sync.ps
    ps.create_topic("orders")

    def broken(path: str) -> None:
        if "latencies" in path:
            raise OSError(errno.EIO, "broken", path)

    assert not is_out_of_room(OSError(errno.EIO, ""))
    sync.files.before_append = broken  # type: ignore[attr-defined]
    ps.publish("orders", b"x")
    take(ps)
    sync.pass_(60)
    assert "latencies are not stored" in caplog.text
    sync.files.before_append = None  # type: ignore[attr-defined]
    ps.publish("orders", b"y")
    assert take(ps) == [b"y"]
    sync.pass_(60)
    assert rows(sync.kill())[1, "g", None, "waited"].count == 1
    sync.files.before_append = broken  # type: ignore[attr-defined]
    sync.ps.publish("orders", b"z")
    assert take(sync.ps) == [b"z"]
    sync.close()  # is not disturbed either
