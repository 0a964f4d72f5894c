"""Requests that wait: for their body, or for an answer. A single timer looks after all of them.

A timer for each request would cost more than most requests do. So they are entered here while they
wait, and about once a second those whose time is up are ended, and those whose key is revoked.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from typing import Any

from penstock.errors import PenstockError, RequestTimeout, Unauthenticated
from penstock.server.gate import Gate
from penstock.server.keys import Key

_LOOK_EVERY_S = 1.0


class WaitingRequest:
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


class WaitingRequests:
    """Used on one event loop."""

    def __init__(self, gate: Gate, body_timeout_s: float) -> None:
        self._gate = gate
        self._body_timeout_s = body_timeout_s
        self._every_s = min(_LOOK_EVERY_S, body_timeout_s / 2)
        self._waits: set[WaitingRequest] = set()
        self._is_planned = False

    def for_body(self, task: Future[Any]) -> WaitingRequest:
        """The request has to be complete within the time limit."""
        deadline = asyncio.get_running_loop().time() + self._body_timeout_s
        return self._enter(WaitingRequest(task, deadline=deadline))

    def for_answer(self, waiting: Future[Any], key: Key | None) -> WaitingRequest:
        """As long as its key is good."""
        return self._enter(WaitingRequest(waiting, key=key))

    def leave(self, wait: WaitingRequest) -> None:
        self._waits.discard(wait)

    def _enter(self, wait: WaitingRequest) -> WaitingRequest:
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
        now = loop.time()
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

    def _why_not(self, key: Key | None) -> PenstockError | None:
        try:
            self._gate.check_still_good(key)
        except Unauthenticated as exc:
            return exc
        except PenstockError:  # the keys cannot be read now: nobody new is let in
            return None
        return None
