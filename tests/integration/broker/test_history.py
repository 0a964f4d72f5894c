"""What the broker notes of each minute, what needs attention, and letters by their error."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.broker.api import Api
from penstock.errors import BrokerClosed, InvalidInput, TopicNotFound
from penstock.model import calls
from tests.integration.broker.world import World, take


def minute(world: World) -> None:
    """The minute is over, and is noted."""
    left_s = 60 - world.clock.wall_ns() / 1e9 % 60
    world.pass_(left_s + 1)
    world.broker.history.take_notes(world.broker)


def test_a_minute_has_what_came_and_went_and_what_is_left(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", max_retries=0)
    minute(world)
    ps.publish_batch("orders", [b"x"] * 10)
    take(ps, max_messages=4)
    ps.receive("orders", "g", 1)[0].reject("no")
    ps.publish("orders", b"later", delay="1h")
    minute(world)
    (row,) = ps.history("orders")
    assert (row.published, row.delivered, row.acked) == (10, 5, 4)
    assert (row.failed, row.dead_lettered) == (1, 1)
    assert (row.depth, row.delayed, row.dead, row.lag) == (5, 1, 1, {"g": 5})
    take(ps)
    minute(world)
    assert [each.depth for each in ps.history("orders")] == [5, 0]
    all_ = ps.history()[-1]
    assert (all_.acked, all_.depth, all_.dead) == (5, 0, 1)


def test_minutes_in_which_nothing_happened_are_left_out(world: World) -> None:
    world.ps.create_topic("orders")
    for number in range(6):
        if number in (1, 4):
            world.ps.publish("orders", b"x")
        minute(world)
    rows = world.ps.history("orders")
    assert [row.published for row in rows] == [1, 1]
    assert rows[1].time_us - rows[0].time_us == 3 * 60_000_000


def test_minutes_add_up_to_longer_steps(sync: World) -> None:
    sync.ps.create_topic("orders")
    for _ in range(30):
        sync.ps.publish("orders", b"x")
        minute(sync)
    rows = sync.ps.history("orders", step="10m")
    assert sum(row.published for row in rows) == 30
    assert len(rows) in (3, 4)
    assert rows[-1].depth == 30
    for step in ("90s", 0, "25h", "ever"):
        with pytest.raises(InvalidInput, match="step"):
            sync.ps.history("orders", step=step)


def test_history_survives_a_restart(sync: World) -> None:
    sync.ps.create_topic("orders")
    sync.ps.publish("orders", b"x")
    minute(sync)
    before = sync.ps.history("orders")
    ps = sync.restart()
    assert ps.history("orders") == before
    ps.publish_batch("orders", [b"x"] * 2)
    minute(sync)
    assert [row.published for row in ps.history("orders")] == [1, 2]
    assert ps.history()[-1].depth == 3


def test_notes_end_quietly_when_the_broker_is_closed_meanwhile(
    sync: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync.ps.create_topic("orders")

    def closed(_: object) -> Any:
        raise BrokerClosed("closed by another thread")

    monkeypatch.setattr(sync.broker, "stats", closed)
    sync.broker.history.take_notes(sync.broker)
    assert sync.ps.history("orders") == []


def test_a_topic_that_is_made_again_has_no_history(sync: World) -> None:
    ps = sync.ps
    ps.create_topic("orders")
    ps.publish("orders", b"x")
    minute(sync)
    ps.delete_topic("orders")
    with pytest.raises(TopicNotFound):
        ps.history("orders")
    minute(sync)
    minute(sync)
    ps.create_topic("orders")
    assert ps.history("orders") == []


def test_totals_are_of_all_topics_once_they_are_known(sync: World) -> None:
    for name in ("a", "b"):
        sync.ps.create_topic(name, max_retries=0)
        sync.ps.publish_batch(name, [b"x"] * 5)
    sync.ps.receive("a", "g", 1)[0].reject("no")
    ps = sync.restart()
    ps.publish("a", b"x")
    minute(sync)
    total = ps.history()[-1]
    assert (total.published, total.depth, total.dead) == (1, 10, 1)  # a dead letter is no topic's


def test_a_namespace_has_totals_of_its_own(sync: World) -> None:
    other = sync.client("other")
    for client, count in ((sync.ps, 3), (other, 2)):
        client.create_topic("orders")
        client.publish_batch("orders", [b"x"] * count)
    minute(sync)
    assert [sum(r.published for r in each.history()) for each in (sync.ps, other)] == [3, 2]


def test_what_a_disk_refuses_is_no_trouble_for_the_broker(sync: World) -> None:
    def refuse(path: str) -> None:
        if "history" in path:
            raise OSError(28, "No space left on device")

    sync.files.before_append = refuse  # type: ignore[attr-defined]
    sync.ps.create_topic("orders")
    sync.ps.publish("orders", b"x")
    minute(sync)
    sync.files.before_append = None  # type: ignore[attr-defined]
    assert take(sync.ps) == [b"x"]
    assert sync.ps.history("orders") == []


def test_the_overview_says_what_needs_attention(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", partitions=2, max_retries=0, lag_alarm="1m")
    ps.create_topic("quiet")
    ps.publish_batch("orders", [b"x"] * 10)
    world.pass_(120)
    ps.receive("orders", "slow", 1)[0].reject("no")
    with ps.stream("quiet", group="readers") as stream:
        stream.next(0)
        ps.publish_batch("quiet", [b"x"] * 20)
        seen = ps.overview()
    assert (seen.summary.topics, seen.summary.depth, seen.summary.dead) == (2, 29, 1)
    assert [each.lag for each in seen.lagging if each.group == "slow"] == [9]
    assert seen.lagging[0].oldest_age_us == 120_000_000
    assert [row.topic for row in seen.dead] == ["orders"]
    assert [(each.topic, each.kinds) for each in seen.alarms] == [("orders", ["lag"])]
    assert seen.webhooks == []
    assert seen.disk_floor_bytes == 0


def test_letters_are_counted_by_reason_group_and_first_line(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", partitions=2, max_retries=0)
    ps.publish_batch("orders", [b"x"] * 10)
    for number, message in enumerate(ps.receive("orders", "g", 10)):
        message.reject(f"  boom\nline {number}" if number < 7 else "")
    found = ps.dead_letters("orders").groups()
    assert (found.counted, found.complete) == (10, True)
    assert [(each.error, each.count) for each in found.groups] == [("boom", 7), ("", 3)]


def test_letters_are_redriven_bit_by_bit_as_they_were_counted(sync: World) -> None:
    ps = sync.ps
    ps.create_topic("orders", partitions=2, max_retries=0)
    ps.publish_batch("orders", [b"%d" % n for n in range(10)])
    for number, message in enumerate(ps.receive("orders", "g", 10)):
        message.reject("bank\nsays no" if number % 2 else "other bank")
    api: Any = Api(sync.broker)
    wanted: Any = {"topic": "orders", "error_line": "bank"}
    assert api.ask(calls.CountDeadLetters(**wanted)).count == 5
    some = calls.RedriveDeadLetters(**wanted, limit=2)
    moved = [api.ask(some).count for _ in range(4)]
    assert moved == [2, 2, 1, 0]
    assert api.ask(calls.CountDeadLetters(topic="orders")).count == 5
    purge = calls.PurgeDeadLetters(topic="orders", reason="rejected", limit=3)
    assert api.ask(purge).count == 3
    assert len(ps.dead_letters("orders")) == 2
