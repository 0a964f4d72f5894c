"""Logging in: a browser gives its API key once, and has a session from then on."""

from __future__ import annotations

from typing import Annotated

import msgspec

from penstock import __version__
from penstock.errors import Forbidden
from penstock.server.http.answers import JSON_TYPE, NOTHING, Answer
from penstock.server.http.callers import identify, session_of
from penstock.server.http.endpoints import HttpRequest, Table
from penstock.server.keys import RIGHTS, Key, Right, Role
from penstock.server.sessions import LIFETIME_S

table = Table("sessions")


class SessionView(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks, and what they may."""

    version: str
    keys: bool
    """Whether this server asks for keys; without, everybody may do everything."""
    name: str | None
    role: Role | None
    namespace: str | None
    """The only one that the key is good for; null: all."""
    rights: list[Right]


class LogIn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    key: Annotated[str, msgspec.Meta(max_length=256)]


@table.add("GET", "/v1/session", right=None, result=SessionView, in_namespaces=False)
def describe_session(call: HttpRequest) -> SessionView:
    """Who asks, by their key or their session, and what they may."""
    request, door = call.request, call.door
    door.names.check_page(request.headers)
    key = identify(door.gate, door.names, request.method, request.headers)
    if key is None:
        door.names.check_host(request.headers)
    return _view(key)


@table.add("POST", "/v1/session", right=None, body=LogIn, result=SessionView, in_namespaces=False)
def log_in(call: HttpRequest) -> Answer:
    """Begin a session with an API key; it is in a cookie from then on, for twelve hours."""
    door, body = call.door, call.body
    door.names.check_page(call.request.headers)
    key = door.gate.identify(body.key)
    if key is None:
        raise Forbidden("this server has no API keys: there is nothing to log in to")
    token = door.gate.sessions.begin(key)
    return _with_cookie(call, 200, msgspec.json.encode(_view(key)), token, LIFETIME_S)


@table.add("DELETE", "/v1/session", right=None, in_namespaces=False)
def log_out(call: HttpRequest) -> Answer:
    """End the session."""
    door = call.door
    door.names.check_page(call.request.headers)
    token = session_of(door.gate, call.request.headers)
    if token is None:
        return NOTHING
    door.names.check_own_page(call.request.headers)
    door.gate.sessions.end(token)
    return _with_cookie(call, 204, b"", "", 0)


def _view(key: Key | None) -> SessionView:
    rights = RIGHTS["admin"] if key is None else RIGHTS[key.role]
    return SessionView(
        version=__version__,
        keys=key is not None,
        name=None if key is None else key.name,
        role=None if key is None else key.role,
        namespace=None if key is None else key.namespace,
        rights=sorted(rights),
    )


def _with_cookie(call: HttpRequest, status: int, body: bytes, token: str, age_s: int) -> Answer:
    cookie = [
        f"{call.door.gate.sessions.cookie}={token}",
        f"Path={call.request.root or '/'}",
        f"Max-Age={age_s}",
        "HttpOnly",
        "SameSite=Strict",
    ]
    if call.request.secure:
        cookie.append("Secure")
    headers = (("set-cookie", "; ".join(cookie)), ("cache-control", "no-store"))
    return Answer(status, JSON_TYPE if body else "", body, headers)
