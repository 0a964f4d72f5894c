"""Calls that another node of a cluster has to answer: they are sent on once, as they are.

The first message of a call says which namespace it is about, and so which node answers it.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import grpc
import msgspec
from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor

from penstock.errors import Unavailable
from penstock.model.calls import ROUTES, Call, ListNamespaces
from penstock.server.cluster import merging
from penstock.server.door import Door, Placement
from penstock.server.grpc.calls import CommitTransaction, GrpcCall, question_of
from penstock.server.grpc.descriptors import message
from penstock.server.grpc.problems import DETAILS, abort
from penstock.server.http.routes.calls import answer_form
from penstock.wire.json_forms import form_of

if TYPE_CHECKING:
    from penstock.cluster.registry import NodeInfo

_FORWARDED = "penstock-forwarded"
_SENT_ON = ("authorization", "x-api-key")
_KEEPALIVE_MS = 30_000

_Ask = message("AskRequest")
_AskResponse = message("AskResponse")
_Lease = message("LeaseRequest")


class Elsewhere:
    """The connections of a node to the others. Used on the event loop of the server."""

    def __init__(self, door: Door, placement: Placement) -> None:
        self._door = door
        self._placement = placement
        self._channels: dict[str, Any] = {}

    async def ask(self, call: GrpcCall, method: MethodDescriptor, asked: Any) -> Any | None:
        """The answer of another node, or of several; None: it is this one that answers."""
        if isinstance(asked, _Ask):
            question = await question_of(asked, call)
            if not isinstance(question, CommitTransaction) and (
                isinstance(question, ListNamespaces) or question.namespace is None
            ):
                return await self._ask_all(call, method, asked, question)
            namespace = question.namespace
        else:
            namespace = asked.namespace or "default"
        node = self._find(call, namespace)
        return None if node is None else await self._send_on(node, call, method, asked)

    async def stream(
        self, call: GrpcCall, method: MethodDescriptor, first: Any, requests: AsyncIterator[Any]
    ) -> bool:
        """Whether another node has answered a stream, of which one message was read."""
        about = first.subscribe if isinstance(first, _Lease) else first
        node = self._find(call, about.namespace or "default")
        if node is None:
            return False
        answers = self._open(node, method, "stream_stream")(requests, **_given(call))
        try:
            async for answer in answers:
                await call.context.write(answer)
        finally:
            answers.cancel()
        return True

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close()

    # Inside.

    def _find(self, call: GrpcCall, namespace: str) -> NodeInfo | None:
        """The node to be asked; None: this one, which the call is told."""
        door = self._placement.door_of(namespace)
        if door is None:
            return self._placement.owner_of(namespace, is_forwarded=_is_forwarded(call))
        call.door, call.placement = door, self._placement
        return None

    async def _send_on(
        self, node: NodeInfo, call: GrpcCall, method: MethodDescriptor, asked: Any
    ) -> Any:
        return await self._open(node, method, "unary_unary")(asked, **_given(call))

    async def _ask_all(
        self, call: GrpcCall, method: MethodDescriptor, asked: Any, question: Call[Any]
    ) -> Any | None:
        """A question about all namespaces: every node that has shards answers for them."""
        if _is_forwarded(call):
            return None
        kind = type(question)
        part = msgspec.json.encode(merging.part_of(question)).decode()
        request = _Ask(call=asked.call, fields=part)
        nodes = self._placement.owners()
        found = await asyncio.gather(
            *(self._send_on(node, call, method, request) for node in nodes)
        )
        form = form_of(ROUTES[kind].answer)
        answers = [form.of(msgspec.json.decode(each.answer, type=form.kind)) for each in found]
        merged = answer_form(kind, merging.merge(question, answers), self._door)
        return _AskResponse(answer=msgspec.json.encode(merged).decode())

    def _open(self, node: NodeInfo, method: MethodDescriptor, kind: str) -> Any:
        if not node.grpc:
            raise Unavailable(f"the owner at {node.url} has no port for gRPC; give it `grpc`")
        channel = self._channels.get(node.grpc)
        if channel is None:
            channel = self._channels[node.grpc] = self._channel(node.grpc)
        return getattr(channel, kind)(
            f"/{method.containing_service.full_name}/{method.name}",
            request_serializer=lambda each: each.SerializeToString(),
            response_deserializer=message_factory.GetMessageClass(method.output_type).FromString,
        )

    def _channel(self, address: str) -> Any:
        options = [
            ("grpc.max_receive_message_length", -1),
            ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
            ("grpc.max_reconnect_backoff_ms", 1000),
        ]
        if self._door.config.tls_cert is None:
            return grpc.aio.insecure_channel(address, options)
        trusted = ssl.get_default_verify_paths().cafile
        roots = None if trusted is None else Path(trusted).read_bytes()
        return grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(roots), options)


async def abort_alike(context: Any, error: grpc.aio.AioRpcError) -> NoReturn:
    """End a call as the node did that it was sent on to."""
    trailing = tuple(
        (name, value) for name, value in error.trailing_metadata() or () if name == DETAILS
    )
    if not trailing and error.code() is grpc.StatusCode.UNAVAILABLE:
        await abort(context, Unavailable(f"the owner does not answer: {error.details()}"))
    await context.abort(error.code(), error.details() or "", trailing)
    raise AssertionError("unreachable")


def _is_forwarded(call: GrpcCall) -> bool:
    return any(name == _FORWARDED for name, _ in call.context.invocation_metadata() or ())


def _given(call: GrpcCall) -> dict[str, Any]:
    given = call.context.invocation_metadata() or ()
    metadata = [(name, value) for name, value in given if name in _SENT_ON]
    return {
        "metadata": [*metadata, (_FORWARDED, "1")],
        "timeout": call.context.time_remaining(),
    }
