"""The ways into a broker, each with the face of `Client`, so that one suite can try them all.

A door is opened on a broker that the test made. A scenario calls the methods of a blocking client;
what comes back (messages, batches, producers, streams, dead letters) is called in the same way.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Protocol

from penstock.broker.api import Api
from penstock.broker.broker import Broker
from penstock.client.client import AsyncClient, Client
from penstock.client.connect import connect_http, connect_http_async
from penstock.client.folder.host import Host
from penstock.client.folder.link import FolderLink
from penstock.client.http.connect import HttpConfig
from penstock.client.local_link import LocalLink
from penstock.model.names import TopicName
from tests.integration.broker.grpc_door import connect_grpc
from tests.integration.broker.socket_door import connect_socket
from tests.integration.server.running import RunningServer

ANSWER_S_MAX = 60
QUICK = HttpConfig(retry_for_ms=300)


class Door(Protocol):
    """How a scenario reaches a broker. `client` has the methods of `penstock.Client`."""

    client: Any

    def close(self) -> None:
        """Close the client, and the broker with it."""
        ...

    def polls(self, name: TopicName) -> int:
        """How many calls wait for news of a topic."""
        ...


class SyncDoor:
    def __init__(self, broker: Broker, namespace: str) -> None:
        self._broker = broker
        self.client: Any = Client(LocalLink(Api(broker)), namespace)

    def close(self) -> None:
        self.client.close()

    def polls(self, name: TopicName) -> int:
        return len(self._broker.topic(name).waiters)


class AsyncDoor:
    """The client for asyncio, on an event loop in a thread of its own."""

    def __init__(self, broker: Broker, namespace: str) -> None:
        self._broker = broker
        self._start_loop()
        self.client: Any = Blocking(AsyncClient(LocalLink(Api(broker)), namespace), self._wait)

    def close(self) -> None:
        if self._thread.is_alive():
            self.client.close()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def polls(self, name: TopicName) -> int:
        return len(self._broker.topic(name).waiters)

    def _start_loop(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def _wait(self, awaitable: Awaitable[Any]) -> Any:
        async def answer() -> Any:
            return await awaitable

        return asyncio.run_coroutine_threadsafe(answer(), self._loop).result(ANSWER_S_MAX)


class RemoteDoor:
    """A server on the broker, and a client that reaches it over HTTP."""

    def __init__(self, broker: Broker, namespace: str) -> None:
        self._broker = broker
        self._server = RunningServer(broker, auto_create=broker.config.auto_create)
        # As `penstock.connect` does, but with the time of the test.
        self.client: Any = connect_http(self._server.url, namespace, QUICK, broker.clock)

    def close(self) -> None:
        self.client.close()
        self._server.stop()
        self._broker.close()

    def polls(self, name: TopicName) -> int:
        return len(self._server.door.polls)


class GrpcDoor(RemoteDoor):
    """A server on the broker, and a client that reaches it over gRPC."""

    def __init__(self, broker: Broker, namespace: str) -> None:
        self._broker = broker
        created = broker.config.auto_create
        self._server = RunningServer(broker, auto_create=created, grpc="127.0.0.1:0")
        listener = self._server.server.grpc
        assert listener is not None
        url, port = self._server.url, listener.port
        self.client = connect_grpc(url, port, namespace, QUICK, broker.clock)


class SocketDoor(RemoteDoor):
    """A server on the broker, and a client that talks to it over a WebSocket."""

    def __init__(self, broker: Broker, namespace: str) -> None:
        self._broker = broker
        self._server = RunningServer(broker, auto_create=broker.config.auto_create)
        self.client = connect_socket(self._server.url, namespace, QUICK, broker.clock)


class AsyncRemoteDoor(AsyncDoor):
    """The same with the client for asyncio."""

    def __init__(self, broker: Broker, namespace: str) -> None:
        self._broker = broker
        self._server = RunningServer(broker, auto_create=broker.config.auto_create)
        self._start_loop()
        connecting = connect_http_async(self._server.url, namespace, QUICK, broker.clock)
        self.client = Blocking(self._wait(connecting), self._wait)

    def close(self) -> None:
        super().close()
        self._server.stop()
        self._broker.close()

    def polls(self, name: TopicName) -> int:
        return len(self._server.door.polls)


class FolderDoor:
    """A broker that shares its folder, and the client of another process, which is in this one."""

    def __init__(self, broker: Broker, namespace: str) -> None:
        self._broker = broker
        self._host = Host(broker.folder)
        self._host.serve(Api(broker))
        self.client: Any = Client(_folder_link(broker), namespace)

    def close(self) -> None:
        self.client.close()
        self._host.close()
        self._broker.close()

    def polls(self, name: TopicName) -> int:
        return len(self._broker.topic(name).waiters)


class AsyncFolderDoor(AsyncDoor):
    """The same with the client for asyncio."""

    def __init__(self, broker: Broker, namespace: str) -> None:
        self._broker = broker
        self._host = Host(broker.folder)
        self._host.serve(Api(broker))
        self._start_loop()
        self.client = Blocking(AsyncClient(_folder_link(broker), namespace), self._wait)

    def close(self) -> None:
        super().close()
        self._host.close()
        self._broker.close()


def _folder_link(broker: Broker) -> FolderLink:
    def own() -> LocalLink:
        raise AssertionError("the owner did not go away")

    link = FolderLink(broker.folder, own, timeout_s=30, retry_for_s=0.3, auto_create=False)
    link.clock = link.socket.clock = broker.clock
    return link


class Blocking:
    """Something whose methods are to be awaited, behind a face that waits."""

    def __init__(self, target: Any, wait: Callable[[Awaitable[Any]], Any]) -> None:
        self._target = target
        self._wait = wait

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._target, name)
        if not inspect.ismethod(attribute):
            return self._answer(attribute)

        def method(*args: Any, **kwargs: Any) -> Any:
            kwargs = {name: _behind(value) for name, value in kwargs.items()}
            return self._answer(attribute(*map(_behind, args), **kwargs))

        return method

    def __len__(self) -> int:
        return len(self._target)

    def __iter__(self) -> Iterator[Any]:
        if not hasattr(self._target, "__aiter__"):
            for item in self._target:
                yield self._answer(item)
            return
        items = self._target.__aiter__()
        while True:
            try:
                yield self._answer(items.__anext__())
            except StopAsyncIteration:
                return

    def __enter__(self) -> Blocking:
        self._wait(self._target.__aenter__())
        return self

    def __exit__(self, *exc: object) -> Any:
        return self._wait(self._target.__aexit__(*exc))

    def __repr__(self) -> str:
        return f"blocking {self._target!r}"

    def _answer(self, result: Any) -> Any:
        if inspect.isawaitable(result):
            result = self._wait(result)
        if isinstance(result, list):
            return [self._answer(item) for item in result]
        if type(result).__name__.startswith("Async"):
            return Blocking(result, self._wait)
        return result


DOORS: dict[str, Callable[[Broker, str], Door]] = {
    "sync": SyncDoor,
    "async": AsyncDoor,
    "remote": RemoteDoor,
    "async-remote": AsyncRemoteDoor,
    "grpc": GrpcDoor,
    "socket": SocketDoor,
    "folder": FolderDoor,
    "async-folder": AsyncFolderDoor,
}


def _behind(value: Any) -> Any:
    if isinstance(value, list):
        return [_behind(item) for item in value]
    return value._target if isinstance(value, Blocking) else value
