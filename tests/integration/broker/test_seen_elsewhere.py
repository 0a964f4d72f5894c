"""Defects that were seen in other queues, each by name: none of them is ours.

What was seen is told in the name and the first line of each test.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.broker.world import World, take, values


def newest_log(folder: Path) -> Path:
    return max(folder.glob("*.log"))


@pytest.mark.parametrize("part", ["log", "ledger"])
@pytest.mark.parametrize("torn", ["cut", "garbage", "zeros"])
def test_ledgerq_does_not_open_after_a_torn_tail(part: str, torn: str, sync: World) -> None:
    """A write that a power cut left unfinished keeps the queue from being opened."""
    sync.ps.create_topic("orders")
    sync.ps.publish_batch("orders", [b"0", b"1", b"2"])
    sync.ps.receive("orders", "g", 1)[0].ack()
    sync.ps.publish("orders", b"3")
    folder = sync.copy()
    path = newest_log(folder / "topics" / "default" / "orders" / "00000" / part)
    whole = path.read_bytes()
    path.write_bytes(
        {"cut": whole[:-11], "garbage": whole + b"\x5a" * 99, "zeros": whole + bytes(512)}[torn]
    )
    ps = sync.go_on_in(folder)
    sync.pass_(60)
    got = take(ps)
    if (part, torn) == ("log", "cut"):
        assert got == [b"1", b"2"]  # only what was torn is gone
    elif (part, torn) == ("ledger", "cut"):
        assert got == [b"0", b"1", b"2", b"3"]  # the ack was torn: its message comes again
    else:
        assert got == [b"1", b"2", b"3"]
    ps.publish("orders", b"4")
    assert take(ps) == [b"4"]
    assert take(sync.restart(), group="other")[-1] == b"4"


@pytest.mark.parametrize("end", ["restart", "kill"])
def test_ledgerq_loses_the_lower_priorities_when_it_is_reopened(end: str, world: World) -> None:
    """In its priority mode one position serves all lanes, so what lies below it is forgotten."""
    names = ["background", "low", "normal", "high", "critical"]
    world.ps.create_topic("orders")
    for n in range(30):
        world.ps.publish("orders", b"%d" % n, priority=names[n % 5])
    urgent = world.ps.receive("orders", "g", 6)
    assert {m.priority.name for m in urgent} == {"CRITICAL"}
    for message in urgent:
        message.ack()
    ps = getattr(world, end)()
    rest = ps.receive("orders", "g", 100)
    assert len(rest) == 24
    assert {m.priority.name for m in rest} == {"HIGH", "NORMAL", "LOW", "BACKGROUND"}


def test_goqueue_groups_block_each_other(world: World) -> None:
    """The key of what is in flight forgets the group, so one group hides messages from another."""
    world.ps.create_topic("orders")
    world.ps.publish_batch("orders", [b"0", b"1"])
    held = world.ps.receive("orders", "one", visibility="1h")
    assert values(world.ps.receive("orders", "two", visibility="1h")) == [b"0", b"1"]
    for message in held:
        message.ack()
    stats = {group.group: group.depth for group in world.ps.stats("orders").groups}
    assert stats == {"one": 0, "two": 2}
    ps = world.kill()
    assert ps.receive("orders", "two") == []
    assert values(ps.receive("orders", "three")) == [b"0", b"1"]


@pytest.mark.parametrize("end", ["nothing", "restart", "kill"])
def test_goqueue_acks_do_not_advance_the_committed_offset(end: str, world: World) -> None:
    """After a restart everything that was acked comes again."""
    world.ps.create_topic("orders")
    world.ps.publish_batch("orders", [b"%d" % n for n in range(5)])
    messages = world.ps.receive("orders", "g")
    messages[1].ack()
    assert world.ps.stats("orders").groups[0].committed == {0: 0}  # 0 is not done yet
    messages[0].ack()
    messages[3].ack()
    if end != "nothing":
        getattr(world, end)()
    ps = world.ps
    assert ps.stats("orders").groups[0].committed == {0: 2}  # below it everything is acked
    world.pass_(60)
    assert take(ps) == [b"2", b"4"]
    assert ps.stats("orders").groups[0].committed == {0: 5}


@pytest.mark.parametrize("end", ["nothing", "restart", "kill"])
def test_goqueue_locks_a_nacked_message_under_a_receipt_that_nobody_got(
    end: str, world: World
) -> None:
    """A nacked message is leased again at once, to nobody, and is never seen again."""
    world.ps.create_topic("orders")
    world.ps.publish("orders", b"x")
    (message,) = world.ps.receive("orders", "g")
    message.nack(delay="1s")
    if end != "nothing":
        getattr(world, end)()
    ps = world.ps
    stats = ps.stats("orders").groups[0]
    assert (stats.in_flight, stats.retrying) == (0, 1)
    world.pass_(1)
    (again,) = ps.receive("orders", "g")
    assert (again.value, again.delivery_count) == (b"x", 2)
    assert again.receipt != message.receipt
    again.ack()
    world.pass_(3600)
    assert ps.receive("orders", "g") == []


@pytest.mark.parametrize("end", ["nothing", "restart", "kill"])
def test_epochqueue_attempts_never_reach_the_dead_letters(end: str, world: World) -> None:
    """The attempt count is read from the immutable log, where it stays at one for ever."""
    world.ps.create_topic("orders", max_retries=2)
    world.ps.publish("orders", b"poison")
    counts = []
    for _ in range(3):
        (message,) = world.ps.receive("orders", "g")
        counts.append(message.delivery_count)
        message.nack(error="poisoned")
        if end != "nothing":
            getattr(world, end)()
        world.pass_(60)
    assert counts == [1, 2, 3]
    assert world.ps.receive("orders", "g") == []
    (letter,) = world.ps.dead_letters("orders").list()
    assert (letter.value, letter.attempts, letter.reason) == (b"poison", 3, "max_retries")
