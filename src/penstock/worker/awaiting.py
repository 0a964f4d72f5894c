"""What functions of a user give back is awaited, so that nothing they began is dropped."""

from __future__ import annotations

import inspect
from typing import Any


async def awaited(result: Any) -> Any:
    """What an awaitable gives in the end, such as the coroutine of an async function behind a
    decorator, or one that a coroutine returns."""
    while hasattr(type(result), "__await__"):
        result = await result
    return result


def was_dropped(work: Any) -> bool:
    """Whether a coroutine was made, and never begun. It is closed then."""
    if inspect.iscoroutine(work) and inspect.getcoroutinestate(work) == inspect.CORO_CREATED:
        work.close()
        return True
    return False
