"""uvicorn's WebSockets, with the bytes of each taken in small pieces.

A frame may be six bytes long, and takes longer to be parsed than to be sent: a read of 256 KB full
of them would hold the event loop for seconds. So a piece is parsed at a time, with the work of all
others in between, and nothing more is read while there is a rest.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

PIECE_BYTES = 4 << 10


class PacedWebSocket(WebSocketsSansIOProtocol):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._rest = bytearray()  # read, and not parsed yet
        self._next: asyncio.Handle | None = None  # when the next piece is

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(_PacedTransport(transport, self))  # type: ignore[arg-type]

    def connection_lost(self, exc: Exception | None) -> None:
        self._rest.clear()
        if self._next is not None:
            self._next.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._rest += data
        if len(self._rest) == len(data):  # nothing waits for its turn
            self._parse_piece()

    def has_rest(self) -> bool:
        return bool(self._rest)

    def go_on(self) -> None:
        """The application has taken what there was: parse what was read ahead, in its turn."""
        if self._next is None:
            self._next = self.loop.call_soon(self._parse_piece)

    def _parse_piece(self) -> None:
        self._next = None
        piece = bytes(self._rest[:PIECE_BYTES])
        del self._rest[:PIECE_BYTES]
        super().data_received(piece)
        if self.transport.is_closing():
            self._rest.clear()
        elif self._rest:
            self.transport.pause_reading()
            if not self.read_paused:
                self.go_on()
        elif not self.read_paused:
            self.transport.resume_reading()


class _PacedTransport:
    """A transport that reads on only when all that was read is parsed."""

    def __init__(self, transport: asyncio.Transport, protocol: PacedWebSocket) -> None:
        self._transport = transport
        self._protocol = protocol

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def resume_reading(self) -> None:
        if self._protocol.has_rest():
            self._protocol.go_on()
        else:
            self._transport.resume_reading()
