"""All WebSockets of a server: counted, and ended with it or with their keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.types import Receive, Scope, Send

from penstock.server.push.socket import RESTART, PushSocket

if TYPE_CHECKING:
    from penstock.server.door import Door


class PushSockets:
    def __init__(self, door: Door) -> None:
        self._door = door
        self._open: set[PushSocket] = set()

    def __len__(self) -> int:
        return len(self._open)

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        socket = PushSocket(self._door, scope, receive, send)
        self._open.add(socket)
        try:
            await socket.serve()
        finally:
            self._open.discard(socket)
            self._door.connections.closed(socket)

    def stop(self) -> None:
        """Tell all that the server ends."""
        for socket in list(self._open):
            socket.end(RESTART, "the server stops")
