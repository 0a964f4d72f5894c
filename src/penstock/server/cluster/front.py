"""The ASGI application of a node: it finds the shard that a request is for, and who owns that.

A namespace lives in one shard. Whatever is asked in a namespace is answered by the application of
its shard if this node owns it, and else sent on to the owner, once: a request that was sent on and
is not for this node either is refused with `421`, which names the owner.

No answer of a shard leaves before all that it was decided on is committed. If the shard is lost
meanwhile the answer is 503 instead, whatever it would have been: nobody knows then whether what was
asked has happened, as after a lost connection.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import msgspec
from starlette.types import Message, Receive, Scope, Send

from penstock.cluster.node import ClusterNode
from penstock.cluster.placement import Owner
from penstock.cluster.registry import NodeInfo
from penstock.cluster.shard import OwnedShard
from penstock.errors import NotOwner, PenstockError, ShardLost, Unavailable
from penstock.log.base import DONE
from penstock.model.calls import (
    ROUTES,
    Call,
    EverywhereCall,
    ListNamespaces,
    SummarizeDelays,
    TabulatePriorities,
)
from penstock.model.stats import QueuePage, QueueSummary
from penstock.server.application import Application
from penstock.server.cluster import merging
from penstock.server.cluster.forwarding import FORWARDED, Forwarder
from penstock.server.door import Door
from penstock.server.durable import durable
from penstock.server.http.answers import Answer, json_answer, parse_query, problem_answer
from penstock.server.http.bodies import ClientGone
from penstock.server.http.heads import headers_of
from penstock.server.http.routes import ENDPOINTS
from penstock.server.sqs.accounts import is_queue_path
from penstock.server.sqs.dispatch import ASKED_AT
from penstock.wire import push
from penstock.wire.json_forms import form_of

_NODE_PATHS = tuple(
    each.path.partition("{")[0]
    for each in ENDPOINTS
    if not each.in_namespaces
    and each.path.startswith("/v1/")
    and not each.path.startswith("/v1/namespaces")
)
_COMMIT_S = 15.0


class ClusterApplication:
    """`home` answers for the node itself."""

    def __init__(self, home: Application, node: ClusterNode) -> None:
        self.home = home
        self.node = node
        self.me = node.me
        self.dispatcher = home.dispatcher
        self.sqs = home.sqs
        self.forwarder = Forwarder(node.me)
        self.shards: dict[int, Application] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.home(scope, receive, send)
            return
        is_http = scope["type"] == "http"
        if is_http and scope["method"] == "POST" and is_queue_path(scope["path"]):
            await self._sqs(scope, receive, send)
            return
        namespace = _namespace(scope, is_http)
        if namespace is None:
            if is_http and self._is_everywhere(scope):
                await self._everywhere(scope, send)
            else:
                await self.home(scope, receive, send)
            return
        await self._in_namespace(namespace, scope, receive, send)

    async def _in_namespace(
        self, namespace: str, scope: Scope, receive: Receive, send: Send
    ) -> None:
        shard = self.node.shard_of(namespace)
        owned, app = self.node.owned(shard), self.shards.get(shard)
        if owned is not None and app is not None:
            await app(scope, receive, CommittedSend(self.node, owned, scope, send))
            return
        try:
            await self._elsewhere(shard, scope, receive, send)
        except ClientGone:
            return
        except PenstockError as exc:
            self.node.look_again()
            await _refuse(exc, scope, send)

    async def _sqs(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The queue, which says where a request belongs, is in its body. Its signature names the
        host that was asked, and so do the URLs of queues in the answer."""
        buffers = self.sqs.buffers
        try:
            namespace, body = await self.sqs.namespace_of(scope, receive)
        except ClientGone:
            return
        except PenstockError as exc:
            await _refuse(exc, scope, send)
            return
        given = dict(scope["headers"])
        if ASKED_AT not in given:
            asked_at = scope.get("scheme", "http").encode() + b"://" + given.get(b"host", b"")
            scope = {**scope, "headers": [*scope["headers"], (ASKED_AT, asked_at)]}
        try:
            await self._in_namespace(namespace, scope, _again(body, receive), send)
        finally:
            buffers.give_back(len(body))

    async def _elsewhere(self, shard: int, scope: Scope, receive: Receive, send: Send) -> None:
        owner = self._owner(shard)
        if FORWARDED in (given := dict(scope["headers"])):
            if ASKED_AT in given:  # clients of SQS do not know what to do with a 421
                raise Unavailable(f"shard {shard} is on its way to another node; try again")
            raise NotOwner(shard, owner.url)
        if scope["type"] == "websocket":
            await self.forwarder.send_socket_on(owner.url, scope, receive, send)
            return
        headers = headers_of(scope["headers"], scope.get("http_version", ""))
        self.dispatcher.check_names(headers)
        self.dispatcher.door.gate.arrive(scope["client"][0] if scope.get("client") else "")
        await self.forwarder.send_on(owner.url, scope, receive, send)

    def _owner(self, shard: int) -> Owner:
        owner = self.node.owner(shard)
        if owner is None or owner.url == self.node.config.url:
            raise Unavailable(f"shard {shard} has no owner at this moment; try again")
        return owner

    # For what is not asked over HTTP: see `Placement`.

    def door_of(self, namespace: str) -> Door | None:
        shard = self.node.shard_of(namespace)
        app = self.shards.get(shard)
        return None if app is None or self.node.owned(shard) is None else app.door

    def owner_of(self, namespace: str, *, is_forwarded: bool) -> NodeInfo:
        shard = self.node.shard_of(namespace)
        try:
            owner = self._owner(shard)
            if is_forwarded:
                raise NotOwner(shard, owner.url)
            return self._info(owner)
        except PenstockError:
            self.node.look_again()
            raise

    def nodes(self) -> dict[str, NodeInfo]:
        alive = {*self.node.members.alive(time.monotonic()), self.me}
        return {name: info for name, info in self.node.nodes.items() if name in alive}

    def owners(self) -> list[NodeInfo]:
        state = self.node.state
        if len(state.owners) < state.shards:
            raise Unavailable("some shards have no owner at this moment; try again")
        found = {owner.node: self._info(owner) for owner in state.owners.values()}
        return [found[node] for node in sorted(found)]

    def _info(self, owner: Owner) -> NodeInfo:
        return self.node.nodes.get(owner.node) or NodeInfo(url=owner.url)

    # Questions about all namespaces.

    def _is_everywhere(self, scope: Scope) -> bool:
        return (
            scope["method"] == "GET"
            and scope["path"] in _EVERYWHERE
            and FORWARDED not in dict(scope["headers"])
        )

    async def _everywhere(self, scope: Scope, send: Send) -> None:
        try:
            answer = await self._merged(scope)
        except PenstockError as exc:
            answer = problem_answer(exc, scope["path"])
        await _send(answer, send)

    async def _merged(self, scope: Scope) -> Answer:
        """Every node that has shards is asked, this one too; one that is silent is no zero."""
        path, query = scope["path"], parse_query(scope["query_string"].decode("latin-1"))
        asked, merge = _EVERYWHERE[path](query)
        given = headers_of(scope["headers"], scope.get("http_version", ""))
        self.dispatcher.check_names(given)
        key = given.get(b"authorization")
        headers = {} if key is None else {"authorization": key.decode("latin-1")}
        urls = [node.url for node in self.owners()]
        found = await asyncio.gather(
            *(self.forwarder.ask(url, each, headers) for each in asked for url in urls)
        )
        for status, body in found:
            if status != 200:
                return Answer(status, "application/problem+json", body)
        return json_answer(merge([body for _, body in found]))


