"""Middleware: what an app wraps around every call of a handler."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from penstock.errors import InvalidInput
from penstock.worker.awaiting import awaited, was_dropped
from penstock.worker.handlers import is_async
from penstock.worker.jobs import Job

CallNext: TypeAlias = Callable[[Job], Awaitable[Any]]
Middleware: TypeAlias = Callable[[Job, CallNext], Awaitable[Any]]
"""`call_next(job)` returns what the handler returns, and raises what it raises."""


def check(middleware: Any) -> None:
    if not is_async(middleware):
        raise InvalidInput(
            f"{middleware!r:.100} is no middleware; it is `async def name(job, call_next)`"
        )


def wrapped(middleware: Sequence[Middleware], call: CallNext) -> CallNext:
    """The first is the outermost."""
    for each in reversed(middleware):
        call = _around(each, call)
    return call


def _around(middleware: Middleware, call_next: CallNext) -> CallNext:
    async def call(job: Job) -> Any:
        begun: list[Awaitable[Any]] = []

        def noted(job: Job) -> Awaitable[Any]:
            begun.append(call_next(job))
            return begun[-1]

        result = await awaited(middleware(job, noted))
        dropped = [each for each in begun if was_dropped(each)]
        if dropped:
            # Else the message would be acked, and its handler was never called.
            raise InvalidInput(
                "a middleware called call_next(job) and did not await it; it is "
                "`await call_next(job)`"
            )
        return result

    return call
