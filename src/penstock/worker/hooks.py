"""Hooks: what an app does before its first message, and after its last."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextvars import copy_context
from functools import partial
from typing import Any

from penstock.client.client import AsyncClient, Client
from penstock.errors import InvalidInput
from penstock.worker.awaiting import awaited
from penstock.worker.handlers import Clients, check_client, is_async, signature_of
from penstock.worker.publishing import OUTBOX, Outbox, Publisher


class Hook:
    """A function that takes nothing, or the app's client."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.name = getattr(function, "__qualname__", repr(function))
        self.is_async = is_async(function)
        self._client_name: str | None = None
        for parameter in signature_of(function, self.name):
            kind = parameter.annotation
            if kind in (Client, AsyncClient) or parameter.name == "ps":
                check_client(kind, self.is_async, self.name)
                self._client_name = parameter.name
            elif parameter.default is parameter.empty:
                raise InvalidInput(
                    f"{self.name} takes {parameter.name!r}; a hook takes nothing, or a client"
                )

    @property
    def wants_client(self) -> bool:
        return self._client_name is not None

    def arguments(self, clients: Clients) -> dict[str, Any]:
        client = clients.on_loop if self.is_async else clients.blocking
        return {} if self._client_name is None else {self._client_name: client}


async def run_hooks(
    hooks: Sequence[Hook], clients: Clients, publisher: Publisher, *, threads: bool = True
) -> None:
    """One after the other. One that blocks has a thread, except in a test."""
    for hook in hooks:
        outbox = Outbox(publisher)
        token = OUTBOX.set(outbox)
        try:
            call = partial(hook.function, **hook.arguments(clients))
            if hook.is_async or not threads:
                await awaited(call())
            else:
                await awaited(await asyncio.to_thread(copy_context().run, call))
            await outbox.flush()
        finally:
            OUTBOX.reset(token)
