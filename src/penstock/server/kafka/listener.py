"""The port of the Kafka protocol: in the process and on the event loop of the server."""

from __future__ import annotations

import asyncio
import socket
import ssl

from penstock.errors import MissingExtra
from penstock.server.door import Door
from penstock.server.kafka import messages
from penstock.server.kafka.broker import KafkaBroker
from penstock.server.kafka.connection import KafkaConnection
from penstock.server.open_files import connections_of_other_port

_LOOK_EVERY_S = 1.0


class KafkaListener:
    """All connections, and the brokers that they are with: one, or in a cluster one for each shard
    that this node has."""

    def __init__(self, door: Door, sock: socket.socket) -> None:
        try:
            import kio  # noqa: F401, PLC0415 - an extra
        except ModuleNotFoundError:
            raise MissingExtra("kafka", "the Kafka protocol") from None
        self.door = door
        self.placement = door.placement
        self.home = KafkaBroker(door, self.placement)
        self._brokers: dict[Door, KafkaBroker] = {}  # of the shards that this node has
        self._socket = sock
        self._connections: set[KafkaConnection] = set()
        self._connections_max = connections_of_other_port(door.config.connections_max)
        self._server: asyncio.Server | None = None
        self._looking: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        port: int = self._socket.getsockname()[1]
        return port

    def broker_of(self, namespace: str) -> KafkaBroker | None:
        """None: another node has the namespace."""
        if self.placement is None:
            return self.home
        door = self.placement.door_of(namespace)
        if door is None:
            return None
        broker = self._brokers.get(door)
        if broker is None:
            broker = self._brokers[door] = KafkaBroker(door, self.placement)
        return broker

    def remove(self, door: Door) -> None:
        """This node does not have a shard any more: its clients look where it is now."""
        broker = self._brokers.pop(door, None)
        if broker is not None:
            broker.groups.stop()
            for connection in list(self._connections):
                if connection.broker is broker:
                    connection.stop()

    async def start(self, tls: ssl.SSLContext | None) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, messages.load)
        self._server = await loop.create_server(
            lambda: KafkaConnection(self), sock=self._socket, ssl=tls
        )
        self._looking = asyncio.create_task(self._look_after_connections())

    async def stop(self, timeout_s: float) -> None:
        """No new connections; what is under way is answered, or cut off when time is up."""
        if self._server is not None:
            self._server.close()
        if self._looking is not None:
            self._looking.cancel()
        for broker in (self.home, *self._brokers.values()):
            broker.groups.stop()
        for connection in list(self._connections):
            connection.stop()
        deadline = asyncio.get_running_loop().time() + timeout_s
        pause_s = 0.001
        while self._connections and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, 0.1)
        for connection in list(self._connections):
            if connection.transport is not None:
                connection.transport.abort()

    def came(self, connection: KafkaConnection) -> None:
        self._connections.add(connection)
        if len(self._connections) > self._connections_max and connection.transport is not None:
            connection.transport.abort()

    def went(self, connection: KafkaConnection) -> None:
        self._connections.discard(connection)

    async def _look_after_connections(self) -> None:
        loop = asyncio.get_running_loop()
        request_s = self.door.config.request_timeout_ms / 1000
        while True:
            await asyncio.sleep(min(_LOOK_EVERY_S, request_s / 2))
            now = loop.time()
            for broker in (self.home, *self._brokers.values()):
                broker.transactions.expire(self.door.api.clock.monotonic_ns())
            for connection in list(self._connections):
                connection.look_after(now, request_s)
