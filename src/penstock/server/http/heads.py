"""What the head of a request must be, before its key is looked at and its body is read.

Without API keys a server trusts whoever reaches it, so web pages must not: a page of a stranger,
open in a browser that reaches the server, could post to it, or have its own name resolve to the
server's address. Browsers say what page asks (Origin, Sec-Fetch-Site) and by which name (Host).
"""

from __future__ import annotations

import base64
import ipaddress
import socket
from collections.abc import Iterable, Mapping
from functools import lru_cache

from penstock.config import ServerConfig
from penstock.errors import Forbidden, InvalidInput

RawHeaders = Iterable[tuple[bytes, bytes]]

_SINGLE = {b"host", b"authorization", b"content-type", b"content-length", b"origin"}
_LOOPBACK_NAMES = {"localhost", ""}
_OWN_PAGES = (b"same-origin", b"none")


def headers_of(raw: RawHeaders, http_version: str) -> dict[bytes, bytes]:
    """By name, in lower case; of one that came twice, the last. Raises InvalidInput."""
    raw = raw if isinstance(raw, list) else list(raw)
    headers: dict[bytes, bytes] = dict(raw)
    if len(headers) != len(raw):
        seen: set[bytes] = set()
        for name, _ in raw:
            if name in seen and name in _SINGLE:
                raise InvalidInput(f"header {name.decode('latin-1')!r} came twice")
            seen.add(name)
    if b"expect" in headers and headers[b"expect"].lower() != b"100-continue":
        raise InvalidInput("header 'Expect' asks for something that is not known; 100-continue is")
    if http_version == "1.0":
        if b"transfer-encoding" in headers:
            raise InvalidInput("a body in chunks needs HTTP/1.1")
    elif http_version == "1.1" and b"host" not in headers:
        raise InvalidInput("header 'Host' is missing")
    return headers


def content_length(headers: Mapping[bytes, bytes]) -> int | None:
    """None: it is not known, or there is no body."""
    text = headers.get(b"content-length")
    if text is None:
        return None
    if not text.isdigit() or len(text) > 18:
        raise InvalidInput("header 'Content-Length' is not a number of bytes")
    return int(text)


def token_of(headers: Mapping[bytes, bytes]) -> str | None:
    """The API key that a request brings; None: it brings none."""
    given = headers.get(b"authorization")
    if given is None:
        key = headers.get(b"x-api-key")
        return None if key is None else key.decode("latin-1").strip()
    scheme, _, secret = given.decode("latin-1").partition(" ")
    if scheme.lower() == "basic":  # as clients of other systems bring it: it is the password
        try:
            return base64.b64decode(secret, validate=True).decode("latin-1").partition(":")[2]
        except ValueError:
            return ""
    return secret.strip() if scheme.lower() == "bearer" else ""


class Names:
    """By which names the server is called, and the pages of which are its own."""

    def __init__(self, config: ServerConfig) -> None:
        self._listed = {name.strip().lower() for name in config.allowed_hosts.split(",")} - {""}
        self._any = "*" in self._listed
        self._names = {config.host.lower(), socket.gethostname().lower(), *_LOOPBACK_NAMES}
        self._is_own = lru_cache(maxsize=256)(self._is_own_uncached)

    def check_host(self, headers: Mapping[bytes, bytes]) -> None:
        """Raise Forbidden if the server was called by a name that is not its own.

        Who resolves names of its own to this server cannot choose an address as a name.
        """
        if not self._any and not self._is_own(headers.get(b"host", b"")):
            raise Forbidden(
                f"this server has no API keys and is not called {_shown(headers[b'host'])}; add "
                "the name to allowed_hosts, or make a key"
            )

    def check_page(self, headers: Mapping[bytes, bytes]) -> None:
        """Raise Forbidden if a browser asks on behalf of a page that is not this server's."""
        origin = headers.get(b"origin")
        if origin is not None:
            if self._any or self._is_own_origin(origin, headers):
                return
            raise Forbidden(f"web pages of {_shown(origin)} must not use this server")
        if headers.get(b"sec-fetch-site", b"none") not in _OWN_PAGES and not self._any:
            raise Forbidden("web pages of other sites must not use this server")

    def check_own_page(self, headers: Mapping[bytes, bytes]) -> None:
        """Raise Forbidden unless a browser says that a page of this server asks.

        Some say nothing of sites where the connection is not safe: then the origin has to be ours.
        """
        site, origin = headers.get(b"sec-fetch-site"), headers.get(b"origin")
        if site == b"same-origin":
            return
        if site is None and origin is not None and self._is_own_origin(origin, headers):
            return
        raise Forbidden("in a session only the pages of this server may change something")

    def _is_own_origin(self, origin: bytes, headers: Mapping[bytes, bytes]) -> bool:
        host = origin.rpartition(b"://")[2].lower()
        return host == headers.get(b"host", b"").lower() or _without_port(host) in self._listed

    def _is_own_uncached(self, host: bytes) -> bool:
        name = _without_port(host.lower())
        if name in self._names or name in self._listed or name.endswith(".localhost"):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def _without_port(host: bytes) -> str:
    text = host.decode("latin-1")
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0].rstrip(".")


def _shown(name: bytes) -> str:
    return repr(name.decode("latin-1"))[:100]
