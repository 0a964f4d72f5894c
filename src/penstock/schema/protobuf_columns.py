"""Protobuf as Arrow: messages are structs, enums their names, `Timestamp` a timestamp."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from penstock.errors import InvalidInput
from penstock.schema.columns import ColumnDecoder, ColumnType, KnownSchemas, ValueRefused, as_it_is
from penstock.schema.definition import ParsedSchema, shortened
from penstock.schema.protobuf_compat import is_repeated
from penstock.schema.protobuf_schema import ProtobufSchema

_T = FieldDescriptor
_SCALARS = {
    _T.TYPE_DOUBLE: ColumnType(pa.float64(), as_it_is),
    _T.TYPE_FLOAT: ColumnType(pa.float32(), as_it_is),
    _T.TYPE_BOOL: ColumnType(pa.bool_(), as_it_is),
    _T.TYPE_STRING: ColumnType(pa.string(), as_it_is),
    _T.TYPE_BYTES: ColumnType(pa.binary(), as_it_is),
    **dict.fromkeys(
        (_T.TYPE_INT32, _T.TYPE_SINT32, _T.TYPE_SFIXED32), ColumnType(pa.int32(), as_it_is)
    ),
    **dict.fromkeys(
        (_T.TYPE_INT64, _T.TYPE_SINT64, _T.TYPE_SFIXED64, _T.TYPE_UINT32, _T.TYPE_FIXED32),
        ColumnType(pa.int64(), as_it_is),
    ),
    **dict.fromkeys((_T.TYPE_UINT64, _T.TYPE_FIXED64), ColumnType(pa.decimal128(20, 0), Decimal)),
}
_WRAPPERS = {
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
}
_AS_JSON = {f"google.protobuf.{name}" for name in ("Struct", "Value", "ListValue", "Any")}


class ProtobufColumnDecoder(ColumnDecoder):
    def __init__(
        self,
        schema: ProtobufSchema,
        known: KnownSchemas | None,
        message: str | None,
        *,
        bare: bool,
    ) -> None:
        super().__init__(schema, known, bare=bare)
        self._class: type[Message] = (
            schema.message_class([0]) if message is None else schema.message_named(message)
        )
        name = self._class.DESCRIPTOR.full_name
        self._name = name
        self.type, self._shape = _of_message(self._class.DESCRIPTOR, ())

    def _read(self, payload: bytes, writer: ParsedSchema | None) -> Any:
        assert writer is None or isinstance(writer, ProtobufSchema)
        try:
            if writer is None:
                return self._shape(self._class.FromString(payload))
            written, start = writer.message_of(payload)
            if written.DESCRIPTOR.full_name != self._name:
                raise ValueRefused(f"it is a {written.DESCRIPTOR.full_name}, not a {self._name}")
            return self._shape(self._class.FromString(payload[start:]))
        except (DecodeError, ValueError) as exc:
            raise ValueRefused(shortened(exc)) from None


def _of_message(descriptor: Any, above: tuple[str, ...]) -> ColumnType:
    name = descriptor.full_name
    if name in above or name in _AS_JSON:
        return ColumnType(pa.string(), _as_json)
    if name == "google.protobuf.Timestamp":
        return ColumnType(pa.timestamp("us", "UTC"), lambda value: value.ToMicroseconds())
    if name == "google.protobuf.Duration":
        return ColumnType(pa.int64(), lambda value: value.ToMicroseconds())
    if name in _WRAPPERS:
        inner = _SCALARS[descriptor.fields_by_name["value"].type]
        return ColumnType(inner.type, lambda value: inner.shape(value.value))
    above += (name,)
    getters = []
    fields = []
    for field in descriptor.fields:
        type_, get = _of_field(field, above)
        fields.append(pa.field(field.name, type_))
        getters.append((field.name, get))
    if not fields:  # Arrow knows structs without fields, Spark does not
        return ColumnType(pa.string(), _as_json)

    def shape(value: Any) -> Any:
        return {name: get(value) for name, get in getters}

    return ColumnType(pa.struct(fields), shape)


def _of_field(field: Any, above: tuple[str, ...]) -> tuple[pa.DataType, Callable[[Any], Any]]:
    """Its type, and how it is taken out of a message."""
    name = field.name
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        key = _of_value(message.fields_by_name["key"], above)
        value = _of_value(message.fields_by_name["value"], above)

        def entries(of: Any) -> Any:
            found = getattr(of, name)
            return [(key.shape(each), value.shape(found[each])) for each in found]

        return pa.map_(key.type, value.type), entries
    inner = _of_value(field, above)
    if is_repeated(field):
        return pa.list_(inner.type), lambda of: [inner.shape(each) for each in getattr(of, name)]
    if field.has_presence:
        return inner.type, lambda of: inner.shape(getattr(of, name)) if of.HasField(name) else None
    return inner.type, lambda of: inner.shape(getattr(of, name))


def _of_value(field: Any, above: tuple[str, ...]) -> ColumnType:
    if field.message_type is not None:
        return _of_message(field.message_type, above)
    if field.enum_type is not None:
        names = {number: each.name for number, each in field.enum_type.values_by_number.items()}
        return ColumnType(pa.string(), lambda number: names.get(number, str(number)))
    return _SCALARS[field.type]


def _as_json(value: Any) -> str:
    try:
        return json_format.MessageToJson(value, indent=None, preserving_proto_field_name=True)
    except (TypeError, json_format.Error) as exc:  # an Any of a type that is not known
        raise InvalidInput(shortened(exc)) from None
