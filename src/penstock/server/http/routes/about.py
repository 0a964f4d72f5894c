"""The server itself: health, version, metrics, and its own description."""

from __future__ import annotations

from pathlib import Path

import msgspec

from penstock import __version__
from penstock.errors import Unavailable
from penstock.server.http.answers import JSON_TYPE, Answer
from penstock.server.http.endpoints import Call, Table
from penstock.server.metrics import METRICS_TYPE, exposition

table = Table("server")

_PAGE = Path(__file__).parents[2].joinpath("docs.html").read_bytes()
_POLICY = "; ".join(
    [
        "default-src 'none'",
        "style-src 'unsafe-inline'",
        "script-src 'unsafe-inline'",
        "connect-src 'self'",
    ]
)


class Health(msgspec.Struct, frozen=True, kw_only=True):
    status: str


class Version(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    version: str


@table.add("GET", "/healthz", right=None, result=Health, in_namespaces=False)
def healthz(call: Call) -> Health:
    """Whether the process answers."""
    return Health(status="ok")


@table.add("GET", "/readyz", right=None, result=Health, in_namespaces=False)
def readyz(call: Call) -> Health:
    """Whether it takes work: 503 while it is stopping."""
    if call.door.stopping or call.broker.closed:
        raise Unavailable("the server is stopping")
    return Health(status="ready")


@table.add("GET", "/version", right=None, result=Version, in_namespaces=False)
def version(call: Call) -> Version:
    """Which Penstock this is."""
    return Version(name="penstock", version=__version__)


@table.add("GET", "/metrics", right="describe", result_types=(METRICS_TYPE,), in_namespaces=False)
async def metrics(call: Call) -> Answer:
    """For Prometheus."""
    body = await call.door.aside(exposition, call.door, call.door.files)
    return Answer(200, METRICS_TYPE, body)


@table.add("GET", "/openapi.json", right=None, result_types=(JSON_TYPE,), in_namespaces=False)
def openapi(call: Call) -> Answer:
    """This description."""
    return Answer(200, JSON_TYPE, call.door.description())


@table.add("GET", "/docs", right=None, result_types=("text/html",), in_namespaces=False)
def docs(call: Call) -> Answer:
    """This description, for people."""
    return Answer(
        200,
        "text/html; charset=utf-8",
        _PAGE,
        (("content-security-policy", _POLICY), ("x-content-type-options", "nosniff")),
    )
