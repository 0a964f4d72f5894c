"""HTTP/1.1 connections: the shortest way from a socket to the door, and an eye on slow clients.

What the door knows is answered right here, most of it at once, without a task and the messages of
ASGI. A connection that begins with anything else, such as an upgrade, is handed to uvicorn's own
protocol with all that has come, and goes the usual way through the application.

Requests of a connection are answered in their order; what a client sends ahead is kept, within
limits, until it is their turn. Whoever hangs up while waiting is noticed at once, and gets no
messages that nobody would settle.
"""

from __future__ import annotations

import asyncio
import inspect
from asyncio import Future
from collections import deque
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from penstock.errors import InvalidInput, PenstockError, RequestTimeout, RequestTooLarge
from penstock.server.http import Answer, Request

if TYPE_CHECKING:
    from uvicorn.config import Config
    from uvicorn.server import ServerState

    from penstock.server.door import Door

_HEADS = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}
_PIPELINE_MAX = 64
_IN_BODY = -(1 << 62)
_LINE_BYTES = 4  # what a header takes beside its name and value


class Protocol(asyncio.Protocol):
    """One connection. `door` is set on a subclass, by `protocol_of`."""

    door: Door

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._arguments = config, server_state, app_state
        self._connections: set[Any] = server_state.connections
        self._loop = _loop or asyncio.get_event_loop()
        self._parser = httptools.HttpRequestParser(self)
        self.transport: Any = None
        self._address = ""
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._head_bytes = 0
        self._unfinished_bytes = 0  # of a head whose end has not come
        self._reading = False  # between the first byte of a request and its last
        self._since = self._loop.time()  # when the present state began
        self._first = True
        self._elsewhere = False  # the connection is uvicorn's
        self._waiting: Future[Answer] | None = None
        self._ahead: deque[tuple[Request, bool]] = deque()
        self._closing = False

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self._connections.add(self)
        peer = transport.get_extra_info("peername")
        self._address = peer[0] if isinstance(peer, tuple) else ""

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        self._ahead.clear()
        if self._waiting is not None:
            self._waiting.cancel()

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        if not self._reading:
            self._reading = True
            self._since = self._loop.time()
        self._unfinished_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._hand_over(data)
        except httptools.HttpParserError as exc:
            if not self._closing and not self._elsewhere:
                self._refuse(InvalidInput(f"this is not HTTP: {exc}"))
        if self._elsewhere:
            self._hand_over(data)
        elif self._unfinished_bytes > self.door.config.header_bytes_max:
            self._refuse_head()  # the parser keeps a header to itself until it ends

    def pause_writing(self) -> None:
        """It does not take its answers: then no more of its questions."""
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        self.transport.resume_reading()

    # What the server calls.

    def shutdown(self) -> None:
        """The server is stopping: what was asked is answered, then it is over."""
        self._closing = True
        if self._waiting is None and not self._ahead:
            self.transport.close()

    def look_after(self, now: float, request_s: float, idle_s: float) -> None:
        """End what takes too long; called about once a second."""
        passed_s = now - self._since
        if self.transport.is_closing():
            return
        if self.transport.get_write_buffer_size():
            if passed_s > request_s:
                self.transport.abort()  # it does not take its answer
        elif self._waiting is not None:
            return
        elif self._reading:
            if passed_s > request_s:
                self._refuse(RequestTimeout("the request was not complete in time"))
        elif passed_s > idle_s:
            self.transport.close()

    # What the parser calls.

    def on_message_begin(self) -> None:
        self._unfinished_bytes = 0
        self._url = b""
        self._headers = {}
        self._body = []
        self._body_bytes = self._head_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._head_bytes += len(url)
        if self._head_bytes > self.door.config.header_bytes_max:
            self._refuse_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value
        self._head_bytes += len(name) + len(value) + _LINE_BYTES
        if self._head_bytes > self.door.config.header_bytes_max:
            self._refuse_head()

    def on_headers_complete(self) -> None:
        self._unfinished_bytes = _IN_BODY
        if self._closing or self._elsewhere:
            return
        if self._first:
            self._first = False
            if self._parser.should_upgrade() or not self.door.knows(self._url):
                self._elsewhere = True
                return
        if int(self._headers.get(b"content-length", b"0")) > self.door.config.body_bytes_max:
            self._refuse_body()
        elif b"expect" in self._headers:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)
        self._body_bytes += len(body)
        if self._body_bytes > self.door.config.body_bytes_max:
            self._body = []
            self._refuse_body()

    def on_message_complete(self) -> None:
        self._unfinished_bytes = 0
        if self._closing or self._elsewhere:
            return
        self._reading = False
        parser = self._parser
        path, _, query = self._url.decode("latin-1").partition("?")
        if not path.startswith("/"):
            self._refuse(InvalidInput("the URL cannot be read"))
            return
        body = self._body
        request = Request(
            parser.get_method().decode("ascii"),
            path,
            query.partition("#")[0],
            self._headers,
            body[0] if len(body) == 1 else b"".join(body),
            self._address,
        )
        keep = parser.should_keep_alive()
        if self._waiting is None and not self._ahead:
            self._begin(request, keep)
        elif len(self._ahead) < _PIPELINE_MAX:
            self._ahead.append((request, keep))
            self.transport.pause_reading()
        else:
            self._refuse(RequestTooLarge(f"more than {_PIPELINE_MAX} requests sent ahead"))

    # Answering.

    def _begin(self, request: Request, keep: bool) -> None:
        answer = self.door.handle(request)
        if type(answer) is Answer:
            self._write(answer, keep, request.method)
            return
        if inspect.iscoroutine(answer):
            answer = self._loop.create_task(answer)
        assert isinstance(answer, Future)
        self._waiting = answer

        def done(future: Future[Answer]) -> None:
            self._waiting = None
            if future.cancelled() or self.transport.is_closing():
                return
            self._write(future.result(), keep, request.method)
            while self._ahead and self._waiting is None and not self.transport.is_closing():
                self._begin(*self._ahead.popleft())
            if not self._ahead and not self.transport.is_closing():
                self.transport.resume_reading()

        answer.add_done_callback(done)

    def _write(self, answer: Answer, keep: bool, method: str = "") -> None:
        keep = keep and not self._closing
        body = answer.body
        parts = [_HEADS[answer.status]]
        if answer.content_type:
            parts.append(f"content-type: {answer.content_type}\r\n".encode())
        for name, value in answer.headers:
            parts.append(f"{name}: {value}\r\n".encode("latin-1", "replace"))
        if answer.status != 204:
            parts.append(b"content-length: %d\r\n" % len(body))
        parts.append(b"\r\n" if keep else b"connection: close\r\n\r\n")
        if method != "HEAD":
            parts.append(body)
        self.transport.write(b"".join(parts))
        self._since = self._loop.time()
        if not keep:
            self.transport.close()

    def _refuse_head(self) -> None:
        limit = self.door.config.header_bytes_max
        self._refuse(RequestTooLarge(f"the headers are longer than {limit} bytes"))

    def _refuse_body(self) -> None:
        limit = self.door.config.body_bytes_max
        self._refuse(RequestTooLarge(f"the body is longer than {limit} bytes"))

    def _refuse(self, error: PenstockError) -> None:
        """Answer and hang up: what else comes cannot be made sense of, or is not wanted."""
        if self._closing:
            return
        path = self._url.decode("latin-1").partition("?")[0][:200]
        answer = self.door.refused(error, "", path, self._address)
        self._closing = True
        self._write(answer, keep=False)

    def _hand_over(self, data: bytes) -> None:
        """The connection is uvicorn's from now on, with what has come so far."""
        if self._connections is None or self not in self._connections:
            return
        self._connections.discard(self)
        config, server_state, app_state = self._arguments
        other = HttpToolsProtocol(config, server_state, app_state, self._loop)
        self.transport.set_protocol(other)
        other.connection_made(self.transport)
        other.data_received(data)


def protocol_of(door: Door) -> type[Protocol]:
    return type("BoundProtocol", (Protocol,), {"door": door})
