"""Time limits and rate limits."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from typing import Any

import pytest

import penstock
from penstock.errors import InvalidInput
from penstock.worker.time_limit import TimeLimitExceeded
from tests.integration.worker.conftest import Place, Server, Working, until


def publish(place: Place, *bodies: str, **settings: Any) -> None:
    with place.connect() as ps:
        ps.create_topic("orders", **settings)
        ps.publish_batch("orders", list(bodies))


def letters(place: Place) -> list[str]:
    with place.connect() as ps:
        return [letter.error for letter in ps.dead_letters("orders").list()]


def test_an_async_handler_that_hangs_is_cancelled(place: Place) -> None:
    publish(place, "stuck", "quick", max_retries=0)
    app = place.app()
    story: list[str] = []

    @app.consumer("orders", group="g", time_limit="50ms")
    async def work(body: str) -> None:
        try:
            if body == "stuck":
                await asyncio.sleep(60)
            story.append(body)
        except asyncio.CancelledError:
            story.append("cancelled")
            raise

    with Working(app):
        until(lambda: story == ["cancelled", "quick"])
    assert letters(place) == ["TimeLimitExceeded: it took longer than 50ms"]


def test_a_thread_that_hangs_is_left_behind_and_replaced(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    publish(place, "stuck", "quick", max_retries=0)
    app = place.app()
    done: list[str] = []
    may_end = threading.Event()

    @app.consumer("orders", group="g", time_limit="50ms")
    def work(body: str) -> None:
        if body == "stuck":
            may_end.wait(60)
        done.append(body)

    with Working(app):
        until(lambda: done == ["quick"])
        may_end.set()
        until(lambda: done == ["quick", "stuck"])
    assert letters(place) == ["TimeLimitExceeded: it took longer than 50ms"]
    assert "work does not end; its thread is left behind" in caplog.text


def hang(body: str) -> None:
    """In a process of its own, where nothing but a kill helps."""
    while body == "stuck":
        time.sleep(1)
    if body == "dies":
        os._exit(3)
    if body == "fails":
        raise ValueError("no")


def test_a_process_that_hangs_or_dies_is_replaced(shared_server: Server) -> None:
    place = Place(shared_server.url, "processes")
    publish(place, "stuck", "dies", "fails", "quick", max_retries=0)
    app = place.app()
    app.consumer("orders", group="g", time_limit="5s", processes=1)(hang)
    with Working(app), place.connect() as ps:
        until(lambda: bool(ps.stats("orders").groups) and ps.stats("orders").groups[0].depth == 0)
    assert letters(place) == [
        "TimeLimitExceeded: it took longer than 5s",
        "HandlerProcessDied: the process of the handler ended with 3",
        "ValueError: no",
    ]


def test_on_the_bench_the_time_is_that_of_its_clock() -> None:
    app = penstock.App()
    slow: list[str] = ["40s", "20s"]

    @app.consumer("orders", group="g", time_limit="30s", backoff=("1s", 1.0, "1s"))
    def work(body: str) -> str:
        bench.pass_time(slow.pop(0))
        return "done"

    with app.test({"orders": {"visibility": "5m"}}) as bench:
        bench.send("orders", "x")
        late, good = bench.run(within="1m")
        assert (late.verdict, type(late.error)) == ("retried", TimeLimitExceeded)
        assert (good.verdict, good.result) == ("acked", "done")


def test_a_rate_limit_spreads_the_messages_over_time() -> None:
    app = penstock.App()
    started: list[int] = []

    @app.consumer("orders", group="g", rate_limit="6/m")
    def work(body: str) -> None:
        started.append(bench.clock.monotonic_ns())

    with app.test({"orders": {"visibility": "15s"}}) as bench:
        for n in range(4):
            bench.send("orders", str(n))
        assert len(bench.run()) == 1
        handled = bench.run(within="1m")  # far longer than a lease: it is extended
        assert [h.delivery.delivery_count for h in handled] == [1, 1, 1]
        assert [ns // 10**9 for ns in started] == [0, 10, 20, 30]


def test_a_rate_limit_per_key_leaves_other_keys_alone() -> None:
    app = penstock.App()
    started: list[tuple[str, int]] = []

    @app.consumer("orders", group="g", rate_limit=["1/s", "1/m per key"])
    def work(delivery: penstock.Delivery) -> None:
        assert delivery.key is not None
        started.append((delivery.key.decode(), bench.clock.monotonic_ns() // 10**9))

    with app.test() as bench:
        for key in ("a", "a", "b"):
            bench.send("orders", "x", key=key)
        bench.run(within="2m")
    assert started == [("a", 0), ("b", 1), ("a", 60)]


def test_a_worker_keeps_to_its_rate_and_gives_back_what_waits_when_it_stops(place: Place) -> None:
    publish(place, "1", "2", "3")
    app = place.app()
    seen: list[str] = []

    @app.consumer("orders", group="g", concurrency=3, rate_limit="1/h")
    async def work(body: str) -> None:
        seen.append(body)

    with Working(app) as working:
        until(lambda: seen == ["1"])
        working.turn(50)
    assert seen == ["1"]  # and the end did not wait for the others
    with place.connect() as ps:
        assert ps.stats("orders").groups[0].depth == 2


@pytest.mark.parametrize("limit", ["fast", "0/s", "10/d", "10", 7, ["10/s", "x"]])
def test_a_wrong_rate_is_refused(limit: Any) -> None:
    with pytest.raises(InvalidInput, match=r"it is such as"):
        penstock.App().consumer("orders", group="g", rate_limit=limit)(lambda body: None)


def test_no_time_at_all_is_refused() -> None:
    with pytest.raises(InvalidInput, match="time_limit is 0"):
        penstock.App().consumer("orders", group="g", time_limit=0)(lambda body: None)
