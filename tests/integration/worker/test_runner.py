"""Apps at work on a folder and on a server: hands, leases, failures, and how they stop."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import msgspec
import pytest

import penstock
from penstock.client.client import AsyncClient
from penstock.errors import InvalidInput, TopicNotFound
from tests.integration.worker.conftest import Place, Server, Working, until


class Order(msgspec.Struct):
    number: int


def publish(place: Place, bodies: list[Any], **settings: Any) -> None:
    with place.connect() as ps:
        ps.create_topic("orders", exist_ok=True, **settings)
        ps.publish_batch("orders", [msgspec.json.encode(body) for body in bodies])


def left(place: Place, group: str = "g") -> tuple[int, int]:
    """What the group still has to do, and how many dead letters there are."""
    with place.connect() as ps:
        stats = ps.stats("orders")
        depths = [g.depth for g in stats.groups if g.group == group]
        return (depths[0] if depths else stats.messages), stats.dead


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_every_message_is_handled_once_by_so_many_hands(place: Place, kind: str) -> None:
    publish(place, [Order(n) for n in range(60)])
    app = place.app()
    seen: list[int] = []
    busy, most, lock = 0, 0, threading.Lock()

    def enter() -> None:
        nonlocal busy, most
        with lock:
            busy += 1
            most = max(most, busy)

    def leave(order: Order) -> None:
        nonlocal busy
        with lock:
            busy -= 1
            seen.append(order.number)

    if kind == "sync":

        @app.consumer("orders", group="g", concurrency=5)
        def work(order: Order) -> None:
            enter()
            time.sleep(0.02)
            leave(order)

    else:

        @app.consumer("orders", group="g", concurrency=5)
        async def work(order: Order) -> None:
            enter()
            await asyncio.sleep(0.02)
            leave(order)

    with Working(app):
        until(lambda: len(seen) == 60)
    assert sorted(seen) == list(range(60))
    assert most == 5
    assert left(place) == (0, 0)


def test_a_message_is_held_for_as_long_as_its_handler_runs(
    place: Place, extended: list[Any]
) -> None:
    publish(place, [Order(1), Order(2)])
    app = place.app()
    calls: list[tuple[int, int]] = []
    ended: list[int] = []

    @app.consumer("orders", group="g", concurrency=2, visibility="400ms")
    def slow(order: Order, delivery: penstock.Delivery) -> None:
        calls.append((order.number, delivery.delivery_count))
        until(lambda: len(extended) > 6)  # three times in a lease: it is past its second
        ended.append(order.number)

    with Working(app):
        until(lambda: len(ended) == 2)
    assert sorted(calls) == [(1, 1), (2, 1)]
    assert left(place) == (0, 0)


@pytest.fixture
def extended(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The receipts of each time that leases were made longer."""
    calls: list[Any] = []
    of = AsyncClient.extend

    async def extend(self: Any, group: str, receipts: Any, **how: Any) -> Any:
        refused = await of(self, group, receipts, **how)
        calls.append(receipts)
        return refused

    monkeypatch.setattr(AsyncClient, "extend", extend)
    return calls


def test_what_fails_is_retried_and_then_given_up_with_its_error(place: Place) -> None:
    publish(place, [Order(1), Order(2)], max_retries=2, backoff=("10ms", 1.0, "10ms"))
    app = place.app(name="till-3")
    calls: list[tuple[int, int]] = []

    @app.consumer("orders", group="g")
    async def flaky(order: Order, delivery: penstock.Delivery) -> None:
        calls.append((order.number, delivery.delivery_count))
        if order.number == 1 or delivery.delivery_count == 1:
            raise RuntimeError(f"attempt {delivery.delivery_count}")

    with Working(app):
        until(lambda: len(calls) == 5)
    assert sorted(calls) == [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2)]
    with place.connect() as ps:
        (letter,) = ps.dead_letters("orders").list()
        assert (letter.reason, letter.error) == ("max_retries", "RuntimeError: attempt 3")
        assert letter.origin.consumer == "till-3"
    assert left(place)[0] == 0


@pytest.mark.parametrize(("own", "max_retries"), [(1, 3), (None, 1)])
def test_used_up_retries_are_the_reason_of_the_letter_and_told_of_in_the_log(
    place: Place, caplog: pytest.LogCaptureFixture, own: int | None, max_retries: int
) -> None:
    publish(place, [Order(7)], max_retries=max_retries)
    app = place.app()
    calls = []

    @app.consumer("orders", group="g", retries=own, backoff=("1ms", 1.0, "1ms"))
    def fail(order: Order) -> None:
        calls.append(order)
        raise ValueError("never")

    def told() -> list[str]:
        texts = [r.getMessage() for r in caplog.records if r.name == "penstock.worker"]
        return [text for text in texts if "never" in text]

    with Working(app):
        until(lambda: len(told()) == 2)
    first, second = told()
    assert " retried: ValueError: never" in first
    assert " given up after 2 attempts, and is a dead letter: ValueError: never" in second
    assert len(calls) == 2
    with place.connect() as ps:
        (letter,) = ps.dead_letters("orders")
        assert (letter.reason, letter.error, letter.attempts) == (
            "max_retries",
            "ValueError: never",
            2,
        )


