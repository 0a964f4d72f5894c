"""Who is opening, making, changing or deleting which topics.

The logs of a topic with thousands of partitions take seconds to open. Whoever does such a thing
claims the topics that it concerns, and holds the broker's lock for moments only, so that calls
about other topics need not wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeAlias, TypeVar

from penstock.model.names import TopicName

T = TypeVar("T")

Claim: TypeAlias = list[int]
"""The thread that makes it. It ends when the list is emptied: a single step, so that no Ctrl-C
leaves half of a claim behind."""

_LOOK_EVERY_S = 0.5  # whoever ended a claim may have been interrupted before it told of that


class Claims:
    """A thread has one claim at a time, on all the topics that it needs, and waits for it with
    nothing in its hands: neither with a claim, or two could wait for each other, nor with the
    lock, which a wait would let go of in the middle of what it guards."""

    def __init__(self, lock: threading.RLock) -> None:
        """`lock` is the broker's."""
        # Taken as it is, not by way of the condition, which a Ctrl-C could leave locked for ever.
        self._lock = lock
        self._ended = threading.Condition(lock)
        self._claims: dict[TopicName, Claim] = {}

    def holding(self, names: Callable[[], list[TopicName]], call: Callable[[], T]) -> T:
        """Make a call while nobody else opens, makes, changes or deletes these topics. `names` is
        called with the lock, again after each wait: they may be others by then."""
        claim = [threading.get_ident()]
        try:  # plainly: a Ctrl-C within a context manager would leave the claim
            self._take(names, claim)
            return call()
        finally:
            claim.clear()
            self._tell()

    def is_mine(self, name: TopicName) -> bool:
        """Whether this thread is opening, making, changing or deleting a topic."""
        return threading.get_ident() in self._claims.get(name, ())

    def wait_for_all(self) -> None:
        """Until there are no claims."""
        self._check_lock_is_free()
        with self._lock:
            self._check_has_none()
            while any(self._claims.values()):
                self._ended.wait(_LOOK_EVERY_S)

    def _take(self, names: Callable[[], list[TopicName]], claim: Claim) -> None:
        self._check_lock_is_free()
        with self._lock:
            self._check_has_none()
            claimed = names()
            while any(self._claims.get(name) for name in claimed):
                self._ended.wait(_LOOK_EVERY_S)
                claimed = names()
            for name in claimed:
                self._claims[name] = claim

    def _tell(self) -> None:
        """A claim ended."""
        with self._lock:
            self._claims = {name: claim for name, claim in self._claims.items() if claim}
            self._ended.notify_all()

    def _check_lock_is_free(self) -> None:
        try:
            self._ended.notify(0)  # which wakes nobody, and raises unless this thread has the lock
        except RuntimeError:
            return
        raise RuntimeError("a claim on topics is asked for with the broker's lock in hand")

    def _check_has_none(self) -> None:
        thread = threading.get_ident()
        if any(thread in claim for claim in self._claims.values()):
            raise RuntimeError("a claim on topics is asked for by a thread that has one")