def _again(body: bytes, receive: Receive) -> Receive:
    """A body that was read, for who reads it next."""
    is_read = False

    async def again() -> Message:
        nonlocal is_read
        if is_read:
            return await receive()
        is_read = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


async def all_committed(node: ClusterNode, shard: OwnedShard) -> None:
    """Until all that the shard has appended so far is. Raises ShardLost, Unavailable."""
    future = shard.committed()
    if future is not DONE:
        try:
            await asyncio.wait_for(durable(future), _COMMIT_S)
        except TimeoutError:
            raise Unavailable("nothing is committed; try again") from None
    if node.owned(shard.number) is not shard:
        raise ShardLost(shard.number, "this node is not sure to own it")


class CommittedSend:
    """Lets an answer of a shard leave once all that it was decided on is committed."""

    def __init__(self, node: ClusterNode, shard: OwnedShard, scope: Scope, send: Send) -> None:
        self._node = node
        self._shard = shard
        self._scope = scope
        self._send = send
        self._refused = False

    async def __call__(self, message: Message) -> None:
        kind = message["type"]
        if self._refused:
            return
        if kind in ("http.response.start", "websocket.send"):
            try:
                await all_committed(self._node, self._shard)
            except PenstockError as exc:
                self._refused = True
                if kind == "websocket.send":
                    await self._send({"type": "websocket.close", "code": 1012, "reason": "moved"})
                else:
                    await _refuse(exc, self._scope, self._send)
                return
        await self._send(message)


