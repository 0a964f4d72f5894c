"""Who is opening which topics.

The logs of a topic with thousands of partitions take seconds to open. Whoever opens a topic claims
it and lets go of the broker's lock meanwhile, so that calls about other topics need not wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from penstock.model.names import TopicName


class Claims:
    def __init__(self, lock: threading.RLock) -> None:
        """`lock` is the broker's. Who waits here lets go of it."""
        self._released = threading.Condition(lock)
        self._owners: dict[TopicName, int] = {}

    def are_mine(self, name: TopicName) -> bool:
        """Whether this thread is opening a topic. The lock is held."""
        return self._owners.get(name) == threading.get_ident()

    def names(self) -> list[TopicName]:
        """The topics that somebody claims. The lock is held."""
        return list(self._owners)

    @contextmanager
    def claim(self, names: Callable[[], list[TopicName]]) -> Iterator[None]:
        """Nobody else opens, changes or deletes these topics before the end of the block. Who holds
        a claim may make one on the dead letters of a topic, and no other."""
        me = threading.get_ident()
        claimed: list[TopicName] = []
        try:  # from here on, so that a Ctrl-C leaves no claim behind
            with self._released:
                claimed = self.wait_for(names)
                self._owners.update(dict.fromkeys(claimed, me))
            yield
        finally:
            with self._released:
                for name in claimed:
                    if self._owners.get(name) == me:
                        del self._owners[name]
                self._released.notify_all()

    def wait_for(self, names: Callable[[], list[TopicName]]) -> list[TopicName]:
        """Until nobody claims these topics, which may be others by then. The lock is held, and is
        held again when this returns."""
        while not self._owners.keys().isdisjoint(wanted := names()):
            self._released.wait()
        return wanted

    def wait_for_all(self) -> None:
        """Until there are no claims. The lock is held."""
        while self._owners:
            self._released.wait()
