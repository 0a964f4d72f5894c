"""Streams that nobody refers to any more leave their groups, so that others get their partitions.

`for message in ps.stream(...): break` is how that comes about. Whatever beats for a member must not
keep it alive: it refers to the stream weakly. When the stream goes, it is handed to a thread that
leaves for it, because the garbage collector may strike anywhere, and must not wait.
"""

from __future__ import annotations

import logging
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from penstock.at_exit import REST_S_MAX, rest_at_exit
from penstock.forks import abandon_in_children
from penstock.group.member import Member

_logger = logging.getLogger("penstock.client")


class Leaver:
    """One daemon thread for all streams of a process. It starts with the first of them."""

    def __init__(self) -> None:
        # Its `put` may be called at any time, even within itself: it is made for that.
        self._abandoned: SimpleQueue[Abandonable | None] = SimpleQueue()
        self.take = self._abandoned.put
        self.abandon()
        abandon_in_children(self)
        rest_at_exit(self)

    def abandon(self) -> None:
        """Begin anew: in a forked process there is no such thread, and its lock may be taken."""
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Be ready. After a fork, where the parent's thread is not ours, begin again."""
        with self._starting:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=self._run, name="penstock-leaver", daemon=True
                )
                self._thread.start()

    def rest(self) -> None:
        """Leave for those that are waiting, and for no other."""
        thread = self._thread
        if thread is not None and thread.is_alive():
            self.take(None)
            thread.join(REST_S_MAX)

    def _run(self) -> None:
        while (stream := self._abandoned.get()) is not None:
            try:
                stream._leave_aside()
            except Exception as exc:  # noqa: BLE001 - its session ends by itself
                _logger.debug("a stream that nobody uses could not leave: %s", exc)
            del stream


LEAVER = Leaver()


class Abandonable(ABC):
    """A stream that leaves its group when nobody refers to it any more."""

    # A part of the class, because at the end of a process the modules are emptied first.
    _hand_over = staticmethod(LEAVER.take)
    _member: Member
    _closed = True  # until there is something to leave

    @abstractmethod
    def _leave_aside(self) -> None:
        """Leave the group; the thread of the leaver calls it."""

    def __del__(self) -> None:
        if not self._closed and self._member.generation is not None:
            self._hand_over(self)


def weakly(method: Callable[..., Any]) -> Callable[..., Any]:
    """Call a method as long as its object is there; this does not keep it."""
    reference = weakref.WeakMethod(method)

    def call(*args: Any) -> Any:
        found = reference()
        return None if found is None else found(*args)

    return call
