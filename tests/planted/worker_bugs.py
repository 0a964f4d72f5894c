"""Bugs in worker apps: what becomes of a message, and when its handler is called."""

from __future__ import annotations

from tests.planted.bug import Bug

KINDS = "tests/integration/worker/test_kinds_of_handlers.py"

WORKER_BUGS = [
    Bug(
        "what a plain function returns is not awaited",
        "worker/awaiting.py",
        '    while hasattr(type(result), "__await__"):\n        result = await result\n',
        "",
        f"{KINDS}::test_an_async_handler_is_awaited_however_it_is_wrapped",
    ),
    Bug(
        "what a coroutine returns is not awaited on",
        "worker/calls.py",
        '            while hasattr(result, "__await__"):',
        '            if hasattr(result, "__await__"):',
        f"{KINDS}::test_what_a_handler_returns_is_awaited_to_the_end",
    ),
    Bug(
        "a middleware that forgets to await acks",
        "worker/middleware.py",
        "        if dropped:\n",
        "        if False:\n",
        f"{KINDS}::test_a_middleware_that_forgets_to_await_loses_no_message",
    ),
    Bug(
        "a rate per key is one for all keys",
        "worker/rate_limit.py",
        "        place = key if self._limit.per_key else None\n",
        "        place = None\n",
        "tests/unit/worker/test_rate_limit.py",
    ),
    Bug(
        "a handler that is over its time is left at it",
        "worker/time_limit.py",
        "            if not task.done():\n                task.cancel()\n",
        "            if not task.done():\n",
        "tests/integration/worker/test_limits.py",
    ),
    Bug(
        "a message is acked before what its handler published is stored",
        "worker/calls.py",
        "            if outbox.pending:\n                await outbox.flush()\n",
        "",
        "tests/integration/worker/test_publish_and_results.py",
    ),
]
