"""Protobuf: a file descriptor, from .proto text or as serializers send it, and its messages.

What is kept of a schema is its descriptor, so that text is compiled once, when it is registered
(`penstock.broker.proto_compiler`).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from google.protobuf import (
    any_pb2,
    api_pb2,
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    message_factory,
    source_context_pb2,
    struct_pb2,
    timestamp_pb2,
    type_pb2,
    wrappers_pb2,
)
from google.protobuf.message import DecodeError, Message

from penstock.errors import InvalidInput, InvalidSchema
from penstock.schema.definition import (
    Incompatibility,
    Mismatch,
    ParsedSchema,
    References,
    shortened,
)
from penstock.schema.framing import read_indexes
from penstock.schema.json_text import check_length
from penstock.schema.protobuf_compat import compare_files
from penstock.schema.protobuf_text import json_name, proto_text
from penstock.schema.protobuf_walk import wrong_field

KNOWN_FILES: dict[str, bytes] = {
    module.DESCRIPTOR.name: module.DESCRIPTOR.serialized_pb
    for module in (
        source_context_pb2,
        any_pb2,
        type_pb2,
        api_pb2,
        descriptor_pb2,
        duration_pb2,
        empty_pb2,
        field_mask_pb2,
        struct_pb2,
        timestamp_pb2,
        wrappers_pb2,
    )
}
"""What every schema may import, those that others import first."""
FILE_NAME = "schema.proto"
_MESSAGES_MAX = 5_000


class ProtobufSchema(ParsedSchema):
    kind = "protobuf"

    def __init__(self, text: str, references: References, compiled: bytes = b"") -> None:
        """`compiled`: the descriptor that .proto text was compiled to."""
        given = compiled or described(text)
        if given is None:
            raise InvalidSchema("the text has to be compiled first")
        self.file = parse_file(given)
        self.file.name = FILE_NAME
        self._references = {
            name: each for name, each in references.items() if isinstance(each, ProtobufSchema)
        }
        self.compiled = self.file.SerializeToString(deterministic=True)
        self.canonical = base64.b64encode(_canonical(self.file)).decode()
        self.text = text if compiled else proto_text(self.file)
        self.pool = descriptor_pool.DescriptorPool()
        for data in KNOWN_FILES.values():
            self.pool.AddSerializedFile(data)
        try:
            for name, each in self._references.items():
                file = parse_file(each.compiled)
                file.name = name
                self.pool.AddSerializedFile(file.SerializeToString())
            self.pool.AddSerializedFile(self.compiled)
            self.descriptor = self.pool.FindFileByName(FILE_NAME)
        except (TypeError, KeyError, ValueError) as exc:
            raise InvalidSchema(f"the schema does not fit together: {shortened(exc)}") from None
        if not self.file.message_type:
            raise InvalidSchema("the schema has no message")
        if sum(1 for _ in all_messages(self.file)) > _MESSAGES_MAX:
            raise InvalidSchema(f"the schema has more than {_MESSAGES_MAX:,} messages")
        self._classes: dict[tuple[int, ...], type[Message]] = {}

    @cached_property
    def known_files(self) -> bytes:
        """A `FileDescriptorSet` of all that a schema may import that refers to this one."""
        return file_set(self._references)

    def check(self, payloads: Sequence[bytes]) -> list[Mismatch]:
        found = []
        for row, payload in enumerate(payloads):
            try:
                kind, start = self.message_of(payload)
                kind.FromString(payload[start:])
            except DecodeError:
                field, reason = wrong_field(payload[start:], kind.DESCRIPTOR)
                found.append(Mismatch(row, field, reason))
            except ValueError as exc:
                found.append(Mismatch(row, "", shortened(exc)))
        return found

    def unreadable(self, writer: ParsedSchema) -> list[Incompatibility]:
        assert isinstance(writer, ProtobufSchema)
        return compare_files(self.descriptor, writer.descriptor)

    def message_of(self, payload: bytes) -> tuple[type[Message], int]:
        """Of which message a payload is, behind its indexes. Raises ValueError."""
        indexes, start = read_indexes(payload)
        return self.message_class(indexes), start

    def message_named(self, name: str) -> type[Message]:
        """A message by its full name, or by its name in the package of the file."""
        for full in (name, f"{self.file.package}.{name}"):
            try:
                return message_factory.GetMessageClass(self.pool.FindMessageTypeByName(full))
            except KeyError:
                continue
        raise InvalidInput(f"the schema has no message {name!r:.200}")

    def message_class(self, indexes: Sequence[int]) -> type[Message]:
        key = tuple(indexes)
        known = self._classes.get(key)
        if known is None:
            messages: Sequence[Any] = self.file.message_type
            names = [self.file.package] if self.file.package else []
            for index in key:
                if not 0 <= index < len(messages):
                    raise ValueError(f"the schema has no message at index {list(key)}")
                names.append(messages[index].name)
                messages = messages[index].nested_type
            descriptor = self.pool.FindMessageTypeByName(".".join(names))
            known = self._classes[key] = message_factory.GetMessageClass(descriptor)
        return known


def described(text: str) -> bytes | None:
    """The descriptor in a schema that is one, in base64; None: it is .proto text."""
    check_length(text)
    try:
        data = base64.b64decode(text, validate=True)
        file = descriptor_pb2.FileDescriptorProto.FromString(data)
    except (binascii.Error, ValueError, DecodeError):
        return None
    return data if file.message_type or file.enum_type or file.dependency else None


def parse_file(data: bytes) -> descriptor_pb2.FileDescriptorProto:
    try:
        return descriptor_pb2.FileDescriptorProto.FromString(data)
    except DecodeError as exc:
        raise InvalidSchema(f"this is no descriptor of a .proto file: {exc}") from None


def file_set(references: References) -> bytes:
    """Everything that may be imported, as protoc takes it."""
    found = descriptor_pb2.FileDescriptorSet()
    for data in KNOWN_FILES.values():
        found.file.append(parse_file(data))
    for name, each in references.items():
        if isinstance(each, ProtobufSchema):
            file = parse_file(each.compiled)
            file.name = name
            found.file.append(file)
    return found.SerializeToString()


def compiled_file(data: bytes) -> bytes:
    """The one file of a `FileDescriptorSet` that protoc has made."""
    return descriptor_pb2.FileDescriptorSet.FromString(data).file[0].SerializeToString()


def all_messages(file: Any) -> Iterator[Any]:
    """The descriptors of all messages of a file, also those inside others."""
    waiting = list(file.message_type)
    while waiting:
        each = waiting.pop()
        yield each
        waiting += each.nested_type


def _canonical(given: descriptor_pb2.FileDescriptorProto) -> bytes:
    """The same for a file, whether protoc wrote its descriptor or a generated module."""
    file = descriptor_pb2.FileDescriptorProto()
    file.CopyFrom(given)
    file.ClearField("name")
    file.ClearField("source_code_info")
    if file.syntax == "proto2":
        file.ClearField("syntax")
    for message in all_messages(file):
        for field in [*message.field, *message.extension]:
            if field.json_name == json_name(field.name):
                field.ClearField("json_name")
    return file.SerializeToString(deterministic=True)
