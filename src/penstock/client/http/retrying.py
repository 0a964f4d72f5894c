"""Requests to a server that are retried: with backoff, and a circuit breaker while it is down.

Written without I/O, as steps that a thread or an event loop takes (see `penstock.client.waiting`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from penstock.client.http.pool import AsyncConnections, Connections
from penstock.client.http.protocol import Address, Reply, ServerRequest
from penstock.client.repeating import AnswerLost
from penstock.client.waiting import Pause, Steps
from penstock.clock import Clock, SystemClock
from penstock.errors import (
    BrokerClosed,
    InvalidInput,
    PenstockError,
    ProtocolError,
    TooManyRequests,
    Unavailable,
)
from penstock.model.problem import PROBLEM_TYPE, Problem, error_of
from penstock.randomness import own_random

T = TypeVar("T")

JSON = "application/json"

_BACKOFF_S = 0.05
_BACKOFF_S_MAX = 2.0
_FAILURES_MAX = 5
_OPEN_S = 0.25
_OPEN_S_MAX = 5.0
_NODES_MAX = 100
_OWNER_AGAIN_S = 5.0
"""So long the given server sends requests on after an owner could not be reached."""

_encoder = msgspec.json.Encoder()
_problems = msgspec.json.Decoder(Problem)
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}


class Exchange(msgspec.Struct, frozen=True, gc=False):
    """A step: one request, and its answer."""

    connections: Any
    request: ServerRequest

    def block(self) -> Reply:
        reply: Reply = self.connections.exchange(self.request)
        return reply

    def wait(self) -> Coroutine[Any, Any, Reply]:
        coroutine: Coroutine[Any, Any, Reply] = self.connections.exchange(self.request)
        return coroutine


class Breaker:
    """Knows whether a server is down, so that not everybody has to find out.

    After some failures in a row it is open: requests wait. After a while one of them is let
    through; if it succeeds all go on, if not it stays open for longer.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failures = 0
        self._open_until = 0.0
        self._open_s = _OPEN_S

    def wait_s(self, now: float) -> float:
        """How long to wait before a request may go; 0: now."""
        if self._failures < _FAILURES_MAX:
            return 0.0
        with self._lock:
            if now < self._open_until:
                return self._open_until - now
            self._open_until = now + self._open_s  # the others wait for what becomes of this one
            return 0.0

    def succeeded(self) -> None:
        if self._failures:
            with self._lock:
                self._failures = 0
                self._open_s = _OPEN_S

    def failed(self, now: float) -> None:
        with self._lock:
            self._failures += 1
            if self._failures >= _FAILURES_MAX:
                self._open_until = now + self._open_s
                self._open_s = min(self._open_s * 2, _OPEN_S_MAX)


class Ways:
    """The server that was given and, in a cluster, the node that has what is asked for.

    A node sends requests on, and says to whom: the next go there at once, until that node is not to
    be reached. Any thread may use it.
    """

    def __init__(self, given: Connections | AsyncConnections) -> None:
        self._given = given
        self._lock = threading.Lock()
        self._known: dict[Address, Connections | AsyncConnections] = {given.address: given}
        self.best = given
        self._not_before = 0.0

    def learn(self, url: str, now: float) -> None:
        """An answer came from there. An address of another kind is not believed, nor where the
        server that was given is behind a proxy with a path of its own."""
        given = self._given.address
        try:
            address = Address.parse(url)
        except InvalidInput:
            return
        with self._lock:
            if address == self.best.address or address.scheme != given.scheme or given.base:
                return
            if address in self._known:
                if address == given or now >= self._not_before:
                    self.best = self._known[address]
            elif now >= self._not_before and len(self._known) < _NODES_MAX:
                self.best = self._known[address] = self._given.at(address)

    def failed(self, way: Connections | AsyncConnections, now: float) -> bool:
        """Whether there is another way: a node may be there for its cluster alone."""
        with self._lock:
            if way is self._given:
                return False
            if way is self.best:
                self.best = self._given
                self._not_before = now + _OWNER_AGAIN_S
            return True

    def close(self) -> None:
        with self._lock:
            for connections in self._known.values():
                connections.close()


