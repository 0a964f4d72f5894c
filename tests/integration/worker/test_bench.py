"""`app.test()`: handlers tried on the real broker in memory, with a clock that stands still."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

import penstock
from penstock.errors import InvalidInput
from penstock.worker.bodies import Undecodable


class Order(msgspec.Struct):
    what: str
    count: int = 1


@dataclass
class Parcel:
    to: str


def make_app() -> tuple[penstock.App, list[Any]]:
    """A small shop, and what was done in it."""
    app = penstock.App(name="till")
    done: list[Any] = []

    @app.consumer("orders", group="billing", backoff=("1s", 2.0, "60s"))
    def bill(order: Order, delivery: penstock.Delivery) -> str:
        if order.what == "unicorn":
            raise penstock.Reject("no such thing")
        if order.what == "piano" and delivery.delivery_count < 3:
            raise RuntimeError("too heavy")
        if order.what == "later" and delivery.delivery_count == 1:
            raise penstock.Retry("closed", delay="10m")
        done.append((order, delivery.key, delivery.headers))
        return f"billed {order.what}"

    @app.consumer("parcels", group="post")
    async def ship(parcel: Parcel) -> None:
        await asyncio.sleep(0)
        done.append(parcel)

    return app, done


def test_bodies_come_typed_and_outcomes_are_told() -> None:
    app, done = make_app()
    with app.test() as bench:
        bench.send("orders", Order("apples", 12), key="c-17", headers={"v": "1"})
        bench.send("parcels", Parcel("Rome"))
        handled = bench.run()
        assert [(h.handler.rpartition(".")[2], h.verdict, h.result) for h in handled] == [
            ("bill", "acked", "billed apples"),
            ("ship", "acked", None),
        ]
        headers = {"content-type": b"application/json", "v": b"1"}
        assert done == [(Order("apples", 12), b"c-17", headers), Parcel("Rome")]
        assert bench.run() == []
        assert bench.ps.stats("orders").depth == 0


def test_rejects_and_bodies_that_are_none_go_to_the_dead_letters() -> None:
    app, done = make_app()
    with app.test() as bench:
        bench.send("orders", Order("unicorn"))
        bench.send("orders", b"nonsense")
        rejected, undecodable = bench.run()
        assert (rejected.verdict, undecodable.verdict) == ("rejected", "rejected")
        assert isinstance(rejected.error, penstock.Reject)
        assert isinstance(undecodable.error, Undecodable)
        first, second = bench.dead_letters("orders")
        assert (first.reason, first.error) == ("rejected", "no such thing")
        assert first.origin.consumer == "till"
        assert second.error.startswith("the body is no Order: ")
        assert done == []


def test_retries_come_when_time_passes_and_not_before() -> None:
    app, done = make_app()
    with app.test() as bench:
        bench.send("orders", Order("piano"))
        (first,) = bench.run()
        assert (first.verdict, str(first.error)) == ("retried", "too heavy")
        bench.pass_time("999ms")
        assert bench.run() == []
        bench.pass_time("1ms")
        (second,) = bench.run()
        assert second.delivery.delivery_count == 2
        (third,) = bench.run(within="2s")  # the backoff has doubled
        assert third.verdict == "acked"
        assert len(done) == 1


def test_run_within_goes_from_one_moment_to_the_next() -> None:
    app, done = make_app()
    with app.test() as bench:
        start_ns = bench.clock.monotonic_ns()
        bench.send("orders", Order("later"))
        bench.send("orders", Order("tomorrow"), delay="1d")
        handled = bench.run(within="2d")
        assert [h.delivery.delivery_count for h in handled] == [1, 2, 1]
        assert [order.what for order, _, _ in done] == ["later", "tomorrow"]
        assert bench.clock.monotonic_ns() - start_ns == 2 * 86_400 * 1_000_000_000


def test_settings_of_topics_count_and_what_keeps_failing_is_given_up() -> None:
    app = penstock.App()
    calls = []

    @app.consumer("orders", group="g")
    def fail(body: str) -> None:
        calls.append(body)
        raise ValueError("never")

    with app.test({"orders": {"max_retries": 1, "backoff": ("5s", 1.0, "5s")}}) as bench:
        bench.send("orders", "x")
        assert [h.verdict for h in bench.run(within="1m")] == ["retried", "given_up"]
        (letter,) = bench.dead_letters("orders")
        assert (letter.reason, letter.error, letter.attempts) == (
            "max_retries",
            "ValueError: never",
            2,
        )
        assert calls == ["x", "x"]


def test_own_retries_give_up_before_the_topic_does() -> None:
    app = penstock.App()

    @app.consumer("orders", group="g", retries=1, backoff=("1s", 1.0, "1s"))
    def fail(body: bytes) -> None:
        raise ValueError("never")

    with app.test() as bench:
        bench.send("orders", "x")
        assert [h.verdict for h in bench.run(within="1m")] == ["retried", "given_up"]
        (letter,) = bench.dead_letters("orders")
        assert (letter.reason, letter.error, letter.attempts) == (
            "max_retries",
            "ValueError: never",
            2,
        )


def test_in_an_async_test_handlers_run_on_its_loop() -> None:
    app = penstock.App()
    loops = []

    @app.consumer("orders", group="g", backoff=("1s", 1.0, "1s"))
    async def work(delivery: penstock.Delivery) -> str:
        await asyncio.sleep(0)
        loops.append(asyncio.get_running_loop())
        if delivery.delivery_count == 1:
            raise ValueError("not yet")
        return "done"

    async def test() -> None:
        with app.test() as bench:
            bench.send("orders", "x")
            with pytest.raises(InvalidInput, match=r"use `await bench.run_async\(\)`"):
                bench.run()
            first, second = await bench.run_async(within="1s")
            assert (first.verdict, str(first.error)) == ("retried", "not yet")
            assert (second.verdict, second.result) == ("acked", "done")
            assert set(loops) == {asyncio.get_running_loop()}

    asyncio.run(test())


def test_handlers_that_do_not_wait_run_in_an_async_test_as_anywhere() -> None:
    app = penstock.App()

    @app.consumer("orders", group="g")
    def work(body: str) -> str:
        return body

    async def test() -> None:
        with app.test() as bench:
            bench.send("orders", "x")
            assert [h.result for h in bench.run()] == ["x"]
            bench.send("orders", "y")
            assert [h.result for h in await bench.run_async()] == ["y"]

    asyncio.run(test())


def test_handlers_that_publish_feed_other_handlers() -> None:
    app = penstock.App()
    bench_ps: list[Any] = []
    seen = []

    @app.consumer("orders", group="g")
    def split(items: list[str]) -> None:
        bench_ps[0].publish_batch("items", items)

    @app.consumer("items", group="g")
    def pack(item: str) -> None:
        seen.append(item)

    with app.test() as bench:
        bench_ps.append(bench.ps)
        bench.send("orders", ["a", "b"])
        bench.run()
    assert seen == ["a", "b"]


def test_two_benches_do_not_know_each_other_and_leave_no_threads() -> None:
    app, _ = make_app()
    before = threading.active_count()
    with app.test() as one, app.test() as two:
        one.send("orders", Order("apples"))
        assert two.run() == []
        assert len(one.run()) == 1
    assert threading.active_count() == before


def test_every_run_is_the_same() -> None:
    def story() -> list[tuple[str, int, str]]:
        app, _ = make_app()
        with app.test() as bench:
            for n in range(50):
                what = ("apples", "piano", "unicorn", "later")[n % 4]
                bench.send("orders", Order(what, n), priority=("low", "high")[n % 2])
            handled = bench.run(within="1h")
        return [(h.verdict, h.delivery.offset, str(h.error)) for h in handled]

    assert story() == story()


def test_the_namespace_of_the_app_is_that_of_its_topics() -> None:
    app = penstock.App(namespace="shop")

    @app.consumer("orders", group="g")
    def work(body: bytes) -> None: ...

    with app.test() as bench:
        bench.send("orders", "x")
        (handled,) = bench.run()
        assert handled.verdict == "acked"
        assert bench.ps.stats("orders").topic == "shop/orders"


def test_a_wrong_body_is_refused_when_it_is_sent() -> None:
    app, _ = make_app()
    with app.test() as bench, pytest.raises(penstock.PenstockError, match="is not JSON"):
        bench.send("orders", object())
