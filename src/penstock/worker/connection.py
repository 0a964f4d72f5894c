"""The connection of an app: a client for its event loop, and one for functions that block."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Self

from penstock import aio
from penstock.client.client import AsyncClient, Client
from penstock.client.connect import ConnectOptions, connect_sync, is_url
from penstock.worker.handlers import Clients, Handler
from penstock.worker.hooks import Hook
from penstock.worker.publishing import LoopPublisher

if TYPE_CHECKING:
    from penstock.worker.app import App


class AppConnection:
    """Open for as long as a worker runs."""

    def __init__(self, app: App, clients: Clients, closing: AsyncExitStack) -> None:
        assert clients.on_loop is not None
        self.ps = clients.on_loop
        self.clients = clients
        self.publisher = LoopPublisher(app, self.ps, asyncio.get_running_loop())
        self._closing = closing

    @classmethod
    async def open(cls, app: App) -> Self:
        assert app.target is not None
        async with AsyncExitStack() as closing:
            ps = await closing.enter_async_context(
                aio.connect(
                    app.target, namespace=app.namespace, api_key=app.api_key, tls_ca=app.tls_ca
                )
            )
            blocking = None
            if _blocks(app):
                blocking = await _blocking_client(app, ps)
                if is_url(app.target):  # a folder is closed once, by the other client
                    closing.push_async_callback(asyncio.to_thread, blocking.close)
            return cls(app, Clients(ps, blocking), closing.pop_all())
        raise AssertionError("unreachable")

    async def close(self) -> None:
        await self._closing.aclose()


def _blocks(app: App) -> bool:
    """Whether somebody wants a client who cannot await."""
    users: list[Handler | Hook] = [
        *(c.handler for c in app.consumers),
        *app.startup_hooks,
        *app.shutdown_hooks,
    ]
    return any(user.wants_client and not user.is_async for user in users)


async def _blocking_client(app: App, ps: AsyncClient) -> Client:
    assert app.target is not None
    if not is_url(app.target):  # the broker is in this process: another face of it
        return Client(ps.link, app.namespace)
    options = ConnectOptions(namespace=app.namespace, api_key=app.api_key, tls_ca=app.tls_ca)
    return await asyncio.to_thread(connect_sync, app.target, options)
