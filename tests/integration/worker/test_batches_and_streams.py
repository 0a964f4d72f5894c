"""Handlers that take many messages at once, and handlers that take them in order."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import penstock
from penstock.errors import HandlerFailed, InvalidInput
from tests.integration.worker.conftest import Place, Working, until


class Order(msgspec.Struct):
    n: int


def publish(place: Place, *values: Any, **settings: Any) -> None:
    with place.connect() as ps:
        ps.create_topic("orders", **settings)
        ps.publish_batch("orders", [msgspec.json.encode(value) for value in values])


def test_a_batch_handler_gets_lists(place: Place) -> None:
    publish(place, *(Order(n) for n in range(10)))
    app = place.app()
    batches: list[list[int]] = []

    @app.consumer("orders", group="g", batch=4)
    async def work(orders: list[Order], deliveries: list[penstock.Delivery]) -> None:
        assert [delivery.offset for delivery in deliveries] == [order.n for order in orders]
        batches.append([order.n for order in orders])

    with Working(app):
        until(lambda: sum(map(len, batches)) == 10)
    assert [n for batch in batches for n in batch] == list(range(10))
    assert [len(batch) for batch in batches] == [4, 4, 2]
    with place.connect() as ps:
        assert ps.stats("orders").groups[0].depth == 0


def test_a_batch_fails_together_and_bodies_that_are_none_alone() -> None:
    app = penstock.App()
    calls: list[list[int]] = []

    @app.consumer("orders", group="g", batch=10, retries=1, backoff=("1s", 1.0, "1s"))
    def work(orders: list[Order], deliveries: list[penstock.Delivery]) -> str:
        calls.append([order.n for order in orders])
        assert len(deliveries) == len(orders)
        if 2 in calls[-1]:
            raise ValueError("not the two")
        return "done"

    with app.test() as bench:
        for body in (Order(1), b"nonsense", Order(3)):
            bench.send("orders", body)
        first, broken, third = bench.run()
        assert [first.verdict, broken.verdict, third.verdict] == ["acked", "rejected", "acked"]
        assert (first.result, broken.result) == ("done", None)
        bench.send("orders", Order(1))
        bench.send("orders", Order(2))
        verdicts = [done.verdict for done in bench.run(within="10s")]
        assert verdicts == ["retried", "retried", "given_up", "given_up"]
        bench.send("orders", b"nonsense")
        assert [done.verdict for done in bench.run()] == ["rejected"]
        assert calls == [[1, 3], [1, 2], [1, 2]]  # not called for nothing


def test_a_failing_batch_of_a_worker_is_settled_message_by_message(place: Place) -> None:
    publish(place, Order(1), "no order", Order(3), max_retries=0)
    app = place.app()
    calls: list[int] = []

    @app.consumer("orders", group="g", batch=3)
    def work(orders: list[Order]) -> None:
        calls.append(len(orders))
        raise ValueError("no")

    with Working(app):
        until(lambda: calls == [2])
    with place.connect() as ps:
        letters = ps.dead_letters("orders").list()
        assert sorted(letter.reason for letter in letters) == [
            "max_retries",
            "max_retries",
            "rejected",
        ]


def test_what_does_not_go_with_batches_is_refused() -> None:
    app = penstock.App()

    def one(order: Order) -> None: ...

    with pytest.raises(InvalidInput, match=r"its body is a list, such as list\[Order\]"):
        app.consumer("orders", group="g", batch=10)(one)
    with pytest.raises(InvalidInput, match="batch is 0"):
        app.consumer("orders", group="g", batch=0)(one)
    with pytest.raises(InvalidInput, match="no per key"):
        app.consumer("orders", group="g", batch=2, rate_limit="1/s per key")(lambda body: None)


def test_a_stream_handler_gets_messages_in_order_and_goes_on_where_it_was(place: Place) -> None:
    publish(place, *(Order(n) for n in range(5)))
    seen: list[int] = []

    def app() -> penstock.App:
        made = place.app()

        @made.stream("orders", group="audit")
        async def work(order: Order, delivery: penstock.Delivery) -> None:
            assert delivery.offset == order.n
            seen.append(order.n)

        return made

    with Working(app()):
        until(lambda: seen == [0, 1, 2, 3, 4])
    with place.connect() as ps:
        ps.publish("orders", msgspec.json.encode(Order(5)))
    with Working(app()):
        until(lambda: len(seen) > 5)
    assert seen == [0, 1, 2, 3, 4, 5]


def test_a_stream_handler_that_fails_is_called_again_before_the_next(place: Place) -> None:
    publish(place, *(Order(n) for n in range(4)))
    app = place.app()
    calls: list[tuple[int, int]] = []

    @app.stream("orders", group="audit", backoff=("1ms", 1.0, "1ms"))
    def work(order: Order, delivery: penstock.Delivery) -> None:
        calls.append((order.n, delivery.delivery_count))
        if order.n == 1 and delivery.delivery_count < 3:
            raise ValueError("not yet")
        if order.n == 2:
            raise penstock.Reject("pass it over")

    with Working(app):
        until(lambda: len(calls) == 6)
    assert calls == [(0, 1), (1, 1), (1, 2), (1, 3), (2, 1), (3, 1)]


def test_a_stream_whose_retries_are_used_up_ends_the_worker_and_stays_there(place: Place) -> None:
    publish(place, *(Order(n) for n in range(3)))
    seen: list[int] = []

    def app(bad: int) -> penstock.App:
        made = place.app()

        @made.stream("orders", group="audit", retries=1, backoff=("1ms", 1.0, "1ms"))
        def work(order: Order) -> None:
            seen.append(order.n)
            if order.n == bad:
                raise ValueError("no")

        return made

    with pytest.raises(HandlerFailed, match="cannot go on: ValueError: no"):
        Working(app(1)).end()
    assert seen == [0, 1, 1]
    with Working(app(-1)):
        until(lambda: seen == [0, 1, 1, 1, 2])


def test_a_stream_on_the_bench() -> None:
    app = penstock.App()
    calls: list[tuple[int, int]] = []

    @app.stream("orders", group="audit", retries=2, rate_limit="1/s")
    def work(order: Order, delivery: penstock.Delivery) -> None:
        calls.append((order.n, bench.clock.monotonic_ns() // 10**9))
        if order.n == 1 and delivery.delivery_count < 3:
            raise ValueError("not yet")
        if order.n == 9:
            raise ValueError("never")

    with app.test() as bench:
        for n in range(3):
            bench.send("orders", Order(n))
        verdicts = [done.verdict for done in bench.run(within="1m")]
        assert verdicts == ["acked", "retried", "retried", "acked", "acked"]
        assert calls == [(0, 0), (1, 1), (1, 2), (1, 4), (2, 4)]  # the backoff doubles
        bench.send("orders", Order(9))
        with pytest.raises(HandlerFailed, match="cannot go on: ValueError: never"):
            bench.run(within="1m")


def test_a_stream_that_waits_for_its_rate_stops_at_once_and_loses_nothing(place: Place) -> None:
    publish(place, Order(0), Order(1))
    seen: list[int] = []

    def app(rate: str) -> penstock.App:
        made = place.app()

        @made.stream("orders", group="audit", rate_limit=rate)
        def work(order: Order) -> None:
            seen.append(order.n)

        return made

    with Working(app("1/h")) as working:
        until(lambda: seen == [0])
        working.turn(50)
    with Working(app("100/s")):
        until(lambda: len(seen) == 2)
    assert seen == [0, 1]
