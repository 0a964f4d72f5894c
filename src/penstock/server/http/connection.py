"""uvicorn's connections, with what uvicorn leaves open towards hostile clients.

uvicorn parses and answers. Added here: heads, trailers and the lines between chunks are bounded;
trailers do not become headers; who is slow, silent or does not take an answer is cut off; there are
at most so many connections; what is no HTTP is refused by a problem, and never ahead of an answer
that is due; and an offer to go on in HTTP/2 over an open connection (`Upgrade: h2c`, which Java's
client makes by default) is passed over, as a server may, without losing the body.
"""

from __future__ import annotations

import asyncio
import socket
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import httptools
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from penstock.errors import (
    InvalidInput,
    PenstockError,
    RequestTimeout,
    RequestTooLarge,
    Unavailable,
)
from penstock.server.connections import COMPLETE, SCOPE

if TYPE_CHECKING:
    from starlette.types import Send

    from penstock.config import ServerConfig
    from penstock.server.http.dispatch import Dispatcher

_TAKEN_BYTES_MIN = 64 << 10  # of an answer, so that a client has time for the next
_LINE_BYTES = 4  # what a header takes beside its name and value
_AHEAD_MAX = 64  # requests that a client may send before it has its answer
_AHEAD_FEW = 16  # with so many, the connection is still read, so that a hang-up is seen
_JOINED_BYTES_MAX = 64 << 10  # copying more costs more than a system call
_ANSWER, _INTERIM = b"HTTP/1.1 ", b"HTTP/1.1 1"
_OFFER = {b"upgrade", b"http2-settings", b"connection"}


