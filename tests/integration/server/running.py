"""A server on a broker of the test's own, in a thread, on a free port of this machine."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable
from typing import Any

from penstock.broker.api import Api
from penstock.broker.broker import Broker
from penstock.config import ServerConfig
from penstock.server.access_log import AccessLog
from penstock.server.door import Door
from penstock.server.keys import KeyStore
from penstock.server.run import Server

START_S_MAX = 20


class RunningServer:
    """Listens from the moment it is made. `stop` ends it in order; the broker stays open."""

    def __init__(
        self,
        broker: Broker,
        keys: KeyStore | None = None,
        log: AccessLog | None = None,
        *,
        port: int = 0,
        kafka: bool = False,
        **config: Any,
    ) -> None:
        self.config = ServerConfig(data=os.fspath(broker.folder), port=0, **config)
        self.keys = keys or KeyStore.open(broker.folder)
        api = Api(broker, answer_bytes_max=self.config.body_bytes_max)
        self.door = Door(api, self.config, self.keys, log=log)
        kafka_socket = socket.create_server(("127.0.0.1", 0), backlog=128) if kafka else None
        self.kafka = "" if kafka_socket is None else f"127.0.0.1:{kafka_socket.getsockname()[1]}"
        self.server = Server(self.door, kafka_socket)
        self._socket = socket.create_server(("127.0.0.1", port), backlog=4096)
        self.port: int = self._socket.getsockname()[1]
        scheme = "https" if self.config.tls_cert else "http"
        self.url = f"{scheme}://127.0.0.1:{self.port}"
        self._listening = threading.Event()
        self.server.on_started = self._listening.set
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._listening.wait(START_S_MAX), "the server does not start"

    def call_soon(self, work: Callable[[], None]) -> None:
        """On the event loop of the server, in its next turn."""
        self._loop.call_soon_threadsafe(work)

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self.server.stop)
            self._thread.join(START_S_MAX)
            assert not self._thread.is_alive(), "the server does not stop"
            self.door.close()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self.server.serve(sockets=[self._socket]))
        self._socket.close()

    def __enter__(self) -> RunningServer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()
