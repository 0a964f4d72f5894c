"""The server has done what was asked, and the answer is lost on its way."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import penstock
import penstock.aio
from penstock.client.http.retrying import Breaker
from penstock.errors import LeaseLost, Unavailable
from tests.integration.broker.world import until, values
from tests.integration.server.proxy import Proxy
from tests.integration.server.running import RunningServer


@pytest.fixture
def wire(server: RunningServer) -> Iterator[Proxy]:
    with Proxy(server.port) as proxy:
        yield proxy


@pytest.fixture
def far(wire: Proxy) -> Iterator[Any]:
    with penstock.connect(wire.url, retry_for="20s") as ps:
        ps.create_topic("orders", partitions=2)
        yield ps


def stored(ps: Any) -> list[bytes]:
    return [m.value for p in (0, 1) for m in ps.peek("orders", partition=p, limit=1000)]


def test_a_batch_of_a_producer_is_stored_once(far: Any, wire: Proxy) -> None:
    with far.producer("orders", messages_max=5) as out:
        for n in range(40):
            if n % 10 == 0:
                wire.lose_answers = 1
            out.send(b"%d" % n).result()
    assert wire.lost == 4
    assert sorted(stored(far)) == sorted(b"%d" % n for n in range(40))


def test_also_that_of_a_producer_on_an_event_loop(server: RunningServer) -> None:
    async def work() -> list[bytes]:
        with Proxy(server.port) as wire:
            async with penstock.aio.connect(wire.url, retry_for="20s") as ps:
                await ps.create_topic("orders", partitions=2)
                async with ps.producer("orders", messages_max=5) as out:
                    for n in range(40):
                        if n % 10 == 0:
                            await out.flush()
                            wire.lose_answers = 1
                        out.send(b"%d" % n)
                assert wire.lost == 4
                found = [await ps.peek("orders", partition=p, limit=100) for p in (0, 1)]
                return [message.value or b"" for page in found for message in page]

    assert sorted(asyncio.run(work())) == sorted(b"%d" % n for n in range(40))


def test_a_message_with_an_id_is_stored_once(far: Any, wire: Proxy) -> None:
    wire.lose_answers = 1
    assert far.publish("orders", b"x", dedup_id="one").duplicate
    wire.lose_answers = 1
    far.publish_batch("orders", [b"a", b"b"], dedup_ids=["a", "b"])
    assert sorted(stored(far)) == [b"a", b"b", b"x"]


def test_a_transaction_is_done_once(far: Any, wire: Proxy) -> None:
    far.publish("orders", b"first", partition=0)
    (message,) = far.receive("orders", "g")
    wire.lose_answers = 2
    with far.transaction(producer="p") as tx:  # its epoch is asked for, too
        tx.ack(message)
        sent = tx.publish("orders", b"made of it", partition=1)
    assert wire.lost == 2
    assert sorted(stored(far)) == [b"first", b"made of it"]
    assert (sent.result().partition, sent.result().offset) == (1, 0)
    assert values(far.receive("orders", "g")) == [b"made of it"]
    assert len(far.transactions()) == 1


@pytest.mark.parametrize("verb", ["ack", "nack", "reject"])
def test_what_was_settled_by_the_first_attempt_is_no_error(
    far: Any, wire: Proxy, verb: str
) -> None:
    far.publish_batch("orders", [b"a", b"b"], partition=0)
    first, second = far.receive("orders", "g", 2)
    wire.lose_answers = 1
    getattr(first, verb)()
    wire.lose_answers = 1
    assert getattr(far, verb)("g", second.receipt) == {}
    assert wire.lost == 2
    if verb == "ack":
        assert far.receive("orders", "g") == []
    if verb == "reject":
        assert far.dead_letters("orders").count() == 2


@pytest.mark.parametrize("verb", ["ack", "nack", "reject"])
def test_nor_is_what_was_settled_so_as_a_batch(far: Any, wire: Proxy, verb: str) -> None:
    for partition in (0, 1):
        far.publish_batch("orders", [b"a", b"b"], partition=partition)
    batch = far.receive_batch("orders", "g", 4)
    wire.lose_answers = 1
    getattr(batch, verb)()
    assert wire.lost == 1
    if verb != "nack":
        assert far.stats("orders").groups[0].committed == {0: 2, 1: 2}


def test_nor_a_batch_that_was_acked_while_the_next_was_received(far: Any, wire: Proxy) -> None:
    far.publish_batch("orders", [b"%d" % n for n in range(6)], partition=0)
    first = far.receive_batch("orders", "g", 2)
    wire.lose_answers = 1
    next_one = far.receive_batch("orders", "g", 2, ack=first)
    assert wire.lost == 1
    assert next_one.table()["value"].to_pylist() == [b"4", b"5"]  # the lost answer has 2 and 3
    assert far.stats("orders").groups[0].committed == {0: 2, 1: 0}


def test_a_call_that_failed_can_be_made_again_with_the_same_batch(
    server: RunningServer, wire: Proxy
) -> None:
    with penstock.connect(wire.url, retry_for=0) as ps:
        ps.create_topic("orders")
        ps.publish_batch("orders", [b"%d" % n for n in range(6)])
        first = ps.receive_batch("orders", "g", 2)
        wire.lose_answers = 1
        with pytest.raises(Unavailable):
            ps.receive_batch("orders", "g", 2, ack=first)
        second = ps.receive_batch("orders", "g", 2, ack=first)
        assert second.table()["value"].to_pylist() == [b"4", b"5"]
        wire.lose_answers = 1
        with pytest.raises(Unavailable):
            ps.receive_batch("orders", "g", 2, ack=second)
        second.ack()  # as good
        assert ps.stats("orders").groups[0].depth == 2


def test_an_ack_that_was_done_before_the_server_was_too_busy_is_no_error(broker: Any) -> None:
    with (
        RunningServer(broker, polls_max=1) as server,
        penstock.connect(server.url, retry_for="10s") as ps,
        penstock.connect(server.url) as other,
        ThreadPoolExecutor(1) as threads,
    ):
        ps.create_topic("orders")
        ps.publish_batch("orders", [b"a", b"b"])
        batch = ps.receive_batch("orders", "g", 2)
        polling = threads.submit(other.receive, "orders", "others", wait="20s", max_messages=1)
        polling.result()
        polling = threads.submit(other.receive, "orders", "g", wait="1s")
        until(lambda: len(server.door.polls) == 1)
        assert len(ps.receive_batch("orders", "g", wait="10ms", ack=batch)) == 0
        assert polling.result() == []
        (group,) = [each for each in ps.stats("orders").groups if each.group == "g"]
        assert group.committed == {0: 2}


def test_a_batch_that_is_really_lost_is_still_told_of(far: Any, wire: Proxy) -> None:
    far.publish_batch("orders", [b"a", b"b"], partition=0)
    late = far.receive_batch("orders", "g", 2, visibility="10ms")
    again = far.receive("orders", "g", 2, wait="20s")
    wire.lose_answers = 1
    with pytest.raises(LeaseLost):
        late.ack()
    wire.lose_answers = 1
    with pytest.raises(LeaseLost):
        far.receive_batch("orders", "g", 2, ack=late)
    for message in again:
        message.ack()


def test_a_lease_that_is_really_over_is_still_told_of(far: Any, wire: Proxy) -> None:
    far.publish("orders", b"a")
    (message,) = far.receive("orders", "g", visibility="10ms")
    (again,) = far.receive("orders", "g", wait="20s")
    wire.lose_answers = 1
    with pytest.raises(LeaseLost):
        message.ack()
    again.ack()


def test_what_must_not_be_repeated_is_not(far: Any, wire: Proxy) -> None:
    wire.lose_answers = 1
    with pytest.raises(Unavailable, match="whether it was done is not known"):
        far.create_topic("others")
    assert far.topics() == ["orders", "others"]
    wire.lose_answers = 1
    assert far.create_topic("others", exist_ok=True).partitions == 1


def test_a_stream_goes_on(far: Any, wire: Proxy) -> None:
    far.publish_batch("orders", [b"%d" % n for n in range(20)], partition=0)
    got = []
    with far.stream("orders", "audit", commit_every=0) as stream:
        for n in range(20):
            if n % 5 == 0:
                wire.lose_answers = 1
            got.append(stream.next(20))
    assert values(got) == [b"%d" % n for n in range(20)]
    assert 20 in far.describe_stream_group("audit").committed.values()


def test_the_breaker_opens_lets_one_through_and_closes() -> None:
    breaker = Breaker()
    for _ in range(5):
        assert breaker.wait_s(0.0) == 0
        breaker.failed(0.0)
    assert breaker.wait_s(0.1) == pytest.approx(0.15)
    assert breaker.wait_s(0.3) == 0  # one finds out
    assert breaker.wait_s(0.3) > 0  # the others wait for it
    breaker.failed(0.4)
    assert breaker.wait_s(0.5) > 0.3  # for longer than before
    breaker.succeeded()
    assert breaker.wait_s(0.5) == 0
