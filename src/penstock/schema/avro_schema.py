"""Avro: read by fastavro, compared by the rules of the Avro project's own library."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from io import BytesIO
from typing import Any

import avro.compatibility
import avro.errors
import avro.name
import avro.schema
import fastavro
import fastavro.schema

from penstock.errors import InvalidSchema
from penstock.schema.avro_walk import AvroWalk, DataRefused
from penstock.schema.definition import (
    Incompatibility,
    Mismatch,
    ParsedSchema,
    References,
    shortened,
)
from penstock.schema.json_text import canonical_json, decode_schema

PRIMITIVES = {"null", "boolean", "int", "long", "float", "double", "bytes", "string"}
_READ_ERRORS = (
    EOFError,
    ValueError,
    IndexError,
    KeyError,
    TypeError,
    OverflowError,
    StopIteration,
    MemoryError,
    ArithmeticError,
)
"""What fastavro raises for bytes that are no data of the schema."""


class AvroSchema(ParsedSchema):
    kind = "avro"

    def __init__(self, text: str, references: References) -> None:
        self.text = text
        self.document = _document(text)
        _check_names(self.document)
        self.canonical = canonical_json(self.document)
        self.named: dict[str, Any] = {}
        names = avro.name.Names()
        for other in references.values():
            if isinstance(other, AvroSchema):
                _parse_both(other.document, self.named, names)
        self.parsed, self._comparable = _parse_both(self.document, self.named, names)
        self.walk = AvroWalk(self.parsed, self.named)
        self.walk.check_bounded()

    def check(self, payloads: Sequence[bytes]) -> list[Mismatch]:
        return [found for row, each in enumerate(payloads) if (found := self._one(row, each))]

    def unreadable(self, writer: ParsedSchema) -> list[Incompatibility]:
        assert isinstance(writer, AvroSchema)
        checker: Any = avro.compatibility.ReaderWriterCompatibilityChecker  # it has no types
        try:
            found = checker().get_compatibility(self._comparable, writer._comparable)
        except RecursionError:
            return [
                Incompatibility(
                    path="/", rule="TOO_COMPLEX", message="the two schemas are too deep to compare"
                )
            ]
        if found.compatibility is avro.compatibility.SchemaCompatibilityType.compatible:
            return []
        return list(_problems(found)) or [
            Incompatibility(path="/", rule="INCOMPATIBLE", message="the types do not match")
        ]

    def read(self, payload: bytes, writer: AvroSchema | None = None) -> Any:
        """The datum of a message, as `writer` wrote it and this schema sees it. Raises
        DataRefused."""
        written = writer or self
        stream = BytesIO(payload)
        try:
            if written.walk.is_recursive:  # fastavro would exhaust the C stack
                written.walk.skip(payload)
            if written is self:
                datum = fastavro.schemaless_reader(stream, self.parsed, None)
            else:
                datum = fastavro.schemaless_reader(stream, written.parsed, self.parsed)
        except (*_READ_ERRORS, fastavro.schema.SchemaParseException) as exc:
            raise DataRefused("", shortened(exc) or type(exc).__name__) from None
        except fastavro.read.SchemaResolutionError as exc:
            raise DataRefused("", shortened(exc)) from None
        left = len(payload) - stream.tell()
        if left:
            raise DataRefused("", f"{left:,} bytes are left over behind the datum")
        return datum

    def _one(self, row: int, payload: bytes) -> Mismatch | None:
        try:
            self.read(payload)
        except DataRefused:
            try:
                self.walk.skip(payload)
            except DataRefused as found:  # by its field
                exc = found
            return Mismatch(row, exc.field, exc.reason)
        return None


def _document(text: str) -> Any:
    """A schema may be the bare name of a primitive type."""
    bare = text.strip()
    if bare in PRIMITIVES:
        return bare
    found = decode_schema(text)
    if not isinstance(found, dict | list | str):
        raise InvalidSchema("an Avro schema is an object, a list or the name of a type")
    return found


def _check_names(document: Any) -> None:
    """fastavro believes a schema that says it was parsed before."""
    waiting = [document]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            for name in node:
                if name.startswith("__"):
                    raise InvalidSchema(f"the schema has an attribute {name!r:.100}")
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node


def _parse_both(document: Any, named: dict[str, Any], names: Any) -> tuple[Any, Any]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of logical types that it does not know
            parsed = fastavro.parse_schema(document, named, _write_hint=False)
            comparable = avro.schema.make_avsc_object(document, names)
    except (
        fastavro.schema.SchemaParseException,
        avro.errors.AvroException,
        RecursionError,
        AttributeError,
        *_READ_ERRORS,
    ) as exc:
        raise InvalidSchema(f"this is no Avro schema: {shortened(exc)}") from None
    return parsed, comparable


def _problems(found: Any) -> Iterator[Incompatibility]:
    locations = sorted(found.locations) or ["/"]
    messages = sorted(found.messages) or ["the types do not match"]
    rules = [each.name.upper() for each in found.incompatibilities] or ["INCOMPATIBLE"]
    for number, message in enumerate(messages):
        yield Incompatibility(
            path=locations[min(number, len(locations) - 1)],
            rule=rules[min(number, len(rules) - 1)],
            message=shortened(message),
        )
