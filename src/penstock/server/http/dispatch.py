"""One HTTP request: its head is checked, its body read, its handler called, its answer sent.

The order matters. Whatever the head alone can decide (the address, the key, the length) is decided
before a byte of the body is read; what the body needs of memory and time is bounded; and what takes
long is done beside the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from asyncio import Future
from functools import lru_cache
from types import CoroutineType
from typing import Any, NamedTuple

from starlette.types import Receive, Scope, Send

from penstock.errors import (
    BrokerClosed,
    DiskFull,
    PenstockError,
    RequestTooLarge,
    Unavailable,
    UnsupportedMediaType,
    storage_error,
)
from penstock.server.connections import COMPLETE, SCOPE
from penstock.server.door import Door
from penstock.server.http.answers import (
    JSON_TYPE,
    NOTHING,
    Answer,
    Request,
    json_answer,
    problem_answer,
)
from penstock.server.http.auditing import audit_entry, is_audited
from penstock.server.http.bodies import ClientGone, body_too_large, decode_json, read_body
from penstock.server.http.callers import identify
from penstock.server.http.endpoints import Endpoint, HttpRequest, options_of
from penstock.server.http.heads import content_length, headers_of
from penstock.server.keys import Key

_logger = logging.getLogger("penstock.server")

_UNKNOWN = "unknown"
_SETTLES = frozenset(("ack", "nack", "reject", "extend"))
LATER = (Future, CoroutineType)
_JSON_ASIDE_BYTES = 16 << 10  # thousands of small objects: longer is decoded beside the loop
_PLAIN_BYTES_MAX = 2 << 20  # of bodies that bring neither messages nor receipts
_LONG_BYTES = 64 << 10  # longer answers are counted, and followed until the client has them


class RouteMatch(NamedTuple):
    """What a request is for, and the parameters in its path; or why there is nothing there."""

    endpoint: Endpoint | None
    parameters: dict[str, str]
    error: PenstockError | None = None


class Dispatcher:
    """Answers requests on the event loop of the server."""

    def __init__(self, door: Door) -> None:
        self.door = door
        self._gate = door.gate
        self.buffers = door.gate.buffers
        self._waits = door.waits
        self._names = door.names
        self._connections = door.connections

    async def serve(self, found: RouteMatch, scope: Scope, receive: Receive, send: Send) -> None:
        began = time.perf_counter()
        request = request_of(scope)
        exchange = HttpExchange(found.endpoint, request)
        try:
            answer = await self._answer(exchange, found, scope, receive)
        except ClientGone:
            return
        except Exception as exc:  # noqa: BLE001 - it becomes the answer
            answer = self._failed(exc, request)
        finally:
            self.buffers.give_back(len(request.body))
        if self.door.readiness.disk_was_full and answer.status == 201:
            self.door.readiness.disk_was_full = False
        if found.endpoint is not None and is_audited(found.endpoint):
            entry = audit_entry(found.endpoint, found.parameters, request, exchange.key, answer)
            await self.door.aside(self.door.api.note_audit, entry)
        took_s = time.perf_counter() - began
        keep = exchange.may_go_on(self.door.config.body_bytes_max) and answer.status != 408
        if len(answer.body) > _LONG_BYTES:
            await self._send_long(answer, keep, scope, send)
        elif not (keep and _answer_at_once(answer, scope, send)):
            await send(_start(answer, keep, scope))
            await send({"type": "http.response.body", "body": answer.body})
        # The rest while it is on its way.
        name = found.endpoint.name if found.endpoint is not None else _UNKNOWN
        self.door.requests.count(name, answer.status, took_s, len(request.body), len(answer.body))
        self.door.log.write(request, answer, took_s, exchange.key)

    def check_names(self, headers: dict[bytes, bytes]) -> None:
        """Raise Forbidden for pages of strangers, and for names that are not the server's."""
        self._names.check_page(headers)
        if self._gate.keys.empty:
            self._names.check_host(headers)

    def refused(self, error: PenstockError, path: str, client: str) -> Answer:
        """The answer to a request whose head never came; it is logged as others are."""
        request = Request("", path, "", {}, b"", client)
        answer = problem_answer(error, path)
        self.door.requests.count(_UNKNOWN, answer.status, 0, 0, len(answer.body))
        self.door.log.write(request, answer, 0, None)
        return answer

    async def _answer(
        self, exchange: HttpExchange, found: RouteMatch, scope: Scope, receive: Receive
    ) -> Answer:
        request, endpoint = exchange.request, found.endpoint
        self._check_head(exchange, scope)
        if found.error is not None:
            raise found.error
        assert endpoint is not None
        headers = request.headers
        if endpoint.right is not None:
            self._names.check_page(headers)
            exchange.key = key = identify(self._gate, self._names, request.method, headers)
            if key is None:
                self._names.check_host(headers)
            else:
                namespace = found.parameters.get("namespace", "default")
                self._gate.allow(key, endpoint.right, namespace if endpoint.in_namespaces else None)
            if endpoint.in_namespaces and (connection := scope.get(SCOPE)) is not None:
                namespace = found.parameters.get("namespace", "default")
                settles = endpoint.name in _SETTLES
                self._connections.use(connection, endpoint.right, namespace, settles=settles)
        call = HttpRequest(self.door, request, found.parameters, exchange.key)
        call.options = options_of(endpoint, request.query) if request.query else endpoint.no_options
        if endpoint.body is not None:
            is_json = _check_type(endpoint, request)
            bytes_max = self.door.config.body_bytes_max
            if not endpoint.items_in:  # settings, positions, names: never long
                bytes_max = min(bytes_max, _PLAIN_BYTES_MAX)
            if exchange.length is not None and exchange.length > bytes_max:
                raise body_too_large(bytes_max)
            is_complete = COMPLETE in scope
            request.body = await read_body(
                receive, bytes_max, self.buffers, self._waits, is_complete=is_complete
            )
            exchange.unread = False
            if is_json:
                call.body = await self._decoded(endpoint, request.body)
        outcome = endpoint.handler(call)
        if isinstance(outcome, LATER):
            outcome = await self._wait(outcome, exchange.key, receive)
        if type(outcome) is Answer:
            return outcome
        return NOTHING if outcome is None else json_answer(outcome, endpoint.status)

    def _check_head(self, exchange: HttpExchange, scope: Scope) -> None:
        request = exchange.request
        exchange.unread = True
        request.headers = headers = headers_of(scope["headers"], scope.get("http_version", ""))
        exchange.length = length = content_length(headers)
        exchange.unread = bool(length) or b"transfer-encoding" in headers
        self._gate.arrive(request.client)
        if length is not None and length > self.door.config.body_bytes_max:
            raise body_too_large(self.door.config.body_bytes_max)

    async def _decoded(self, endpoint: Endpoint, body: bytes) -> Any:
        if not body and endpoint.body_optional:
            body = b"{}"
        items_max = self.door.config.batch_messages_max
        if len(body) <= _JSON_ASIDE_BYTES:
            return decode_json(endpoint, body, items_max)
        return await self.door.aside(decode_json, endpoint, body, items_max)

    async def _wait(
        self,
        outcome: Future[Any] | CoroutineType[Any, Any, Any],
        key: Key | None,
        receive: Receive,
    ) -> Any:
        """For what is not ready yet: until the client hangs up, or its key is revoked."""
        loop = asyncio.get_running_loop()
        waiting = outcome if isinstance(outcome, Future) else loop.create_task(outcome)
        wait = self._waits.while_good(waiting, key)
        hang_up = loop.create_task(_hung_up(receive))
        hang_up.add_done_callback(lambda _: waiting.cancel())
        try:
            return await waiting
        except asyncio.CancelledError:
            if wait.reason is not None:
                raise wait.reason from None
            if hang_up.done() and not hang_up.cancelled():
                raise ClientGone from None
            raise
        finally:
            self._waits.leave(wait)
            hang_up.cancel()

    async def _send_long(self, answer: Answer, keep: bool, scope: Scope, send: Send) -> None:
        """Until the client has nearly all of it: only then the next request is begun."""
        self.buffers.add(len(answer.body))
        try:
            await send(_start(answer, keep, scope))
            await send({"type": "http.response.body", "body": answer.body, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            self.buffers.give_back(len(answer.body))

    def _failed(self, exc: Exception, request: Request) -> Answer:
        if isinstance(exc, BrokerClosed):
            exc = Unavailable("the server is stopping")
        if isinstance(exc, OSError):
            exc = storage_error(exc)
        if isinstance(exc, PenstockError):
            if isinstance(exc, DiskFull):
                self.door.readiness.disk_was_full = True
            return problem_answer(exc, request.path)
        if isinstance(exc, MemoryError):
            return problem_answer(RequestTooLarge("there is no memory for this"), request.path)
        _logger.error("%s %s failed", request.method, request.path, exc_info=exc)
        return problem_answer(
            PenstockError("something went wrong inside the server; its log says what"),
            request.path,
        )


class HttpExchange:
    """What is known of a request so far."""

    __slots__ = ("endpoint", "key", "length", "request", "unread")

    def __init__(self, endpoint: Endpoint | None, request: Request) -> None:
        self.endpoint = endpoint
        self.request = request
        self.key: Key | None = None
        self.length: int | None = None
        """Of the body, as far as the head says."""
        self.unread = False
        """Whether there may be more of the body to come."""

    def may_go_on(self, bytes_max: int) -> bool:
        """Whether the rest of a body that was not wanted is worth skipping."""
        return not self.unread or (self.length is not None and self.length <= bytes_max)


def request_of(scope: Scope) -> Request:
    """Without headers and body."""
    client = scope.get("client")
    return Request(
        scope["method"],
        scope["path"],
        scope["query_string"].decode("latin-1"),
        {},
        b"",
        client[0] if client else "",
        scope.get("root_path", ""),
        scope.get("scheme") == "https",
    )


def _check_type(endpoint: Endpoint, request: Request) -> bool:
    """Whether the body is JSON. A POST without a body has to say what it is, too: no web page of a
    stranger may send what its browser lets through."""
    kind = request.content_type()
    if kind == JSON_TYPE:
        return True
    if kind in endpoint.other_bodies:
        return False
    if not kind and endpoint.body_optional and request.method != "POST":
        return True
    allowed = ", ".join((JSON_TYPE, *endpoint.other_bodies))
    what = f"is {kind:.100}" if kind else "has no Content-Type"
    raise UnsupportedMediaType(f"the body {what}; understood: {allowed}")


async def _hung_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _answer_at_once(answer: Answer, scope: Scope, send: Send) -> bool:
    """Through our own connection; False: it has to be sent as ASGI has it."""
    connection = scope.get(SCOPE)
    if connection is None or answer.status == 204:
        return False
    head = _type_line(answer.content_type)
    for name, value in answer.headers:
        if not value.isprintable():
            return False
        head += b"%b: %b\r\n" % (name.encode(), _latin(value))
    head += b"content-length: %d\r\n\r\n" % len(answer.body)
    done: bool = connection.answer(send, answer.status, head, answer.body)
    return done


def _start(answer: Answer, keep: bool, scope: Scope) -> dict[str, Any]:
    headers = [*_type_header(answer.content_type)]
    if answer.headers:
        headers += [(name.encode(), _latin(value)) for name, value in answer.headers]
    if answer.status != 204:
        headers.append((b"content-length", b"%d" % len(answer.body)))
    if not keep and scope.get("http_version", "1.1") in ("1.0", "1.1"):
        headers.append((b"connection", b"close"))
    return {"type": "http.response.start", "status": answer.status, "headers": headers}


@lru_cache(maxsize=64)
def _type_line(content_type: str) -> bytes:
    return b"content-type: %b\r\n" % content_type.encode() if content_type else b""


@lru_cache(maxsize=64)
def _type_header(content_type: str) -> tuple[tuple[bytes, bytes], ...]:
    return ((b"content-type", content_type.encode()),) if content_type else ()


def _latin(value: str) -> bytes:
    return value.encode("latin-1", "replace")
