"""Who is opening which topics.

The logs of a topic with thousands of partitions take seconds to open. Whoever opens a topic claims
it and lets go of the broker's lock meanwhile, so that calls about other topics need not wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeAlias

from penstock.model.names import TopicName

Claim: TypeAlias = list[int]
"""The thread that makes it. It ends when the list is emptied: a single step, so that no Ctrl-C
leaves half of a claim behind."""

_LOOK_EVERY_S = 0.5  # whoever ended a claim may have been interrupted before it told of that


class Claims:
    def __init__(self, lock: threading.RLock) -> None:
        """`lock` is the broker's. Who waits here lets go of it."""
        # Taken as it is, not by way of the condition, which a Ctrl-C could leave locked for ever.
        self._lock = lock
        self._ended = threading.Condition(lock)
        self._claims: dict[TopicName, Claim] = {}

    def is_mine(self, name: TopicName) -> bool:
        """Whether this thread is opening a topic. The lock is held."""
        return threading.get_ident() in self._claims.get(name, ())

    def names(self) -> list[TopicName]:
        """The topics that somebody claims. The lock is held."""
        return [name for name, claim in self._claims.items() if claim]

    def take(self, names: Callable[[], list[TopicName]], claim: Claim) -> list[TopicName]:
        """Claim topics once nobody else does: nobody opens, changes or deletes them before the
        claim is emptied. Who has one may make another on the dead letters of a topic, and no
        more."""
        with self._lock:
            claimed = self.wait_for(names)
            for name in claimed:
                self._claims[name] = claim
        return claimed

    def tell(self) -> None:
        """A claim ended."""
        with self._lock:
            self._claims = {name: claim for name, claim in self._claims.items() if claim}
            self._ended.notify_all()

    def wait_for(self, names: Callable[[], list[TopicName]]) -> list[TopicName]:
        """Until nobody claims these topics, which may be others by then. The lock is held, and is
        held again when this returns."""
        while any(self._claims.get(name) for name in names()):
            self._ended.wait(_LOOK_EVERY_S)
        return names()

    def wait_for_all(self) -> None:
        """Until there are no claims. The lock is held."""
        while any(self._claims.values()):
            self._ended.wait(_LOOK_EVERY_S)
