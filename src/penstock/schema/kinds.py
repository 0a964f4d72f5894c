"""The three languages of schemas, and the libraries that they need."""

from __future__ import annotations

from importlib import import_module
from typing import Any, cast, get_args

from penstock.errors import InvalidInput, MissingExtra
from penstock.schema.definition import ParsedSchema, References, SchemaType

_CLASSES = {"json": "JsonSchema", "avro": "AvroSchema", "protobuf": "ProtobufSchema"}


def parse_schema(
    kind: SchemaType, text: str, references: References, compiled: bytes = b""
) -> ParsedSchema:
    """Raises InvalidSchema. `compiled`: of Protobuf, what its text was compiled to."""
    if not isinstance(text, str):
        raise InvalidInput(f"a schema is text, not {type(text).__name__}")
    made = getattr(_module(kind), _CLASSES[kind])
    given = (compiled,) if kind == "protobuf" else ()
    return cast("ParsedSchema", made(text, references, *given))


def is_compiled(text: str) -> bool:
    """Whether a schema of type protobuf is a descriptor, and not .proto text."""
    return _module("protobuf").described(text) is not None


def file_set(references: References) -> bytes:
    """What a .proto text may import, as its compiler takes it."""
    return cast("bytes", _module("protobuf").file_set(references))


def compiled_file(data: bytes) -> bytes:
    """The descriptor of a schema that its compiler has made."""
    return cast("bytes", _module("protobuf").compiled_file(data))


def _module(kind: SchemaType) -> Any:
    if kind not in _CLASSES:
        allowed = ", ".join(get_args(SchemaType))
        raise InvalidInput(f"type is {kind!r:.100}; allowed: {allowed}")
    try:
        return import_module(f"penstock.schema.{kind}_schema")
    except ImportError as exc:
        raise MissingExtra("schemas", f"a schema of type {kind}") from exc
