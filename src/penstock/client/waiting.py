"""What has to wait is written once, without waiting, and driven by a thread or an event loop.

An operation is a generator that yields what it waits for and is sent what came of it: of a future,
whether it was there in time; of a request to a server, the answer.
`blocking` makes a method of it, `awaiting` a coroutine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import wait as wait_for
from contextlib import suppress
from functools import wraps
from typing import Any, Concatenate, NamedTuple, ParamSpec, Protocol, TypeAlias, TypeVar

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


class Turn(NamedTuple):
    """A lock, of threads or of an event loop: wait until it is free, and take it."""

    lock: Any

    def block(self) -> None:
        self.lock.acquire()

    async def wait(self) -> None:
        await self.lock.acquire()


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


def blocking(
    operation: Callable[Concatenate[S, P], Steps[T]],
) -> Callable[Concatenate[S, P], T]:
    _show_public_name(operation)

    @wraps(operation)
    def method(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return run(operation(self, *args, **kwargs))

    return method


def awaiting(
    operation: Callable[Concatenate[S, P], Steps[T]],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    _show_public_name(operation)

    @wraps(operation)
    async def method(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await run_async(operation(self, *args, **kwargs))

    return method


def threaded(
    function: Callable[Concatenate[S, P], T],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """A call that may take a while and waits for nothing: on a thread beside the event loop."""

    @wraps(function)
    async def method(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.to_thread(function, self, *args, **kwargs)

    return method


def _show_public_name(operation: Callable[..., Any]) -> None:
    """Let help() and the error of a wrong call name the method that people call."""
    operation.__name__ = operation.__name__.removeprefix("ask_").lstrip("_")
    operation.__qualname__ = operation.__qualname__.replace("._", ".").replace(".ask_", ".")
