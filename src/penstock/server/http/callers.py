"""Who asks: by the key in a header or, in a browser, by the session in a cookie.

A browser adds its cookie to whatever any page asks for. So what is asked by cookie, and changes
something, has to come from a page of this server.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.server.gate import Gate
from penstock.server.http.heads import Names, token_of
from penstock.server.keys import Key

_READING = ("GET", "HEAD")


def identify(gate: Gate, names: Names, method: str, headers: Mapping[bytes, bytes]) -> Key | None:
    """Whose request it is; None where no key is asked for. Raises Unauthenticated or Forbidden."""
    token = token_of(headers)
    if token is None and b"cookie" in headers:
        session = session_of(gate, headers)
        if session is not None:
            if method not in _READING:
                names.check_own_page(headers)
            return gate.identify_session(session)
    return gate.identify(token)


def session_of(gate: Gate, headers: Mapping[bytes, bytes]) -> str | None:
    """The token of the session in the cookie, if there is one."""
    for part in headers.get(b"cookie", b"").decode("latin-1").split(";"):
        name, _, value = part.strip().partition("=")
        if name == gate.sessions.cookie:
            return value
    return None
