"""The port of gRPC: `grpc.aio` on the event loop of the server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor

from penstock.errors import InvalidInput, PenstockError
from penstock.server.door import Door
from penstock.server.grpc import calls
from penstock.server.grpc.calls import GrpcCall
from penstock.server.grpc.descriptors import PACKAGE, pool
from penstock.server.grpc.elsewhere import Elsewhere, abort_alike
from penstock.server.grpc.lease import lease
from penstock.server.grpc.problems import abort, told
from penstock.server.grpc.reflection import reflect
from penstock.server.grpc.requests import decode_request, decode_requests
from penstock.server.grpc.standard import health_check, health_watch
from penstock.server.http.heads import token_of
from penstock.server.open_files import connections_below_limit, connections_of_other_port

_STREAMS_MAX = 1000
"""Calls at the same time on one connection."""
_KEEPALIVE_MS = 30_000
_HEADS_BYTES_MAX = 16 << 10

_ONE: dict[str, Callable[[GrpcCall, Any], Awaitable[Any]]] = {
    "Messages.Publish": calls.publish,
    "Messages.Fetch": calls.fetch,
    "Queue.Receive": calls.receive,
    "Queue.Settle": calls.settle,
    "Api.Ask": calls.ask,
}


class GrpcListener:
    def __init__(self, door: Door, host: str, port: int) -> None:
        self._door = door
        self._elsewhere = None if door.placement is None else Elsewhere(door, door.placement)
        config = door.config
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", config.body_bytes_max),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_concurrent_streams", _STREAMS_MAX),
                ("grpc.max_metadata_size", _HEADS_BYTES_MAX),
                (
                    "grpc.max_allowed_incoming_connections",
                    connections_of_other_port(config.connections_max),
                ),
                ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
                ("grpc.max_connection_idle_ms", config.idle_timeout_ms * 4),
                ("grpc.http2.min_ping_interval_without_data_ms", _KEEPALIVE_MS // 3),
                ("grpc.so_reuseport", 0),
            ],
            maximum_concurrent_rpcs=connections_below_limit(config.connections_max),
        )
        for service in ("Messages", "Queue", "Api"):
            self._add(f"{PACKAGE}.{service}", self._handler, are_counted=True)
        self._add("grpc.health.v1.Health", self._health)
        if config.grpc_reflection:
            self._add("grpc.reflection.v1.ServerReflection", lambda _: reflect)
        host = f"[{host}]" if ":" in host else host
        self.port = self._bind(f"{host}:{port}")

    async def start(self) -> None:
        await self._server.start()

    async def stop(self, timeout_s: float) -> None:
        """No new calls; those under way are answered, or cut off when time is up."""
        await self._server.stop(timeout_s)
        if self._elsewhere is not None:
            await self._elsewhere.close()

    def _bind(self, address: str) -> int:
        config = self._door.config
        try:
            if config.tls_cert is None or config.tls_key is None:
                return int(self._server.add_insecure_port(address))
            pair = (Path(config.tls_key).read_bytes(), Path(config.tls_cert).read_bytes())
            secured = grpc.ssl_server_credentials([pair])
            return int(self._server.add_secure_port(address, secured))
        except RuntimeError as exc:
            raise InvalidInput(f"cannot listen on {address} for gRPC: {exc}") from None

    def _add(
        self,
        service: str,
        handler: Callable[[MethodDescriptor], Any],
        *,
        are_counted: bool = False,
    ) -> None:
        """`are_counted`: the handlers take requests as bytes, which may be long."""
        from google.protobuf import message_factory  # noqa: PLC0415 - beside the descriptors

        methods = {}
        for method in pool().FindServiceByName(service).methods:
            kind = f"{'stream' if method.client_streaming else 'unary'}_" + (
                "stream" if method.server_streaming else "unary"
            )
            make = getattr(grpc, f"{kind}_rpc_method_handler")
            methods[method.name] = make(
                handler(method),
                request_deserializer=None
                if are_counted
                else message_factory.GetMessageClass(method.input_type).FromString,
                response_serializer=message_factory.GetMessageClass(
                    method.output_type
                ).SerializeToString,
            )
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, methods),)
        )

    def _handler(self, method: MethodDescriptor) -> Any:
        name = f"{method.containing_service.name}.{method.name}"
        if method.client_streaming:
            return self._many(method, _MANY[name])
        work = _ONE[name]

        async def one(data: bytes, context: Any) -> Any:
            async def answered(call: GrpcCall) -> Any:
                with call.door.gate.buffers.room(len(data)):
                    request = await decode_request(method.input_type, data, call)
                    if self._elsewhere is not None:
                        answer = await self._elsewhere.ask(call, method, request)
                        if answer is not None:
                            return answer
                    answer = await work(call, request)
                    await call.door.committed()
                    return answer

            return await self._guarded(context, answered)

        return one

    def _many(
        self,
        method: MethodDescriptor,
        work: Callable[[GrpcCall, AsyncIterator[Any]], Awaitable[None]],
    ) -> Any:
        async def many(stream: AsyncIterator[bytes], context: Any) -> None:
            async def answered(call: GrpcCall) -> None:
                requests = decode_requests(method.input_type, stream, call)
                if self._elsewhere is not None:
                    first = await anext(requests, None)
                    if first is None:
                        return
                    requests = _again(first, requests)
                    # The call to another node reads the requests in a task of its own, to its end.
                    if await self._elsewhere.stream(call, method, first, requests):
                        return
                async with aclosing(requests):
                    await work(call, requests)

            await self._guarded(context, answered)

        return many

    def _health(self, method: MethodDescriptor) -> Any:
        work: Any = health_check if method.name == "Check" else health_watch

        async def answer(request: Any, context: Any) -> Any:
            return await work(self._door, request, context)

        return answer

    async def _guarded(self, context: Any, work: Callable[[GrpcCall], Awaitable[Any]]) -> Any:
        """Let a client in, and tell it what goes wrong."""
        call = wait = None
        task, waits = asyncio.current_task(), self._door.waits
        assert task is not None
        try:
            call = self._let_in(context)
            wait = waits.while_good(task, call.key)
            return await work(call)
        except asyncio.CancelledError:
            if wait is None or wait.reason is None:
                raise
            task.uncancel()
            await abort(context, wait.reason)  # its key is not good any more
        except TimeoutError:
            await abort(context, told(PenstockError("nothing was taken for 30 seconds")))
        except grpc.aio.AioRpcError as exc:
            await abort_alike(context, exc)
        except Exception as exc:  # noqa: BLE001 - it becomes the answer
            await abort(context, await _decided(call, told(exc)))
        finally:
            if wait is not None:
                waits.leave(wait)
            self._door.connections.closed(call)

    def _let_in(self, context: Any) -> GrpcCall:
        gate = self._door.gate
        gate.arrive(_address(context.peer()))
        headers = {
            name.encode(): value.encode("latin-1", "replace")
            for name, value in context.invocation_metadata() or ()
            if isinstance(value, str)
        }
        return GrpcCall(self._door, gate.identify(token_of(headers)), context)


async def _publish_stream(call: GrpcCall, requests: AsyncIterator[Any]) -> None:
    async for answer in calls.publish_stream(call, requests):
        await call.write(answer)


_MANY: dict[str, Callable[[GrpcCall, AsyncIterator[Any]], Awaitable[None]]] = {
    "Messages.PublishStream": _publish_stream,
    "Queue.Lease": lease,
}


async def _again(first: Any, requests: AsyncGenerator[Any]) -> AsyncGenerator[Any]:
    """A stream of which one message was read."""
    async with aclosing(requests):
        yield first
        async for each in requests:
            yield each


async def _decided(call: GrpcCall | None, error: PenstockError) -> PenstockError:
    """A refusal, once what it was decided on is as safe as it has to be."""
    try:
        if call is not None:
            await call.door.committed()
    except PenstockError as exc:
        return exc
    return error


def _address(peer: str) -> str:
    """Of a peer as gRPC names it: ipv4:127.0.0.1:4711, ipv6:[::1]:4711."""
    _, _, rest = peer.partition(":")
    return rest.rpartition(":")[0].strip("[]").replace("%5B", "").replace("%5D", "")
