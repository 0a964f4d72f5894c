"""From a URL to a client, once the server has answered."""

from __future__ import annotations

import asyncio
import ssl

import msgspec

from penstock.client.remote.asking import Asking
from penstock.client.remote.client import AsyncRemoteClient, RemoteClient
from penstock.client.remote.connections import AsyncConnections, Connections
from penstock.client.remote.http import Address, Request, Writer
from penstock.client.waiting import Steps, run, run_async
from penstock.clock import Clock
from penstock.config import api_key as default_api_key
from penstock.durations import Duration, parse_ns
from penstock.errors import InvalidInput

_FIRST_TRY_S = 3.0  # so long a server may take to come up while somebody connects


class RemoteConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How a client reaches its server."""

    api_key: str | None = None
    """By default that of PENSTOCK_API_KEY."""
    timeout_ms: int = 30_000
    """How long an answer may take, on top of the time that a receive waits."""
    retry_for_ms: int = 30_000
    """What can pass is tried again for so long: a server that restarts, a full disk."""
    tls_ca: str | None = None
    """The certificate of the authority that signed the server's, a PEM file."""


def connect_remote(
    url: str, namespace: str, config: RemoteConfig, clock: Clock | None = None
) -> RemoteClient:
    """A client, once the server has answered."""
    asking = _asking(Connections, url, config, clock)
    try:
        client = RemoteClient(asking, namespace)
        run(_ask_version(asking, config))
    except BaseException:
        asking.close()
        raise
    return client


async def connect_remote_async(
    url: str, namespace: str, config: RemoteConfig, clock: Clock | None = None
) -> AsyncRemoteClient:
    """The same for the event loop on which it is awaited."""
    # Beside the loop: the certificates of a machine take a moment to read.
    asking = await asyncio.to_thread(_asking, AsyncConnections, url, config, clock)
    try:
        client = AsyncRemoteClient(asking, namespace)
        await run_async(_ask_version(asking, config))
    except BaseException:
        asking.close()
        raise
    return client


def remote_config(
    api_key: str | None, timeout: Duration, retry_for: Duration, tls_ca: str | None
) -> RemoteConfig:
    return RemoteConfig(
        api_key=api_key,
        timeout_ms=max(1, parse_ns(timeout, "timeout") // 1_000_000),
        retry_for_ms=parse_ns(retry_for, "retry_for") // 1_000_000,
        tls_ca=tls_ca,
    )


def _asking(
    kind: type[Connections] | type[AsyncConnections],
    url: str,
    config: RemoteConfig,
    clock: Clock | None,
) -> Asking:
    address = Address.parse(url)
    writer = Writer(address, config.api_key or default_api_key())
    connections = kind(address, writer, _tls(address, config), config.timeout_ms / 1000)
    return Asking(connections, config.retry_for_ms / 1000, clock)


def _ask_version(asking: Asking, config: RemoteConfig) -> Steps[None]:
    patience_s = min(_FIRST_TRY_S, config.retry_for_ms / 1000)
    yield from asking.ask(Request("GET", "/version"), retry_for_s=patience_s)


def _tls(address: Address, config: RemoteConfig) -> ssl.SSLContext | None:
    if address.scheme != "https":
        return None
    try:
        return ssl.create_default_context(cafile=config.tls_ca)
    except (OSError, ssl.SSLError) as exc:
        raise InvalidInput(f"tls_ca {config.tls_ca!r} cannot be read: {exc}") from None
