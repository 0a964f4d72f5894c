"""The server itself: health, version, metrics, and its own description."""

from __future__ import annotations

from functools import cache, lru_cache
from pathlib import Path

import msgspec

from penstock import __version__
from penstock.errors import NotFound, Unavailable
from penstock.server.http.answers import JSON_TYPE, Answer
from penstock.server.http.endpoints import HttpRequest, Table
from penstock.server.http.openapi import describe
from penstock.server.metrics import METRICS_TYPE, exposition

table = Table("server")

_STATIC = Path(__file__).parents[2] / "static"
_FILES = {
    "swagger-ui-bundle.js": "text/javascript; charset=utf-8",
    "swagger-ui.css": "text/css; charset=utf-8",
    "start.js": "text/javascript; charset=utf-8",
}
_POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
)
_HEADERS = (("content-security-policy", _POLICY), ("x-content-type-options", "nosniff"))


class Health(msgspec.Struct, frozen=True, kw_only=True):
    status: str


class Version(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    version: str


@table.add("GET", "/healthz", right=None, result=Health, in_namespaces=False)
def healthz(call: HttpRequest) -> Health:
    """Whether the process answers."""
    return Health(status="ok")


@table.add("GET", "/health", right=None, result=Health, in_namespaces=False)
def health(call: HttpRequest) -> Health:
    """The same, by its other usual name."""
    return healthz(call)


@table.add("GET", "/readyz", right=None, result=Health, in_namespaces=False)
async def readyz(call: HttpRequest) -> Health:
    """Whether it takes work: 503 while it is stopping, a log has failed, or the disk is full."""
    if call.door.stopping or call.api.closed:
        raise Unavailable("the server is stopping")
    reasons = await call.door.member_aside(call.door.readiness.reasons)
    if call.door.cluster is not None:
        reasons += call.door.cluster.reasons()
    if reasons:
        raise Unavailable("; ".join(reasons))
    return Health(status="ready")


@table.add("GET", "/version", right=None, result=Version, in_namespaces=False)
def version(call: HttpRequest) -> Version:
    """Which Penstock this is."""
    return Version(name="penstock", version=__version__)


@table.add("GET", "/metrics", right="describe", result_types=(METRICS_TYPE,), in_namespaces=False)
async def metrics(call: HttpRequest) -> Answer:
    """For Prometheus."""
    body = await call.door.aside(exposition, call.door, call.door.files)
    return Answer(200, METRICS_TYPE, body)


@table.add("GET", "/openapi.json", right=None, result_types=(JSON_TYPE,), in_namespaces=False)
async def openapi(call: HttpRequest) -> Answer:
    """This description."""
    root = call.request.root
    return Answer(200, JSON_TYPE, await call.door.aside(_description, root))  # the first takes long


@table.add("GET", "/docs", right=None, result_types=("text/html",), in_namespaces=False)
def docs(call: HttpRequest) -> Answer:
    """This description, for people."""
    return Answer(200, "text/html; charset=utf-8", _static("docs.html"), _HEADERS)


@table.add("GET", "/docs/{file}", right=None, result_types=("text/plain",), in_namespaces=False)
def docs_file(call: HttpRequest) -> Answer:
    """A file of that page."""
    name = call.parameters["file"]
    if name not in _FILES:
        raise NotFound(f"there is no file {name:.100} in /docs")
    return Answer(200, _FILES[name], _static(name), _HEADERS)


@lru_cache(maxsize=16)
def _description(root: str) -> bytes:
    # Imported when it is asked for: the list of all endpoints has this one in it.
    from penstock.server.http.routes import ENDPOINTS  # noqa: PLC0415

    return describe(ENDPOINTS, root)


@cache
def _static(name: str) -> bytes:
    return (_STATIC / name).read_bytes()
