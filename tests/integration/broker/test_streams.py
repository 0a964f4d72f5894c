"""Stream mode: members share the partitions, read in order, and commit how far they are."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from penstock.errors import (
    BrokerClosed,
    GroupNotEmpty,
    GroupNotFound,
    InvalidInput,
)
from tests.integration.broker.world import Background, World, drain, values


@pytest.fixture
def orders(world: World) -> Any:
    world.ps.create_topic("orders")
    world.ps.publish_batch("orders", [b"%d" % n for n in range(5)])
    return world.ps


@pytest.fixture
def wide(world: World) -> Any:
    world.ps.create_topic("orders", partitions=4)
    return world.ps


# Reading and committing.


def test_a_stream_reads_in_order_and_goes_on_where_it_was(orders: Any) -> None:
    with orders.stream("orders", "audit") as stream:
        assert [stream.next(0).value for _ in range(3)] == [b"0", b"1", b"2"]
    with orders.stream("orders", "audit") as stream:
        assert drain(stream) == [b"3", b"4"]
        orders.publish("orders", b"5")
        assert drain(stream) == [b"5"]
    with orders.stream("orders", "audit") as stream:
        assert drain(stream) == []


def test_a_stream_is_iterated(orders: Any) -> None:
    stream = orders.stream("orders", "audit")
    got = []
    for message in stream:
        got.append(message)
        if len(got) == 5:
            break
    assert values(got) == [b"0", b"1", b"2", b"3", b"4"]
    message = got[0]
    assert (message.topic, message.partition, message.offset) == ("orders", 0, 0)
    assert (message.key, message.headers, message.priority.name) == (None, {}, "NORMAL")
    assert len(message.id) == 26
    stream.close()


def test_a_message_that_failed_is_not_committed(orders: Any) -> None:
    def work() -> None:
        with orders.stream("orders", "audit", commit_every=0) as stream:
            for message in stream:
                if message.value == b"2":
                    raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    with orders.stream("orders", "audit") as stream:
        assert drain(stream) == [b"2", b"3", b"4"]


def test_without_a_with_block_closing_the_client_commits_what_is_done(world: World) -> None:
    world.ps.create_topic("orders")
    world.ps.publish_batch("orders", [b"%d" % n for n in range(5)])
    for message in world.ps.stream("orders", "audit", commit_every="1h"):
        if message.value == b"3":
            break  # whether it is done nobody knows
    ps = world.restart()
    with ps.stream("orders", "audit") as stream:
        assert drain(stream) == [b"3", b"4"]


def test_commits_by_hand(world: World) -> None:
    world.ps.create_topic("orders")
    world.ps.publish_batch("orders", [b"%d" % n for n in range(5)])
    stream = world.ps.stream("orders", "audit", commit_every=None)
    for _ in range(3):
        stream.next(0)
    stream.commit()  # what was handed out last is done
    stream.next(0)
    world.pass_(60)
    stream.next(0)
    ps = world.kill()
    with ps.stream("orders", "audit") as stream:
        assert drain(stream) == [b"3", b"4"]


def test_commits_by_hand_are_the_only_ones(wide: Any) -> None:
    for partition in range(4):
        wide.publish_batch("orders", [b"0", b"1", b"2"], partition=partition)

    def committed() -> list[int]:
        return sorted(wide.describe_stream_group("audit").committed.values())

    with wide.stream("orders", "audit", commit_every=None) as stream:
        drain(stream)
        with wide.stream("orders", "audit", commit_every=None) as other:
            for _ in range(3):  # until two of the partitions have moved
                stream.next(0)
                other.next(0)
            assert len(stream.assignment) == len(other.assignment) == 2
            assert committed() == []
    assert committed() == []
    with wide.stream("orders", "audit", commit_every=None) as stream:
        assert len(drain(stream)) == 12
        stream.commit()
    assert committed() == [3, 3, 3, 3]


def test_closing_the_client_does_not_commit_what_is_committed_by_hand(world: World) -> None:
    world.ps.create_topic("orders")
    world.ps.publish_batch("orders", [b"0", b"1"])
    stream = world.ps.stream("orders", "audit", commit_every=None)
    assert drain(stream) == [b"0", b"1"]
    ps = world.restart()
    with ps.stream("orders", "audit") as stream:
        assert drain(stream) == [b"0", b"1"]


def test_commits_every_five_seconds(world: World) -> None:
    world.ps.create_topic("orders")
    world.ps.publish_batch("orders", [b"%d" % n for n in range(5)])

    def committed() -> list[int]:
        return list(world.ps.describe_stream_group("audit").committed.values())

    stream = world.ps.stream("orders", "audit")
    stream.next(0)
    stream.next(0)
    world.pass_(4.9)
    stream.next(0)
    assert committed() == []
    world.pass_(0.1)
    stream.next(0)  # asking for the fourth says that three are done
    assert committed() == [3]
    world.pass_(4)
    stream.next(0)
    assert committed() == [3]
    world.pass_(1)
    assert stream.next(0) is None
    assert committed() == [5]


def test_a_commit_is_kept_through_a_crash(world: World) -> None:
    world.ps.create_topic("orders", partitions=2)
    for n in range(6):
        world.ps.publish("orders", b"%d" % n)
    stream = world.ps.stream("orders", "audit", commit_every=None)
    first = [stream.next(0).value for _ in range(3)]
    stream.commit()
    ps = world.kill()
    with ps.stream("orders", "audit") as stream:
        rest = drain(stream)
    assert sorted(first + rest) == [b"%d" % n for n in range(6)]


def test_several_topics_in_one_stream(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders", partitions=2)
    ps.create_topic("payments")
    ps.publish("orders", b"o", partition=1)
    ps.publish("payments", b"p")
    with ps.stream(["orders", "payments"], "audit") as stream:
        got = {(m.topic, m.partition): m.value for m in (stream.next(0), stream.next(0))}
        assert got == {("orders", 1): b"o", ("payments", 0): b"p"}
        assert len(stream.assignment) == 3


def test_a_stream_and_a_queue_read_the_same_topic(orders: Any) -> None:
    orders.receive_batch("orders", "workers").ack()
    with orders.stream("orders", "workers") as stream:
        assert len(drain(stream)) == 5
    assert orders.receive("orders", "workers") == []


def test_a_stream_waits_for_the_next_message(world: World) -> None:
    world.ps.create_topic("orders")
    with world.ps.stream("orders", "audit") as stream:
        waiting = Background(stream.next)
        world.polls("orders")
        world.ps.publish("orders", b"x")
        assert waiting.result().value == b"x"
        assert stream.next(0.01) is None


def test_a_closed_stream_ends_the_wait(world: World) -> None:
    world.ps.create_topic("orders")
    stream = world.ps.stream("orders", "audit")
    waiting = Background(stream.next)
    world.polls("orders")
    stream.close()
    with pytest.raises(BrokerClosed):
        waiting.result()
    with pytest.raises(BrokerClosed):
        stream.next(0)


def test_a_closed_broker_ends_the_wait(here: World) -> None:
    here.ps.create_topic("orders")
    stream = here.ps.stream("orders", "audit")
    waiting = Background(stream.next)
    here.polls("orders")
    here.broker.close()
    with pytest.raises(BrokerClosed):
        waiting.result()
    with pytest.raises(BrokerClosed):
        stream.next(0)


# Where it starts.


def test_a_new_group_starts_where_it_is_told(orders: Any, world: World) -> None:
    world.clock.advance(10)
    at = datetime.fromtimestamp(world.clock.wall_ns() / 1e9, UTC)
    orders.publish_batch("orders", [b"5", b"6"])
    for number, (start, first) in enumerate(
        [("earliest", b"0"), (3, b"3"), (at, b"5"), (0, b"0"), (6, b"6")]
    ):
        with orders.stream("orders", f"audit-{number}", start=start) as stream:
            assert stream.next(0).value == first
    with orders.stream("orders", "audit-latest", start="latest") as stream:
        assert stream.next(0) is None
        orders.publish("orders", b"7")
        assert stream.next(0).value == b"7"
    with orders.stream("orders", "audit-beyond", start=1000) as stream:
        assert stream.next(0) is None


def test_start_is_only_for_where_nothing_is_committed(orders: Any) -> None:
    with orders.stream("orders", "audit") as stream:
        stream.next(0)
    with orders.stream("orders", "audit", start="latest") as stream:
        assert drain(stream) == [b"1", b"2", b"3", b"4"]


def test_a_member_can_seek(wide: Any, world: World) -> None:
    for partition in range(4):
        wide.publish_batch(
            "orders", [b"%d%d" % (partition, n) for n in range(3)], partition=partition
        )
    at = datetime.fromtimestamp(world.clock.wall_ns() / 1e9, UTC)
    with wide.stream("orders", "audit", commit_every=None) as stream:
        assert stream.next(0).value == b"00"
        stream.seek(2, partition=1)
        assert sorted(drain(stream)) == sorted(
            [b"01", b"02", b"12", b"20", b"21", b"22", b"30", b"31", b"32"]
        )
        stream.seek("earliest")
        assert len(drain(stream)) == 12
        stream.seek("latest")
        assert drain(stream) == []
        stream.seek(at)
        assert len(drain(stream)) == 12
        stream.seek(1, partition=3)
        assert {place.partition: offset for place, offset in stream.position.items()} == {
            0: 3,
            1: 3,
            2: 3,
            3: 1,
        }
        stream.commit()
        with pytest.raises(InvalidInput, match="is not assigned"):
            stream.seek("earliest", partition=9)
        with pytest.raises(InvalidInput, match="a position is"):
            stream.seek("start")
    with wide.stream("orders", "audit") as stream:
        assert drain(stream) == [b"31", b"32"]


@pytest.mark.parametrize(("to", "goes_on"), [("earliest", b"0"), (2, b"2"), ("latest", None)])
def test_where_a_member_sought_to_can_be_committed(orders: Any, to: Any, goes_on: Any) -> None:
    with orders.stream("orders", "audit", commit_every=None) as stream:
        drain(stream)
        stream.commit()
        stream.seek(to)
        stream.commit()
    with orders.stream("orders", "audit") as stream:
        message = stream.next(0)
        assert (message and message.value) == goes_on


def test_what_retention_took_is_passed_over_and_told(here: World) -> None:
    ps = here.ps
    ps.create_topic("orders", segment_bytes=4096, retention_segments=2)
    stream = ps.stream("orders", "audit", commit_every=None)
    for n in range(10):
        ps.publish("orders", b"%d" % n + b"x" * 3000)
    here.pass_(120)
    first = stream.next(0)
    assert first.offset >= 8
    assert stream.missed == first.offset


def test_a_group_is_reset_from_outside(orders: Any, world: World) -> None:
    at = datetime.fromtimestamp(world.clock.wall_ns() / 1e9 + 5, UTC)
    world.clock.advance(10)
    orders.publish("orders", b"5")
    for to, expected in (
        ("latest", []),
        ("earliest", [b"0", b"1", b"2", b"3", b"4", b"5"]),
        (4, [b"4", b"5"]),
        (at, [b"5"]),
        (99, []),
    ):
        orders.reset_stream_group("audit", "orders", to)
        with orders.stream("orders", "audit") as stream:
            assert drain(stream) == expected
    with orders.stream("orders", "audit"), pytest.raises(GroupNotEmpty, match="has 1 members"):
        orders.reset_stream_group("audit", "orders", "earliest")
    with pytest.raises(InvalidInput):
        orders.reset_stream_group("audit", "orders", "start")


def test_a_single_partition_is_reset(wide: Any) -> None:
    for partition in range(4):
        wide.publish("orders", b"%d" % partition, partition=partition)
    with wide.stream("orders", "audit") as stream:
        assert len(drain(stream)) == 4
    wide.reset_stream_group("audit", "orders", "earliest", partition=2)
    with wide.stream("orders", "audit") as stream:
        assert drain(stream) == [b"2"]


# What a group looks like.


def test_members_offsets_and_lag_are_shown(wide: Any, world: World) -> None:
    wide.publish_batch("orders", [b"x"] * 10, partition=0)
    wide.publish_batch("orders", [b"x"] * 4, partition=3)
    assert wide.stream_groups() == []
    with wide.stream("orders", "audit", member_id="me", commit_every=None) as stream:
        for _ in range(6):
            stream.next(0)
        stream.commit()
        group = wide.describe_stream_group("audit")
        assert group.phase == "stable"
        assert {p.partition for p in group.members["me"]} == {0, 1, 2, 3}
        assert {p.partition: offset for p, offset in group.committed.items()} == {0: 6}
        assert {p.partition: lag for p, lag in group.lag.items()} == {0: 4, 1: 0, 2: 0, 3: 4}
    assert wide.stream_groups() == ["audit"]
    assert wide.describe_stream_group("audit").phase == "empty"
    with pytest.raises(GroupNotFound, match="no stream group 'nobody'"):
        wide.describe_stream_group("nobody")
    wide.delete_stream_group("audit")
    world.kill()
    assert world.ps.stream_groups() == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"start": "begin"},
        {"start": -1},
        {"start": True},
        {"start": datetime(2030, 1, 1)},  # noqa: DTZ001 - that is what is wrong with it
        {"commit_every": "often"},
        {"session_timeout": "1 minute"},
        {"session_timeout": 0},
        {"session_timeout": "31m"},
        {"member_id": ""},
        {"member_id": 5},
        {"member_id": 0},
        {"assignor": []},
        {"topics": 5},
        {"topics": None},
        {"group": "a b"},
        {"topics": []},
    ],
)
def test_wrong_arguments_are_refused(wrong: dict[str, Any], ps: Any) -> None:
    ps.create_topic("orders")
    with pytest.raises(InvalidInput):
        ps.stream(**{"topics": "orders", "group": "audit"} | wrong)
    assert ps.stream_groups() == []
