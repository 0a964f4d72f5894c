"""Who asks, what they may, and how much: the same for every door. It knows no protocol.

A door tells the gate where a request came from (`arrive`), whose token it brings (`identify`) and
what it wants (`allow`); each raises the error that the door has to translate. Calls are short, and
any thread may make them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from penstock.config import ServerConfig
from penstock.errors import (
    Forbidden,
    KeysUnreadable,
    TooManyRequests,
    Unauthenticated,
    Unavailable,
)
from penstock.server.keys import Key, KeyStore, Right
from penstock.server.limits import Limiter
from penstock.server.sessions import Sessions

T = TypeVar("T")


class Gate:
    def __init__(self, keys: KeyStore, config: ServerConfig) -> None:
        self.keys = keys
        self.sessions = Sessions(config.data)
        self.buffers = ByteBudget(config.buffered_bytes_max)
        self.in_doubt = False
        """Whether something had to wait because the keys could not be read."""
        self._per_key = _limiter(config.rate_per_key, config.burst_per_key)
        self._per_address = _limiter(config.rate_per_address, config.burst_per_address)

    def arrive(self, address: str) -> None:
        """A request came from there. Raises TooManyRequests."""
        if self._per_address is not None:
            _take(self._per_address, address)

    def identify(self, token: str | None) -> Key | None:
        """Whose token it is; None where no key is asked for. Raises Unauthenticated."""
        if token is None:
            if self.keys.empty:
                return None
            raise Unauthenticated("an API key is needed: send it as 'Authorization: Bearer <key>'")
        key = self.keys.authenticate(token)
        if key is None and not self.keys.empty:  # a key where none is asked for does no harm
            raise Unauthenticated("this API key is not known, or was revoked")
        return key

    def identify_session(self, token: str) -> Key | None:
        """Whose session it is; None where no key is asked for. Raises Unauthenticated."""
        if self.keys.empty:
            return None
        key = self.sessions.find(token)
        if key is None or not self.keys.knows(key):
            raise Unauthenticated("this session is over: log in again")
        return key

    def allow(self, key: Key | None, right: Right, namespace: str | None) -> None:
        """Raises TooManyRequests or Forbidden. `namespace` None: for what belongs to none."""
        if key is None:
            return
        if self._per_key is not None:
            _take(self._per_key, key.id)
        check_right(key, right, namespace)

    def check_still_good(self, key: Key | None) -> None:
        """Raise Unauthenticated if a request that was let in would no longer be."""
        if key is None:
            if not self.keys.empty:
                raise Unauthenticated("an API key is needed from now on: the first one was made")
        elif not self.keys.knows(key):
            raise Unauthenticated(f"API key {key.name!r} was revoked")

    def may_go_on(self, key: Key | None) -> bool:
        """Whether something may be handed out to one that was let in and waits: not while the keys
        cannot be read, which is no reason to end it. Raises Unauthenticated, which is one."""
        try:
            self.check_still_good(key)
        except KeysUnreadable:
            self.in_doubt = True
            return False
        return True

    def while_good(self, key: Key | None, ready: Callable[[], T | None]) -> Callable[[], T | None]:
        """The same for a poll: what is ready, as long as the key may go on."""
        return lambda: ready() if self.may_go_on(key) else None


def check_right(key: Key | None, right: Right, namespace: str | None) -> None:
    """Raise Forbidden unless the key allows it; where no key is asked for everything is."""
    if key is not None and not key.may(right, namespace):
        where = f" in namespace {namespace!r}" if namespace is not None else ""
        raise Forbidden(f"key {key.name!r} ({key.role}) does not allow to {right}{where}")


class ByteBudget:
    """How many bytes of requests and answers are in memory, all clients together.

    What comes in is refused when it does not fit, and so is work that could make a long answer. An
    answer is already there when it is counted: it may exceed the limit, and then nothing else
    begins. Any thread may use it.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.taken = 0
        self._lock = threading.Lock()

    def take(self, count: int) -> None:
        """Raises Unavailable if there is no room."""
        with self._lock:
            if self.taken + count > self.bytes_max:
                raise Unavailable(
                    f"requests and answers of {self.taken >> 20} MiB are under way; try again"
                )
            self.taken += count

    @contextmanager
    def room(self, count: int) -> Iterator[None]:
        """Take it for as long as the block runs."""
        self.take(count)
        try:
            yield
        finally:
            self.give_back(count)

    def add(self, count: int) -> None:
        """Whether there is room or not."""
        with self._lock:
            self.taken += count

    def give_back(self, count: int) -> None:
        with self._lock:
            self.taken -= count


def _limiter(per_second: float | None, burst: int) -> Limiter | None:
    return None if per_second is None else Limiter(per_second, burst)


def _take(limiter: Limiter, who: str) -> None:
    wait_s = limiter.take(who)
    if wait_s is not None:
        raise TooManyRequests(wait_s)
