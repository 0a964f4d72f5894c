"""Members of a stream group far away: they beat, fall silent, and are woken."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.broker import Broker
from penstock.client import stream_reader
from tests.integration.broker.world import Background, World, until
from tests.integration.server.running import RunningServer


@pytest.mark.parametrize("door", ["remote", "async-remote"])
def test_a_busy_member_stays_because_somebody_beats_for_it(
    door: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path / "data", door)
    world.ps.create_topic("orders")
    world.ps.publish_batch("orders", [b"a", b"b"])
    beats = heartbeats(world, monkeypatch)
    with world.ps.stream("orders", "audit", session_timeout="200ms", member_id="me") as stream:
        assert stream.next(5).value == b"a"
        for _ in range(25):  # it works on the message for longer than two sessions
            heard = len(beats)
            world.pass_(0.02)
            until(lambda: len(beats) > heard)  # noqa: B023 - it is called at once
        assert list(world.ps.describe_stream_group("audit").members) == ["me"]
        assert stream.next(5).value == b"b"
        stream.commit()
    world.close_all()


def heartbeats(world: World, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The members that the broker hears, as it hears them."""
    heard: list[str] = []
    heartbeat = world.broker.streams.heartbeat

    def hear(group: str, member_id: str, generation: int) -> Any:
        standing = heartbeat(group, member_id, generation)
        heard.append(member_id)
        return standing

    monkeypatch.setattr(world.broker.streams, "heartbeat", hear)
    return heard


def test_a_member_that_was_cut_off_joins_again(ps: Any, broker: Broker) -> None:
    ps.create_topic("orders")
    ps.publish_batch("orders", [b"a", b"b"])
    with ps.stream("orders", "audit", member_id="me", commit_every=None) as stream:
        stream.next(5)
        stream.commit()
        generation = broker.streams.describe("audit").generation
        broker.streams.leave("audit", "me", generation)  # as if it had been silent for too long
        until(lambda: "me" not in broker.streams.describe("audit").members)
        assert stream.next(5).value == b"b"  # which it had read ahead
        until(lambda: stream.next(0.1) is not None)  # it joined again, and reads what is not done
        assert list(broker.streams.describe("audit").members) == ["me"]


def test_a_waiting_member_hears_at_once_of_another(ps: Any, server: RunningServer) -> None:
    ps.create_topic("orders", partitions=2)
    first = ps.stream("orders", "audit")
    waiting = Background(lambda: first.next(20))
    until(lambda: len(server.door.polls) == 1)
    began = time.monotonic()
    second = ps.stream("orders", "audit")
    until(lambda: len(first.assignment) == 1)
    assert time.monotonic() - began < 2  # long before the next heartbeat
    ps.publish("orders", b"x", partition=first.assignment[0].partition)
    assert waiting.result().value == b"x"
    first.close()
    second.close()
    assert len(server.door.api._members) == 0


def test_more_partitions_than_one_fetch_may_name_are_read_in_turns(
    ps: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_reader, "POSITIONS_MAX", 2)
    ps.create_topic("orders", partitions=5)
    for number in range(5):
        ps.publish("orders", b"%d" % number, partition=number)
    with ps.stream("orders", "audit") as stream:
        assert sorted(stream.next(10).value for _ in range(5)) == [b"%d" % n for n in range(5)]
        ps.publish("orders", b"last", partition=4)
        assert stream.next(10).value == b"last"


def test_a_rebalance_far_away_loses_and_doubles_nothing(ps: Any) -> None:
    ps.create_topic("orders", partitions=4)
    for partition in range(4):
        ps.publish_batch("orders", [b"%d" % n for n in range(50)], partition=partition)
    got: list[tuple[int, int]] = []

    def read(count: int) -> None:
        with ps.stream("orders", "audit", commit_every="10ms") as stream:
            for _ in range(count):
                message = stream.next(3)
                if message is None:
                    return
                got.append((message.partition, message.offset))

    members = [Background(lambda n=n: read(n)) for n in (30, 60, 1000)]
    for member in members:
        member.result(60)
    assert sorted(set(got)) == [(p, n) for p in range(4) for n in range(50)]
    assert len(got) == 200


def test_news_that_come_while_nobody_waits_are_not_lost(ps: Any, server: RunningServer) -> None:
    ps.create_topic("orders")
    with ps.stream("orders", "audit") as stream:
        assert stream.next(0) is None
        for n in range(20):
            waiting = Background(lambda: stream.next(20))
            ps.publish("orders", b"%d" % n)
            assert waiting.result().value == b"%d" % n


def test_somebody_beats_again_after_a_message_that_took_very_long(
    ps: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_reader, "_POLL_EVERY_NS_MAX", 0)  # nothing is quick enough
    ps.create_topic("orders")
    ps.publish_batch("orders", [b"a", b"b"])
    with ps.stream("orders", "audit") as stream:
        assert stream.next(10).value == b"a"
        first = stream._beating
        first.join(30)
        assert not first.is_alive()
        monkeypatch.undo()
        assert stream.next(10).value == b"b"
        assert stream._beating.is_alive()
