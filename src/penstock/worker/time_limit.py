"""Time limits: how long a handler may take."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import Any

import msgspec

from penstock.durations import Duration, parse_ns, text
from penstock.errors import InvalidInput

_logger = logging.getLogger("penstock.worker")
_CANCEL_S = 5.0  # for a handler to clean up after it was cancelled


class TimeLimitExceeded(Exception):
    """A handler took longer than its limit. Its message is tried again, as after any error."""


class TimeLimit(msgspec.Struct, frozen=True):
    """When it is over the call is cancelled: a coroutine is, a process is killed, and a thread is
    left behind."""

    limit_ns: int

    @classmethod
    def parse(cls, value: Duration | None) -> TimeLimit | None:
        if value is None:
            return None
        limit_ns = parse_ns(value, "time_limit")
        if limit_ns == 0:
            raise InvalidInput("time_limit is 0; no handler is that quick")
        return cls(limit_ns)

    async def run(self, work: Awaitable[Any]) -> Any:
        """What the work returns or raises, or TimeLimitExceeded."""
        task = asyncio.create_task(_kept(work))
        try:
            await asyncio.wait({task}, timeout=self.limit_ns / 1e9)
        finally:  # also where we are cancelled ourselves
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=_CANCEL_S)
        if not task.done():
            _logger.error("a handler goes on after it was cancelled, and is left behind")
        if not task.done() or task.cancelled():
            raise self.exceeded()
        result, error = task.result()
        if error is not None:
            raise error
        return result

    def check(self, elapsed_ns: int) -> None:
        """For a call that could not be cancelled."""
        if elapsed_ns > self.limit_ns:
            raise self.exceeded()

    def exceeded(self) -> TimeLimitExceeded:
        return TimeLimitExceeded(f"it took longer than {text(self.limit_ns)}")


async def _kept(work: Awaitable[Any]) -> tuple[Any, BaseException | None]:
    """A task that raised SystemExit would end the event loop on its own."""
    try:
        return await work, None
    except asyncio.CancelledError:
        raise
    except BaseException as exc:  # noqa: BLE001 - raised again by who awaits the task
        return None, exc
