"""What no client does: a request to a server's own affairs, such as its keys."""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from typing import Any

import msgspec

from penstock.cli.session import Where
from penstock.errors import InvalidInput, ProtocolError, Unavailable
from penstock.model.problem import Problem, error_of

_TIMEOUT_S = 30


def call(where: Where, method: str, path: str, body: object = None) -> Any:
    """The answer, as JSON; or the error that the server tells of."""
    url = f"{(where.url or '').rstrip('/')}{path}"
    if not url.startswith(("http://", "https://")):
        raise InvalidInput(f"{where.url} is not the URL of a server; it begins with http://")
    request = urllib.request.Request(url, method=method)
    if body is not None:
        request.data = msgspec.json.encode(body)
        request.add_header("content-type", "application/json")
    if where.api_key:
        request.add_header("authorization", f"Bearer {where.api_key}")
    try:
        tls = ssl.create_default_context(cafile=where.tls_ca)
    except OSError as exc:
        raise InvalidInput(f"tls-ca {where.tls_ca} cannot be read: {exc}") from None
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S, context=tls) as answer:
            return None if answer.status == 204 else msgspec.json.decode(answer.read())
    except urllib.error.HTTPError as exc:
        with exc:
            raise _problem(url, exc.read(), exc.code) from None
    except (OSError, urllib.error.URLError) as exc:
        reason = getattr(exc, "reason", exc)
        raise Unavailable(f"no answer from {where.url}: {reason}") from None
    except (msgspec.DecodeError, ValueError) as exc:
        raise ProtocolError(f"{url} is no Penstock server: {exc}") from None


def _problem(url: str, body: bytes, status: int) -> Exception:
    try:
        return error_of(msgspec.json.decode(body, type=Problem))
    except msgspec.MsgspecError:
        return ProtocolError(f"{url} answers {status}, and is no Penstock server")
