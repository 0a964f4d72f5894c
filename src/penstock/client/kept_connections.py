"""Connections that are kept for the next question; each serves one at a time."""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, Protocol, TypeVar

from penstock.errors import BrokerClosed
from penstock.forks import abandon_in_children


class Connected(Protocol):
    def hang_up(self) -> None:
        """From another thread than the one that waits for an answer, which closes it then."""

    def close(self) -> None: ...


C = TypeVar("C", bound=Connected)


class KeptConnections(Generic[C]):
    """Those that are idle, and those that somebody waits on. Any thread may call."""

    def __init__(self) -> None:
        self._idle: deque[C] = deque()
        self._busy: set[C] = set()
        self._lock = threading.Lock()
        self.closed = self._abandoned = False
        abandon_in_children(self)

    def close(self) -> None:
        """Calls that wait for an answer get an error."""
        with self._lock:
            self.closed = True
            idle, busy = [*self._idle], [*self._busy]
            self._idle.clear()
        for connection in idle:
            connection.close()
        for connection in busy:
            connection.hang_up()

    def abandon(self) -> None:
        """This is a forked process: the connections are its parent's. So are the names under which
        others know its producers and members: with them the child would act in its name."""
        self._lock = threading.Lock()
        self.closed = self._abandoned = True
        for connection in [*self._idle, *self._busy]:
            connection.close()
        self._idle.clear()
        self._busy.clear()

    def check_open(self) -> None:
        if self._abandoned:
            raise BrokerClosed(
                "the client was made by the process that this one was forked from; "
                "connect after the fork"
            )
        if self.closed:
            raise BrokerClosed("the client was closed")

    def take_idle(self) -> C | None:
        """One that is kept, if there is any; it is busy then."""
        with self._lock:
            self.check_open()
            connection = self._idle.pop() if self._idle else None
            if connection is not None:
                self._busy.add(connection)
            return connection

    def take_new(self, connection: C) -> C:
        """One that was just made is busy."""
        with self._lock:
            if not self.closed:
                self._busy.add(connection)
                return connection
        connection.close()
        self.check_open()
        return connection

    def keep(self, connection: C, idle_max: int | None = None) -> None:
        """It has its answer, and waits for the next question, beside so many others at most."""
        with self._lock:
            self._busy.discard(connection)
            if not self.closed and (idle_max is None or len(self._idle) < idle_max):
                self._idle.append(connection)
                return
        connection.close()

    def drop(self, connection: C) -> None:
        with self._lock:
            self._busy.discard(connection)
        connection.close()
