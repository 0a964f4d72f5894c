"""Requests that another node has to answer: sent on as they come, and so is its answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any

import aiohttp
from starlette.types import Message, Receive, Scope, Send

from penstock.errors import Unavailable
from penstock.server.http.bodies import ClientGone
from penstock.wire.routes import OWNER_HEADER

FORWARDED = b"penstock-forwarded"
"""By which node: a request goes on once."""
OWNER = OWNER_HEADER.encode()

# Of this connection alone, or about who asks and by which name, which was checked here.
_NOT_SENT_ON = frozenset(
    {
        b"host", b"connection", b"keep-alive", b"transfer-encoding", b"te", b"trailer", b"upgrade",
        b"proxy-connection", b"origin", b"referer", b"sec-fetch-site", b"sec-fetch-mode",
        b"sec-fetch-dest", b"expect", b"http2-settings", b"sec-websocket-key",
        b"sec-websocket-version", b"sec-websocket-extensions", b"sec-websocket-protocol",
        FORWARDED,
    }
)  # fmt: skip
_NOT_SENT_BACK = frozenset({"connection", "keep-alive", "transfer-encoding", "date", "server"})
_PIECE_BYTES = 256 << 10
_CONNECT_S = 2.0


class Forwarder:
    """The connections of a node to the others. Used on the event loop of the server."""

    def __init__(self, node: str) -> None:
        self._node = node.encode()
        self._session: aiohttp.ClientSession | None = None

    async def send_on(self, url: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises Unavailable if nothing of an answer came, ClientGone if nobody waits for one."""
        sent = asyncio.Event()
        work = asyncio.create_task(self._exchange(url, scope, receive, send, sent))
        hang_up = asyncio.create_task(_hung_up(receive, sent))
        try:
            await asyncio.wait((work, hang_up), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise ClientGone
            work.result()
        finally:
            for task in (work, hang_up):
                task.cancel()
            await asyncio.gather(work, hang_up, return_exceptions=True)

    async def _exchange(
        self, url: str, scope: Scope, receive: Receive, send: Send, sent: asyncio.Event
    ) -> None:
        path = scope.get("raw_path", scope["path"].encode()).decode("latin-1").partition("?")[0]
        query = scope["query_string"].decode("latin-1")
        begun = False
        body = _body(receive, sent) if _has_body(scope) else None
        if body is None:
            sent.set()
        try:
            asked = self._open().request(
                scope["method"],
                f"{url.rstrip('/')}{path}{'?' if query else ''}{query}",
                headers=self._headers(scope),
                data=body,
                allow_redirects=False,
            )
            async with asked as answer:
                headers = [
                    (name.lower().encode(), value.encode("latin-1"))
                    for name, value in answer.headers.items()
                    if name.lower() not in _NOT_SENT_BACK
                ]
                headers.append((OWNER, url.encode()))
                begun = True
                await send(
                    {"type": "http.response.start", "status": answer.status, "headers": headers}
                )
                async for piece in answer.content.iter_chunked(_PIECE_BYTES):
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                await send({"type": "http.response.body", "body": b""})
        except (aiohttp.ClientError, OSError, TimeoutError) as exc:
            if begun:
                raise  # the connection breaks off, as that of the owner did
            raise Unavailable(f"the owner at {url} does not answer: {exc}") from exc

    async def ask(self, url: str, path: str, headers: Mapping[str, str]) -> tuple[int, bytes]:
        """A short question."""
        own = {**headers, FORWARDED.decode(): self._node.decode()}
        try:
            async with self._open().get(
                f"{url.rstrip('/')}{path}", headers=own, timeout=aiohttp.ClientTimeout(total=10)
            ) as answer:
                return answer.status, await answer.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as exc:
            raise Unavailable(f"the node at {url} does not answer: {exc}") from exc

    async def send_socket_on(self, url: str, scope: Scope, receive: Receive, send: Send) -> None:
        """A WebSocket. Raises Unavailable if the other node does not take it."""
        query = scope["query_string"].decode("latin-1")
        headers = self._headers(scope)
        try:
            theirs = await self._open().ws_connect(
                f"{url.rstrip('/')}{scope['path']}{'?' if query else ''}{query}",
                headers=headers,
                protocols=scope.get("subprotocols") or (),
                max_msg_size=0,
            )
        except (aiohttp.ClientError, OSError, TimeoutError) as exc:
            raise Unavailable(f"the owner at {url} does not answer: {exc}") from exc
        async with theirs:
            if (await receive())["type"] != "websocket.connect":
                return
            await send({"type": "websocket.accept", "subprotocol": theirs.protocol})
            there = asyncio.create_task(_to_owner(receive, theirs))
            back = asyncio.create_task(_to_client(theirs, send))
            await asyncio.wait((there, back), return_when=asyncio.FIRST_COMPLETED)
            for task in (there, back):
                task.cancel()
                with suppress(asyncio.CancelledError, aiohttp.ClientError, OSError):
                    await task
            if not there.done() or there.cancelled():
                with suppress(RuntimeError):
                    code = theirs.close_code or 1012
                    await send({"type": "websocket.close", "code": code if code != 1006 else 1012})

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=30),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
                auto_decompress=False,
                skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            )
        return self._session

    def _headers(self, scope: Scope) -> list[tuple[str, str]]:
        found = [
            (name.decode("latin-1"), value.decode("latin-1"))
            for name, value in scope["headers"]
            if name not in _NOT_SENT_ON
        ]
        found.append((FORWARDED.decode(), self._node.decode()))
        return found


def _has_body(scope: Scope) -> bool:
    return any(
        (name == b"content-length" and value != b"0") or name == b"transfer-encoding"
        for name, value in scope["headers"]
    )


async def _body(receive: Receive, sent: asyncio.Event) -> AsyncIterator[bytes]:
    while True:
        message: Message = await receive()
        if message["type"] == "http.disconnect":
            raise aiohttp.ClientConnectionError("the client hung up")
        if message.get("body"):
            yield message["body"]
        if not message.get("more_body"):
            sent.set()
            return


async def _hung_up(receive: Receive, sent: asyncio.Event) -> None:
    await sent.wait()
    while (await receive())["type"] != "http.disconnect":
        pass


async def _to_owner(receive: Receive, theirs: Any) -> None:
    while True:
        message = await receive()
        if message["type"] == "websocket.disconnect":
            await theirs.close(code=message.get("code") or 1000)
            return
        if message.get("bytes") is not None:
            await theirs.send_bytes(message["bytes"])
        else:
            await theirs.send_str(message.get("text") or "")


async def _to_client(theirs: Any, send: Send) -> None:
    async for message in theirs:
        if message.type is aiohttp.WSMsgType.BINARY:
            await send({"type": "websocket.send", "bytes": message.data})
        elif message.type is aiohttp.WSMsgType.TEXT:
            await send({"type": "websocket.send", "text": message.data})
