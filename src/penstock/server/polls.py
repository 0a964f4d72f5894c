"""Requests that wait for messages: thousands of them, without a thread or a task for any.

Polls that compete for the same messages stand in line. When there is news of a topic, the first in
each of its lines tries; who gets something makes room for the next, and the rest are left alone. So
a message wakes one of a thousand consumers that wait for it, not all of them.
"""

from __future__ import annotations

import asyncio
import threading
from asyncio import Future, TimerHandle
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from penstock.broker.api import Api
from penstock.errors import Unavailable
from penstock.model.names import TopicName

T = TypeVar("T")


class Poll(Generic[T]):
    """One request that waits. `ready` gives what there is, or None; `answer` is made of it."""

    __slots__ = ("answer", "future", "line", "names", "ready", "timer")

    def __init__(
        self,
        names: Sequence[TopicName],
        line: Hashable,
        ready: Callable[[], T | None],
        answer: Callable[[T | None], Any],
        future: Future[Any],
    ) -> None:
        self.names = names
        self.line = line
        self.ready = ready
        self.answer = answer
        self.future = future
        self.timer: TimerHandle | None = None

    def attempt(self) -> bool:
        """Whether it is over: with something, or with an error."""
        if self.future.done():
            return True
        try:
            found = self.ready()
            if found is None:
                return False
            self.future.set_result(self.answer(found))
        except Exception as exc:  # noqa: BLE001 - it is raised where the poll is awaited
            self.future.set_exception(exc)
        return True

    def end(self) -> None:
        """With nothing."""
        if not self.future.done():
            self.future.set_result(self.answer(None))

    def end_when(self, api: Api, namespace: str, group: str, member_id: str) -> None:
        """End when a member of a stream group should heartbeat, whichever thread knows it."""
        loop = self.future.get_loop()

        def wake() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self.end)

        stop = api.on_wake(namespace, group, member_id, wake)
        self.future.add_done_callback(lambda _: stop())


class _Watched:
    """A topic that somebody waits for."""

    __slots__ = ("lines", "news_is_due", "stop")

    def __init__(self) -> None:
        self.lines: dict[Hashable, OrderedDict[Poll[Any], None]] = {}
        self.stop: Callable[[], None] = lambda: None
        self.news_is_due = False


class Polls:
    """All of it happens on one event loop; only news come from other threads."""

    def __init__(self, api: Api, polls_max: int) -> None:
        self._api = api
        self._polls_max = polls_max
        self._watched: dict[TopicName, _Watched] = {}
        self._open: set[Poll[Any]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._stopping = False

    def __len__(self) -> int:
        return len(self._open)

    def wait(
        self,
        names: Sequence[TopicName],
        line: Hashable,
        ready: Callable[[], T | None],
        answer: Callable[[T | None], Any],
        wait_s: float,
    ) -> Poll[T]:
        """Wait for what was not ready just now; the answer is made of None when time is up."""
        if len(self._open) >= self._polls_max:
            raise Unavailable(f"{self._polls_max} requests are waiting already; try again")
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop, self._thread = loop, threading.get_ident()
        poll = Poll(names, line, ready, answer, loop.create_future())
        for name in names:
            self._stand_in_line(name, poll)
        self._open.add(poll)
        poll.future.add_done_callback(lambda _: self._leave(poll))
        if self._stopping:
            poll.end()
        elif not poll.attempt():  # what came before we were listening
            poll.timer = loop.call_later(wait_s, poll.end)
        return poll

    def look(self, name: TopicName) -> None:
        """Let the polls of a topic try again, as if there were news of it."""
        watched = self._watched.get(name)
        if watched is not None:
            self._heard(name, watched)

    def look_at_all(self) -> None:
        """The same for every topic."""
        for name in list(self._watched):
            self.look(name)

    def stop(self) -> None:
        """Answer all of them, with nothing."""
        self._stopping = True
        for poll in list(self._open):
            poll.end()

    def _stand_in_line(self, name: TopicName, poll: Poll[Any]) -> None:
        watched = self._watched.get(name)
        if watched is None:
            watched = _Watched()
            watched.stop = self._api.on_news(name, partial(self._heard, name, watched))
            self._watched[name] = watched
        watched.lines.setdefault(poll.line, OrderedDict())[poll] = None

    def _leave(self, poll: Poll[Any]) -> None:
        if poll.timer is not None:
            poll.timer.cancel()
        self._open.discard(poll)
        for name in poll.names:
            watched = self._watched.get(name)
            line = watched.lines.get(poll.line) if watched is not None else None
            if watched is None or line is None or poll not in line:
                continue
            del line[poll]
            if not line:
                del watched.lines[poll.line]
            if not watched.lines:
                watched.stop()
                del self._watched[name]

    def _heard(self, name: TopicName, watched: _Watched) -> None:
        """From any thread. News that come together are told once."""
        if watched.news_is_due or self._loop is None:
            return
        watched.news_is_due = True
        if threading.get_ident() == self._thread:
            self._loop.call_soon(self._serve, name, watched)
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._serve, name, watched)

    def _serve(self, name: TopicName, watched: _Watched) -> None:
        watched.news_is_due = False  # before anybody looks: what comes now is told again
        if self._watched.get(name) is not watched:
            return
        for line in list(watched.lines.values()):
            while line:
                poll = next(iter(line))
                if not poll.attempt():
                    break
                self._leave(poll)
