"""The producer: it gathers messages, sends each batch once, and tries again where that may help."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from typing import Any

import pytest

from penstock.errors import (
    DiskFull,
    InvalidInput,
    LogClosed,
    MessageTooLarge,
    OutOfOrderSequence,
    ProducerFenced,
    TopicNotFound,
)
from penstock.model.names import TopicName
from penstock.model.published import ProducerSequence as ProducerOf
from penstock.record.batch import Batch
from tests.integration.broker.world import World, until, values

ORDERS = TopicName("default", "orders")


def batches(world: World, partition: int = 0) -> list[int]:
    """How many messages each frame of a partition holds."""
    log = world.broker.topic(ORDERS).partition(partition).log
    return [header.row_count for header in log.headers(log.start)]


def test_messages_are_gathered_until_there_are_enough(world: World) -> None:
    world.ps.create_topic("orders")
    with world.ps.producer("orders", messages_max=4, linger="1h") as out:
        for n in range(10):
            out.send(b"%d" % n)
        until(lambda: batches(world) == [4, 4])
        out.flush()
        assert batches(world) == [4, 4, 2]
        out.send(b"10")
    assert batches(world) == [4, 4, 2, 1]
    assert values(world.ps.receive("orders", "g", 100)) == [b"%d" % n for n in range(11)]


def test_messages_are_gathered_until_they_are_large_enough(world: World) -> None:
    world.ps.create_topic("orders")
    with world.ps.producer("orders", bytes_max=1000, linger="1h") as out:
        for _ in range(5):
            out.send(b"x" * 400)
        until(lambda: batches(world) == [3])
    assert batches(world) == [3, 2]


def test_the_defaults_are_100_messages_64_kb_5_ms(world: World) -> None:
    world.ps.create_topic("orders")
    with world.ps.producer("orders", linger="1h") as out:  # a slow machine takes more than 5 ms
        for _ in range(100):
            out.send(b"x")
        until(lambda: batches(world)[:1] == [100])
        out.send(b"x" * (64 << 10))
        until(lambda: batches(world) == [100, 1])
    with world.ps.producer("orders") as out:
        out.send(b"alone")
        until(lambda: batches(world) == [100, 1, 1])


def test_a_batch_lingers_no_longer_than_it_was_told(world: World) -> None:
    world.ps.create_topic("orders")
    with world.ps.producer("orders", linger="20ms") as out:
        began = time.monotonic()
        out.send(b"x")
        until(lambda: batches(world) == [1])
        assert time.monotonic() - began >= 0.02
        assert values(world.ps.receive("orders", "g")) == [b"x"]


def test_what_send_returns_tells_the_offset(sync: World) -> None:
    sync.ps.create_topic("orders", partitions=2, fsync="always")
    with sync.ps.producer("orders", linger="1h", acks="all") as out:
        sent = [out.send(b"x", key=f"k{n}") for n in range(20)]
        offsets = [each.result() for each in sent]
    seen = {(m.key, m.offset) for m in sync.ps.receive("orders", "g", 100)}
    assert seen == {(b"k%d" % n, offset) for n, offset in enumerate(offsets)}


def test_an_async_producer_can_be_awaited(world: World) -> None:
    world.ps.create_topic("orders")
    with world.ps.producer("orders", linger="1h") as out:
        sent = out.send(b"x")
        if hasattr(out, "result"):
            assert out.result(sent) == 0
        out.send(b"y")
        out.flush()
        assert world.ps.stats("orders").messages == 2


def test_a_message_brings_key_headers_priority_and_ttl(world: World) -> None:
    world.ps.create_topic("orders")
    with world.ps.producer("orders") as out:
        out.send("plain")
        out.send(b"full", "k", headers={"h": "1"}, priority="high", ttl="10s")
    first, second = world.ps.receive("orders", "g", 2)
    assert (first.value, first.key, first.headers) == (b"full", b"k", {"h": b"1"})
    assert first.expires_at_us == world.clock.wall_ns() // 1000 + 10_000_000
    assert (second.value, second.key, second.headers) == (b"plain", None, {})


def test_keyless_messages_fill_one_batch_after_the_other_on_all_partitions(world: World) -> None:
    world.ps.create_topic("orders", partitions=3)
    with world.ps.producer("orders", messages_max=10, linger="1h") as out:
        for _ in range(60):
            out.send(b"x")
    assert [batches(world, number) for number in range(3)] == [[10, 10]] * 3


def test_a_producer_follows_when_partitions_are_added(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders")
    with ps.producer("orders", linger="1h") as out:
        out.send(b"x", key="k0")
        ps.alter_topic("orders", partitions=5)
        for n in range(50):
            out.send(b"y", key=f"k{n}")
    where = {m.key: m.partition for m in ps.receive("orders", "g", 100) if m.value == b"y"}
    assert set(where.values()) == {0, 1, 2, 3, 4}
    assert all(ps.publish("orders", b"z", key=k).partition == p for k, p in where.items())


@pytest.mark.parametrize("how", [{}, {"priority": "high"}, {"ttl": "1h"}])
def test_without_keys_it_follows_from_the_next_batch_on(world: World, how: dict[str, str]) -> None:
    ps = world.ps
    ps.create_topic("orders")
    with ps.producer("orders", messages_max=10, linger="1h") as out:
        out.send(b"x", **how)
        ps.alter_topic("orders", partitions=3)
        for _ in range(59):
            out.send(b"x", **how)
    assert {m.partition for m in ps.receive("orders", "g", 100)} == {0, 1, 2}


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_bad_message_does_not_spoil_the_others(world: World, partitions: int) -> None:
    world.ps.create_topic("orders", message_bytes_max=100, partitions=partitions)
    with world.ps.producer("orders", linger="1h") as out:
        out.send(b"a")
        for bad, error in (
            (lambda: out.send(5), InvalidInput),
            (lambda: out.send(b"x", key=5), InvalidInput),
            (lambda: out.send(b"x", key="\udc80"), InvalidInput),
            (lambda: out.send(b"x", priority="urgent"), InvalidInput),
            (lambda: out.send(b"x", headers={"h": 5}), InvalidInput),
            (lambda: out.send(b"x", ttl="soon"), InvalidInput),
            (lambda: out.send(b"x", ttl=10**15), InvalidInput),
            (lambda: out.send(b"x" * 101), MessageTooLarge),
        ):
            with pytest.raises(error):
                bad()
        out.send(b"b")
    assert values(world.ps.receive("orders", "g")) == [b"a", b"b"]


def test_a_closed_producer_takes_nothing(world: World) -> None:
    world.ps.create_topic("orders")
    out = world.ps.producer("orders")
    out.close()
    with pytest.raises(LogClosed):
        out.send(b"x")


# Closing the client.


def opened(producer: Any) -> Any:
    """A producer that takes messages, without a `with` block."""
    return producer.__enter__()


def test_closing_the_client_sends_what_producers_hold(world: World) -> None:
    world.ps.create_topic("orders", partitions=2)
    out = opened(world.ps.producer("orders", linger="1h"))
    for n in range(250):
        out.send(b"%d" % n)
    ps = world.restart()
    assert ps.stats("orders").messages == 250
    with pytest.raises(LogClosed):
        out.send(b"too late")


def test_also_those_that_nobody_refers_to_any_more(world: World) -> None:
    world.ps.create_topic("orders")
    opened(world.ps.producer("orders", linger="1h")).send(b"x")
    gc.collect()
    assert values(world.restart().receive("orders", "g")) == [b"x"]


def test_and_those_of_another_namespace(world: World) -> None:
    other = world.ps.in_namespace("other")
    other.create_topic("orders")
    out = opened(other.producer("orders", linger="1h"))
    out.send(b"x")
    assert values(world.restart().in_namespace("other").receive("orders", "g")) == [b"x"]
    assert out is not None


def test_the_client_keeps_no_producer_that_has_nothing_to_send(world: World) -> None:
    world.ps.create_topic("orders")
    closed = opened(world.ps.producer("orders", linger="1ms"))
    closed.send(b"x")
    closed.close()
    flushed = opened(world.ps.producer("orders", linger="1ms"))
    flushed.send(b"x")
    flushed.flush()
    gone = [weakref.ref(getattr(each, "_target", each)) for each in (closed, flushed)]
    del closed, flushed

    def all_gone() -> bool:
        gc.collect()
        return not any(each() for each in gone) and not open_ones

    open_ones = getattr(world.ps, "_target", world.ps)._producers
    until(all_gone)


def test_what_cannot_be_sent_when_the_client_closes_is_an_error(world: World) -> None:
    ps = world.ps
    ps.create_topic("orders")
    ps.create_topic("others")
    outs = [opened(ps.producer(topic, linger="1h")) for topic in ("orders", "others")]
    for out in outs:
        out.send(b"x")
    world.broker.delete_topic(ORDERS)
    with pytest.raises(TopicNotFound):
        ps.close()
    ps.close()  # it was told, and all the rest was done
    assert values(world.restart().receive("others", "g")) == [b"x"]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"acks": "most"}, "acks is 'most'; allowed: none, leader, all"),
        ({"linger": "5 ms"}, "linger is '5 ms'; a duration is"),
        ({"messages_max": 0}, "messages_max is 0; it must be a whole number of at least 1"),
        ({"bytes_max": "64k"}, "bytes_max is '64k'"),
        ({"retries": -1}, "retries is -1"),
    ],
)
def test_wrong_settings_say_what_is_allowed(wrong: dict[str, Any], says: str, ps: Any) -> None:
    ps.create_topic("orders")
    with pytest.raises(InvalidInput, match=says):
        ps.producer("orders", **wrong)


def test_many_threads_may_send(sync: World) -> None:
    sync.ps.create_topic("orders", partitions=3)
    with sync.ps.producer("orders", messages_max=7, linger="1ms") as out:

        def send(name: int) -> None:
            for n in range(200):
                out.send(b"%d-%d" % (name, n), key=b"%d" % name)

        threads = [threading.Thread(target=send, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    got = sync.ps.receive("orders", "g", 1000)
    assert len(got) == 800
    for name in range(4):  # the order of each thread is kept
        mine = [m.value for m in got if m.key == b"%d" % name]
        assert mine == [b"%d-%d" % (name, n) for n in range(200)]


# Errors, retries, idempotence.


class FullDisk:
    """A disk that is full for a while; it counts how often it was asked."""

    def __init__(self, world: World, times: int) -> None:
        self.left = times
        self.asked = 0
        world.files.free_bytes = self._free  # type: ignore[union-attr, method-assign]

    def _free(self, folder: str) -> int:
        if "log" not in folder.rsplit("/", 1)[-1]:
            return 1 << 40
        self.asked += 1
        self.left -= 1
        return 0 if self.left >= 0 else 1 << 40


def test_a_passing_lack_of_room_is_tried_again(sync: World, no_backoff: list[float]) -> None:
    sync.restart(free_bytes_min=1 << 20)
    sync.ps.create_topic("orders")
    disk = FullDisk(sync, times=3)
    with sync.ps.producer("orders", linger="1h") as out:
        sent = out.send(b"x")
        assert sent.result() == 0
    assert disk.asked == 4
    assert no_backoff == [0.1, 0.2, 0.4]
    assert values(sync.ps.receive("orders", "g")) == [b"x"]


def test_a_lasting_lack_of_room_is_an_error_of_send_flush_and_close(
    sync: World, no_backoff: list[float]
) -> None:
    sync.restart(free_bytes_min=1 << 20)
    sync.ps.create_topic("orders")
    FullDisk(sync, times=8)
    out = sync.ps.producer("orders", linger="1h")
    sent = out.send(b"lost")
    with pytest.raises(DiskFull):
        sent.result()
    with pytest.raises(DiskFull):
        out.flush()
    out.flush()  # it was told; the producer goes on
    out.send(b"lost too")
    with pytest.raises(DiskFull):
        out.close()
    with sync.ps.producer("orders", linger="1h") as out:
        out.send(b"stored")
    assert values(sync.ps.receive("orders", "g")) == [b"stored"]


def test_a_batch_that_failed_leaves_no_gap_in_the_sequence(
    sync: World, no_backoff: list[float]
) -> None:
    sync.restart(free_bytes_min=1 << 20)
    sync.ps.create_topic("orders")
    FullDisk(sync, times=1)
    with sync.ps.producer("orders", linger="1h", retries=0) as out:
        out.send(b"lost")
        with pytest.raises(DiskFull):
            out.flush()
        out.send(b"stored")
    assert values(sync.ps.receive("orders", "g")) == [b"stored"]


@pytest.fixture
def no_backoff(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Retries at once; the waits that they would have made."""
    waits: list[float] = []
    monkeypatch.setattr("penstock.client.waiting.time.sleep", waits.append)
    return waits


