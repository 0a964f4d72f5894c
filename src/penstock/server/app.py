"""The ASGI application: Starlette, with the API behind it."""

from __future__ import annotations

import asyncio
from asyncio import Future
from typing import Any

from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import Receive, Scope, Send

from penstock.errors import RequestTooLarge
from penstock.server.door import Door
from penstock.server.http.answers import Answer, Request


def app_of(door: Door) -> Starlette:
    """Everything that can be asked over HTTP.

    `penstock serve` gives it to uvicorn with a protocol of its own, which hands requests to the
    door without the detour through ASGI, and notices who hangs up in the middle of a poll. The
    application is for other ASGI servers; limits on heads and on slow clients are theirs.
    """
    app = Starlette(routes=[Mount("/", app=_Api(door))])
    app.state.door = door
    return app


class _Api:
    """The door as an ASGI application."""

    def __init__(self, door: Door) -> None:
        self._door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        answer = await self._answer(scope, receive)
        headers = [(name.encode(), value.encode()) for name, value in answer.headers]
        if answer.content_type:
            headers.append((b"content-type", answer.content_type.encode()))
        headers.append((b"content-length", str(len(answer.body)).encode()))
        start: dict[str, Any] = {"type": "http.response.start", "status": answer.status}
        await send({**start, "headers": headers})
        await send({"type": "http.response.body", "body": answer.body})

    async def _answer(self, scope: Scope, receive: Receive) -> Answer:
        client = scope["client"][0] if scope.get("client") else ""
        path = scope.get("raw_path", scope["path"].encode()).decode("latin-1")
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if len(body) > self._door.config.body_bytes_max:
                error = RequestTooLarge(f"more than {self._door.config.body_bytes_max} bytes")
                return self._door.refused(error, scope["method"], path, client)
            if not message.get("more_body"):
                break
        query = scope["query_string"].decode("latin-1")
        request = Request(
            scope["method"], path.partition("?")[0], query, dict(scope["headers"]), body, client
        )
        answered: Future[Answer] = asyncio.get_running_loop().create_future()

        def send(answer: Answer) -> None:
            if not answered.done():  # or nobody waits for it any more
                answered.set_result(answer)

        waiting = self._door.handle(request, send)
        try:
            return await answered
        finally:
            if waiting is not None:
                waiting.cancel()
