"""`penstock.connect` for programs on an event loop."""

from __future__ import annotations

import os
from collections.abc import Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from penstock.client.client import AsyncClient
from penstock.client.connect import ConnectOptions, connect_async
from penstock.durations import Duration
from penstock.keywords import checks_keywords

__all__ = ["AsyncClient", "connect"]


class _Connecting:
    """Can be awaited for a client, or used with `async with`."""

    def __init__(self, target: str | os.PathLike[str], options: ConnectOptions) -> None:
        self._target = target
        self._options = options
        self._client: AsyncClient | None = None

    def __await__(self) -> Generator[Any, None, AsyncClient]:
        return connect_async(self._target, self._options).__await__()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(
                f"there is no {name} before the client is connected: await "
                "penstock.aio.connect(...), or use it with `async with`"
            )

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


@checks_keywords("Settings of a topic, such as fsync, go to create_topic().")
def connect(
    target: str | os.PathLike[str],
    *,
    namespace: str = "default",
    auto_create: bool = False,
    exclusive: bool = False,
    read_only: bool = False,
    api_key: str | None = None,
    timeout: Duration = "30s",
    retry_for: Duration = "30s",
    tls_ca: str | os.PathLike[str] | None = None,
) -> _Connecting:
    """A folder or a server: `async with penstock.aio.connect("./data") as ps`, or await it."""
    options = ConnectOptions(
        namespace=namespace,
        auto_create=auto_create,
        exclusive=exclusive,
        read_only=read_only,
        api_key=api_key,
        timeout=timeout,
        retry_for=retry_for,
        tls_ca=tls_ca,
    )
    return _Connecting(target, options)
