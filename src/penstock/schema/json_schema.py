"""JSON Schema: drafts 4 to 2020-12, checked by jsonschema-rs.

Nothing is fetched: references lead to what is registered. Patterns are matched in linear time, so
that those with look-around or back-references are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jsonschema_rs
import msgspec

from penstock.errors import InvalidSchema
from penstock.schema.definition import (
    Incompatibility,
    Mismatch,
    ParsedSchema,
    References,
    pointer,
    shortened,
)
from penstock.schema.json_compat import JsonComparison
from penstock.schema.json_resources import JsonResources, document_depth_max
from penstock.schema.json_text import canonical_json, decode_schema, depth_of

_PATTERN_BYTES_MAX = 1 << 20
_PATTERNS_MAX = 500
_REFUSALS = (ValueError, TypeError, OverflowError, RecursionError)
"""What jsonschema-rs raises for schemas and for documents that it does not take."""

_decode: Callable[[bytes], Any] = msgspec.json.Decoder().decode


class JsonSchema(ParsedSchema):
    kind = "json"

    def __init__(self, text: str, references: References) -> None:
        self.text = text
        self.document = decode_schema(text)
        if not isinstance(self.document, dict | bool):
            raise InvalidSchema("a JSON Schema is an object or a boolean")
        self.canonical = canonical_json(self.document)
        self.resources = JsonResources(self.document, _documents(references))
        self._depth_max = document_depth_max(self.resources)
        _check_patterns(self.document)
        self._validator = compile_validator(self.document, self.resources)
        self._is_valid = self._validator.is_valid

    def accepts(self, payloads: Sequence[bytes]) -> bool:
        if self._depth_max is None:
            try:
                return all(map(self._is_valid, map(_decode, payloads)))
            except (msgspec.DecodeError, *_REFUSALS):
                return False
        return not self.check(payloads)

    def check(self, payloads: Sequence[bytes]) -> list[Mismatch]:
        if self._depth_max is None and self.accepts(payloads):
            return []
        return [found for n, each in enumerate(payloads) if (found := self._one(n, each))]

    def unreadable(self, writer: ParsedSchema) -> list[Incompatibility]:
        assert isinstance(writer, JsonSchema)
        return JsonComparison(self.resources, writer.resources).problems()

    def _one(self, row: int, payload: bytes) -> Mismatch | None:
        try:
            document = _decode(payload)
            if self._depth_max is not None:
                depth = depth_of(document)
                if depth > self._depth_max:
                    return Mismatch(
                        row,
                        "",
                        f"it is nested {depth} levels deep; the schema can be checked up to "
                        f"{self._depth_max}",
                    )
            return None if self._is_valid(document) else self._mismatch(row, payload)
        except msgspec.DecodeError as exc:
            return Mismatch(row, "", f"it is no JSON: {exc}")
        except _REFUSALS as exc:
            return Mismatch(row, "", shortened(exc))

    def _mismatch(self, row: int, payload: bytes) -> Mismatch:
        try:
            self._validator.validate(_decode(payload))
        except jsonschema_rs.ValidationError as exc:
            return Mismatch(row, pointer(exc.instance_path), shortened(exc.message))
        return Mismatch(row, "", "the schema does not accept it")


def compile_validator(document: Any, resources: JsonResources) -> Any:
    """Raises InvalidSchema."""

    def known(uri: str) -> Any:
        return resources.document(uri.removeprefix("json-schema:///"))

    try:
        return jsonschema_rs.validator_for(
            document,
            retriever=known,
            pattern_options=jsonschema_rs.RegexOptions(size_limit=_PATTERN_BYTES_MAX),
        )
    except jsonschema_rs.ValidationError as exc:
        where = pointer(exc.instance_path) or "its root"
        raise InvalidSchema(
            f"this is no JSON Schema, at {shortened(where)}: {shortened(exc.message)}. Patterns "
            "have no look-around and no back-references, so that they match in linear time"
        ) from None
    except (jsonschema_rs.ReferencingError, *_REFUSALS) as exc:
        raise InvalidSchema(f"this is no JSON Schema: {shortened(exc)}") from None


def _documents(references: References) -> Mapping[str, Any]:
    return {
        name: schema.document
        for name, schema in references.items()
        if isinstance(schema, JsonSchema)
    }


def _check_patterns(document: Any) -> None:
    """Each compiled pattern takes memory for as long as the schema is used."""
    count, waiting = 0, [document]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            count += isinstance(node.get("pattern"), str)
            inner = node.get("patternProperties")
            count += len(inner) if isinstance(inner, dict) else 0
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node
    if count > _PATTERNS_MAX:
        raise InvalidSchema(f"the schema has {count:,} patterns; {_PATTERNS_MAX} at most")