class RetryingClient:
    """One server, as a client sees it."""

    def __init__(
        self,
        connections: Connections | AsyncConnections,
        retry_for_s: float,
        clock: Clock | None = None,
    ) -> None:
        self.connections = connections
        self.retry_for_s = retry_for_s
        self.ways = Ways(connections)
        self._breaker = Breaker()
        self.clock = clock or SystemClock()
        """For sessions, commits and expiry; patience with the server runs on the real time."""
        self.closed = False

    def ask(self, request: ServerRequest, *, retry_for_s: float | None = None) -> Steps[Reply]:
        """The answer, or the error that it tells of."""
        reply, _ = yield from self.ask_again(request, retry_for_s=retry_for_s)
        return reply

    def ask_again(
        self, request: ServerRequest, *, retry_for_s: float | None = None
    ) -> Steps[tuple[Reply, bool]]:
        """With it, whether an earlier attempt may have been carried out, all of it or a part."""
        patience_s = self.retry_for_s if retry_for_s is None else retry_for_s
        deadline = time.monotonic() + patience_s
        backoff_s = _BACKOFF_S
        lost = begun = False
        while True:
            if self.closed:
                raise BrokerClosed("the client was closed")
            way = self.ways.best
            wait_s = 0.0 if way is not self.connections else self._breaker.wait_s(time.monotonic())
            if wait_s:
                if time.monotonic() + wait_s > deadline:
                    raise Unavailable("the last requests failed; the server is tried again later")
                yield Pause(wait_s * own_random.uniform(1.0, 1.2))
                continue
            try:
                reply = yield Exchange(way, request)
            except Unavailable as exc:
                has_another = self.ways.failed(way, time.monotonic())
                lost = lost or isinstance(exc, AnswerLost)
                error: PenstockError = exc
                if lost and not request.repeatable:
                    raise Unavailable(f"{exc}; whether it was done is not known") from exc
                if has_another:
                    continue
                self._breaker.failed(time.monotonic())
            else:
                if way is self.connections:
                    self._breaker.succeeded()
                if reply.owner:
                    self.ways.learn(reply.owner, time.monotonic())
                if reply.status < 300:
                    return reply, lost or begun
                error = _error(reply)
                if not error.retriable:
                    error.repeated = lost or begun
                    raise error
                # What failed on the way may have got somewhere; who was sent away has not.
                begun = begun or not isinstance(error, TooManyRequests)
            pause_s = backoff_s * own_random.uniform(0.5, 1.0)
            if isinstance(error, TooManyRequests):
                pause_s = max(pause_s, error.retry_after_s)
            if time.monotonic() + pause_s > deadline:
                raise error
            yield Pause(pause_s)
            backoff_s = min(backoff_s * 2, _BACKOFF_S_MAX)

    def close(self) -> None:
        self.closed = True
        self.ways.close()


def encode(body: Any) -> bytes:
    try:
        return _encoder.encode(body)
    except (TypeError, ValueError, UnicodeEncodeError, OverflowError) as exc:
        raise InvalidInput(f"this cannot be sent: {exc}") from None


def check_type(reply: Reply, kind: str) -> None:
    """That the answer is what was asked for: a page of a proxy that says 200 is not."""
    if reply.content_type != kind:
        raise ProtocolError(
            f"the answer is {reply.content_type or 'nothing'!r:.100}, not {kind}, "
            f"so it is not a Penstock server's: {reply.body[:200]!r}"
        )


def decode(reply: Reply, kind: type[T]) -> T:
    check_type(reply, JSON)
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    try:
        result: T = decoder.decode(reply.body)
    except msgspec.DecodeError as exc:
        raise ProtocolError(f"the answer cannot be understood: {exc}") from None
    return result


def _error(reply: Reply) -> PenstockError:
    if reply.content_type == PROBLEM_TYPE:
        # What says that it is a problem and is none of ours comes from something in between.
        with suppress(msgspec.DecodeError):
            return error_of(_problems.decode(reply.body))
    if reply.status in (502, 503, 504):
        return Unavailable(f"a proxy answered for the server: {reply.status}")
    return ProtocolError(
        f"status {reply.status}, and not in the way of a Penstock server: {reply.body[:200]!r}"
    )
