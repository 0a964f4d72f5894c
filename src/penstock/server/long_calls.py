"""Calls of a topic's groups that take long, beside the event loop.

While one runs it may hold a lock of its topic, for which the event loop must not wait. So other
calls of groups of the same topic go beside the loop too until it is over, and its polls rest. The
first call about a topic takes long as well: it opens the logs of all partitions.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar

from penstock.model.names import TopicName

T = TypeVar("T")


class LongCalls:
    """Used on one event loop."""

    def __init__(
        self,
        threads: Executor,
        on_end: Callable[[TopicName], None],
        is_open: Callable[[TopicName], bool],
    ) -> None:
        """`on_end` is called on the event loop when a topic has no such call any more."""
        self._threads = threads
        self._on_end = on_end
        self._is_open = is_open
        self._running: Counter[TopicName] = Counter()

    def is_busy(self, name: TopicName) -> bool:
        return name in self._running

    def takes_long(self, name: TopicName) -> bool:
        """Whether any call about a topic would."""
        return name in self._running or not self._is_open(name)

    async def run(self, name: TopicName, work: Callable[..., T], *args: Any) -> T:
        loop = asyncio.get_running_loop()

        def run() -> T:
            try:
                return work(*args)
            finally:  # also if nobody waits for it any more
                loop.call_soon_threadsafe(self._end, name)

        self._running[name] += 1
        return await loop.run_in_executor(self._threads, run)

    def _end(self, name: TopicName) -> None:
        self._running[name] -= 1
        if not self._running[name]:
            del self._running[name]
            self._on_end(name)
