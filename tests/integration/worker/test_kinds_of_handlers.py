"""Whatever is awaitable is awaited, and whatever is raised ends alike, async or not."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import penstock
from penstock.errors import InvalidInput
from tests.integration.worker.conftest import Place, Working, until

Handler = Callable[..., Any]


class Fatal(BaseException):
    """What somebody derives from BaseException, so that `except Exception` lets it through."""


def decorated(function: Handler) -> Handler:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def hidden(function: Handler) -> Handler:
    """A decorator that forgot `functools.wraps`."""

    def wrapper(body: str) -> Any:
        return function(body)

    return wrapper


class Called:
    def __init__(self, function: Handler) -> None:
        self._function = function

    async def __call__(self, body: str) -> Any:
        return await self._function(body)


def partial(function: Handler) -> Handler:
    async def with_more(more: int, body: str) -> Any:
        assert more == 7
        return await function(body)

    return functools.partial(with_more, 7)


KINDS = [decorated, hidden, Called, partial]


def failing_once(seen: list[str]) -> Callable[[str], Coroutine[Any, Any, str]]:
    async def work(body: str) -> str:
        await asyncio.sleep(0)
        seen.append(body)
        if len(seen) == 1:
            raise ValueError("not yet")
        return f"done {body}"

    return work


@pytest.mark.parametrize("kind", KINDS)
def test_an_async_handler_is_awaited_however_it_is_wrapped(place: Place, kind: Any) -> None:
    with place.connect() as ps:
        ps.create_topic("orders", backoff=("1ms", 1.0, "1ms"))
        ps.publish("orders", "x")
    app = place.app()
    seen: list[str] = []
    app.consumer("orders", group="g")(kind(failing_once(seen)))
    with Working(app):
        until(lambda: len(seen) == 2)
    with place.connect() as ps:
        assert ps.stats("orders").groups[0].depth == 0


@pytest.mark.parametrize("kind", KINDS)
def test_the_bench_awaits_it_too(kind: Any) -> None:
    app = penstock.App()
    seen: list[str] = []
    app.consumer("orders", group="g", backoff=("1s", 1.0, "1s"))(kind(failing_once(seen)))
    with app.test() as bench:
        bench.send("orders", "x")
        first, second = bench.run(within="1s")
        assert (first.verdict, str(first.error)) == ("retried", "not yet")
        assert (second.verdict, second.result) == ("acked", "done x")


def test_what_a_handler_returns_is_awaited_to_the_end(place: Place) -> None:
    with place.connect() as ps:
        ps.create_topic("orders")
        ps.publish("orders", "x")
    app = place.app()
    seen: list[str] = []

    @app.consumer("orders", group="async")
    async def later(body: str) -> Any:
        return failing_never(body)

    @app.consumer("orders", group="plain")
    def plain(body: str) -> Any:
        return later(body)

    async def failing_never(body: str) -> None:
        await asyncio.sleep(0)
        seen.append(body)

    with Working(app):
        until(lambda: len(seen) == 2)


@pytest.mark.parametrize("returns", [True, False])
def test_a_middleware_that_forgets_to_await_loses_no_message(returns: bool) -> None:
    app = penstock.App()
    seen: list[str] = []

    @app.middleware
    async def forgetful(job: penstock.Job, call_next: Any) -> Any:
        work = call_next(job)
        return work if returns else None

    @app.consumer("orders", group="g")
    async def work(body: str) -> None:
        seen.append(body)

    with app.test() as bench:
        bench.send("orders", "x")
        (done,) = bench.run()
    if returns:
        assert (done.verdict, seen) == ("acked", ["x"])
    else:
        assert (done.verdict, seen) == ("retried", [])
        assert "await call_next(job)" in str(done.error)


def test_a_middleware_may_keep_a_message_from_its_handler() -> None:
    app = penstock.App()

    @app.middleware
    async def keeps(job: penstock.Job, call_next: Any) -> str:
        return "kept"

    @app.consumer("orders", group="g")
    async def work(body: str) -> None:
        raise AssertionError("it is not called")

    with app.test() as bench:
        bench.send("orders", "x")
        (done,) = bench.run()
    assert (done.verdict, done.result) == ("acked", "kept")


def test_an_async_filter_is_refused_however_it_is_wrapped() -> None:
    async def takes(delivery: penstock.Delivery) -> bool:
        return False

    async def work(body: str) -> None:
        raise AssertionError("it is not called")

    app = penstock.App()
    for each in (takes, functools.partial(takes), decorated(takes)):
        with pytest.raises(InvalidInput, match=r"the filter of .* is async"):
            app.consumer("orders", group="g", filter=each)(work)  # type: ignore[arg-type]
    app.consumer("orders", group="g", filter=hidden(takes))(work)  # type: ignore[arg-type]
    with app.test() as bench:
        bench.send("orders", "x")
        (done,) = bench.run()
    assert done.verdict == "retried"
    assert "is async" in str(done.error)


def test_a_generator_is_no_handler() -> None:
    app = penstock.App()

    def makes(body: bytes) -> Any:
        yield body

    async def makes_async(body: bytes) -> Any:
        yield body

    for each in (makes, makes_async, decorated(makes)):
        with pytest.raises(InvalidInput, match="yields"):
            app.consumer("orders", group="g")(each)


def raising(kind: str, error: BaseException) -> Handler:
    if kind == "sync":

        def work(body: str) -> None:
            raise error

        return work

    async def work_async(body: str) -> None:
        raise error

    return work_async


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()], ids=["exit", "interrupt"])
def test_exit_gives_the_message_back_and_stops_the_worker(
    place: Place, kind: str, error: BaseException
) -> None:
    with place.connect() as ps:
        ps.create_topic("orders", backoff=("0s", 1.0, "0s"))
        ps.publish("orders", "x")
    app = place.app()
    app.consumer("orders", group="g")(raising(kind, error))
    with pytest.raises(type(error)):
        Working(app).end()
    with place.connect() as ps:
        (again,) = ps.receive("orders", "g", wait="5s")
        assert again.delivery_count == 2


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_message_that_ends_every_worker_is_a_dead_letter_in_the_end(
    place: Place, kind: str
) -> None:
    with place.connect() as ps:
        ps.create_topic("orders", max_retries=0)
        ps.publish("orders", "x")
    app = place.app()
    app.consumer("orders", group="g")(raising(kind, SystemExit(3)))
    with pytest.raises(SystemExit):
        Working(app).end()
    with place.connect() as ps:
        (letter,) = ps.dead_letters("orders").list()
        assert letter.error == "SystemExit: 3"


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_an_own_base_exception_fails_its_message_and_no_more(place: Place, kind: str) -> None:
    with place.connect() as ps:
        ps.create_topic("orders", max_retries=0)
        ps.publish_batch("orders", ["x", "y"])
    app = place.app()
    calls: list[str] = []
    fail = raising(kind, Fatal("no"))

    def counted(body: str) -> Any:
        calls.append(body)
        return fail(body)

    app.consumer("orders", group="g")(counted)
    with Working(app):  # leaving the block would raise what it died of
        until(lambda: calls == ["x", "y"])
    with place.connect() as ps:
        assert [letter.error for letter in ps.dead_letters("orders").list()] == ["Fatal: no"] * 2


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_the_bench_gives_back_and_stops_alike(kind: str) -> None:
    app = penstock.App()
    app.consumer("exits", group="g")(raising(kind, SystemExit(3)))
    app.consumer("fails", group="g")(raising(kind, Fatal("no")))
    with app.test() as bench:
        bench.send("fails", "x")
        (failed,) = bench.run()
        assert (failed.verdict, type(failed.error)) == ("retried", Fatal)
        bench.send("exits", "x")
        with pytest.raises(SystemExit):
            bench.run()
        assert bench.ps.receive("exits", "g") == []  # it waits for its backoff
        bench.pass_time("1s")
        (back,) = bench.ps.receive("exits", "g")
        assert back.delivery_count == 2


def test_an_exit_while_the_worker_stops_already_does_not_hold_it_up(place: Place) -> None:
    with place.connect() as ps:
        ps.create_topic("orders", backoff=("0s", 1.0, "0s"))
        ps.publish("orders", "x")
    app = place.app()
    begun = threading.Event()
    go_on = threading.Event()

    @app.consumer("orders", group="g")
    def work(body: str) -> None:
        begun.set()
        go_on.wait(20)
        raise SystemExit(3)

    working = Working(app)
    assert begun.wait(20)
    working.tell_to_stop()
    working.turn(50)
    go_on.set()
    with pytest.raises(SystemExit):
        working.end()
    with place.connect() as ps:
        (again,) = ps.receive("orders", "g", wait="5s")
        assert again.delivery_count == 2
