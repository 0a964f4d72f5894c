"""One WebSocket: who is at its end, what it has subscribed to, and what it asks.

The reader takes one message of the client after the other; what has to wait for the disk is
answered by a task of its own, and only so many of those run before no more is read. Nothing is
leased while the client does not take what was sent: `send` waits for it, and gives up after a
while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.types import Receive, Scope, Send

from penstock import __version__
from penstock.errors import (
    BrokerClosed,
    DiskFull,
    InvalidInput,
    NotFound,
    PenstockError,
    Unauthenticated,
    Unavailable,
)
from penstock.model.names import parse_topic
from penstock.model.problem import problem_of
from penstock.server.durable import durable
from penstock.server.http.callers import identify, session_of
from penstock.server.http.heads import headers_of, token_of
from penstock.server.keys import Key, Right
from penstock.server.push.subscriptions import PushSubscription, begin
from penstock.server.push.watched import AnswerSubscription
from penstock.server.waiting import WaitingCall
from penstock.wire import push

if TYPE_CHECKING:
    from penstock.server.door import Door

SUBSCRIPTIONS_MAX = 100
WAITING_MAX = 64
"""Asked for by one client, and not answered yet."""
_AUTH_S = 5.0
_SEND_S = 30.0

# Close codes, of which 4000 and more are ours.
RESTART, REFUSED, UNAUTHENTICATED, TOO_SLOW = 1012, 4400, 4401, 4408


class SocketClosed(Exception):
    """The connection is over, or to be ended with a code."""

    def __init__(self, code: int | None = None, reason: str = "") -> None:
        self.code = code
        self.reason = reason
        super().__init__(reason)


class PushSocket:
    def __init__(self, door: Door, scope: Scope, receive: Receive, send: Send) -> None:
        self.door = door
        self.key: Key | None = None
        self._scope = scope
        self._receive = receive
        self._send = send
        self._sending = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._room = asyncio.Semaphore(WAITING_MAX)
        self._ending: asyncio.Future[SocketClosed] = asyncio.get_running_loop().create_future()
        self._wait: WaitingCall | None = None
        self.subscriptions: dict[str, PushSubscription] = {}
        self.arrow = False

    async def serve(self) -> None:
        """Until either side ends it."""
        reading = asyncio.create_task(self._read())
        try:
            await asyncio.wait((reading, self._ending), return_when=asyncio.FIRST_COMPLETED)
            ended = self._ending.result() if self._ending.done() else None
            if ended is None and self._wait is not None and self._wait.reason is not None:
                ended = _end_of(self._wait.reason)
            if ended is None:
                with suppress(SocketClosed, PenstockError):
                    reading.result()
                    return
                exc = reading.exception()
                assert exc is not None
                ended = exc if isinstance(exc, SocketClosed) else _end_of(exc)
            await self._close(ended)
        finally:
            if self._wait is not None:
                self.door.waits.leave(self._wait)
            reading.cancel()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(reading, *self._tasks, return_exceptions=True)

    def end(self, code: int, reason: str) -> None:
        """From whoever notices that it has to end."""
        if not self._ending.done():
            self._ending.set_result(SocketClosed(code, reason[:120]))

    async def say(self, said: push.Said, body: bytes | None = None) -> None:
        """Until the client's end has taken it, nearly."""
        event: dict[str, Any] = {"type": "websocket.send"}
        if body is None:
            event["text"] = msgspec.json.encode(said).decode()
        else:
            event["bytes"] = push.encode_frame(said, body)
        try:
            async with asyncio.timeout(_SEND_S), self._sending:
                await self._send(event)
        except TimeoutError:
            raise SocketClosed(TOO_SLOW, "nothing was taken for 30 seconds") from None
        except OSError:
            raise SocketClosed from None  # uvicorn's ClientDisconnected is one

    def run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Beside the reader; what it raises ends the connection."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def allow(self, right: Right, namespace: str | None) -> None:
        self.door.gate.check_still_good(self.key)
        self.door.gate.allow(self.key, right, namespace)
        self.door.connections.use(self, right, namespace)

    async def _read(self) -> None:
        await self._let_in()
        reading = asyncio.current_task()
        assert reading is not None
        self._wait = self.door.waits.while_good(reading, self.key)
        await self.say(push.SocketHello(version=__version__, subscriptions_max=SUBSCRIPTIONS_MAX))
        while True:
            asked = await self._next()
            await self._room.acquire()
            try:
                later = self._answer(asked)
            except PenstockError as exc:
                await self._refuse(asked, exc)
                later = None
            if later is None:
                self._room.release()
            else:
                answering = self.run(self._answer_later(asked, later))
                # One that is cancelled before its first step has not begun with what it awaits.
                answering.add_done_callback(partial(_never_begun, later))

    async def _let_in(self) -> None:
        """Accept the connection, and find out whose it is."""
        if (await self._receive())["type"] != "websocket.connect":
            raise SocketClosed
        names, gate = self.door.names, self.door.gate
        client = self._scope.get("client")
        offered = self._scope.get("subprotocols", [])
        chosen = next((each for each in offered if each in push.SUBPROTOCOLS), None)
        self.arrow = chosen == push.ARROW_SUBPROTOCOL
        try:
            gate.arrive(client[0] if client else "")
            headers = headers_of(self._scope["headers"], self._scope.get("http_version", ""))
            names.check_page(headers)
            named = token_of(headers) is not None or session_of(gate, headers) is not None
            if named or gate.keys.empty:
                self.key = identify(gate, names, "WEBSOCKET", headers)
                if self.key is None:
                    names.check_host(headers)
        except PenstockError as exc:
            await self._send({"type": "websocket.accept", "subprotocol": chosen})
            raise _end_of(exc) from None
        await self._send({"type": "websocket.accept", "subprotocol": chosen})
        if not named and self.key is None and not gate.keys.empty:
            self.key = await self._first_message(gate.identify)

    async def _first_message(self, identify: Callable[[str], Key | None]) -> Key | None:
        """The key, from a client that cannot send headers, as in a browser."""
        try:
            async with asyncio.timeout(_AUTH_S):
                said = await self._next()
        except TimeoutError:
            raise SocketClosed(UNAUTHENTICATED, "no API key was sent in 5 seconds") from None
        if not isinstance(said, push.Auth):
            raise SocketClosed(UNAUTHENTICATED, "the first message has to be of the type 'auth'")
        return identify(said.key)

    async def _next(self) -> push.ClientSaid:
        event = await self._receive()
        if event["type"] != "websocket.receive":
            raise SocketClosed
        text = event.get("text") or event.get("bytes") or b""
        try:
            return push.decode_asked(text)
        except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
            raise SocketClosed(REFUSED, f"this is not understood: {exc}") from None

    def _answer(self, asked: push.ClientSaid) -> Coroutine[Any, Any, push.Ok | None] | None:
        """Do it, or give what is to be awaited until it is done."""
        match asked:
            case push.Subscribe():
                return self._subscribe(asked)
            case push.AddCredit():
                self._subscription(asked.id).add_credit(asked.add, asked.add_bytes)
            case push.Unsubscribe():
                self._subscription(asked.id)
                self.subscriptions.pop(asked.id).stop()
            case push.SettleAsked():
                return self._settle(asked)
            case push.PublishAsked():
                return self._publish(asked)
            case push.CommitAsked():
                return self._subscription(asked.id).commit(asked.offsets)
            case push.Auth():
                raise InvalidInput("the client is let in already")
        return None if asked.ref is None else self._done_at_once()

    async def _done_at_once(self) -> None:
        return None

    async def _answer_later(
        self, asked: push.ClientSaid, work: Coroutine[Any, Any, push.Ok | None]
    ) -> None:
        try:
            ok = await work
            if asked.ref is not None:
                await self.say(ok or push.Ok(ref=asked.ref))
        except PenstockError as exc:
            await self._refuse(asked, exc)
        finally:
            self._room.release()

    async def _refuse(self, asked: push.ClientSaid, exc: PenstockError) -> None:
        if isinstance(exc, Unauthenticated):
            raise _end_of(exc)
        if isinstance(exc, DiskFull):
            self.door.readiness.disk_was_full = True
        if isinstance(exc, BrokerClosed):
            exc = Unavailable("the server is stopping")
        await self.say(push.ProblemSaid(problem=problem_of(exc, push.PATH), ref=asked.ref))

    async def _subscribe(self, asked: push.Subscribe) -> None:
        if asked.id in self.subscriptions:
            raise InvalidInput(f"there is a subscription {asked.id!r} already")
        if len(self.subscriptions) >= SUBSCRIPTIONS_MAX:
            raise InvalidInput(f"a connection has {SUBSCRIPTIONS_MAX} subscriptions at most")
        watches = asked.mode == "watch" and asked.path is not None
        begun = AnswerSubscription(self, asked) if watches else begin(self, asked)
        self.subscriptions[asked.id] = begun
        try:
            await begun.begin()
        except BaseException:
            del self.subscriptions[asked.id]
            raise
        begun.task = self.run(self._push(begun))

    async def _push(self, subscription: PushSubscription) -> None:
        """Its messages, until it is stopped; an error ends the subscription, and is told."""
        try:
            await subscription.push()
        except PenstockError as exc:
            if isinstance(exc, Unauthenticated):
                raise _end_of(exc) from None
            self.subscriptions.pop(subscription.id, None)
            if not isinstance(exc, BrokerClosed):
                problem = problem_of(exc, push.PATH)
                await self.say(push.ProblemSaid(problem=problem, id=subscription.id))

    async def _settle(self, asked: push.SettleAsked) -> push.Ok | None:
        found = self._subscription(asked.id)
        name, group = found.queue()
        self.allow("consume", name.namespace)
        named = asked.settle()
        verb: Any = type(asked).__struct_config__.tag
        api, aside = self.door.api, verb in ("nack", "reject")
        if aside or self.door.long_calls.takes_long(name):
            settling = await self.door.long_calls.run(name, api.settle, verb, name, group, named)
        else:
            settling = api.settle(verb, name, group, named)
        await _all_durable(settling.durable)
        return None if asked.ref is None else push.Ok(ref=asked.ref, refused=settling.refused)

    async def _publish(self, asked: push.PublishAsked) -> push.Ok | None:
        name = parse_topic(asked.topic)
        self.allow("publish", name.namespace)
        stored, futures = await self.door.aside(self.door.api.publish_each, name, asked.messages)
        await _all_durable(futures)
        return None if asked.ref is None else push.Ok(ref=asked.ref, published=stored)

    def _subscription(self, id_: str) -> PushSubscription:
        found = self.subscriptions.get(id_)
        if found is None:
            raise NotFound(f"there is no subscription {id_!r}")
        return found

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or task.exception() is None:
            return
        exc = task.exception()
        ended = exc if isinstance(exc, SocketClosed) else _end_of(exc)  # type: ignore[arg-type]
        if not self._ending.done():
            self._ending.set_result(ended)

    async def _close(self, ended: SocketClosed) -> None:
        if ended.code is None:
            return
        event = {"type": "websocket.close", "code": ended.code, "reason": ended.reason[:120]}
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(1):
                if ended.code == RESTART:
                    await self.say(push.Draining())
                await self._send(event)


def _never_begun(work: Coroutine[Any, Any, Any], _: asyncio.Task[Any]) -> None:
    work.close()


async def _all_durable(futures: Sequence[Any]) -> None:
    for future in futures:
        await durable(future)


def _end_of(exc: BaseException) -> SocketClosed:
    if isinstance(exc, Unauthenticated):
        return SocketClosed(UNAUTHENTICATED, str(exc))
    if isinstance(exc, PenstockError):
        return SocketClosed(REFUSED, str(exc))
    raise exc