def test_rejects_and_bodies_that_are_none_go_to_the_dead_letters(place: Place) -> None:
    publish(place, [Order(1), "no order", Order(3)])
    app = place.app()
    seen: list[int] = []

    @app.consumer("orders", group="g")
    def picky(order: Order) -> None:
        seen.append(order.number)
        if order.number == 1:
            raise penstock.Reject("not this one")

    with Working(app):
        until(lambda: seen == [1, 3])
    with place.connect() as ps:
        errors = [letter.error for letter in ps.dead_letters("orders").list()]
    assert errors[0] == "not this one"
    assert errors[1].startswith("the body is no Order: ")


def test_two_consumers_of_one_app_work_side_by_side(place: Place) -> None:
    publish(place, [Order(n) for n in range(10)])
    app = place.app()
    billed: list[int] = []
    shipped: list[int] = []

    @app.consumer("orders", group="billing")
    async def bill(order: Order) -> None:
        billed.append(order.number)

    @app.consumer("orders", group="shipping")
    def ship(order: Order) -> None:
        shipped.append(order.number)

    with Working(app):
        until(lambda: len(billed) == len(shipped) == 10)
    assert left(place, "billing") == left(place, "shipping") == (0, 0)


def test_told_to_stop_it_finishes_what_is_in_hand_and_takes_no_more(place: Place) -> None:
    publish(place, [Order(n) for n in range(10)])
    app = place.app()
    begun: list[int] = []
    ended: list[int] = []
    go_on = threading.Event()

    @app.consumer("orders", group="g", concurrency=3)
    def work(order: Order) -> None:
        begun.append(order.number)
        go_on.wait(20)
        ended.append(order.number)

    working = Working(app)
    until(lambda: len(begun) == 3)
    working.tell_to_stop()
    working.turn(100)  # time enough to take more
    go_on.set()
    working.end()
    assert sorted(ended) == sorted(begun) == [0, 1, 2]
    assert left(place) == (7, 0)


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_what_does_not_end_in_time_is_given_back_at_once(place: Place, kind: str) -> None:
    publish(place, [Order(1)], visibility="60s", backoff=("60s", 1.0, "60s"))
    app = place.app()
    begun: list[int] = []
    never = threading.Event()

    if kind == "sync":

        @app.consumer("orders", group="g")
        def stuck(order: Order) -> None:
            begun.append(order.number)
            never.wait(60)

    else:

        @app.consumer("orders", group="g")
        async def stuck(order: Order) -> None:
            begun.append(order.number)
            await asyncio.sleep(60)

    working = Working(app, grace="100ms")
    until(lambda: len(begun) == 1)
    started = time.monotonic()
    working.stop()
    assert time.monotonic() - started < 20
    with place.connect() as ps:
        (again,) = ps.receive("orders", "g", wait="5s")  # not only when its lease is over
        assert again.delivery_count == 2
        again.ack()
    never.set()


def test_an_async_handler_whose_lease_is_lost_is_cancelled(shared_server: Server) -> None:
    place = Place(shared_server.url, "lost-lease")
    publish(place, [Order(1)], max_retries=0)
    app = place.app()
    story: list[str] = []

    @app.consumer("orders", group="g", visibility="300ms")
    async def work(order: Order) -> None:
        story.append("begun")
        if len(story) > 1:
            return
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            story.append("cancelled")
            raise

    with Working(app) as working:
        until(lambda: story == ["begun"])
        with place.connect() as ps:
            ps.seek("orders", "g", "earliest")  # every lease of the group is void
        until(lambda: sorted(story) == ["begun", "begun", "cancelled"])
        until(lambda: left(place) == (0, 0))  # what was lost was neither acked nor given up
        working.stop()


def test_what_cannot_work_says_so_before_it_begins(place: Place) -> None:
    app = place.app()
    app.consumer("orders", group="g")(lambda body: None)
    with pytest.raises(TopicNotFound):
        Working(app).end()
    publish(place, [], max_retries=3)
    demanding = place.app()
    demanding.consumer("orders", group="g", retries=5)(lambda body: None)
    with pytest.raises(InvalidInput, match="wants 5 retries, but topic orders gives up after 3"):
        Working(demanding).end()


def test_topics_are_made_where_that_is_wanted(place: Place) -> None:
    app = place.app(auto_create=True)
    app.consumer("orders", group="g")(lambda body: None)
    with Working(app):
        pass
    with place.connect() as ps:
        assert ps.topics() == ["orders"]
