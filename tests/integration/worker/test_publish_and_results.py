"""Handlers that publish and return: what they publish is stored before their message is acked."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

import penstock
from penstock.aio import AsyncClient
from penstock.client.client import Client
from penstock.errors import HandlerFailed, InvalidInput
from tests.integration.worker.conftest import Place, Working, until


class Order(msgspec.Struct):
    id: int


class Shipment(msgspec.Struct):
    order: int


def shop(app: penstock.App, seen: list[int]) -> penstock.App:
    """Two handlers that publish, each in its own way, and one that reads both."""
    app.topic("orders")
    app.topic("shipments")

    @app.consumer("orders", group="async")
    async def ship(order: Order) -> None:
        await app.publish("shipments", Shipment(order.id), key=str(order.id))

    @app.consumer("orders", group="sync")
    def ship_again(order: Order) -> None:
        stored = app.publish("shipments", Shipment(order.id + 100)).result()
        assert isinstance(stored.id, str)

    @app.consumer("shipments", group="post")
    def post(shipment: Shipment, delivery: penstock.Delivery) -> None:
        assert delivery.headers == {"content-type": b"application/json"}
        seen.append(shipment.order)

    return app


def test_handlers_publish_async_or_not(place: Place) -> None:
    seen: list[int] = []
    app = shop(place.app(), seen)

    @app.on_startup
    async def first_order() -> None:
        await app.publish("orders", Order(1))

    with Working(app):
        until(lambda: sorted(seen) == [1, 101])
    assert app.publisher is None


def test_handlers_publish_on_the_bench() -> None:
    seen: list[int] = []
    app = shop(penstock.App(), seen)
    with app.test() as bench:
        bench.send("orders", Order(1))
        assert [done.verdict for done in bench.run()] == ["acked"] * 4
    assert sorted(seen) == [1, 101]


def test_what_is_not_awaited_is_stored_all_the_same_before_the_ack(place: Place) -> None:
    app = place.app()
    app.topic("orders", max_retries=0)
    app.topic("shipments")
    calls: list[int] = []

    @app.consumer("orders", group="g")
    async def forgetful(order: Order) -> None:
        calls.append(order.id)
        app.publish("shipments" if order.id == 1 else "nowhere", Shipment(order.id))

    @app.on_startup
    async def orders() -> None:
        await app.publish("orders", Order(1))
        await app.publish("orders", Order(2))

    with Working(app):
        until(lambda: calls == [1, 2])
    with place.connect() as ps:
        assert ps.stats("shipments").messages == 1
        (letter,) = ps.dead_letters("orders").list()  # its publish failed, and so did it
        assert "nowhere" in letter.error


def test_outside_of_a_run_it_says_what_to_do() -> None:
    with pytest.raises(InvalidInput, match=r"use penstock.connect"):
        penstock.App("data").publish("orders", b"")


def test_an_app_publishes_its_own_when_called_from_the_handler_of_another() -> None:
    one, other = penstock.App(), penstock.App()

    @one.consumer("orders", group="g")
    def work(body: bytes) -> None:
        other.publish("orders", body)

    with one.test() as bench:
        bench.send("orders", b"x")
        (done,) = bench.run()
        assert isinstance(done.error, InvalidInput)  # the other one does not run


def test_handlers_get_the_client_of_the_app(place: Place) -> None:
    app = place.app()
    app.topic("orders")
    app.topic("more")
    seen: list[str] = []

    @app.consumer("orders", group="async")
    async def count(body: bytes, client: AsyncClient) -> None:
        seen.append(f"async {(await client.stats('orders')).messages}")

    @app.consumer("orders", group="sync")
    def count_too(ps: Client, body: bytes) -> None:
        ps.publish("more", body)
        seen.append(f"sync {ps.stats('orders').messages}")

    @app.on_startup
    def begin(ps: Client) -> None:
        ps.publish("orders", b"x")

    with Working(app):
        until(lambda: sorted(seen) == ["async 1", "sync 1"])
    with place.connect() as ps:
        assert ps.stats("more").messages == 1


def test_the_client_of_the_bench_is_given_too() -> None:
    app = penstock.App()

    @app.consumer("orders", group="g")
    async def count(ps: AsyncClient) -> int:
        return (await ps.stats("orders")).messages

    with app.test() as bench:
        bench.send("orders", b"x")
        assert [done.result for done in bench.run()] == [1]


def test_a_client_of_the_wrong_kind_is_refused() -> None:
    app = penstock.App()

    async def blocks(ps: Client) -> None: ...

    def awaits(body: bytes, client: AsyncClient) -> None: ...

    with pytest.raises(InvalidInput, match="gets a AsyncClient, as it is async"):
        app.consumer("orders", group="g")(blocks)
    with pytest.raises(InvalidInput, match="gets a Client, as it is not async"):
        app.consumer("orders", group="g")(awaits)
    with pytest.raises(InvalidInput, match="a hook takes nothing, or a client"):
        app.on_startup(lambda body: None)


def totals(app: penstock.App) -> penstock.App:
    app.topic("orders", max_retries=1, backoff=("1ms", 1.0, "1ms"))

    @app.consumer("orders", group="sums", results=True)
    async def add(numbers: list[int]) -> int:
        if not numbers:
            raise ValueError("nothing to add")
        return sum(numbers)

    return app


def test_a_result_can_be_asked_for() -> None:
    app = totals(penstock.App(name="sums"))
    with app.test() as bench:
        asked = bench.send("orders", [1, 2, 3], key="c-17")
        with pytest.raises(TimeoutError):
            app.result(bench.ps, asked.id)
        bench.run()
        assert app.result(bench.ps, asked.id, int) == 6
        assert app.result(bench.ps, asked.id) == b"6"
        (stored,) = bench.ps.peek("sums.results")
        assert (stored.key, stored.expires_at_us is not None) == (b"c-17", True)
        failed = bench.send("orders", [])
        bench.run(within="1m")
        with pytest.raises(HandlerFailed, match="ValueError: nothing to add"):
            app.result(bench.ps, failed.id)
        with pytest.raises(InvalidInput, match="is no id of a message"):
            app.result(bench.ps, "x")


def test_results_come_from_a_worker_in_time(shared_server: Any) -> None:
    place = Place(shared_server.url, "results")
    app = totals(place.app())
    begun: list[bool] = []
    app.on_startup(lambda: begun.append(True))
    with Working(app), place.connect() as ps:
        until(lambda: bool(begun))
        asked = ps.publish("orders", b"[4,5]")
        assert app.result(ps, asked.id, int, wait="20s") == 9
        failed = ps.publish("orders", b"[]")

        async def ask() -> None:
            async with penstock.aio.connect(place.target, namespace=place.namespace) as aps:
                await app.result_async(aps, failed.id, wait="20s")

        with pytest.raises(HandlerFailed):
            asyncio.run(ask())


def test_results_may_go_to_a_topic_and_feed_other_handlers() -> None:
    app = penstock.App()

    @app.consumer("orders", group="g", results="totals")
    def add(numbers: list[int]) -> dict[str, int]:
        if not numbers:
            raise penstock.Reject("nothing")
        return {"total": sum(numbers)}

    @app.consumer("totals", group="g")
    def show(total: dict[str, int], delivery: penstock.Delivery) -> Any:
        return total["total"], delivery.headers["result-of"], delivery.key

    with app.test() as bench:
        asked = bench.send("orders", [1, 2], key="k")
        bench.send("orders", [])
        *_, shown = bench.run()
        assert shown.result == (3, asked.id.encode(), b"k")
        assert bench.ps.stats("totals").messages == 1  # errors are for the dead letters