def _namespace(scope: Scope, is_http: bool) -> str | None:
    """Of a request; None: it is about the node, or about all namespaces."""
    path: str = scope["path"]
    if not is_http:
        if path != push.PATH:
            return None
        query = parse_query(scope["query_string"].decode("latin-1"))
        return query.get("namespace", "default")
    if not path.startswith("/v1/") or path.startswith(_NODE_PATHS) or path in _EVERYWHERE:
        return None
    if path.startswith("/v1/namespaces/"):
        return path.split("/", 4)[3]
    return "default"


async def _refuse(error: PenstockError, scope: Scope, send: Send) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1013, "reason": str(error)[:120]})
        return
    answer = problem_answer(error, scope["path"])
    if isinstance(error, NotOwner):
        answer = msgspec.structs.replace(
            answer, headers=(*answer.headers, ("penstock-owner", error.owner))
        )
    await _send(answer, send)


async def _send(answer: Answer, send: Send) -> None:
    headers = [(b"content-type", answer.content_type.encode())]
    headers += [(name.encode(), value.encode("latin-1")) for name, value in answer.headers]
    headers.append((b"content-length", b"%d" % len(answer.body)))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})


# What is asked about all namespaces: what each node is asked, and how the answers become one.

_Merging = tuple[list[str], Callable[[list[bytes]], Any]]


def _asked(kind: type[Call[Any]], path: str) -> Callable[[dict[str, str]], _Merging]:
    form = form_of(ROUTES[kind].answer)

    def plan(query: dict[str, str]) -> _Merging:
        try:
            call = msgspec.convert(query, kind, strict=False)
        except msgspec.ValidationError as exc:
            raise merging.bad_query(exc) from None
        part: Any = merging.part_of(call)
        given = msgspec.to_builtins(part)
        options = {name: value for name, value in given.items() if name in query or name in _PAGE}
        asked = [path + _query(options)]

        def merge(bodies: list[bytes]) -> Any:
            answers = [form.of(msgspec.json.decode(body, type=form.kind)) for body in bodies]
            return form.to(merging.merge(call, answers))

        return asked, merge

    return plan


_PAGE = ("offset", "limit")


def _query(options: dict[str, Any]) -> str:
    texts = {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in options.items()
    }
    return "?" + urlencode(texts) if texts else ""


def _queue_summary(query: dict[str, str]) -> _Merging:
    def merge(bodies: list[bytes]) -> Any:
        found = [msgspec.json.decode(body, type=QueueSummary) for body in bodies]
        return merging.queue_summary(found)

    return ["/api/stats/summary"], merge


def _queue_page(query: dict[str, str]) -> _Merging:
    page, limit = merging.page_of(query)

    def merge(bodies: list[bytes]) -> Any:
        found = [msgspec.json.decode(body, type=QueuePage) for body in bodies]
        return merging.queue_page(found, page, limit)

    pages = -(-page * limit // merging.QUEUES_MAX)
    return [f"/api/stats?page={n + 1}&limit={merging.QUEUES_MAX}" for n in range(pages)], merge


_EVERYWHERE: dict[str, Callable[[dict[str, str]], _Merging]] = {
    "/api/stats/summary": _queue_summary,
    "/api/stats": _queue_page,
    "/delay/stats": _asked(SummarizeDelays, "/delay/stats"),
    "/priority/stats": _asked(TabulatePriorities, "/priority/stats"),
}
for _kind, _route in ROUTES.items():
    if issubclass(_kind, EverywhereCall | ListNamespaces):
        _EVERYWHERE["/v1" + _route.path] = _asked(_kind, "/v1" + _route.path)
