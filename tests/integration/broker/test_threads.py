"""Many at once: nothing is handed out twice within a lease, nothing is lost, nobody is stuck."""

from __future__ import annotations

import random
import sys
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.integration.broker.world import Background, World, until


def together(*calls: Callable[[], None]) -> None:
    for worker in [Background(call) for call in calls]:
        worker.result()


@pytest.mark.parametrize("partitions", [1, 4])
@pytest.mark.parametrize("ordered", [False, True])
def test_many_receivers_never_get_the_same_message_within_a_lease(
    partitions: int, ordered: bool, sync: World
) -> None:
    ps = sync.ps
    ps.create_topic("orders", partitions=partitions, ordered_by_key=ordered)
    ps.publish_batch(
        "orders", [b"%d" % n for n in range(600)], keys=[f"{n % 50}" for n in range(600)]
    )
    seen: Counter[tuple[int, int]] = Counter()
    lock = threading.Lock()

    def work() -> None:
        rng = random.Random(threading.get_ident())
        while True:
            messages = ps.receive("orders", "g", rng.randint(1, 20))
            if not messages:
                if ps.stats("orders").depth == 0:
                    return
                continue
            with lock:
                seen.update((m.partition, m.offset) for m in messages)
            for message in messages:
                message.ack()

    together(*[work] * 6)
    assert len(seen) == 600
    assert set(seen.values()) == {1}


def test_publishers_and_consumers_of_all_kinds_at_once(sync: World) -> None:
    ps = sync.ps
    ps.create_topic("orders", partitions=3, max_retries=None)
    done: Counter[bytes] = Counter()
    lock = threading.Lock()
    total = 4 * 150

    def publish(name: int) -> None:
        with ps.producer("orders", messages_max=10, linger="1ms") as out:
            for n in range(50):
                out.send(b"p%d-%d" % (name, n))
                ps.publish("orders", b"s%d-%d" % (name, n), key=f"{n}", priority=n % 5)
                ps.publish_batch("orders", [b"b%d-%d" % (name, n)], keys=[f"{n}"])

    def consume(name: int) -> None:
        rng = random.Random(name)
        while sum(done.values()) < total:
            for message in ps.receive("orders", "g", 7, wait="10ms"):
                if rng.random() < 0.2:
                    message.nack(delay=0)
                else:
                    message.ack()
                    with lock:
                        done[message.value] += 1

    together(
        *[lambda n=n: publish(n) for n in range(4)],
        *[lambda n=n: consume(n) for n in range(3)],
    )
    assert len(done) == total
    assert set(done.values()) == {1}
    assert ps.stats("orders").depth == 0


def test_changing_topics_while_messages_die_does_not_lock_up(sync: World) -> None:
    # Whoever changes a topic takes its partitions' locks; a message that dies makes a topic.
    for round_ in range(10):
        topic = f"orders-{round_}"
        sync.ps.create_topic(topic, max_retries=0, partitions=2)
        sync.ps.publish_batch(topic, [b"x"] * 20, keys=[f"{n}" for n in range(20)])
        messages = sync.ps.receive(topic, "g", 20)
        half = len(messages) // 2

        def alter(topic: str = topic) -> None:
            for retries in range(5):
                sync.ps.alter_topic(topic, max_retries=0, boost_after=retries + 1)

        def die(some: Any) -> None:
            for message in some:
                message.nack(error="no")

        together(alter, lambda: die(messages[:half]), lambda: die(messages[half:]))  # noqa: B023
        assert sync.ps.dead_letters(topic).count() == 20


def test_closing_while_others_work_ends_them_with_an_error_and_loses_nothing(sync: World) -> None:
    ps = sync.ps
    ps.create_topic("orders", partitions=2, max_retries=None)
    confirmed: list[bytes] = []
    acked: list[bytes] = []
    errors: list[BaseException] = []

    def publish() -> None:
        try:
            for n in range(100_000):
                ps.publish("orders", b"%d" % n)
                confirmed.append(b"%d" % n)
        except Exception as exc:  # noqa: BLE001 - it is looked at below
            errors.append(exc)

    def consume() -> None:
        try:
            while True:
                for message in ps.receive("orders", "g", 5, wait="1s"):
                    message.ack()
                    acked.append(message.value)
        except Exception as exc:  # noqa: BLE001
            errors.append(exc)

    workers = [Background(publish), Background(consume), Background(consume)]
    until(lambda: len(acked) > 50)
    sync.close()
    for worker in workers:
        worker.result()
    assert {type(error).__name__ for error in errors} <= {"BrokerClosed", "LogClosed"}
    ps = sync.restart()
    left = {m.value for m in ps.receive("orders", "g", 100_000)}
    sync.pass_(60)
    left |= {m.value for m in ps.receive("orders", "g", 100_000)}
    assert left.isdisjoint(acked)
    assert set(confirmed) <= left | set(acked)


def test_a_topic_is_created_once_by_many(sync: World) -> None:
    sync.restart(auto_create=True)
    together(*[lambda: [sync.ps.publish("orders", b"x") for _ in range(20)]] * 5)
    assert sync.ps.stats("orders").messages == 100


def test_dead_letters_of_many_threads(sync: World) -> None:
    sync.ps.create_topic("orders", max_retries=0, partitions=3)
    sync.ps.publish_batch("orders", [b"x"] * 300, keys=[f"{n}" for n in range(300)])

    def work() -> None:
        while messages := sync.ps.receive("orders", "g", 5):
            for message in messages:
                message.reject("no")

    together(*[work] * 4)
    assert sync.ps.dead_letters("orders").count() == 300
    counts: list[int] = []
    together(*[lambda: counts.append(sync.ps.dead_letters("orders").redrive())] * 2)
    assert sync.ps.dead_letters("orders").count() == 0


def test_failed_logs_are_listed_while_others_open_logs(sync: World) -> None:
    sync.ps.create_topic("orders", partitions=50)
    for n in range(50):
        sync.ps.publish("orders", b"x", partition=n)
    is_over = False

    def look() -> None:
        while not is_over:
            assert sync.broker.failed_logs() == []

    def open_logs() -> None:
        nonlocal is_over
        try:
            for n in range(20):
                sync.ps.create_topic(f"more-{n}", partitions=4)
                sync.ps.publish_batch(f"more-{n}", [b"x"] * 4)
        finally:
            is_over = True

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        together(look, open_logs)
    finally:
        sys.setswitchinterval(interval)
