"""`penstock serve --cluster`: a node behind a port, until it is told to stop.

SIGTERM and SIGINT hand its shards over to the others first, while it still answers.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
import sys
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from typing import Any, cast
from urllib.parse import urlsplit

import msgspec

from penstock.broker.api import Api
from penstock.broker.broker import BrokerConfig
from penstock.cluster.jetstream import StreamLimits
from penstock.cluster.nats_connection import NatsOptions
from penstock.cluster.node import ClusterNode, NodeConfig
from penstock.cluster.shard import OwnedShard
from penstock.config import ServerConfig, host_and_port
from penstock.errors import InvalidInput
from penstock.server.access_log import AccessLog
from penstock.server.application import Application, check_required
from penstock.server.broker_config import broker_config_of
from penstock.server.cluster.front import ClusterApplication, all_committed
from penstock.server.cluster.keys import ClusterKeys
from penstock.server.cluster.node_api import NodeApi
from penstock.server.cluster.view import NodeView
from penstock.server.door import Door
from penstock.server.run import (
    Server,
    bind,
    check_exposure,
    check_pem_files,
    load_certificate,
    run_server,
    tell,
    url_of,
)

_logger = logging.getLogger("penstock.server")

_REMOVE_S = 10.0


def serve_node(config: ServerConfig, ready: Callable[[str], None] | None = None) -> None:
    """Take part in a cluster until SIGTERM or SIGINT."""
    check_pem_files(config)
    os.makedirs(config.data, exist_ok=True)
    with ExitStack() as closing:
        sock = closing.enter_context(bind(config.host, config.port))
        kafka_sock = None
        if config.kafka:
            kafka_sock = closing.enter_context(bind(*host_and_port(config.kafka)))
        _serve(config, sock, kafka_sock, ready)


def _serve(
    config: ServerConfig,
    sock: socket.socket,
    kafka_sock: socket.socket | None,
    ready: Callable[[str], None] | None,
) -> None:
    config = _reachable_as(config)
    service = NodeService(config, kafka_sock)
    try:
        gc.collect()
        gc.freeze()
        load_certificate(service.server, config)
        url = url_of(config, sock.getsockname()[1])

        def started() -> None:
            service.started()
            tell(url, ready)

        run_server(service.server, sock, started)
    finally:
        service.close()
    _logger.info("stopped; the other nodes have the shards of %s", service.node.me)


class NodeService:
    """A node and the server in front of it."""

    def __init__(self, config: ServerConfig, kafka_sock: socket.socket | None) -> None:
        self.config = config
        self.node = ClusterNode(node_config(config), self._opened, self._closing)
        log = AccessLog(sys.stdout.buffer, failures_only=config.log_level not in ("info", "debug"))
        self.keys = ClusterKeys(config.data, self.node.registry)
        self.home = Door(cast(Api, NodeApi(self._apis, self._api_of)), config, self.keys, log=log)
        self.home.cluster = NodeView(self.node)
        self.app = ClusterApplication(Application(self.home), self.node)
        self.home.placement = self.app
        self.server = Server(self.home, kafka_sock, app=self.app)
        self.server.before_stop = self._leave
        self._loop: asyncio.AbstractEventLoop | None = None
        self.node.connect()
        try:
            self.keys.load()
            check_required(config, self.keys)
            check_exposure(config, self.keys)
            self.node.on_tick = self.keys.load
        except BaseException:
            self.node.nats.close()
            raise

    def started(self) -> None:
        """On the event loop, which runs from here on."""
        self._loop = asyncio.get_running_loop()
        self._loop.run_in_executor(None, self.node.start)

    def close(self) -> None:
        self.home.close()

    def _apis(self) -> list[Api]:
        return [app.door.api for app in list(self.app.shards.values())]

    def _api_of(self, namespace: str) -> Api | None:
        app = self.app.shards.get(self.node.shard_of(namespace))
        return None if app is None else app.door.api

    def _leave(self) -> None:
        """While requests are answered still."""
        self.node.close()

    # Told by the node, on its threads.

    def _opened(self, shard: OwnedShard) -> None:
        self._on_loop(self._add(shard))

    def _closing(self, shard: OwnedShard) -> None:
        self._on_loop(self._remove(shard))

    def _on_loop(self, work: Any) -> None:
        assert self._loop is not None
        done: Future[None] = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            done.result(_REMOVE_S)
        except TimeoutError:
            _logger.warning("the server is busy: a shard is taken from it all the same")

    async def _add(self, shard: OwnedShard) -> None:
        door = Door(shard.api, self.config, self.keys, log=self.home.log)
        door.gate, door.requests = self.home.gate, self.home.requests
        door.connections = self.home.connections  # they are closed at the node's own door
        shard.api.count_connections_by(door.connections.count)
        door.committed = partial(all_committed, self.node, shard)
        app = Application(door)
        self.app.shards[shard.number] = app
        door.webhooks.start()

    async def _remove(self, shard: OwnedShard) -> None:
        app = self.app.shards.get(shard.number)
        if app is None or app.door.api is not shard.api:
            return
        del self.app.shards[shard.number]
        app.door.stop()
        if self.server.kafka is not None:
            self.server.kafka.remove(app.door)
        await app.sqs.state.moves.stop()
        await app.door.webhooks.stop()
        app.door.stop_threads(wait=False)


def node_config(config: ServerConfig) -> NodeConfig:
    return NodeConfig(
        data=config.data,
        node=config.node_id or socket.gethostname().partition(".")[0],
        url=config.advertise.rstrip("/"),
        grpc=_advertised(config, config.grpc),
        kafka=config.kafka_advertised or _advertised(config, config.kafka),
        nats=NatsOptions(
            tuple(_listed(config.cluster)),
            config.cluster_credentials or None,
            config.cluster_tls_ca or None,
        ),
        cluster=config.cluster_name,
        shards=config.cluster_shards,
        standbys=config.cluster_standbys,
        dead_after_s=config.cluster_dead_after_ms / 1000,
        limits=StreamLimits(config.cluster_replicas, config.cluster_shard_bytes),
        monitors=tuple(_listed(config.cluster_monitors)),
        nats_syncs=config.cluster_nats_syncs,
        broker=_broker_config(config),
        answer_bytes_max=config.body_bytes_max,
    )


def _broker_config(config: ServerConfig) -> BrokerConfig:
    broker = broker_config_of(config)
    if broker.topic_defaults.compacted:
        raise InvalidInput("topics of a cluster cannot be compacted; take it from topic_defaults")
    return broker


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _advertised(config: ServerConfig, address: str) -> str:
    """A port of this node under the name that it advertises."""
    if not address:
        return ""
    host = urlsplit(config.advertise).hostname or ""
    return f"[{host}]:{_port(address)}" if ":" in host else f"{host}:{_port(address)}"


def _port(address: str) -> int:
    _, port = host_and_port(address)
    if not port:
        raise InvalidInput(f"{address}: other nodes have to know the port; give its number")
    return port


def _reachable_as(config: ServerConfig) -> ServerConfig:
    """Other nodes call this one by the name that it advertises."""
    host = urlsplit(config.advertise).hostname or ""
    return msgspec.structs.replace(config, allowed_hosts=f"{config.allowed_hosts},{host}")
