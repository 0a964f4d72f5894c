"""The end of a process: threads that work aside come to rest before the interpreter goes.

As it goes, the interpreter takes daemon threads away in the middle of what they do. Where that is
within a library in C++, the process is aborted, though all its work is done.
"""

from __future__ import annotations

import atexit
import logging
from typing import Protocol
from weakref import WeakSet

REST_S_MAX = 2.0
"""A process that ends waits no longer for a thread."""

_logger = logging.getLogger("penstock")


class Restless(Protocol):
    """Something with a daemon thread."""

    def rest(self) -> None:
        """End the thread, if there is one, between two pieces of its work."""
        ...


_restless: WeakSet[Restless] = WeakSet()


def rest_at_exit(thing: Restless) -> None:
    """Have `thing` come to rest when the process ends, if it is still there."""
    _restless.add(thing)


@atexit.register
def _rest_all() -> None:
    for thing in list(_restless):
        try:
            thing.rest()
        except Exception:  # the others must not stay as they are
            _logger.exception("something did not come to rest at the end of the process")
