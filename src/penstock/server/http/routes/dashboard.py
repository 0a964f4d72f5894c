"""The dashboard: a page and its files, as they were built from `dashboard/`.

It needs nothing but the API, and nothing from elsewhere. Its files have their hash in their names,
so that browsers may keep them; all its addresses are relative, so that it works under any prefix.
"""

from __future__ import annotations

import gzip
from functools import cache
from pathlib import Path
from typing import NamedTuple

from penstock.errors import NotFound
from penstock.server.http.answers import Answer
from penstock.server.http.endpoints import HttpRequest, Table

table = Table("server")

STATIC = Path(__file__).parents[2] / "dashboard" / "static"

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
}
_POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    ]
)
_HEADERS = (
    ("content-security-policy", _POLICY),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("vary", "accept-encoding"),
)
_FOR_EVER = ("cache-control", "public, max-age=31536000, immutable")
_ASK_AGAIN = ("cache-control", "no-cache")


class _File(NamedTuple):
    content_type: str
    plain: bytes
    packed: bytes


@table.add("GET", "/", right=None, result_types=("text/html",), in_namespaces=False)
def dashboard(call: HttpRequest) -> Answer:
    """The dashboard, for people."""
    return _answer(call, _files()["index.html"], _ASK_AGAIN)


@table.add("GET", "/assets/{file}", right=None, result_types=("text/plain",), in_namespaces=False)
def dashboard_file(call: HttpRequest) -> Answer:
    """A file of that page."""
    found = _files().get(f"assets/{call.parameters['file']}")
    if found is None:
        raise NotFound(f"there is no file {call.parameters['file']:.100} in /assets")
    return _answer(call, found, _FOR_EVER)


def _answer(call: HttpRequest, file: _File, caching: tuple[str, str]) -> Answer:
    if b"gzip" in call.request.headers.get(b"accept-encoding", b""):
        headers = (*_HEADERS, caching, ("content-encoding", "gzip"))
        return Answer(200, file.content_type, file.packed, headers)
    return Answer(200, file.content_type, file.plain, (*_HEADERS, caching))


@cache
def _files() -> dict[str, _File]:
    """All of them, by their place below the page."""
    found = {}
    for path in [STATIC / "index.html", *sorted((STATIC / "assets").iterdir())]:
        plain = path.read_bytes()
        packed = gzip.compress(plain, 9, mtime=0)
        found[str(path.relative_to(STATIC))] = _File(_TYPES[path.suffix], plain, packed)
    return found
