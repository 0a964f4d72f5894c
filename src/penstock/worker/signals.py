"""SIGTERM and SIGINT, for a worker on an event loop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def listening(stopping: asyncio.Event, hurrying: asyncio.Event) -> Iterator[None]:
    """The first signal sets the first event, and any further one the second."""
    loop = asyncio.get_running_loop()

    def told() -> None:
        (hurrying if stopping.is_set() else stopping).set()

    numbers = []
    for number in (signal.SIGTERM, signal.SIGINT):
        with suppress(RuntimeError, ValueError, NotImplementedError):  # not in the main thread
            loop.add_signal_handler(number, told)
            numbers.append(number)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
