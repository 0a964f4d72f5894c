"""Handlers whose publishes are stored together with the ack of their message."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random

import msgspec
import pytest

import penstock
from penstock.errors import LeaseLost, TransactionRefused
from tests.integration.worker import doomed
from tests.integration.worker.conftest import Place, Working, until
from tests.integration.worker.doomed import STEPS

ROOT = Path(__file__).parents[3]


class Order(msgspec.Struct):
    id: int


def billing(app: penstock.App, attempts: list[int], fail: int = 1) -> penstock.App:
    app.topic("orders", max_retries=3, backoff=("1ms", 1.0, "1ms"))
    app.topic("bills")

    @app.consumer("orders", group="async", transactional=True)
    async def bill(order: Order) -> None:
        published = await app.publish("bills", Order(order.id))
        assert published.id == ""
        attempts.append(order.id)
        if len(attempts) <= fail:
            raise RuntimeError("not yet")

    @app.consumer("orders", group="sync", transactional=True, results="bills")
    def bill_again(order: Order) -> Order:
        app.publish("bills", Order(order.id + 100), key="k")
        return Order(order.id + 200)

    return app


def test_what_a_handler_publishes_is_stored_with_the_ack_or_not_at_all(place: Place) -> None:
    attempts: list[int] = []
    app = billing(place.app(), attempts)
    bills: list[int] = []

    @app.consumer("bills", group="post")
    def post(order: Order) -> None:
        bills.append(order.id)

    @app.on_startup
    async def orders() -> None:
        for n in range(3):
            await app.publish("orders", Order(n))

    with Working(app):
        until(lambda: len(bills) >= 9)
        until(lambda: len(attempts) >= 4)
    assert sorted(bills) == [0, 1, 2, 100, 101, 102, 200, 201, 202], "what failed left nothing"
    with place.connect() as ps:
        assert ps.stats("orders").depth == 0
        done = [each for each in ps.transactions() if each.state == "committed"]
        assert len(done) == 6


def test_a_killed_worker_has_passed_an_order_on_or_not(tmp_path: Path) -> None:
    data, rng = tmp_path / "data", Random(1)
    with penstock.connect(data) as ps:
        for step in STEPS:
            ps.create_topic(step, visibility="1s", max_retries=None)
        ps.publish_batch("step0", [f"order-{n}" for n in range(20)])
    said = 0
    for kill in range(4):
        command = [sys.executable, "-m", "penstock", "worker", f"{doomed.__name__}:app"]
        with subprocess.Popen(
            [*command, "--data", str(data)], stdout=subprocess.PIPE, text=True, cwd=ROOT
        ) as worker:
            assert worker.stdout is not None
            for _ in range(rng.randrange(20, 200)):
                said += bool(worker.stdout.readline())
            worker.kill()
        with penstock.connect(data) as ps:
            done = {step: ps.stats(step).groups[0] for step in STEPS if ps.stats(step).groups}
            assert sum(each.depth for each in done.values()) == 20, f"kill {kill}: {done}"
    assert said > 100


def test_a_bench_does_as_a_worker_does() -> None:
    attempts: list[int] = []
    app = billing(penstock.App(), attempts)
    with app.test() as bench:
        bench.send("orders", Order(7))
        verdicts = sorted(each.verdict for each in bench.run(within="1s"))
        assert verdicts == ["acked", "acked", "retried"]
        values = [m.json(Order).id for m in bench.ps.receive("bills", "g", 10)]
        assert sorted(values) == [7, 107, 207]


def test_what_cannot_be_published_fails_the_message() -> None:
    app = penstock.App()
    app.topic("orders", max_retries=0)
    app.topic("bills", partitions=1)

    @app.consumer("orders", group="g", transactional=True)
    async def bill(order: Order) -> None:
        await app.publish("bills", Order(order.id), partition=7)

    with app.test() as bench:
        bench.send("orders", Order(1))
        (handled,) = bench.run()
        assert isinstance(handled.error, TransactionRefused)
        assert "partition" in bench.dead_letters("orders")[0].error
        assert bench.ps.stats("bills").messages == 0


def test_who_lost_the_lease_publishes_nothing() -> None:
    app = penstock.App()
    app.topic("orders", visibility="10s")
    app.topic("bills")
    calls: list[int] = []

    @app.consumer("orders", group="g", transactional=True)
    def bill(order: Order) -> None:
        app.publish("bills", Order(order.id))
        calls.append(order.id)
        if len(calls) == 1:
            bench.clock.advance(11)
            bench.ps.receive("orders", "g")

    with app.test() as bench:
        bench.send("orders", Order(1))
        with pytest.raises(LeaseLost):
            bench.run()
        assert bench.ps.stats("bills").messages == 0
