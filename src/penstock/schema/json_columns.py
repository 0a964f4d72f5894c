"""JSON by its schema as Arrow: objects are structs, and what has no one type is JSON text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa

from penstock.errors import PenstockError
from penstock.schema.columns import ColumnDecoder, ColumnType, KnownSchemas, ValueRefused, as_it_is
from penstock.schema.definition import ParsedSchema
from penstock.schema.json_resources import Located
from penstock.schema.json_schema import JsonSchema

_INT64 = 1 << 63
_decode: Callable[[bytes], Any] = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


class JsonColumnDecoder(ColumnDecoder):
    def __init__(self, schema: JsonSchema, known: KnownSchemas | None, *, bare: bool) -> None:
        super().__init__(schema, known, bare=bare)
        self._json = schema
        self.type, self._shape = self._shape_of(schema.resources.root, ())

    def _read(self, payload: bytes, writer: ParsedSchema | None) -> Any:
        try:
            return self._shape(_decode(payload))
        except (msgspec.DecodeError, RecursionError) as exc:
            raise ValueRefused(f"it is no JSON: {exc}") from None

    def _writer(self, id_: int) -> ParsedSchema:
        """JSON is read alike, by whichever schema it was written."""
        try:
            return super()._writer(id_)
        except PenstockError:
            return self._schema

    def _shape_of(self, at: Located, above: tuple[int, ...]) -> ColumnType:
        parts = [each for each in self._json.resources.parts(at) if isinstance(each.node, dict)]
        nodes = [each.node for each in parts]
        keys = tuple(map(id, nodes))
        if set(keys) & set(above) or len(above) > 100:
            return _TEXT  # of a recursive schema
        above += keys
        choice = _one_choice(parts)
        if choice is not None:
            return self._shape_of(choice, above)
        types = _types(nodes)
        if types == {"object"}:
            return self._object(parts, above)
        if types == {"array"}:
            return self._array(parts, above)
        return _SCALARS.get(frozenset(types), _TEXT)

    def _object(self, parts: list[Located], above: tuple[int, ...]) -> ColumnType:
        fields: dict[str, ColumnType] = {}
        for node, base in parts:
            for name, inner in (node.get("properties") or {}).items():
                if name not in fields:
                    fields[name] = self._shape_of(Located(inner, base), above)
        if fields:
            return _struct(fields)
        for node, base in parts:
            inner = node.get("additionalProperties")
            if isinstance(inner, dict):
                return _mapping(self._shape_of(Located(inner, base), above))
        return _TEXT

    def _array(self, parts: list[Located], above: tuple[int, ...]) -> ColumnType:
        for node, base in parts:
            if isinstance(node.get("items"), dict) and "prefixItems" not in node:
                return _listing(self._shape_of(Located(node["items"], base), above))
        return _TEXT


def _one_choice(parts: list[Located]) -> Located | None:
    """Of "this or null": this."""
    for node, base in parts:
        for name in ("anyOf", "oneOf"):
            choices = node.get(name)
            if isinstance(choices, list) and "type" not in node:
                real = [
                    each
                    for each in choices
                    if not (isinstance(each, dict) and each.get("type") == "null")
                ]
                if len(real) == 1 and len(choices) == 2:
                    return Located(real[0], base)
    return None


def _types(nodes: list[dict[str, Any]]) -> set[str]:
    for node in nodes:
        given = node.get("type")
        if isinstance(given, str):
            return {given}
        if isinstance(given, list):
            return {each for each in given if each != "null"}
    for node in nodes:
        values = [*node.get("enum", ()), *([node["const"]] if "const" in node else ())]
        if values and all(isinstance(value, str) for value in values):
            return {"string"}
        if "properties" in node:
            return {"object"}
    return set()


def _struct(fields: dict[str, ColumnType]) -> ColumnType:
    shapes = [(name, each.shape) for name, each in fields.items()]

    def shape(value: Any) -> Any:
        if value is None:
            return None
        if type(value) is not dict:
            raise ValueRefused(f"it is {_name(value)} where an object was expected")
        get = value.get
        return {
            name: None if (inner := get(name)) is None else shape_inner(inner)
            for name, shape_inner in shapes
        }

    return ColumnType(
        pa.struct([pa.field(name, each.type) for name, each in fields.items()]), shape
    )


def _mapping(inner: ColumnType) -> ColumnType:
    def shape(value: Any) -> Any:
        if type(value) is not dict:
            raise ValueRefused(f"it is {_name(value)} where an object was expected")
        return [(name, None if each is None else inner.shape(each)) for name, each in value.items()]

    return ColumnType(pa.map_(pa.string(), inner.type), shape)


def _listing(inner: ColumnType) -> ColumnType:
    def shape(value: Any) -> Any:
        if type(value) is not list:
            raise ValueRefused(f"it is {_name(value)} where an array was expected")
        return [None if each is None else inner.shape(each) for each in value]

    return ColumnType(pa.list_(inner.type), shape)


def _integer(value: Any) -> Any:
    if type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is int and -_INT64 <= value < _INT64:
        return value
    if value is None:
        return None
    raise ValueRefused(f"it is {_name(value)} where an integer of 64 bits was expected")


def _number(value: Any) -> Any:
    if type(value) is int or type(value) is float:
        return float(value)
    if value is None:
        return None
    raise ValueRefused(f"it is {_name(value)} where a number was expected")


def _string(value: Any) -> Any:
    if type(value) is str or value is None:
        return value
    raise ValueRefused(f"it is {_name(value)} where a string was expected")


def _boolean(value: Any) -> Any:
    if type(value) is bool or value is None:
        return value
    raise ValueRefused(f"it is {_name(value)} where a boolean was expected")


def _text(value: Any) -> Any:
    """Anything, as JSON."""
    return None if value is None else _encode(value).decode()


def _name(value: Any) -> str:
    return {dict: "an object", list: "an array", str: "a string", bool: "a boolean"}.get(
        type(value), repr(value)[:40]
    )


_TEXT = ColumnType(pa.string(), _text)
_SCALARS = {
    frozenset({"integer"}): ColumnType(pa.int64(), _integer),
    frozenset({"number"}): ColumnType(pa.float64(), _number),
    frozenset({"number", "integer"}): ColumnType(pa.float64(), _number),
    frozenset({"string"}): ColumnType(pa.string(), _string),
    frozenset({"boolean"}): ColumnType(pa.bool_(), _boolean),
    frozenset({"null"}): ColumnType(pa.string(), as_it_is),
}
