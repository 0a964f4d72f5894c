"""What has to wait is written once, without waiting, and driven by a thread or an event loop.

An operation is a generator that yields what it waits for and is sent what came of it: of a future,
whether it was there in time; of a request to a server, the answer.
`run` drives it in a thread, `run_async` on an event loop.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import wait as wait_for
from contextlib import suppress
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeAlias, TypeVar

from penstock.errors import storage_error

S = TypeVar("S")
T = TypeVar("T")
P = ParamSpec("P")


class Step(Protocol):
    """What an operation waits for. What comes of it is sent, or thrown, into the operation."""

    def block(self) -> Any: ...

    def wait(self) -> Coroutine[Any, Any, Any]: ...


class Wait(NamedTuple):
    """A future, and how long to wait for it; None: as long as it takes."""

    future: Future[Any]
    timeout_s: float | None = None

    def block(self) -> bool:
        """Whether it came in time."""
        return self.future.done() or bool(wait_for([self.future], self.timeout_s).done)

    async def wait(self) -> bool:
        if not self.future.done():
            waiting = asyncio.wrap_future(self.future)
            await asyncio.wait([waiting], timeout=self.timeout_s)
            if waiting.done():
                waiting.exception()  # heard; the operation itself raises it
        return self.future.done()


class Aside(NamedTuple):
    """A call that may take a while: a thread makes it itself, an event loop has it made."""

    function: Callable[..., Any]
    argument: Any

    def block(self) -> Any:
        return self.function(self.argument)

    async def wait(self) -> Any:
        calling = asyncio.ensure_future(asyncio.to_thread(self.function, self.argument))
        try:
            return await asyncio.shield(calling)
        except asyncio.CancelledError:
            await asyncio.wait([calling])  # what comes next must not overtake it
            raise


class Turn(NamedTuple):
    """A lock: wait until it is free, and take it. It is held for short, so that an event loop
    rarely has to have a thread wait for it."""

    lock: threading.Lock

    def block(self) -> None:
        self.lock.acquire()

    async def wait(self) -> None:
        if self.lock.acquire(blocking=False):
            return
        taking = asyncio.ensure_future(asyncio.to_thread(self.lock.acquire))
        try:
            await asyncio.shield(taking)
        except asyncio.CancelledError:
            taking.add_done_callback(lambda _: self.lock.release())
            raise


class Pause(NamedTuple):
    """Some time passes."""

    seconds: float

    def block(self) -> None:
        time.sleep(self.seconds)

    async def wait(self) -> None:
        await asyncio.sleep(self.seconds)


Steps: TypeAlias = Generator[Step, Any, T]


def _nothing() -> Steps[None]:
    yield from ()


NOTHING_TO_WAIT_FOR = _nothing()
"""An operation that is over: it gives None, as often as it is driven."""
for _ in NOTHING_TO_WAIT_FOR:
    pass


class Signal:
    """Something may be new: a future that any number of threads may fire."""

    def __init__(self) -> None:
        self.future: Future[None] = Future()

    def fire(self) -> None:
        with suppress(InvalidStateError):  # it was fired by another thread at the same moment
            if not self.future.done():
                self.future.set_result(None)


def until(future: Future[T]) -> Steps[T]:
    """What comes of a future."""
    if not future.done():
        yield Wait(future)
    return future.result()


def run(steps: Steps[T]) -> T:
    """Drive an operation in this thread."""
    if steps is NOTHING_TO_WAIT_FOR:
        return None  # type: ignore[return-value]
    try:
        step = next(steps)
        while True:
            try:
                came = step.block()
            except BaseException as exc:  # noqa: BLE001 - the operation hears of it
                step = steps.throw(exc)
            else:
                step = steps.send(came)
    except StopIteration as stop:
        result: T = stop.value
        return result
    except OSError as exc:
        raise storage_error(exc) from exc.__cause__


async def run_async(steps: Steps[T]) -> T:
    """Drive an operation on the event loop. A cancelled wait ends the operation."""
    try:
        step = next(steps)
        while True:
            try:
                came = await step.wait()
            except BaseException as exc:  # noqa: BLE001 - the operation hears of it
                step = steps.throw(exc)
            else:
                step = steps.send(came)
    except StopIteration as stop:
        result: T = stop.value
        return result
    except OSError as exc:
        raise storage_error(exc) from exc.__cause__
