"""What the handlers of a server share: the API, the gate, polls, threads, figures."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from penstock.broker.api import Api
from penstock.config import ServerConfig
from penstock.model.cluster import ClusterRoutes, ClusterStatus, ShardVerified
from penstock.model.names import TopicName
from penstock.server.access_log import AccessLog
from penstock.server.connections import NamespaceConnections
from penstock.server.gate import Gate
from penstock.server.http.heads import Names
from penstock.server.keys import KeyStore
from penstock.server.long_calls import LongCalls
from penstock.server.metrics import MeteredFiles, Requests
from penstock.server.polls import Polls
from penstock.server.push.registry import PushSockets
from penstock.server.push.watched import SharedAnswers
from penstock.server.readiness import Readiness
from penstock.server.waiting import WaitingCalls
from penstock.server.webhooks.engine import WebhookEngine

if TYPE_CHECKING:
    from penstock.cluster.registry import NodeInfo

T = TypeVar("T")


class ClusterView(Protocol):
    """What can be asked of the cluster, and of this node of it. Calls may take a while."""

    def status(self) -> ClusterStatus: ...
    def routes(self) -> ClusterRoutes: ...
    def drain(self, node: str, *, on: bool) -> None: ...
    def pin(self, shard: int, node: str | None) -> None: ...
    def replace(self, node: str) -> None: ...
    def verify(self, shard: int) -> ShardVerified: ...
    def reasons(self) -> list[str]: ...


class Placement(Protocol):
    """Where namespaces are answered, at a node of a cluster. Used on the event loop."""

    me: str
    """The name of this node."""

    def door_of(self, namespace: str) -> Door | None:
        """That of its shard, if this node owns it."""

    def owner_of(self, namespace: str, *, is_forwarded: bool) -> NodeInfo:
        """The node to be asked instead. Raises Unavailable if there is none, NotOwner if the
        question was sent on already."""

    def nodes(self) -> dict[str, NodeInfo]:
        """Those that are there, by their names; this one is."""

    def owners(self) -> list[NodeInfo]:
        """The nodes that have shards. Raises Unavailable if a shard has no owner."""


_THREADS = 8
_QUEUE_THREADS = 8
_READ_THREADS = 4
_LONG_ANSWERS = 16  # that may be made at the same time; all of them fit into the budget
_MEMBER_THREADS = 4


class Door:
    """The state of a server, for its handlers. It is used on the event loop of the server."""

    def __init__(
        self,
        api: Api,
        config: ServerConfig,
        keys: KeyStore,
        *,
        log: AccessLog | None = None,
        files: MeteredFiles | None = None,
    ) -> None:
        """`files`: the disk of the broker, if it keeps a watch on itself."""
        self.api = api
        self.config = config
        self.gate = Gate(keys, config)
        self.names = Names(config)
        self.files = files
        self.polls = Polls(api, config.polls_max)
        self.waits = WaitingCalls(
            self.gate, config.request_timeout_ms / 1000, self.polls.look_at_all
        )
        self.connections = NamespaceConnections(api)
        self.sockets = PushSockets(self)
        self.answers = SharedAnswers(self)
        self.webhooks = WebhookEngine(self)
        self.readiness = Readiness(api)
        self.cluster: ClusterView | None = None
        """The cluster that this server is a node of."""
        self.placement: Placement | None = None
        """What it is not itself that answers in a namespace, if it is a node."""
        self.requests = Requests()
        self.log = log or AccessLog(None)
        self.stopping = False
        self.committed: Callable[[], Awaitable[object]] = _at_once
        """To be awaited before what was received leaves by another way than as an answer."""
        self._threads = ThreadPoolExecutor(_THREADS, "penstock-aside")
        self._read_threads = ThreadPoolExecutor(_READ_THREADS, "penstock-read")
        self._queue_threads = ThreadPoolExecutor(_QUEUE_THREADS, "penstock-queue")
        self._member_threads = ThreadPoolExecutor(_MEMBER_THREADS, "penstock-member")
        self.long_calls = LongCalls(self._queue_threads, self.polls.look, self._is_open)

    @property
    def keys(self) -> KeyStore:
        return self.gate.keys

    async def aside(self, work: Callable[..., T], *args: Any) -> T:
        """Do something that takes long, or waits for the disk, beside the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *args)

    async def opened(self, names: Iterable[TopicName]) -> None:
        """Open topics beside the event loop, so that calls about them are quick."""
        for name in names:
            if not self.api.is_open(name):
                await self.aside(self.api.open_topic, name)

    def _is_open(self, name: TopicName) -> bool:
        return self.api.is_open(name)

    async def read_aside(self, work: Callable[..., T], *args: Any) -> T:
        """The same for what may become a long answer. Raises Unavailable if there is no room for
        one when its turn comes."""
        return await asyncio.get_running_loop().run_in_executor(
            self._read_threads, self.within_budget(work), *args
        )

    def within_budget(self, work: Callable[..., T]) -> Callable[..., T]:
        """The same work, for a thread: it keeps room for a long answer while it runs."""
        buffers = self.gate.buffers
        room = min(self.config.body_bytes_max, buffers.bytes_max // _LONG_ANSWERS)

        def run(*args: Any) -> T:
            buffers.take(room)
            try:
                return work(*args)
            finally:
                buffers.give_back(room)

        return run

    async def member_aside(self, work: Callable[..., T], *args: Any) -> T:
        """The same for members of stream groups: who cannot heartbeat in time is expelled, so
        they do not wait behind what takes long."""
        return await asyncio.get_running_loop().run_in_executor(self._member_threads, work, *args)

    def stop(self) -> None:
        """Answer every poll, and take no new ones."""
        self.stopping = True
        self.sockets.stop()
        self.polls.stop()

    def close(self) -> None:
        self.stop_threads()
        self.log.close()

    def stop_threads(self, *, wait: bool = True) -> None:
        for threads in (
            self._threads,
            self._read_threads,
            self._queue_threads,
            self._member_threads,
        ):
            threads.shutdown(wait)


async def _at_once() -> None:
    """Nothing has to be waited for."""
