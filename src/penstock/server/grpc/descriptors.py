"""The classes of the messages, made from the descriptors that were compiled.

After a change of a .proto file: `python -m grpc_tools.protoc -Isrc/penstock/server/grpc
--include_imports --descriptor_set_out=src/penstock/server/grpc/descriptors.binpb
src/penstock/server/grpc/*.proto`.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "penstock.v1"


@cache
def pool() -> descriptor_pool.DescriptorPool:
    """Of its own, so that a program may load other copies of the same files."""
    data = (files("penstock.server.grpc") / "descriptors.binpb").read_bytes()
    found = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(data).file:
        found.AddSerializedFile(file.SerializeToString())
    return found


@cache
def message(name: str, package: str = PACKAGE) -> Any:
    """The class of a message."""
    return message_factory.GetMessageClass(pool().FindMessageTypeByName(f"{package}.{name}"))
