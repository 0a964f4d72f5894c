"""`penstock serve`: a broker behind a port, until it is told to stop.

SIGTERM and SIGINT end it in order: no new connections, polls are answered, what was asked is
finished, and the folder is left clean. A second signal, or the time limit, cuts off what is left.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import ipaddress
import logging
import os
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn

from penstock.broker.api import Api
from penstock.client.folder.host import open_shared
from penstock.client.link import Link
from penstock.config import ServerConfig, host_and_port
from penstock.errors import InvalidInput, MissingExtra, PortInUse
from penstock.log.local_engine import LocalEngine
from penstock.server.access_log import AccessLog
from penstock.server.application import Application, check_required
from penstock.server.broker_config import broker_config_of
from penstock.server.door import Door
from penstock.server.http.connection import ServerConnection, connection_class
from penstock.server.keys import KeyStore
from penstock.server.link_api import LinkApi
from penstock.server.metrics import MeteredFiles
from penstock.server.open_files import connections_below_limit
from penstock.server.push.pacing import PacedWebSocket
from penstock.wire.push import FRAME_BYTES_MAX

if TYPE_CHECKING:
    from penstock.server.grpc.listener import GrpcListener
    from penstock.server.kafka.listener import KafkaListener

_logger = logging.getLogger("penstock.server")

_LOOK_EVERY_S = 1.0
_BACKLOG = 4096


def serve(config: ServerConfig, ready: Callable[[str], None] | None = None) -> None:
    """Serve a data folder until SIGTERM or SIGINT. `ready` is told the URL."""
    if config.cluster:
        try:
            from penstock.server.cluster.run import serve_node  # noqa: PLC0415 - needs an extra
        except ModuleNotFoundError as exc:
            if (exc.name or "").partition(".")[0] == "penstock":
                raise
            raise MissingExtra("cluster", "a node of a cluster") from None
        serve_node(config, ready)
        return
    if os.path.isfile(config.data):
        raise InvalidInput(f"{config.data} is a file; data is the path of a folder")
    check_pem_files(config)
    broker_config = broker_config_of(config)
    keys = KeyStore.open(config.data)
    keys.check_not_lost()
    check_required(config, keys)
    check_exposure(config, keys)
    sock = bind(config.host, config.port)
    kafka_sock = bind(*host_and_port(config.kafka)) if config.kafka else None
    try:
        url = url_of(config, sock.getsockname()[1])
        owner = f"the server at {url} (process {os.getpid()} on {socket.gethostname()})"
        files = MeteredFiles()
        engine = LocalEngine(config.data, owner=owner, files=files)
        broker, host = open_shared(engine, broker_config)
        with broker, host:
            log = AccessLog(sys.stdout.buffer, failures_only=config.log_level != "info")
            if config.log_level == "debug":
                log = AccessLog(sys.stdout.buffer)
            api = Api(broker, answer_bytes_max=config.body_bytes_max)
            host.serve(api)
            door = Door(
                api,
                config,
                keys,
                log=log,
                files=files,
            )
            gc.collect()
            gc.freeze()  # what is there now stays: no need to search it for garbage ever again
            try:
                server = Server(door, kafka_sock)
                load_certificate(server, config)
                run_server(server, sock, lambda: tell(url, ready))
            finally:
                door.close()
    finally:
        sock.close()
        if kafka_sock is not None:
            kafka_sock.close()
    _logger.info("stopped; %s is closed", broker.folder)


def serve_link(
    link: Link, config: ServerConfig, ready: Callable[[str], None] | None = None
) -> None:
    """Serve what a link leads to, for a dashboard on this machine, until SIGTERM or SIGINT."""
    keys = KeyStore.open(config.data)
    sock = bind(config.host, config.port)
    try:
        door = Door(LinkApi(link), config, keys)
        try:
            url = url_of(config, sock.getsockname()[1])
            run_server(Server(door), sock, lambda: tell(url, ready))
        finally:
            door.close()
    finally:
        sock.close()


class Server(uvicorn.Server):
    """uvicorn, stopped from outside and with an eye on its connections."""

    def __init__(
        self, door: Door, kafka_sock: socket.socket | None = None, app: Any = None
    ) -> None:
        """`app`: what answers, by default that of the door."""
        config = door.config
        app = app or Application(door)
        connections_max = connections_below_limit(config.connections_max)
        super().__init__(
            uvicorn.Config(
                app,
                interface="asgi3",
                http=connection_class(app.dispatcher, config, connections_max),
                ws=PacedWebSocket,
                ws_max_size=FRAME_BYTES_MAX,
                ws_per_message_deflate=False,  # a window for each of a thousand sockets
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                proxy_headers=False,
                ssl_certfile=config.tls_cert,
                ssl_keyfile=config.tls_key,
                timeout_keep_alive=config.idle_timeout_ms // 1000 + 1,
                backlog=_BACKLOG,
            )
        )
        self._door = door
        self._sqs = app.sqs
        self.kafka = None if kafka_sock is None else _kafka_listener(door, kafka_sock)
        self.grpc: GrpcListener | None = None
        self._told_to_stop = asyncio.Event()
        self.on_started: Callable[[], None] = lambda: None
        self.before_stop: Callable[[], None] = lambda: None
        """Called, on another thread, while everything is still answered."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Whoever runs us listens to signals."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for sock in sockets or ():
            self._door.webhooks.listens_on(sock.getsockname()[1])
        self._door.webhooks.start()
        if self.kafka is not None:
            await self.kafka.start(self.config.ssl)
        if self._door.config.grpc:  # it belongs to the loop on which it is made
            self.grpc = _grpc_listener(self._door)
            self._door.webhooks.listens_on(self.grpc.port)
            await self.grpc.start()
        self.on_started()

    async def main_loop(self) -> None:
        """Until it is told to stop."""
        looking = asyncio.create_task(self._look_after_connections())
        try:
            await self._told_to_stop.wait()
            await asyncio.get_running_loop().run_in_executor(None, self.before_stop)
        finally:
            looking.cancel()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """No new connections, every poll answered, everything else given a while."""
        for server in self.servers:
            server.close()
        for sock in sockets or ():
            sock.close()
        self._door.stop()
        await self._door.webhooks.stop()
        await self._sqs.state.moves.stop()
        for connection in list(self.server_state.connections):
            if isinstance(connection, ServerConnection):  # WebSockets were told by the door
                connection.shutdown()
        if self.kafka is not None:
            await self.kafka.stop(self._door.config.stop_timeout_ms / 1000)
        if self.grpc is not None:
            await self.grpc.stop(self._door.config.stop_timeout_ms / 1000)
        deadline = asyncio.get_running_loop().time() + self._door.config.stop_timeout_ms / 1000
        pause_s = 0.001
        while self.server_state.connections and not self.force_exit:
            if asyncio.get_running_loop().time() > deadline:
                _logger.warning("cut off %d connections", len(self.server_state.connections))
                break
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, 0.1)
        for connection in list(self.server_state.connections):
            if connection.transport is not None:
                connection.transport.abort()

    def stop(self) -> None:
        """From the event loop. Told twice, it does not wait for what is under way."""
        self.force_exit = self.should_exit
        self.should_exit = True
        self._told_to_stop.set()

    async def _look_after_connections(self) -> None:
        config = self._door.config
        request_s, idle_s = config.request_timeout_ms / 1000, config.idle_timeout_ms / 1000
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(_LOOK_EVERY_S, request_s / 2, idle_s / 2))
            now = loop.time()
            for connection in list(self.server_state.connections):
                if isinstance(connection, ServerConnection):
                    connection.look_after(now, request_s, idle_s)


