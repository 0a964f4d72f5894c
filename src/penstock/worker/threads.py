"""Threads for handlers that block."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from queue import SimpleQueue
from typing import Any

_logger = logging.getLogger("penstock.worker")


class Threads:
    """Some threads, which do not keep the process from ending when their work does not end.

    That is why this is no ThreadPoolExecutor: a worker that was told to stop gives back what a
    stuck handler has, and leaves. A call that is cancelled leaves its thread behind, and another
    one takes its place.
    """

    def __init__(self, count: int, name: str) -> None:
        self._work: SimpleQueue[_ThreadCall | None] = SimpleQueue()
        self._count = count
        self._name = name
        self._started = 0
        self._left_behind = 0

    async def call(self, function: Callable[[], Any]) -> Any:
        """Run a function on one of them. There must never be more calls than threads."""
        work = _ThreadCall(function)
        if self._started < self._count:
            self._started += 1
            name = f"{self._name}-{self._started + self._left_behind}"
            threading.Thread(target=self._run, name=name, daemon=True).start()
        self._work.put(work)
        try:
            result, error = await work.future
        except asyncio.CancelledError:
            if work.leave():
                self._started -= 1
                self._left_behind += 1
                _logger.warning(
                    "%s does not end; its thread is left behind, the %d. one",
                    self._name,
                    self._left_behind,
                )
            raise
        if error is not None:
            raise error
        return result

    def close(self) -> None:
        for _ in range(self._started):
            self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            if not work.run():
                return  # another thread has its place


class _ThreadCall:
    """A call, of which the event loop and a thread agree who gave it up first."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[tuple[Any, BaseException | None]] = self._loop.create_future()
        self._function = function
        self._context = copy_context()
        self._lock = threading.Lock()
        self._running = False
        self._left = False

    def leave(self) -> bool:
        """Nobody waits for it any more. Returns whether a thread is busy with it."""
        with self._lock:
            self._left = True
            return self._running

    def run(self) -> bool:
        """On the thread. Returns whether the thread is still wanted."""
        with self._lock:
            if self._left:
                return True
            self._running = True
        result, error = None, None
        try:
            result = self._context.run(self._function)
        except BaseException as exc:  # noqa: BLE001 - whoever awaits the future gets it
            error = exc
        with self._lock:
            self._running = False
            if self._left:
                return False
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._finish, result, error)
        return True

    def _finish(self, result: Any, error: BaseException | None) -> None:
        if not self.future.done():
            self.future.set_result((result, error))
