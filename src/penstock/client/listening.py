"""Listening: messages of a queue as they come, without asking for each."""

from __future__ import annotations

from collections import deque
from typing import Generic, Self, TypeVar

from penstock.client.arguments import maybe_seconds
from penstock.client.base import AsyncCalls, SyncCalls
from penstock.client.context_managers import AsyncClosing, Closing
from penstock.client.leases import handed_out
from penstock.client.link import DeliverySource, Link
from penstock.client.received import AsyncReceivedMessage, Held, ReceivedMessage, held
from penstock.client.waiting import Aside, Steps, run, run_async
from penstock.durations import Duration, parse_ns
from penstock.errors import BrokerClosed, InvalidInput
from penstock.model.deliveries import GroupStart, Receive
from penstock.model.names import TopicName, group_name

HeldType = TypeVar("HeldType", bound=Held)

PREFETCH_MAX = 1000
_WAIT_S = 30.0


class _Incoming(Generic[HeldType]):
    """What both listeners are: a source, and the messages that came and were not taken yet."""

    def __init__(
        self,
        kind: type[HeldType],
        source: DeliverySource,
        name: TopicName,
        group: str,
        idle_s: float | None,
    ) -> None:
        self._kind = kind
        self._source = source
        self._name = name
        self._group = group
        self._idle_s = idle_s
        self._messages: deque[HeldType] = deque()
        self._closed = False

    def _next(self) -> Steps[HeldType | None]:
        """The next message; None: none came for a while, or the listener was closed."""
        waited_s = 0.0
        while not self._messages:
            if self._closed or (self._idle_s is not None and waited_s >= self._idle_s > 0):
                return None
            wait_s = _WAIT_S if self._idle_s is None else min(self._idle_s, _WAIT_S)
            try:
                delivered = yield from self._source.next(wait_s)
            except BrokerClosed:
                if self._closed:
                    return None
                raise
            leases = handed_out(self._source.settle_link, self._name, self._group, delivered)
            self._messages.extend(held(self._kind, leases))
            waited_s += wait_s
            if not self._messages and self._idle_s == 0:
                return None
        return self._messages.popleft()

    def _end(self) -> None:
        self._closed = True
        self._source.close()


class Listener(_Incoming[ReceivedMessage], Closing):
    """Messages as they come: `for message in listener`. Settle each, as after a receive."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ReceivedMessage:
        message = run(self._next())
        if message is None:
            raise StopIteration
        return message

    def close(self) -> None:
        """Listen no more. Messages that were not taken come again when their lease is over."""
        self._end()


class AsyncListener(_Incoming[AsyncReceivedMessage], AsyncClosing):
    """Messages as they come: `async for message in listener`. Settle each, as after a receive."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AsyncReceivedMessage:
        message = await run_async(self._next())
        if message is None:
            raise StopAsyncIteration
        return message

    async def close(self) -> None:
        """Listen no more. Messages that were not taken come again when their lease is over."""
        await run_async(self._ended())

    def _ended(self) -> Steps[None]:
        yield Aside(lambda _: self._end(), None)


def _source(
    link: Link,
    name: TopicName,
    group: str,
    prefetch: int,
    visibility: Duration | None,
    consumer: str,
    start: GroupStart,
) -> DeliverySource:
    if type(prefetch) is not int or not 1 <= prefetch <= PREFETCH_MAX:
        raise InvalidInput(f"prefetch is {prefetch!r}; from 1 to {PREFETCH_MAX}")
    wanted = Receive(
        max_messages=prefetch,
        visibility=maybe_seconds(visibility, "visibility"),
        consumer=consumer,
        start=start,
    )
    return link.listen(name, group_name(group), wanted)


def _idle_s(idle: Duration | None) -> float | None:
    return None if idle is None else parse_ns(idle, "idle") / 1e9


class Listening(SyncCalls):
    def listen(
        self,
        topic: str,
        group: str,
        *,
        prefetch: int = 100,
        idle: Duration | None = None,
        visibility: Duration | None = None,
        consumer: str = "",
        start: GroupStart = "earliest",
    ) -> Listener:
        """Messages as they come, pushed by a server over a WebSocket.

        At most `prefetch` messages are under a lease ahead of the program: with slow handlers take
        few, or a long `visibility`. It goes on until it is closed or, with `idle`, until nothing
        came for so long; a server that restarts is waited for.
        """
        name = self._name(topic)
        source = _source(self._link, name, group, prefetch, visibility, consumer, start)
        listener = Listener(ReceivedMessage, source, name, group, _idle_s(idle))
        self._listeners.add(listener)
        return listener


class AsyncListening(AsyncCalls):
    def listen(
        self,
        topic: str,
        group: str,
        *,
        prefetch: int = 100,
        idle: Duration | None = None,
        visibility: Duration | None = None,
        consumer: str = "",
        start: GroupStart = "earliest",
    ) -> AsyncListener:
        """Messages as they come, pushed by a server over a WebSocket.

        At most `prefetch` messages are under a lease ahead of the program: with slow handlers take
        few, or a long `visibility`. It goes on until it is closed or, with `idle`, until nothing
        came for so long; a server that restarts is waited for.
        """
        name = self._name(topic)
        source = _source(self._link, name, group, prefetch, visibility, consumer, start)
        listener = AsyncListener(AsyncReceivedMessage, source, name, group, _idle_s(idle))
        self._listeners.add(listener)
        return listener
