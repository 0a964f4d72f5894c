"""`grpc.reflection.v1`: what the services are, for tools; only where the configuration says so."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from google.protobuf import descriptor_pb2

from penstock.server.grpc.descriptors import PACKAGE, message, pool

_SERVICES = (
    f"{PACKAGE}.Messages",
    f"{PACKAGE}.Queue",
    f"{PACKAGE}.Api",
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
)
_NOT_FOUND = 5
_Response = message("ServerReflectionResponse", "grpc.reflection.v1")


async def reflect(requests: AsyncIterator[Any], context: Any) -> None:
    async for asked in requests:
        await context.write(_answer(asked))


def _answer(asked: Any) -> Any:
    answer = _Response(valid_host=asked.host, original_request=asked)
    kind = asked.WhichOneof("message_request")
    try:
        if kind == "list_services":
            for name in _SERVICES:
                answer.list_services_response.service.add(name=name)
        elif kind == "file_by_filename":
            _describe(answer, pool().FindFileByName(asked.file_by_filename))
        elif kind == "file_containing_symbol":
            _describe(answer, pool().FindFileContainingSymbol(asked.file_containing_symbol))
        else:
            raise KeyError(str(kind))
    except KeyError as exc:
        answer.error_response.error_code = _NOT_FOUND
        answer.error_response.error_message = str(exc)
    return answer


def _describe(answer: Any, file: Any) -> None:
    """A file, and all that it imports."""
    waiting, seen = [file], set()
    while waiting:
        each = waiting.pop()
        if each.name in seen:
            continue
        seen.add(each.name)
        described = descriptor_pb2.FileDescriptorProto()
        each.CopyToProto(described)
        answer.file_descriptor_response.file_descriptor_proto.append(described.SerializeToString())
        waiting += each.dependencies