def resend(world: World, sequence: int, count: int, epoch: int = 0, id_: int = 77) -> Any:
    batch = Batch.build([b"%d" % n for n in range(sequence, sequence + count)])
    (placed,) = world.broker.publish(
        ORDERS, batch, partition=0, producer=ProducerOf(id_, epoch, sequence)
    )
    return placed


@pytest.mark.parametrize("between", ["nothing", "restart", "kill", "checkpoint and kill"])
def test_a_batch_that_is_sent_again_is_not_stored_twice(between: str, sync: World) -> None:
    sync.ps.create_topic("orders")
    first, second = resend(sync, 0, 3), resend(sync, 3, 2)
    if between == "restart":
        sync.restart()
    if "checkpoint" in between:
        sync.broker.topic(ORDERS).partition(0).checkpoint()
        resend(sync, 5, 1)
    if "kill" in between:
        sync.kill()
    again = resend(sync, 3, 2)
    assert (again.duplicate, again.first_offset) == (True, second.first_offset)
    assert resend(sync, 0, 3).first_offset == first.first_offset
    fresh = 6 if "checkpoint" in between else 5
    assert not resend(sync, fresh, 1).duplicate
    assert values(sync.ps.receive("orders", "g")) == [b"%d" % n for n in range(fresh + 1)]


def test_a_gap_and_a_former_epoch_are_refused(sync: World) -> None:
    sync.ps.create_topic("orders")
    resend(sync, 0, 2)
    with pytest.raises(OutOfOrderSequence, match="sent sequence 5 where 2 comes next"):
        resend(sync, 5, 1)
    resend(sync, 0, 1, epoch=1)
    with pytest.raises(ProducerFenced, match="replaced by epoch 1"):
        resend(sync, 2, 1)
    assert sync.ps.stats("orders").messages == 3


def test_with_fsync_always_a_duplicate_is_confirmed_no_sooner_than_the_first(sync: World) -> None:
    sync.ps.create_topic("orders", fsync="always")
    log = sync.broker.topic(ORDERS).partition(0).log
    log.committer = type("Asleep", (), {"schedule": lambda *_: None})()  # no commit by itself
    first = resend(sync, 0, 1)
    assert not first.durable.done()
    again = resend(sync, 0, 1)
    assert again.duplicate
    assert again.durable.done()
    assert log.durable_end == 1
    assert first.durable.done()
