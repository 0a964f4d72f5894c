"""What a process inherits when it is forked from one that uses Penstock, and must not touch.

A copy of an open log would write over what its first owner wrote, since neither knows of the other.
Threads are not copied, and locks stay as they were at that moment, held or not. So whatever is open
is abandoned in the child, at once: there it refuses to work, and its owner never notices.
"""

from __future__ import annotations

import logging
import os
from typing import Protocol
from weakref import WeakSet


class Inherited(Protocol):
    """Something that only the process that made it may use."""

    def abandon(self) -> None:
        """In a child: refuse whatever comes, and change nothing outside this process."""
        ...


_logger = logging.getLogger("penstock")
_inherited: WeakSet[Inherited] = WeakSet()


def abandon_in_children(thing: Inherited) -> None:
    """Have `thing` abandoned in each process that is forked from this one, if it still is."""
    _inherited.add(thing)


def _abandon_all() -> None:
    for thing in list(_inherited):
        try:
            thing.abandon()
        except Exception:  # the others must not stay as they are
            _logger.exception("a forked process could not let go of something")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_all)
