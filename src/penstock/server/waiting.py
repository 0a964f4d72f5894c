"""What waits: for its body, for an answer, for whoever is at the other end of a stream or socket.

A timer for each would cost more than most requests do. So they are entered here while they wait,
whatever they speak, and about once a second those whose time is up are ended, and those whose key
is revoked. A moment in which the keys cannot be read ends none of them.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Callable
from typing import Any

from penstock.errors import PenstockError, RequestTimeout, Unauthenticated
from penstock.server.gate import Gate
from penstock.server.keys import Key

_LOOK_EVERY_S = 1.0


class WaitingCall:
    """One of them. `end` makes what is waited for raise CancelledError, and keeps the reason."""

    __slots__ = ("_waiting", "deadline", "key", "reason")

    def __init__(
        self, waiting: Future[Any], *, deadline: float | None = None, key: Key | None = None
    ) -> None:
        """`deadline` None: as long as the key is good. `waiting` may be the task that waits."""
        self._waiting = waiting
        self.deadline = deadline
        self.key = key
        self.reason: PenstockError | None = None

    def end(self, reason: PenstockError) -> None:
        if self.reason is None:
            self.reason = reason
            self._waiting.cancel()


class WaitingCalls:
    """Used on one event loop."""

    def __init__(self, gate: Gate, body_timeout_s: float, look_again: Callable[[], None]) -> None:
        """`look_again` is called when the keys can be read again: nothing was handed out before."""
        self._gate = gate
        self._body_timeout_s = body_timeout_s
        self._look_again = look_again
        self._every_s = min(_LOOK_EVERY_S, body_timeout_s / 2)
        self._waits: set[WaitingCall] = set()
        self._is_planned = False

    def for_body(self, task: Future[Any]) -> WaitingCall:
        """The request has to be complete within the time limit."""
        deadline = asyncio.get_running_loop().time() + self._body_timeout_s
        return self._enter(WaitingCall(task, deadline=deadline))

    def while_good(self, waiting: Future[Any], key: Key | None) -> WaitingCall:
        """As long as its key is good."""
        return self._enter(WaitingCall(waiting, key=key))

    def leave(self, wait: WaitingCall) -> None:
        self._waits.discard(wait)

    def _enter(self, wait: WaitingCall) -> WaitingCall:
        self._waits.add(wait)
        if not self._is_planned:
            self._is_planned = True
            asyncio.get_running_loop().call_later(self._every_s, self._look)
        return wait

    def _look(self) -> None:
        self._is_planned = bool(self._waits)
        if not self._waits:
            return
        loop = asyncio.get_running_loop()
        loop.call_later(self._every_s, self._look)
        now, was_in_doubt, self._gate.in_doubt = loop.time(), self._gate.in_doubt, False
        lost: dict[Key | None, PenstockError | None] = {}
        for wait in list(self._waits):
            if wait.deadline is None:
                if wait.key not in lost:
                    lost[wait.key] = self._why_not(wait.key)
                reason = lost[wait.key]
                if reason is not None:
                    wait.end(reason)
            elif now > wait.deadline:
                wait.end(RequestTimeout("the request was not complete in time"))
        if was_in_doubt and not self._gate.in_doubt:
            self._look_again()

    def _why_not(self, key: Key | None) -> PenstockError | None:
        try:
            self._gate.may_go_on(key)
        except Unauthenticated as exc:
            return exc
        return None
