"""The ASGI application: Starlette finds the endpoint, a dictionary finds it again.

Whatever is asked often (publish to a topic, receive from it) is found by its method and path in a
dictionary, without passing the routes again. Any ASGI server can serve the application, under any
prefix. Limits on bodies and on time are the application's; those on heads and on clients that send
or take nothing are the server's: `penstock serve` has them (`http/connection.py`).
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from penstock.broker.api import Api
from penstock.broker.broker import Broker
from penstock.client.folder.host import open_shared
from penstock.config import ServerConfig
from penstock.errors import InvalidInput, MethodNotAllowed, NotFound
from penstock.log.local_engine import LocalEngine
from penstock.server.broker_config import broker_config_of
from penstock.server.door import Door
from penstock.server.http import confluent
from penstock.server.http.dispatch import Dispatcher, RouteMatch
from penstock.server.http.endpoints import Endpoint, paths
from penstock.server.http.routes import ENDPOINTS
from penstock.server.keys import KeyStore
from penstock.server.metrics import MeteredFiles
from penstock.server.sqs.accounts import is_queue_path
from penstock.server.sqs.dispatch import SqsDispatcher
from penstock.wire import push

_REMEMBERED_MAX = 4096


class Application:
    """Everything that can be asked of a server, as an ASGI application."""

    def __init__(self, door: Door, on_close: Callable[[], None] = lambda: None) -> None:
        self.door = door
        self.dispatcher = Dispatcher(door)
        self.sqs = SqsDispatcher(door)
        self._on_close = on_close
        self._found: dict[tuple[str, str], RouteMatch] = {}
        self._router = Router(
            _routes(self), redirect_slashes=False, default=self._nothing, lifespan=self.lifespan
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            found = self._found.get((scope["method"], _path(scope)))
            if found is not None:
                await self.dispatcher.serve(found, scope, receive, send)
                return
            if scope["method"] == "POST" and is_queue_path(_path(scope)):
                await self.sqs.answer(scope, receive, send)
                return
        elif scope["type"] == "websocket" and _path(scope) == push.PATH:
            await self.door.sockets.serve(scope, receive, send)
            return
        await self._router(scope, receive, send)

    @asynccontextmanager
    async def lifespan(self, app: Any) -> AsyncIterator[None]:
        """For the application that this one is mounted in."""
        self.door.webhooks.start()
        try:
            yield
        finally:
            self.door.stop()
            await self.sqs.state.moves.stop()
            await self.door.webhooks.stop()
            self.close()

    def close(self) -> None:
        """Close the door and, if it was opened for this application, the broker."""
        self.door.close()
        self._on_close()

    def remember(self, scope: Scope, found: RouteMatch) -> None:
        if len(self._found) >= _REMEMBERED_MAX:
            self._found.clear()
        self._found[scope["method"], _path(scope)] = found

    async def _nothing(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close"})
            return
        error = NotFound(f"there is nothing at {scope['path']:.200}; /docs shows what there is")
        await self.dispatcher.serve(RouteMatch(None, {}, error), scope, receive, send)


class _Resource:
    """What is at one path, method by method."""

    def __init__(self, app: Application, endpoints: list[Endpoint], names: list[str]) -> None:
        self._app = app
        self._names = names
        self._methods = {endpoint.method: endpoint for endpoint in endpoints}
        if "GET" in self._methods:
            self._methods["HEAD"] = self._methods["GET"]  # the same, whose body is not sent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method, path = scope["method"], scope["path"]
        endpoint = self._methods.get(method)
        if endpoint is None:
            allow = ", ".join(sorted(self._methods))
            error = MethodNotAllowed(
                f"{method:.20} does not work on {path:.200}; use {allow}", allow
            )
            found = RouteMatch(None, {}, error)
        else:
            found = RouteMatch(endpoint, {name: scope["path_params"][name] for name in self._names})
            self._app.remember(scope, found)
        await self._app.dispatcher.serve(found, scope, receive, send)


def open_application(data: str | os.PathLike[str] | Broker, **settings: Any) -> Application:
    """See `penstock.server.app`."""
    unknown = settings.keys() - set(ServerConfig.__struct_fields__)
    if unknown:
        raise InvalidInput(f"{min(unknown)!r} is not a setting of the server")
    if isinstance(data, Broker):
        config = ServerConfig(data=data.folder, **settings)
        return Application(Door(_api(data, config), config, _keys(config)))
    config = ServerConfig(data=os.fspath(data), **settings)
    files = MeteredFiles()
    broker_config = broker_config_of(config)
    keys = _keys(config)
    broker, host = open_shared(LocalEngine(config.data, files=files), broker_config)
    api = _api(broker, config)
    host.serve(api)

    def close() -> None:
        with broker:
            host.close()

    return Application(Door(api, config, keys, files=files), close)


def _api(broker: Broker, config: ServerConfig) -> Api:
    return Api(broker, answer_bytes_max=config.body_bytes_max)


def _keys(config: ServerConfig) -> KeyStore:
    keys = KeyStore.open(config.data)
    keys.check_not_lost()
    check_required(config, keys)
    return keys


def check_required(config: ServerConfig, keys: KeyStore) -> None:
    if config.require_keys and keys.empty:
        raise InvalidInput(
            f"require_keys is set, and {config.data} has no API key; make one with "
            "`penstock key create`"
        )


def _routes(app: Application) -> list[Route]:
    """One for each path; those with a name at a place before those with a parameter there."""
    by_path: dict[str, list[Endpoint]] = {}
    for endpoint in ENDPOINTS:
        for path in paths(endpoint):
            by_path.setdefault(path, []).append(endpoint)

    def order(path: str) -> list[bool]:
        return [segment.startswith("{") for segment in path.split("/")]

    dialect = [*confluent.ENDPOINTS.values()]
    return [
        *(
            Route(path, _Resource(app, by_path[path], _names(path)))
            for path in sorted(by_path, key=order)
        ),
        Route(confluent.PREFIX + "{rest:path}", _Resource(app, dialect, ["rest"])),
        Route(
            "/v1/namespaces/{namespace}" + confluent.PREFIX + "{rest:path}",
            _Resource(app, dialect, ["namespace", "rest"]),
        ),
    ]


def _names(path: str) -> list[str]:
    return [segment[1:-1] for segment in path.split("/") if segment.startswith("{")]


def _path(scope: Scope) -> str:
    """Below the prefix under which the application is mounted."""
    path: str = scope["path"]
    root = scope.get("root_path")
    return path.removeprefix(root) if root else path
