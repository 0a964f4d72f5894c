"""Ids for publishes that may have to be sent again: a call that is repeated is stored once."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.delivery.callers import CALLER_MIN
from penstock.model.published import CallId
from penstock.randomness import own_random


class CallIds:
    """Of one link. A caller makes one call at a time: there are as many as calls were under way
    at once."""

    def __init__(self) -> None:
        self._idle: deque[_Caller] = deque()

    @contextmanager
    def one(self) -> Iterator[CallId]:
        """The id of a call, until it is over."""
        try:
            caller = self._idle.pop()
        except IndexError:
            caller = _Caller()
        caller.number += 1
        try:
            yield CallId(caller.id, caller.number)
        finally:
            self._idle.append(caller)


class _Caller:
    __slots__ = ("id", "number")

    def __init__(self) -> None:
        self.id = own_random.getrandbits(61) + CALLER_MIN
        self.number = 0
