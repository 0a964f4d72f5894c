"""Connections to a server, kept for the next request: for threads, and for an event loop."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import time
from collections import deque
from contextlib import suppress
from typing import Any

from penstock.client.http.protocol import Address, Reader, Reply, RequestWriter, ServerRequest
from penstock.client.kept_connections import KeptConnections
from penstock.client.repeating import AnswerLost
from penstock.errors import BrokerClosed, Unavailable

CONNECT_TIMEOUT_S = 5.0
_FRESH_S = 1.0  # so young, an idle connection is not asked whether it is still open
_IDLE_S_MAX = 60.0  # a little less than the server's patience
_READ_BYTES = 256 << 10
_SEND_BYTES = 256 << 10  # longer requests are sent in parts, with a look at the clock


class Connections(KeptConnections["_Connection"]):
    """For threads: each request borrows a connection, and brings it back."""

    def __init__(
        self,
        address: Address,
        writer: RequestWriter,
        tls: ssl.SSLContext | None,
        timeout_s: float,
    ) -> None:
        super().__init__()
        self.address = address
        self.writer = writer
        self.tls = tls
        self._timeout_s = timeout_s

    def at(self, address: Address) -> Connections:
        """The same to another server, which is reached in the same way."""
        return Connections(address, self.writer.at(address), self.tls, self._timeout_s)

    def exchange(self, request: ServerRequest) -> Reply:
        """Send a request and wait for its answer."""
        data = self.writer.bytes(request)
        connection = self._borrow()
        try:
            reply = connection.exchange(data, self._timeout_s + request.wait_s)
        except BaseException:
            self.drop(connection)
            if self.closed:
                raise BrokerClosed("the client was closed") from None
            raise
        if connection.reader.keep_alive:
            connection.since = time.monotonic()
            self.keep(connection)
        else:
            self.drop(connection)
        return reply

    def _borrow(self) -> _Connection:
        while (connection := self.take_idle()) is not None:
            if connection.is_good():
                return connection
            self.drop(connection)
        return self.take_new(_Connection(self.address, self.tls))


class _Connection:
    def __init__(self, address: Address, tls: ssl.SSLContext | None) -> None:
        self.reader = Reader()
        self.since = time.monotonic()
        try:
            self._sock = _connect(address, tls)
        except OSError as exc:
            raise Unavailable(f"{address} cannot be reached: {exc.strerror or exc}") from exc
        self._timeout_s = -1.0

    def exchange(self, data: bytes, timeout_s: float) -> Reply:
        """Send a request and wait for its answer, all of it within the time."""
        sock = self._sock
        if timeout_s != self._timeout_s:
            self._set_timeout(timeout_s)
        deadline = time.monotonic() + timeout_s
        broke: OSError | None = None
        try:
            try:
                if len(data) <= _SEND_BYTES:
                    sock.sendall(data)
                else:
                    self._send_long(data, deadline)
            except (ConnectionError, ssl.SSLError) as exc:
                # A server that does not want a request answers, and hangs up while it is sent.
                broke = exc
            while True:
                received = sock.recv(_READ_BYTES)
                if not received:
                    raise broke or AnswerLost("the server closed the connection before it answered")
                reply = self.reader.feed(received)
                if reply is not None and reply.status >= 200:
                    if broke is not None:
                        self.reader.keep_alive = False
                    return reply
                self._leave(deadline)
        except (TimeoutError, BlockingIOError):
            raise AnswerLost(f"the server did not answer within {timeout_s:.3g} s") from None
        except OSError as exc:
            raise AnswerLost(f"the connection broke: {exc.strerror or exc}") from exc

    def _send_long(self, data: bytes, deadline: float) -> None:
        view = memoryview(data)
        for start in range(0, len(view), _SEND_BYTES):
            if start:
                self._leave(deadline)
            self._sock.sendall(view[start : start + _SEND_BYTES])

    def _leave(self, deadline: float) -> None:
        """What is left of the time, for the next read or write."""
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._set_timeout(left_s)

    def _set_timeout(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        if isinstance(self._sock, ssl.SSLSocket):
            self._sock.settimeout(timeout_s)
            return
        # The kernel's own: that of Python asks the kernel twice, before each call.
        self._sock.settimeout(None)
        limit = struct.pack("ll", int(timeout_s), int(timeout_s % 1 * 1e6) or 1)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    def is_good(self) -> bool:
        """Whether the server has not closed it meanwhile."""
        idle_s = time.monotonic() - self.since
        if idle_s < _FRESH_S:
            return True
        if idle_s > _IDLE_S_MAX:
            return False
        self._timeout_s = -1.0
        self._sock.settimeout(0)
        try:
            self._sock.recv(1)
            return False  # it was closed, or something came that was not asked for
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        except OSError:
            return False

    def hang_up(self) -> None:
        """From another thread than the one that waits, which closes it then."""
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._sock.close()


def _connect(address: Address, tls: ssl.SSLContext | None) -> socket.socket:
    sock = socket.create_connection((address.host, address.port), CONNECT_TIMEOUT_S)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock if tls is None else tls.wrap_socket(sock, server_hostname=address.host)
    except BaseException:
        sock.close()
        raise


class AsyncConnections:
    """For one event loop."""

    def __init__(
        self,
        address: Address,
        writer: RequestWriter,
        tls: ssl.SSLContext | None,
        timeout_s: float,
    ) -> None:
        self.address = address
        self.writer = writer
        self.tls = tls
        self._timeout_s = timeout_s
        self._idle: deque[_AsyncConnection] = deque()
        self._busy: set[_AsyncConnection] = set()
        self._closed = False

    def at(self, address: Address) -> AsyncConnections:
        """The same to another server, which is reached in the same way."""
        return AsyncConnections(address, self.writer.at(address), self.tls, self._timeout_s)

    async def exchange(self, request: ServerRequest) -> Reply:
        data = self.writer.bytes(request)
        connection = self._idle_one() or await self._connect()
        self._busy.add(connection)
        try:
            async with asyncio.timeout(self._timeout_s + request.wait_s):
                reply = await connection.exchange(data)
        except TimeoutError:
            connection.close()
            raise AnswerLost("the server did not answer in time") from None
        except BaseException:
            connection.close()
            if self._closed:
                raise BrokerClosed("the client was closed") from None
            raise
        finally:
            self._busy.discard(connection)
        if connection.reader.keep_alive and not self._closed:
            connection.since = time.monotonic()
            self._idle.append(connection)
        else:
            connection.close()
        return reply

    def close(self) -> None:
        self._closed = True
        for connection in [*self._idle, *self._busy]:
            connection.close()
        self._idle.clear()

    def _idle_one(self) -> _AsyncConnection | None:
        if self._closed:
            raise BrokerClosed("the client was closed")
        while self._idle:
            connection = self._idle.pop()
            if not connection.lost and time.monotonic() - connection.since < _IDLE_S_MAX:
                return connection
            connection.close()
        return None

    async def _connect(self) -> _AsyncConnection:
        host = self.address.host
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, connection = await asyncio.get_running_loop().create_connection(
                    _AsyncConnection,
                    host,
                    self.address.port,
                    ssl=self.tls,
                    server_hostname=host if self.tls else None,
                )
        except OSError as exc:  # also when it takes too long
            raise Unavailable(f"{self.address} cannot be reached: {exc.strerror or exc}") from exc
        return connection


class _AsyncConnection(asyncio.Protocol):
    def __init__(self) -> None:
        self.reader = Reader()
        self.since = time.monotonic()
        self.lost = False
        self._transport: Any = None
        self._answer: asyncio.Future[Reply] | None = None

    async def exchange(self, data: bytes) -> Reply:
        self._answer = asyncio.get_running_loop().create_future()
        if self.lost:
            raise AnswerLost("the server closed the connection before it answered")
        self._transport.write(data)
        return await self._answer

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        answer = self._answer
        if answer is None or answer.done():
            self.close()
            return
        try:
            reply = self.reader.feed(data)
        except Exception as exc:  # noqa: BLE001 - it is raised where the answer is awaited
            answer.set_exception(exc)
            self.close()
            return
        if reply is not None and reply.status >= 200:
            answer.set_result(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        if self._answer is not None and not self._answer.done():
            why = f": {exc}" if exc is not None else ""
            self._answer.set_exception(AnswerLost(f"the connection broke{why}"))
