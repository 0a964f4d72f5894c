"""`grpc.health.v1.Health`: whether the server takes work."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc

from penstock.server.grpc.descriptors import PACKAGE, message, pool

if TYPE_CHECKING:
    from penstock.server.door import Door

_LOOK_EVERY_S = 1.0
_Response = message("HealthCheckResponse", "grpc.health.v1")
_SERVING, _NOT_SERVING, _UNKNOWN = 1, 2, 3


async def health_check(door: Door, request: Any, context: Any) -> Any:
    status = _status(door, request.service)
    if status == _UNKNOWN:
        await context.abort(grpc.StatusCode.NOT_FOUND, f"no service {request.service!r:.100}")
    return _Response(status=status)


async def health_watch(door: Door, request: Any, context: Any) -> None:
    """Whenever it changes; looked at once a second."""
    said = 0
    while True:
        status = _status(door, request.service)
        if status != said:
            said = status
            await context.write(_Response(status=status))
        if door.stopping:
            return
        await asyncio.sleep(_LOOK_EVERY_S)


def _status(door: Door, service: str) -> int:
    if service:
        try:
            pool().FindServiceByName(service)
        except KeyError:
            return _UNKNOWN
        if not service.startswith((f"{PACKAGE}.", "grpc.health.v1.")):
            return _UNKNOWN
    return _NOT_SERVING if door.stopping or door.api.is_lost() else _SERVING
