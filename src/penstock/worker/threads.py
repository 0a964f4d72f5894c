"""Threads for handlers that block."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeAlias

_Job: TypeAlias = tuple[Callable[[], Any], asyncio.Future[Any]]


class Threads:
    """Some threads, which do not keep the process from ending when their work does not end.

    That is why this is no ThreadPoolExecutor: a worker that was told to stop gives back what a
    stuck handler has, and leaves.
    """

    def __init__(self, count: int, name: str) -> None:
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._count = count
        self._name = name
        self._started = 0

    async def call(self, function: Callable[[], Any]) -> Any:
        """Run a function on one of them. There must never be more calls than threads."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        if self._started < self._count:
            self._started += 1
            threading.Thread(
                target=self._work, args=(loop,), name=f"{self._name}-{self._started}", daemon=True
            ).start()
        self._jobs.put((function, future))
        return await future

    def close(self) -> None:
        for _ in range(self._started):
            self._jobs.put(None)

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        while (job := self._jobs.get()) is not None:
            function, future = job
            result, error = None, None
            try:
                result = function()
            except BaseException as exc:  # noqa: BLE001 - whoever awaits the future gets it
                error = exc
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(_finish, future, result, error)


def _finish(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return  # given up meanwhile
    if isinstance(error, StopIteration | KeyboardInterrupt | SystemExit):
        # These would end the event loop, or not go into a future, instead of failing one message.
        error = RuntimeError(f"the handler raised {type(error).__name__}")
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
