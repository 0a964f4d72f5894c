"""The way of a client's requests to the node of a cluster that has its namespace.

They go there as they are, over a connection of their own, and the answers come back as they are.
The other node tells the client where it is itself, so that the client asks there next time. Before
all else it is told that this is another node, and what the client said to show who it is.
"""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from penstock.config import host_and_port
from penstock.errors import Unavailable
from penstock.server.kafka.messages import API_VERSIONS

if TYPE_CHECKING:
    from penstock.cluster.registry import NodeInfo

FORWARDED = "penstock-forwarded"
"""The name of a client that is another node."""

_SIZE = struct.Struct(">i")
_GREETING = struct.pack(">hhih", API_VERSIONS, 0, 0, len(FORWARDED)) + FORWARDED.encode()
_OPEN_S = 5.0
_PIECE_BYTES = 256 << 10


class Tunnel:
    def __init__(self, node: NodeInfo, *, is_secure: bool) -> None:
        self.news = asyncio.Event()
        """The client has asked something."""
        self._node = node
        self._tls = ssl.create_default_context() if is_secure else None
        self._writer: asyncio.StreamWriter | None = None
        self._may_come = asyncio.Event()
        self._may_come.set()
        self._back: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def opened(
        self, first: Sequence[bytes], came: Callable[[bytes], None]
    ) -> AsyncIterator[None]:
        """`first`: the requests that the other node has to see first; what it answers to them is
        not for the client. Raises Unavailable, also when the other node ends it later."""
        if not self._node.kafka:
            raise Unavailable(f"the owner at {self._node.url} has no port for Kafka; set `kafka`")
        try:
            async with asyncio.timeout(_OPEN_S):
                host, port = host_and_port(self._node.kafka)
                reader, self._writer = await asyncio.open_connection(host, port, ssl=self._tls)
                for frame in (_GREETING, *first):
                    await self.send(frame)
                    (size,) = _SIZE.unpack(await reader.readexactly(_SIZE.size))
                    await reader.readexactly(size)
            self._back = asyncio.create_task(self._take_back(reader, came))
            self._back.add_done_callback(lambda _: self.news.set())
            yield
        except (OSError, EOFError) as exc:
            raise Unavailable(f"the owner at {self._node.kafka}: {exc or 'no answer'}") from exc
        finally:
            if self._back is not None:
                self._back.cancel()
            if self._writer is not None:
                self._writer.close()

    async def send(self, frame: bytes) -> None:
        assert self._writer is not None
        self._writer.write(_SIZE.pack(len(frame)))
        self._writer.write(frame)
        await self._writer.drain()

    async def wait(self) -> None:
        """Until there is news. Raises EOFError when the other node has ended it."""
        await self.news.wait()
        self.news.clear()
        if self._back is not None and self._back.done():
            self._back.result()
            raise EOFError("it has ended the connection")

    def pause(self) -> None:
        """The client does not take what comes back."""
        self._may_come.clear()

    def resume(self) -> None:
        self._may_come.set()

    async def _take_back(self, reader: asyncio.StreamReader, came: Callable[[bytes], None]) -> None:
        while data := await reader.read(_PIECE_BYTES):
            came(data)
            await self._may_come.wait()
