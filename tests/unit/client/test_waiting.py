"""An operation that waits is written once, and driven by a thread or an event loop."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import Any

import pytest

from penstock.client.waiting import (
    Signal,
    Steps,
    Wait,
    run,
    run_async,
)


def drive(way: str, steps: Steps[Any]) -> Any:
    return run(steps) if way == "thread" else asyncio.run(run_async(steps))


ways = pytest.mark.parametrize("way", ["thread", "loop"])


def done(value: object = None) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


@ways
def test_an_operation_that_does_not_wait(way: str) -> None:
    def operation() -> Steps[int]:
        return 5
        yield

    assert drive(way, operation()) == 5


@ways
def test_what_came_and_what_did_not(way: str) -> None:
    def operation() -> Steps[list[bool]]:
        first = yield Wait(done())
        second = yield Wait(Future(), 0.001)
        return [first, second]

    assert drive(way, operation()) == [True, False]


@ways
def test_a_future_that_another_thread_fulfils(way: str) -> None:
    future: Future[str] = Future()

    def operation() -> Steps[str]:
        threading.Timer(0.005, future.set_result, ["news"]).start()
        assert (yield Wait(future, 10))
        return future.result()

    assert drive(way, operation()) == "news"


@ways
def test_a_future_that_fails(way: str) -> None:
    future: Future[str] = Future()

    def operation() -> Steps[str]:
        threading.Timer(0.005, future.set_exception, [ZeroDivisionError("no")]).start()
        yield Wait(future)
        return future.result()

    with pytest.raises(ZeroDivisionError):
        drive(way, operation())


@ways
def test_an_error_of_the_operation(way: str) -> None:
    def operation() -> Steps[None]:
        yield Wait(done())
        raise KeyError("x")

    with pytest.raises(KeyError):
        drive(way, operation())


def test_a_cancelled_wait_ends_the_operation() -> None:
    tidied = []

    def operation() -> Steps[None]:
        try:
            yield Wait(Future())
        finally:
            tidied.append(True)

    async def scenario() -> None:
        task = asyncio.create_task(run_async(operation()))
        await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
    assert tidied == [True]


def test_a_cancelled_wait_does_not_cancel_what_others_wait_for() -> None:
    shared: Future[None] = Future()

    def operation() -> Steps[str]:
        yield Wait(shared)
        return "done"

    async def scenario() -> None:
        first = asyncio.create_task(run_async(operation()))
        second = asyncio.create_task(run_async(operation()))
        await asyncio.sleep(0.005)
        first.cancel()
        await asyncio.sleep(0.005)
        assert not shared.cancelled()
        shared.set_result(None)
        assert await second == "done"

    asyncio.run(scenario())


def test_a_signal_may_be_fired_by_many() -> None:
    for _ in range(20):
        signal = Signal()
        threads = [threading.Thread(target=signal.fire) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert signal.future.done()
