"""`penstock.connect` for programs on an event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Generator
from types import TracebackType
from typing import Any

from penstock.client.async_client import AsyncClient
from penstock.client.connect import connect_async

__all__ = ["AsyncClient", "connect"]


class _Connecting:
    """Can be awaited for a client, or used with `async with`."""

    def __init__(self, target: str | os.PathLike[str], namespace: str, auto_create: bool) -> None:
        self._arguments = target, namespace, auto_create
        self._client: AsyncClient | None = None

    def __await__(self) -> Generator[Any, None, AsyncClient]:
        return asyncio.to_thread(connect_async, *self._arguments).__await__()

    async def __aenter__(self) -> AsyncClient:
        self._client = await self
        return self._client

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._client is not None:
            await self._client.close()


def connect(
    target: str | os.PathLike[str], *, namespace: str = "default", auto_create: bool = False
) -> _Connecting:
    """Open a data folder: `async with penstock.aio.connect("./data") as ps`, or await it."""
    return _Connecting(target, namespace, auto_create)
