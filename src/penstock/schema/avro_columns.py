"""Avro as Arrow: records are structs, dates and times what they are; several types are JSON."""

from __future__ import annotations

import base64
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pyarrow as pa

from penstock.schema.avro_schema import AvroSchema
from penstock.schema.avro_walk import DataRefused
from penstock.schema.columns import ColumnDecoder, ColumnType, KnownSchemas, ValueRefused, as_it_is
from penstock.schema.definition import ParsedSchema

_MOMENT = pa.timestamp("us", "UTC")
_PRIMITIVES = {
    "null": ColumnType(pa.string(), as_it_is),
    "boolean": ColumnType(pa.bool_(), as_it_is),
    "int": ColumnType(pa.int32(), as_it_is),
    "long": ColumnType(pa.int64(), as_it_is),
    "float": ColumnType(pa.float32(), as_it_is),
    "double": ColumnType(pa.float64(), as_it_is),
    "bytes": ColumnType(pa.binary(), as_it_is),
    "string": ColumnType(pa.string(), as_it_is),
}


class AvroColumnDecoder(ColumnDecoder):
    def __init__(self, schema: AvroSchema, known: KnownSchemas | None, *, bare: bool) -> None:
        super().__init__(schema, known, bare=bare)
        self._avro = schema
        self.type, self._shape = self._shape_of(schema.parsed, ())

    def _read(self, payload: bytes, writer: ParsedSchema | None) -> Any:
        assert writer is None or isinstance(writer, AvroSchema)
        try:
            datum = self._avro.read(payload, writer)
        except DataRefused as exc:
            raise ValueRefused(exc.reason) from None
        return None if datum is None else self._shape(datum)

    def _shape_of(self, node: Any, above: tuple[int, ...]) -> ColumnType:
        if isinstance(node, str):
            if node in _PRIMITIVES:
                return _PRIMITIVES[node]
            node = self._avro.named[node]
        if isinstance(node, list):
            inner = [each for each in node if each != "null"]
            return self._shape_of(inner[0], above) if len(inner) == 1 else _TEXT
        if id(node) in above:
            return _TEXT  # of a recursive schema
        above += (id(node),)
        logical = _logical(node)
        if logical is not None:
            return logical
        match node["type"]:
            case "record" | "error":
                return self._record(node, above)
            case "array":
                return _listing(self._shape_of(node["items"], above))
            case "map":
                return _mapping(self._shape_of(node["values"], above))
            case "enum":
                return _PRIMITIVES["string"]
            case "fixed":
                return _PRIMITIVES["bytes"]
            case inner:
                return self._shape_of(inner, above)

    def _record(self, node: dict[str, Any], above: tuple[int, ...]) -> ColumnType:
        fields = {field["name"]: self._shape_of(field["type"], above) for field in node["fields"]}
        shapes = [(name, each.shape) for name, each in fields.items()]

        def shape(value: Any) -> Any:
            return {
                name: None if (inner := value[name]) is None else shape_inner(inner)
                for name, shape_inner in shapes
            }

        return ColumnType(
            pa.struct([pa.field(name, each.type) for name, each in fields.items()]), shape
        )


def _logical(node: dict[str, Any]) -> ColumnType | None:
    """What fastavro makes of a logical type; None: it leaves it alone."""
    match node.get("logicalType"), node["type"]:
        case "date", "int":
            return ColumnType(pa.date32(), as_it_is)
        case "timestamp-millis" | "timestamp-micros", "long":
            return ColumnType(_MOMENT, as_it_is)
        case "local-timestamp-millis" | "local-timestamp-micros", "long":
            return ColumnType(pa.timestamp("us"), as_it_is)
        case ("time-millis", "int") | ("time-micros", "long"):
            return ColumnType(pa.int64(), _time_us)
        case "uuid", "string":
            return ColumnType(pa.string(), str)
        case "decimal", "bytes" | "fixed":
            precision, scale = node.get("precision", 0), node.get("scale", 0)
            if 0 < precision <= 38 and 0 <= scale <= precision:
                return ColumnType(pa.decimal128(precision, scale), as_it_is)
            return ColumnType(pa.string(), str)
    return None


def _listing(inner: ColumnType) -> ColumnType:
    def shape(value: Any) -> Any:
        return [None if each is None else inner.shape(each) for each in value]

    return ColumnType(pa.list_(inner.type), shape)


def _mapping(inner: ColumnType) -> ColumnType:
    def shape(value: Any) -> Any:
        return [(name, None if each is None else inner.shape(each)) for name, each in value.items()]

    return ColumnType(pa.map_(pa.string(), inner.type), shape)


def _time_us(value: Any) -> int:
    """Since midnight."""
    if isinstance(value, time):
        since = timedelta(
            hours=value.hour,
            minutes=value.minute,
            seconds=value.second,
            microseconds=value.microsecond,
        )
        return since // timedelta(microseconds=1)
    return int(value)


def _as_json(value: Any) -> Any:
    match value:
        case bytes():
            return base64.b64encode(value).decode()
        case datetime() | date() | time():
            return value.isoformat()
        case Decimal() | UUID():
            return str(value)
    raise NotImplementedError(type(value))


def _text(value: Any) -> Any:
    return msgspec.json.encode(value, enc_hook=_as_json).decode()


_TEXT = ColumnType(pa.string(), _text)
