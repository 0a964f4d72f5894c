"""Members of a stream group: they share the partitions, come, go, fail, and are replaced."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

import penstock.aio
from penstock.errors import GroupError, InvalidInput, StaleGeneration
from tests.integration.broker.world import Background, World, drain, until


def settle(*streams: Any) -> None:
    """Let members hear of each other until nothing moves any more."""
    for _ in range(3):
        for stream in streams:
            stream.next(0)


def owned(*streams: Any) -> list[list[int]]:
    return [[place.partition for place in stream.assignment] for stream in streams]


@pytest.fixture
def wide(world: World) -> Any:
    world.ps.create_topic("orders", partitions=4)
    return world.ps


def test_members_share_the_partitions(wide: Any) -> None:
    first = wide.stream("orders", "audit")
    assert owned(first) == [[0, 1, 2, 3]]
    second = wide.stream("orders", "audit")
    settle(first, second)
    assert sorted(map(len, owned(first, second))) == [2, 2]
    third = wide.stream("orders", "audit")
    settle(first, second, third)
    shares = owned(first, second, third)
    assert sorted(map(len, shares)) == [1, 1, 2]
    assert sorted(chain(*shares)) == [0, 1, 2, 3]
    second.close()
    settle(first, third)
    assert sorted(map(len, owned(first, third))) == [2, 2]
    other = wide.stream("orders", "other")
    assert owned(other) == [[0, 1, 2, 3]]


def test_range_cuts_topics_alike_and_sticky_moves_little(world: World) -> None:
    ps = world.ps
    ps.create_topic("left", partitions=4)
    ps.create_topic("right", partitions=4)
    names = ["left", "right"]
    first = ps.stream(names, "ranges", assignor="range", member_id="a")
    second = ps.stream(names, "ranges", assignor="range", member_id="b")
    settle(first, second)
    for stream, partitions in ((first, [0, 1]), (second, [2, 3])):
        for topic in names:
            assert [p.partition for p in stream.assignment if p.topic == topic] == partitions
    sticky = [ps.stream(names, "sticks", member_id=m) for m in "abc"]
    settle(*sticky)
    before = [set(stream.assignment) for stream in sticky]
    sticky[2].close()
    settle(*sticky[:2])
    for stream, had in zip(sticky[:2], before, strict=False):
        assert had <= set(stream.assignment)  # who stays keeps all that it had
    with pytest.raises(InvalidInput, match="assignor is 'best'; allowed: range, sticky"):
        ps.stream("left", "best", assignor="best")


def test_who_keeps_a_partition_never_pauses_on_it(here: World) -> None:
    wide = here.ps
    wide.create_topic("orders", partitions=4)
    for partition in range(4):
        wide.publish_batch(
            "orders", [b"%d-%d" % (partition, n) for n in range(4)], partition=partition
        )
    first = wide.stream("orders", "audit")
    begun = first.next(0)  # it has read ahead on all partitions
    second = wide.stream("orders", "audit")
    # The newcomer waits for what it is to get; the owner reads on meanwhile without a break.
    assert second.next(0) is None
    got = [begun.value, first.next(0).value]
    kept = set(owned(first)[0])
    assert len(kept) == 2
    generation = wide.describe_stream_group("audit").generation
    got += drain(first)
    rest = drain(second)
    assert sorted(got + rest) == sorted(b"%d-%d" % (p, n) for p in range(4) for n in range(4))
    for partition in kept:  # in order, each once, by the one who has had them all the time
        mine = [value for value in got if value.startswith(b"%d-" % partition)]
        assert mine == [b"%d-%d" % (partition, n) for n in range(4)]
    assert wide.describe_stream_group("audit").generation == generation


def test_what_moves_is_committed_by_the_old_owner_before_the_new_one_reads(wide: Any) -> None:
    for partition in range(4):
        wide.publish_batch("orders", [b"%d" % n for n in range(10)], partition=partition)
    first = wide.stream("orders", "audit", commit_every="1h")
    seen: Counter[tuple[int, int]] = Counter()
    for _ in range(15):
        message = first.next(0)
        seen[message.partition, message.offset] += 1
    second = wide.stream("orders", "audit", commit_every="1h")
    for _ in range(60):
        for stream in (first, second):
            message = stream.next(0)
            if message is not None:
                seen[message.partition, message.offset] += 1
    assert len(seen) == 40
    assert set(seen.values()) == {1}


def test_partitions_that_are_added_are_shared_out(wide: Any) -> None:
    first, second = wide.stream("orders", "audit"), wide.stream("orders", "audit")
    settle(first, second)
    wide.alter_topic("orders", partitions=8)
    settle(first, second)
    assert sorted(chain(*owned(first, second))) == list(range(8))
    assert sorted(map(len, owned(first, second))) == [4, 4]
    wide.publish("orders", b"x", partition=7)
    assert drain(first) + drain(second) == [b"x"]


def test_a_silent_member_loses_its_partitions_after_its_session(wide: Any, world: World) -> None:
    first = wide.stream("orders", "audit", session_timeout="30s", member_id="first")
    second = wide.stream("orders", "audit", session_timeout="30s", member_id="second")
    settle(first, second)
    # The housekeeper beats for both. The first falls silent, as if its process were gone.
    getattr(first, "_target", first)._closed = True
    for _ in range(11):
        world.pass_(3)
    settle(second)
    assert owned(second) == [[0, 1, 2, 3]]
    assert list(wide.describe_stream_group("audit").members) == ["second"]


def test_a_busy_member_stays_because_the_housekeeper_beats_for_it(here: World) -> None:
    wide = here.ps
    wide.create_topic("orders", partitions=4)
    first, second = wide.stream("orders", "audit"), wide.stream("orders", "audit")
    settle(first, second)
    for _ in range(30):
        here.pass_(3)  # 90 s in which nobody asks for a message
    assert len(wide.describe_stream_group("audit").members) == 2
    assert sorted(map(len, owned(first, second))) == [2, 2]


def test_a_member_that_is_stuck_for_minutes_makes_room(wide: Any, world: World) -> None:
    stuck = wide.stream("orders", "audit", commit_every=None)
    wide.publish("orders", b"x", partition=0)
    stuck.next(0)
    for _ in range(120):
        world.pass_(3)
    assert wide.describe_stream_group("audit").members == {}
    with wide.stream("orders", "audit") as other:
        assert drain(other) == [b"x"]
    with pytest.raises(GroupError):
        stuck.commit()  # it was told: others have had the message
    assert drain(stuck) == []  # and is a member again
    assert owned(stuck) == [[0, 1, 2, 3]]


@pytest.mark.parametrize("in_a_cycle", [False, True])
def test_a_stream_that_nobody_refers_to_leaves_its_group(
    in_a_cycle: bool, wide: Any, world: World
) -> None:
    wide.publish_batch("orders", [b"0", b"1", b"2"], partition=0)
    read_one(wide, in_a_cycle)
    gc.collect()
    until(lambda: wide.describe_stream_group("audit").members == {})
    with wide.stream("orders", "audit") as stream:
        assert drain(stream) == [b"1", b"2"]  # the second was begun, nobody knows how far


def read_one(ps: Any, in_a_cycle: bool) -> None:
    stream = ps.stream("orders", "audit", commit_every="1h")
    if in_a_cycle:
        stream.itself = stream
    for message in stream:
        if message.value == b"1":
            break


def test_a_stream_that_nobody_refers_to_is_freed(wide: Any) -> None:
    stream = wide.stream("orders", "audit")
    stream.next(0)
    gone = weakref.ref(getattr(stream, "_target", stream))
    del stream
    until(lambda: gone() is None)


def test_a_stream_in_use_stays_though_only_its_loop_refers_to_it(world: World) -> None:
    world.ps.create_topic("orders", partitions=4)
    got: list[bytes] = []

    def read() -> None:
        for message in world.ps.stream("orders", "audit"):
            got.append(message.value)
            if message.value == b"last":
                return

    reading = Background(read)
    world.polls("orders")
    gc.collect()
    for value in (b"first", b"last"):
        world.ps.publish("orders", value)
        until(lambda: value in got)  # noqa: B023 - it is called at once
        gc.collect()
    reading.result()


def test_generations_go_up_and_on_after_a_restart(wide: Any, world: World) -> None:
    def generation() -> int:
        return int(world.ps.describe_stream_group("audit").generation)

    with wide.stream("orders", "audit") as stream:
        first = generation()
        with wide.stream("orders", "audit") as other:
            settle(stream, other)
            assert generation() > first
        last = generation()
    ps = world.kill()
    with ps.stream("orders", "audit"):
        assert generation() > last


def test_a_member_with_a_name_has_its_partitions_back_at_once(wide: Any) -> None:
    first = wide.stream("orders", "audit", member_id="first")
    second = wide.stream("orders", "audit", member_id="second")
    settle(first, second)
    had = owned(second)
    again = wide.stream("orders", "audit", member_id="second")  # its process was replaced
    assert owned(again) == had
    settle(first, again)
    assert owned(again) == had
    for _ in range(2):  # the old one does not take it back, however often it is asked
        with pytest.raises(StaleGeneration):
            second.next(0)
    with pytest.raises(StaleGeneration):
        second.commit()
    second.close()
    settle(first, again)
    assert owned(again) == had


def test_members_in_threads_read_everything_once(sync: World) -> None:
    ps = sync.ps
    ps.create_topic("orders", partitions=6)
    got: list[tuple[int, int]] = []
    lock = threading.Lock()
    stop = threading.Event()

    def read(messages: int) -> None:
        with ps.stream("orders", "audit", commit_every="1ms") as stream:
            count = 0
            while not stop.is_set() and count < messages:
                message = stream.next(0.02)
                if message is not None:
                    count += 1
                    with lock:
                        got.append((message.partition, message.offset))

    lives = [100, 150, 10_000, 10_000]  # two of them leave in the middle
    members = [Background(lambda n=n: read(n)) for n in lives]
    for n in range(900):
        ps.publish("orders", b"%d" % n, partition=n % 6)
    until(lambda: len(set(got)) == 900)
    stop.set()
    for member in members:
        member.result()
    assert len(got) == len(set(got)) == 900
    for partition in range(6):
        mine = [offset for place, offset in got if place == partition]
        assert sorted(mine) == list(range(150))


def test_a_stream_leaves_though_its_event_loop_is_over(tmp_path: Path) -> None:
    async def connect() -> Any:
        return await penstock.aio.connect(tmp_path)

    ps = asyncio.run(connect())

    async def read_one() -> list[Any]:
        await ps.create_topic("orders")
        await ps.publish("orders", b"0")
        stream = ps.stream("orders", "audit")
        assert (await stream.next()).value == b"0"
        return [stream]

    async def members() -> dict[str, Any]:
        return (await ps.describe_stream_group("audit")).members

    held = asyncio.run(read_one())
    assert len(asyncio.run(members())) == 1
    held.clear()
    gc.collect()
    until(lambda: asyncio.run(members()) == {})
    asyncio.run(ps.close())