class ServerConnection(HttpToolsProtocol):
    """One connection. The class attributes are set on a subclass, by `connection_class`."""

    dispatcher: Dispatcher
    settings: ServerConfig
    connections_max: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._since = self.loop.time()  # when the present state began
        self._receiving = False  # between the first byte of a request and its last
        self._in_body = False
        self._unfinished_bytes = 0  # that came since the last head or piece of a body
        self._unsent = 0  # bytes of the answer at `_since`; 0: nobody looked yet
        self._offered = False  # another protocol, by the present request
        self._refused = False
        self._refusal: PenstockError | None = None  # to be told after the answers that are due
        self._answered: RequestResponseCycle | None = None  # the request that is being answered
        self.url = b""

    # What the transport calls.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(OneWrite(transport))  # type: ignore[arg-type]
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            self._set_options(sock)
        if len(self.connections) > self.connections_max:
            self._refuse(Unavailable(f"{self.connections_max} connections are open already"))
        elif self.dispatcher.door.stopping:  # it came too late to be told with the others
            self.transport.close()

    def _set_options(self, sock: socket.socket) -> None:
        # No piece of an answer waits for the ack of another. asyncio sets it only on sockets that
        # were made with a protocol number.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            # An answer may lie in the kernel's buffer, where `look_after` does not see it.
            timeout_ms = self.settings.request_timeout_ms
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout_ms)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answered is not None and self._answered is not self.cycle:
            # uvicorn tells the newest request, which here stands in line behind this one.
            self._answered.disconnected = True
            self._answered.message_event.set()
        self.pipeline.clear()
        self.dispatcher.door.connections.closed(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._unset_keepalive_if_required()
        if not self._receiving:
            self._begin()
        self._unfinished_bytes += len(data)
        try:
            while data:
                data = self._feed(data)
        except httptools.HttpParserError as exc:
            cause = exc.__context__
            if isinstance(cause, PenstockError):  # a callback of ours raised it
                self._refuse(cause)
            else:
                self._refuse(InvalidInput(f"this is not HTTP: {exc}"))
            return
        if self._unfinished_bytes > self.settings.header_bytes_max:
            self._refuse(self._head_too_long())  # the parser keeps a header until it ends

    def _feed(self, data: bytes) -> bytes:
        """Let the parser have it; what it shall have next.

        For the parser, a request that offers another protocol ends with its head. It gets the head
        again, without the offer, and then what follows: the body.
        """
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as exc:
            if not self._offered:
                self.handle_websocket_upgrade()  # the rest of the connection is its matter
                return b""
            self._offered = False
            head = self._head_without_offer()
            self.parser = httptools.HttpRequestParser(self)
            return head + data[exc.args[0] :]
        return b""

    def _head_without_offer(self) -> bytes:
        parser = self.parser
        version = parser.get_http_version().encode("ascii")
        lines = [b"%b %b HTTP/%b" % (parser.get_method(), self.url, version)]
        lines += [b"%b: %b" % each for each in self.headers if each[0] not in _OFFER]
        # Said in any case: what the offer said of the connection is left out.
        keep = parser.should_keep_alive()
        lines.append(b"connection: keep-alive" if keep else b"connection: close")
        return b"\r\n".join(lines) + b"\r\n\r\n"

    # What the parser calls.

    def on_message_begin(self) -> None:
        if not self._receiving:  # it came in one piece with the end of the one before
            self._begin()
        self._in_body = False
        super().on_message_begin()
        self.scope[SCOPE] = self  # type: ignore[literal-required]

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_body:  # a trailer, which nobody asked for
            return
        name = name.lower()  # as uvicorn has it, without one more call for each header
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self._unfinished_bytes > self.settings.header_bytes_max:
            lines = sum(len(name) + len(value) + _LINE_BYTES for name, value in self.headers)
            if lines + len(self.url) > self.settings.header_bytes_max:
                raise self._head_too_long()
        self._unfinished_bytes = 0
        if self.parser.get_method() == b"CONNECT":
            raise InvalidInput("this is no proxy")
        if self.parser.should_upgrade():
            if self._should_upgrade() and not self._is_answering():
                super().on_headers_complete()
            else:
                self._offered = True
            return
        if not self.url.startswith(b"/"):
            self.url = _path_of(self.url)
        if len(self.pipeline) >= _AHEAD_MAX:
            raise RequestTooLarge(f"more than {_AHEAD_MAX} requests sent ahead")
        self._in_body = True
        super().on_headers_complete()
        if not self.pipeline:
            self._answered = self.cycle
        elif len(self.pipeline) <= _AHEAD_FEW:
            self.flow.resume_reading()

    def on_body(self, body: bytes) -> None:
        self._unfinished_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unfinished_bytes = 0
        if self.parser.should_upgrade():
            return
        self._receiving = False
        self._since = self.loop.time()
        self.scope[COMPLETE] = True  # type: ignore[literal-required]
        super().on_message_complete()

    def answer(self, send: Send, status: int, headers: bytes, body: bytes) -> bool:
        """The whole answer at once, in place of the two messages of ASGI, which take as long as
        all of HTTP does. `headers` ends with an empty line.

        False: it has to go out by `send`. So it has if that is not our own, but of somebody who
        wants to see answers before they leave, as a node of a cluster does.
        """
        cycle = self._answered
        if cycle is None or send != cycle.send:
            return False
        if (
            cycle.response_started
            or cycle.disconnected
            or not cycle.keep_alive
            or cycle.scope["method"] == "HEAD"
            or self.flow.write_paused
        ):
            return False
        cycle.response_started = cycle.response_complete = True
        self.transport.write_whole(STATUS_LINE[status] + headers, body)  # type: ignore[attr-defined]
        cycle.message_event.set()
        cycle.on_response()
        return True

    def on_response_complete(self) -> None:
        self.transport.flush()  # type: ignore[attr-defined]
        self._since, self._unsent = self.loop.time(), 0
        self._answered = self.pipeline[-1][0] if self.pipeline else None
        if self.pipeline:
            super().on_response_complete()
        else:  # without the timer for idle connections, which `look_after` ends
            self.server_state.total_requests += 1
            self.flow.resume_reading()
        if self._refusal is not None and self._answered is None:
            self._tell(self._refusal)

    # What the server calls.

    def look_after(self, now: float, request_s: float, idle_s: float) -> None:
        """End what takes too long; called about once a second."""
        if self.transport is None:
            return
        passed_s = now - self._since
        unsent = self.transport.get_write_buffer_size()
        if unsent:
            if not self._unsent:
                self._since, self._unsent = now, unsent
            elif self._unsent - unsent >= _TAKEN_BYTES_MIN:
                self._since, self._unsent = now, unsent  # it takes its time, and its answer
            elif passed_s > request_s:
                self.transport.abort()  # it does not take its answer
            return
        self._unsent = 0
        if self.transport.is_closing() or self._is_answering():
            return
        if self._receiving:
            if passed_s > request_s:
                if self._in_body:  # that was answered already, and is not wanted
                    self.transport.abort()
                else:
                    self._refuse(RequestTimeout("the request was not complete in time"))
        elif passed_s > idle_s:
            self.transport.close()

    # Ours.

    def _begin(self) -> None:
        self._receiving = True
        self._unfinished_bytes = 0
        self._since = self.loop.time()

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _head_too_long(self) -> PenstockError:
        limit = self.settings.header_bytes_max
        return RequestTooLarge(f"the headers are longer than {limit} bytes")

    def _refuse(self, error: PenstockError) -> None:
        """Answer and hang up: what else comes cannot be made sense of, or is not wanted."""
        if self._refused or self.transport.is_closing():
            return
        self._refused = True
        if self._is_answering() and not self._give_up_newest():
            self._refusal = error
        else:
            self._tell(error)

    def _tell(self, error: PenstockError) -> None:
        if self.transport.is_closing():
            return
        path = self.url.decode("latin-1").partition("?")[0][:200] if self._receiving else ""
        client = self.client[0] if self.client else ""
        answer = self.dispatcher.refused(error, path, client)
        head = (
            f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}\r\n"
            f"content-type: {answer.content_type}\r\ncontent-length: {len(answer.body)}\r\n"
            "connection: close\r\n\r\n"
        )
        self.transport.write(head.encode("latin-1") + answer.body)
        self.transport.close()

    def _give_up_newest(self) -> bool:
        """Forget the newest request if it is not complete; whether none is left to be answered."""
        newest = self.cycle
        if not newest.more_body:
            return False
        if newest is not self._answered:
            self.pipeline.popleft()
            assert self._answered is not None
            self.cycle = self.pipeline[0][0] if self.pipeline else self._answered
            return False
        newest.disconnected = True  # its handler waits for the rest of the body
        newest.message_event.set()
        return not newest.response_started


