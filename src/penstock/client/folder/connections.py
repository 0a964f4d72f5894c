"""Connections to the owner of a data folder, kept for the next question.

A connection serves one question at a time, of a thread or of an event loop.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import msgspec

from penstock.client.folder.address import connect
from penstock.client.folder.protocol import FrameReader, SocketFrame
from penstock.client.kept_connections import KeptConnections
from penstock.client.repeating import AnswerLost
from penstock.errors import Unavailable

_IDLE_MAX = 8  # an owner has a limited number for all
_READ_BYTES = 256 << 10


class SocketExchange(msgspec.Struct, frozen=True, gc=False):
    """A step: one question, and its answer."""

    connections: OwnerConnections
    question: bytes
    timeout_s: float

    def block(self) -> SocketFrame:
        return self.connections.exchange(self.question, self.timeout_s)

    def wait(self) -> Coroutine[Any, Any, SocketFrame]:
        return self.connections.exchange_on_loop(self.question, self.timeout_s)


class OwnerConnections(KeptConnections["_OwnerConnection"]):
    """Any thread and any event loop may ask. Raises Unavailable if nothing was asked, since nobody
    listens, and AnswerLost if the question may have arrived."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self._folder = folder

    def exchange(self, question: bytes, timeout_s: float) -> SocketFrame:
        connection = self._borrow(blocking=True)
        try:
            frame = connection.exchange(question, timeout_s)
        except BaseException:
            self.drop(connection)
            raise
        self.keep(connection, _IDLE_MAX)
        return frame

    async def exchange_on_loop(self, question: bytes, timeout_s: float) -> SocketFrame:
        connection = self._borrow(blocking=False)
        try:
            async with asyncio.timeout(timeout_s):
                frame = await connection.exchange_on_loop(question)
        except TimeoutError:
            self.drop(connection)
            raise AnswerLost(f"the owner did not answer within {timeout_s:.3g} s") from None
        except BaseException:
            self.drop(connection)
            raise
        self.keep(connection, _IDLE_MAX)
        return frame

    def drop(self, connection: _OwnerConnection) -> None:
        """Those that are idle go too: they lead to the same owner."""
        super().drop(connection)
        with self._lock:
            idle = [*self._idle]
            self._idle.clear()
        for each in idle:
            each.close()

    def _borrow(self, *, blocking: bool) -> _OwnerConnection:
        connection = self.take_idle()
        if connection is not None:
            return connection
        try:
            return self.take_new(_OwnerConnection(connect(self._folder, blocking=blocking)))
        except OSError as exc:
            raise Unavailable(
                f"nobody listens for clients of {self._folder}: {exc.strerror or exc}"
            ) from exc


class _OwnerConnection:
    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._reader = FrameReader()

    def exchange(self, question: bytes, timeout_s: float) -> SocketFrame:
        try:
            self._sock.settimeout(timeout_s)
            self._sock.sendall(question)
            while True:
                frame = self._feed(self._sock.recv(_READ_BYTES))
                if frame is not None:
                    return frame
        except TimeoutError:
            raise AnswerLost(f"the owner did not answer within {timeout_s:.3g} s") from None
        except OSError as exc:
            raise self._error(exc) from exc

    async def exchange_on_loop(self, question: bytes) -> SocketFrame:
        loop = asyncio.get_running_loop()
        try:
            self._sock.settimeout(0)
            await loop.sock_sendall(self._sock, question)
            while True:
                frame = self._feed(await loop.sock_recv(self._sock, _READ_BYTES))
                if frame is not None:
                    return frame
        except OSError as exc:
            if isinstance(exc, TimeoutError):
                raise
            raise self._error(exc) from exc

    def hang_up(self) -> None:
        """From another thread than the one that waits, which closes it then."""
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._sock.close()

    def _feed(self, data: bytes) -> SocketFrame | None:
        if not data:
            raise AnswerLost("the owner went away before it answered")
        return self._reader.feed(data)

    def _error(self, exc: OSError) -> Unavailable:
        # The kernel tells: a broken pipe, or a reset, is a question that was not read to its end.
        was_not_read = isinstance(exc, BrokenPipeError | ConnectionResetError)
        if was_not_read and self._reader.is_between_frames:
            return Unavailable("the owner went away before it was asked")
        return AnswerLost(f"the connection broke: {exc.strerror or exc}")
