"""All WebSockets of a server: counted, watched over once a second, and ended with it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from starlette.types import Receive, Scope, Send

from penstock.errors import PenstockError
from penstock.server.push.socket import RESTART, UNAUTHENTICATED, PushSocket

if TYPE_CHECKING:
    from penstock.server.door import Door

_LOOK_EVERY_S = 1.0


class PushSockets:
    """One timer for all of them, so that a thousand idle ones cost nothing."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._open: set[PushSocket] = set()
        self._looking: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._open)

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        socket = PushSocket(self._door, scope, receive, send)
        self._open.add(socket)
        if self._looking is None:
            self._look()
        try:
            await socket.serve()
        finally:
            self._open.discard(socket)
            self._door.connections.closed(socket)

    def stop(self) -> None:
        """Tell all that the server ends."""
        for socket in list(self._open):
            socket.end(RESTART, "the server stops")

    def _look(self) -> None:
        """End the sockets whose key was revoked."""
        self._looking = None
        if not self._open:
            return
        for socket in list(self._open):
            try:
                if socket.key is not None:
                    self._door.gate.check_still_good(socket.key)
            except PenstockError as exc:
                socket.end(UNAUTHENTICATED, str(exc))
        self._looking = asyncio.get_running_loop().call_later(_LOOK_EVERY_S, self._look)