class OneWrite:
    """A transport that sends the head of an answer together with the first piece of its body.

    uvicorn writes them one after the other, and each write is a system call and a packet: that is
    a third of the time that a short request takes.
    """

    __slots__ = ("_head", "_transport", "abort", "get_extra_info", "is_closing", "set_protocol")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head = b""
        self.abort = transport.abort
        self.get_extra_info = transport.get_extra_info
        self.is_closing = transport.is_closing
        self.set_protocol = transport.set_protocol

    def write(self, data: bytes) -> None:
        if self._head:
            head, self._head = self._head, b""
            if len(data) <= _JOINED_BYTES_MAX:
                self._transport.write(head + data)
                return
            self._transport.write(head)
        elif data.startswith(_ANSWER) and not data.startswith(_INTERIM):
            self._head = data
            return
        self._transport.write(data)

    def write_whole(self, head: bytes, body: bytes) -> None:
        self.flush()
        self._transport.write(head + body)

    def flush(self) -> None:
        if self._head:
            self.write(b"")

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size() + len(self._head)

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()


def connection_class(
    dispatcher: Dispatcher, settings: ServerConfig, connections_max: int
) -> type[ServerConnection]:
    bound = {
        "dispatcher": dispatcher,
        "settings": settings,
        "connections_max": connections_max,
    }
    return type("BoundConnection", (ServerConnection,), bound)


def _path_of(address: bytes) -> bytes:
    """Of a whole address, as proxies are asked for it and servers understand it."""
    scheme, _, rest = address.partition(b"://")
    if not rest or scheme.lower() not in (b"http", b"https"):
        raise InvalidInput("the URL cannot be read")
    return b"/" + rest.partition(b"/")[2]
