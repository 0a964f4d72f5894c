"""From a URL to a link, once the server has answered."""

from __future__ import annotations

import ssl

import msgspec

from penstock.client.http.link import HttpLink
from penstock.client.http.pool import AsyncConnections, Connections
from penstock.client.http.protocol import Address, RequestWriter, ServerRequest
from penstock.client.http.retrying import JSON, RetryingClient, check_type
from penstock.client.waiting import Steps
from penstock.clock import Clock
from penstock.config import api_key as default_api_key
from penstock.errors import InvalidInput

_FIRST_TRY_S = 3.0  # so long a server may take to come up while somebody connects


class HttpConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How a client reaches its server."""

    api_key: str | None = None
    """By default that of PENSTOCK_API_KEY."""
    timeout_ms: int = 30_000
    """How long an answer may take, on top of the time that a receive waits."""
    retry_for_ms: int = 30_000
    """What can pass is tried again for so long: a server that restarts, a full disk."""
    tls_ca: str | None = None
    """The certificate of the authority that signed the server's, a PEM file."""


def http_link(
    url: str, config: HttpConfig, clock: Clock | None = None, *, for_loop: bool = False
) -> HttpLink:
    """A link that nobody has tried yet, for threads or for an event loop."""
    address = Address.parse(url)
    writer = RequestWriter(address, config.api_key or default_api_key())
    pool = AsyncConnections if for_loop else Connections
    connections = pool(address, writer, _tls(address, config), config.timeout_ms / 1000)
    return HttpLink(RetryingClient(connections, config.retry_for_ms / 1000, clock))


def try_link(link: HttpLink, config: HttpConfig) -> Steps[None]:
    """Hear from the server, or raise Unavailable soon."""
    patience_s = min(_FIRST_TRY_S, config.retry_for_ms / 1000)
    reply = yield from link.server.ask(ServerRequest("GET", "/version"), retry_for_s=patience_s)
    check_type(reply, JSON)


def _tls(address: Address, config: HttpConfig) -> ssl.SSLContext | None:
    if address.scheme != "https":
        return None
    try:
        return ssl.create_default_context(cafile=config.tls_ca)
    except (OSError, ssl.SSLError) as exc:
        raise InvalidInput(f"tls_ca {config.tls_ca!r} cannot be read: {exc}") from None