def run_server(server: Server, sock: socket.socket, started: Callable[[], None]) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, server.stop)
        server.on_started = started
        await server.serve(sockets=[sock])

    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(main())


def _loop_factory() -> Any:
    try:
        import uvloop  # noqa: PLC0415 - not on every system
    except ImportError:
        return None
    return uvloop.new_event_loop


def _grpc_listener(door: Door) -> GrpcListener:
    try:
        from penstock.server.grpc.listener import GrpcListener  # noqa: PLC0415 - needs an extra
    except ImportError:
        raise MissingExtra("grpc", "gRPC") from None
    return GrpcListener(door, *host_and_port(door.config.grpc))


def _kafka_listener(door: Door, sock: socket.socket) -> KafkaListener:
    from penstock.server.kafka.listener import KafkaListener  # noqa: PLC0415 - needs an extra

    return KafkaListener(door, sock)


def bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError as exc:
        sock.close()
        if exc.errno == errno.EADDRINUSE:
            raise PortInUse(host, port) from None
        raise InvalidInput(f"cannot listen on {host} port {port}: {exc.strerror or exc}") from None
    sock.set_inheritable(False)
    return sock


def url_of(config: ServerConfig, port: int) -> str:
    scheme = "https" if config.tls_cert else "http"
    host = config.host
    if host in ("0.0.0.0", "::"):
        host = socket.gethostname()
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def check_pem_files(config: ServerConfig) -> None:
    """OpenSSL does not say which file it means."""
    for name, path, what in (
        ("tls_cert", config.tls_cert, "CERTIFICATE"),
        ("tls_key", config.tls_key, "PRIVATE KEY"),
    ):
        if path is None:
            continue
        try:
            content = Path(path).read_bytes()
        except FileNotFoundError as exc:
            told = f"there is no such file; {name} is the path of a PEM file"
            raise FileNotFoundError(exc.errno, told, path) from None
        except OSError as exc:
            raise InvalidInput(f"{name} {path} cannot be read: {exc.strerror or exc}") from None
        if f"{what}-----".encode() not in content:
            raise InvalidInput(
                f"{name} {path} is not a PEM file with a {what.lower()}: it has no line "
                f"-----BEGIN {what}-----"
            )


def load_certificate(server: Server, config: ServerConfig) -> None:
    try:
        server.config.load()
    except ssl.SSLError as exc:
        raise InvalidInput(
            f"tls_cert {config.tls_cert} and tls_key {config.tls_key} are damaged, or the key is "
            f"not that of the certificate ({exc.reason or exc}); give a certificate and its key"
        ) from None


def check_exposure(config: ServerConfig, keys: KeyStore) -> None:
    if not keys.empty or config.allow_public_without_keys:
        return
    others = [host_and_port(each)[0] for each in (config.kafka, config.grpc) if each]
    hosts = [config.host, *others]
    public = next((host for host in hosts if not _is_loopback(host)), None)
    if public is None:
        return
    raise InvalidInput(
        f"{public} can be reached by others, and there is no API key yet, so anybody could "
        "read and change everything. Make one with `penstock key create`, listen on 127.0.0.1, or "
        "say that this is meant: allow_public_without_keys."
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        try:
            addresses = socket.getaddrinfo(host, None)
        except OSError as exc:
            raise InvalidInput(f"host {host!r} is not known: {exc.strerror}") from None
        return all(ipaddress.ip_address(each[4][0]).is_loopback for each in addresses)


def tell(url: str, ready: Callable[[str], None] | None) -> None:
    _logger.info("listening on %s", url)
    if ready is not None:
        ready(url)
