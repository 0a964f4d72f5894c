"""What an app does before, after and around its handlers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import penstock
from penstock.aio import AsyncClient
from penstock.errors import InvalidInput
from tests.integration.worker.conftest import Place, Working, until


def story_app(app: penstock.App) -> list[str]:
    """An app that writes down what happens, in order."""
    story: list[str] = []
    app.topic("orders", max_retries=0)

    @app.on_startup
    async def open_pool(ps: AsyncClient) -> None:
        assert await ps.topics() == ["orders"]
        story.append("open pool")

    @app.on_startup
    def read_rates() -> None:
        story.append("read rates")

    @app.on_shutdown
    def close_pool() -> None:
        story.append("close pool")

    @app.on_shutdown
    async def say_goodbye() -> None:
        story.append("say goodbye")

    @app.middleware
    async def outer(job: penstock.Job, call_next: Any) -> Any:
        story.append(f"outer {job.delivery.value!r}")
        try:
            return await call_next(job)
        except ValueError:
            story.append("outer saw the error")
            raise

    @app.middleware
    async def inner(job: penstock.Job, call_next: Any) -> Any:
        story.append(f"inner {job.handler.rpartition('.')[2]}")
        return f"({await call_next(job)})"

    @app.consumer("orders", group="g")
    def work(body: str) -> str:
        story.append(f"work {body}")
        if body == "bad":
            raise ValueError("no")
        return body

    return story


BEFORE = ["open pool", "read rates"]
GOOD = ["outer b'good'", "inner work", "work good"]
BAD = ["outer b'bad'", "inner work", "work bad", "outer saw the error"]
AFTER = ["say goodbye", "close pool"]


def test_a_worker_calls_hooks_and_middleware_in_order(place: Place) -> None:
    app = place.app()
    story = story_app(app)

    @app.on_startup
    async def begin() -> None:
        await app.publish("orders", "good")
        await app.publish("orders", "bad")

    with Working(app):
        until(lambda: "outer saw the error" in story)
    assert story == BEFORE + GOOD + BAD + AFTER
    with place.connect() as ps:
        (letter,) = ps.dead_letters("orders").list()
        assert letter.error == "ValueError: no"


def test_the_bench_does_so_too() -> None:
    app = penstock.App()
    story = story_app(app)
    with app.test() as bench:
        bench.send("orders", "good")
        bench.send("orders", "bad")
        good, bad = bench.run()
        assert (good.result, bad.verdict) == ("(good)", "given_up")
    assert story == BEFORE + GOOD + BAD + AFTER


def test_in_an_async_test_too() -> None:
    app = penstock.App()
    story = story_app(app)

    async def test() -> None:
        async with app.test() as bench:
            bench.send("orders", "good")
            with pytest.raises(InvalidInput, match=r"use `await bench\.run_async"):
                bench.run()
            assert [done.result for done in await bench.run_async()] == ["(good)"]

    asyncio.run(test())
    assert story == BEFORE + GOOD + AFTER


def test_hooks_and_handlers_of_a_bench_share_an_event_loop() -> None:
    app = penstock.App()
    loops: list[asyncio.AbstractEventLoop] = []

    @app.on_startup
    @app.on_shutdown
    async def hook() -> None:
        loops.append(asyncio.get_running_loop())

    @app.consumer("orders", group="g")
    async def work(body: str) -> None:
        loops.append(asyncio.get_running_loop())

    with app.test() as bench:
        for _ in range(2):
            bench.send("orders", "x")
            bench.run()
    assert len(loops) == 4
    assert len(set(loops)) == 1


def test_a_startup_that_fails_ends_the_app_before_its_first_message(place: Place) -> None:
    app = place.app()
    story = story_app(app)

    @app.on_startup
    async def fail(ps: AsyncClient) -> None:
        await ps.publish("orders", "good")
        raise RuntimeError("no pool")

    with pytest.raises(RuntimeError, match="no pool"):
        Working(app).end()
    assert story == BEFORE


def test_middleware_may_decide_without_the_handler() -> None:
    app = penstock.App()

    @app.middleware
    async def gate(job: penstock.Job, call_next: Any) -> Any:
        if job.delivery.headers.get("from") != b"us":
            raise penstock.Reject("not from us")
        return await call_next(job)

    @app.consumer("orders", group="g")
    def work(body: str) -> None: ...

    with app.test() as bench:
        bench.send("orders", "x", headers={"from": "us"})
        bench.send("orders", "x")
        assert [done.verdict for done in bench.run()] == ["acked", "rejected"]


def test_what_is_no_middleware_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"it is `async def name\(job, call_next\)`"):
        penstock.App().middleware(lambda job, call_next: None)


def test_topics_are_made_with_the_settings_of_the_app(place: Place) -> None:
    app = place.app()

    @app.consumer(app.topic("orders", max_retries=7, partitions=3), group="g", retries=5)
    def work(body: str) -> None: ...

    with Working(app):
        pass
    with place.connect() as ps:
        settings = ps.describe_topic("orders")
        assert (settings.max_retries, settings.partitions) == (7, 3)
    with app.test({"orders": {"partitions": 2}}) as bench:
        settings = bench.ps.describe_topic("orders")
        assert (settings.max_retries, settings.partitions) == (7, 2)
