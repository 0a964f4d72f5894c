"""HTTP/1.1 connections: the shortest way from a socket to the door, and an eye on slow clients.

Every request is answered right here, most of them at once, without a task and the messages of ASGI;
also one for an address where there is nothing, so that the limits hold for everybody. Who offers to
go on in another protocol, such as HTTP/2, is answered in this one, as any server may.

Requests of a connection are answered in their order; what a client sends ahead is kept, within
limits, until it is their turn. Whoever hangs up while waiting is noticed at once, and gets no
messages that nobody would settle.

Programs say the same again and again. So what the parser made of the head of a request is
remembered, and a request that comes whole with the very same head need not be parsed.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections import deque
from functools import cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple

import httptools

from penstock.errors import InvalidInput, PenstockError, RequestTimeout, RequestTooLarge
from penstock.server.http.answers import Answer, Request

if TYPE_CHECKING:
    from uvicorn.config import Config
    from uvicorn.server import ServerState

    from penstock.server.door import Door

_PIPELINE_MAX = 64
_IN_BODY = -(1 << 62)
_TAKEN_BYTES_MIN = 64 << 10  # of an answer, so that a client has time for the next
_LINE_BYTES = 4  # what a header takes beside its name and value
_HEAD_END = b"\r\n\r\n"
_KNOWN_MAX = 1024
_KNOWN_BYTES_MAX = 1024  # of a head that is remembered: all of them take a few MB at the most
_OFFER = {b"upgrade", b"http2-settings", b"connection"}
_PLAIN_NOT = {b"transfer-encoding", b"expect", b"upgrade"}
"""Headers of requests that are not just a head and as much body as it says."""


class _Known(NamedTuple):
    """What a head says."""

    request: Request
    """Without the body, and without who asks."""
    keep: bool
    body_bytes: int


class Protocol(asyncio.Protocol):
    """One connection. `door` and `known` are set on a subclass, by `protocol_of`."""

    door: Door
    known: dict[bytes, _Known]
    """By their heads, requests that were parsed before, on any connection."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
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
        self._unsent = 0  # bytes of the answer at that time; 0: nobody looked yet
        self._offered = False  # another protocol, with the present request
        self._answering: tuple[Request, bool] | None = None  # and whether to keep the connection
        self._waiting: Future[Any] | None = None  # what its answer waits for
        self._ahead: deque[tuple[Request, bool]] = deque()
        self._parsed: tuple[Request, bool] | None = None  # the last one of what has just come
        self._closing = False

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self._connections.add(self)
        peer = transport.get_extra_info("peername")
        self._address = peer[0] if isinstance(peer, tuple) else ""
        if self.door.stopping:  # it came too late to be told with the others
            self.shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        self._ahead.clear()
        if self._waiting is not None:
            self._waiting.cancel()

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        if self._reading or self._answering is not None:
            self._parse(data)
            return
        head_bytes = data.find(_HEAD_END, 0, _KNOWN_BYTES_MAX) + len(_HEAD_END)
        known = self.known.get(data[:head_bytes])
        if known is not None and head_bytes + known.body_bytes == len(data):
            request, keep, _ = known
            self._begin(request.again(data[head_bytes:], self._address), keep)
            return
        self._parsed = None
        self._parse(data)
        if self._parsed is not None and head_bytes >= len(_HEAD_END):
            self._remember(data, head_bytes, *self._parsed)

    def _parse(self, data: bytes) -> None:
        if not self._reading:
            self._reading = True
            self._since = self._loop.time()
        self._unfinished_bytes += len(data)
        try:
            rest = data
            while rest:
                rest = self._feed(rest)
        except httptools.HttpParserError as exc:
            if not self._closing:
                self._refuse(InvalidInput(f"this is not HTTP: {exc}"))
        if self._unfinished_bytes > self.door.config.header_bytes_max:
            self._refuse_head()  # the parser keeps a header to itself until it ends

    def _feed(self, data: bytes) -> bytes:
        """Let the parser have it; what it shall have next.

        For the parser, a request that offers another protocol ends with its head. It gets the head
        again, without the offer, and then what follows: the body.
        """
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as exc:
            if not self._offered:
                return b""
            self._offered = False
            head = self._head_without_offer()
            self._parser = httptools.HttpRequestParser(self)
            return head + data[exc.args[0] :]
        return b""

    def _head_without_offer(self) -> bytes:
        parser, headers = self._parser, self._headers
        version = parser.get_http_version().encode("ascii")
        lines = [b"%b %b HTTP/%b" % (parser.get_method(), self._url, version)]
        lines += [b"%b: %b" % each for each in headers.items() if each[0] not in _OFFER]
        # Said in any case: what the offer said of the connection is left out.
        keep = parser.should_keep_alive()
        lines.append(b"connection: keep-alive" if keep else b"connection: close")
        return b"\r\n".join(lines) + _HEAD_END

    def pause_writing(self) -> None:
        """It does not take its answers: then no more of its questions."""
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        self.transport.resume_reading()

    # What the server calls.

    def shutdown(self) -> None:
        """The server is stopping: what was asked is answered, then it is over."""
        self._closing = True
        if self._answering is None:
            self.transport.close()

    def look_after(self, now: float, request_s: float, idle_s: float) -> None:
        """End what takes too long; called about once a second."""
        passed_s = now - self._since
        unsent = self.transport.get_write_buffer_size()
        if unsent:
            if not self._unsent:
                self._unsent = unsent
            elif self._unsent - unsent >= _TAKEN_BYTES_MIN:
                self._since, self._unsent = now, unsent  # it takes its time, and its answer
            elif passed_s > request_s:
                self.transport.abort()  # it does not take its answer
        elif self._answering is not None or self.transport.is_closing():
            return
        elif self._reading:
            if passed_s > request_s:
                self._refuse(RequestTimeout("the request was not complete in time"))
        elif passed_s > idle_s:
            self.transport.close()

    # What the parser calls.

    def on_message_begin(self) -> None:
        if not self._reading:  # it came in one piece with the end of the one before
            self._reading = True
            self._since = self._loop.time()
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
        if self._closing:
            return
        if self._parser.get_method() == b"CONNECT":
            self._refuse(InvalidInput("this is no proxy"))
            return
        if self._parser.should_upgrade():
            self._offered = True
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
        if self._closing or self._offered:
            return
        self._reading = False
        parser = self._parser
        path, _, query = self._url.decode("latin-1").partition("?")
        if not path.startswith("/"):
            path = _path_of(path)
        if not path:
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
        self._parsed = request, keep
        if self._answering is None:
            self._begin(request, keep)
        elif len(self._ahead) < _PIPELINE_MAX:
            self._ahead.append((request, keep))
            self.transport.pause_reading()
        else:
            self._refuse(RequestTooLarge(f"more than {_PIPELINE_MAX} requests sent ahead"))

    def _remember(self, data: bytes, head_bytes: int, request: Request, keep: bool) -> None:
        """What came was one request. If it was but a head and its body, know it the next time."""
        if (
            len(data) - head_bytes != len(request.body)
            or not _PLAIN_NOT.isdisjoint(request.headers)
            or not self.door.knows(request.path.encode("latin-1"))
        ):
            return
        if len(self.known) >= _KNOWN_MAX:
            self.known.clear()
        self.known[data[:head_bytes]] = _Known(request.again(b"", ""), keep, len(request.body))

    # Answering.

    def _begin(self, request: Request, keep: bool) -> None:
        self._answering = request, keep
        self._waiting = self.door.handle(request, self._send)

    def _send(self, answer: Answer) -> None:
        """The door has the answer: at once, or after it had to wait."""
        assert self._answering is not None
        (request, keep), self._answering = self._answering, None
        if self.transport.is_closing():
            return
        self._write(answer, keep, request.method)
        if self._waiting is not None:
            self._waiting = None
            while self._ahead and self._answering is None and not self.transport.is_closing():
                self._begin(*self._ahead.popleft())
            if not self._ahead and not self.transport.is_closing():
                self.transport.resume_reading()

    def _write(self, answer: Answer, keep: bool, method: str = "") -> None:
        keep = keep and not self._closing
        body = b"" if method == "HEAD" else answer.body
        head = _start(answer.status, answer.content_type)
        if answer.headers:
            more = "".join([f"{name}: {value}\r\n" for name, value in answer.headers])
            head += more.encode("latin-1", "replace")
        if answer.status != 204:
            head += b"content-length: %d\r\n" % len(answer.body)
        if not keep:
            head += b"connection: close\r\n"
        self.transport.write(b"%b\r\n%b" % (head, body))
        self._since, self._unsent = self._loop.time(), 0
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
        if self._answering is not None:  # that answer is the last one; this would come before it
            self._closing = True
            self._ahead.clear()
            return
        path = self._url.decode("latin-1").partition("?")[0][:200]
        answer = self.door.refused(error, "", path, self._address)
        self._closing = True
        self._write(answer, keep=False)


def protocol_of(door: Door) -> type[Protocol]:
    return type("BoundProtocol", (Protocol,), {"door": door, "known": {}})


def _path_of(address: str) -> str:
    """Of a whole address, as proxies are asked for it and servers understand it; or nothing."""
    scheme, _, rest = address.partition("://")
    return "/" + rest.partition("/")[2] if rest and scheme.lower() in ("http", "https") else ""


@cache
def _start(status: int, content_type: str) -> bytes:
    """How an answer begins; there are few."""
    start = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n"
    return (start + f"content-type: {content_type}\r\n" * bool(content_type)).encode("latin-1")
