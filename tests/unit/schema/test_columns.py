"""Values of messages as Arrow columns: the types of a schema, and the values of other versions."""

from __future__ import annotations

import base64
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from io import BytesIO
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2

from penstock.errors import InvalidInput, SchemaNotFound, Unavailable
from penstock.schema.columns import column_decoder
from penstock.schema.framing import prefix
from penstock.schema.kinds import parse_schema

MOMENT = datetime(2024, 2, 29, 12, 30, 0, 250_000, UTC)


def json_schema(schema: Any) -> Any:
    return parse_schema("json", json.dumps(schema), {})


def avro_schema(*fields: Any) -> Any:
    record = {"type": "record", "name": "R", "fields": [{"name": n, **t} for n, t in fields]}
    return parse_schema("avro", json.dumps(record), {})


def avro_bytes(schema: Any, datum: Any) -> bytes:
    out = BytesIO()
    fastavro.schemaless_writer(out, schema.parsed, datum)
    return out.getvalue()


def proto_schema() -> Any:
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="x", package="p", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    color = file.enum_type.add(name="Color")
    color.value.add(name="RED", number=0)
    color.value.add(name="BLUE", number=1)
    message = file.message_type.add(name="Order")
    entry = message.nested_type.add(name="TagsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=kinds.TYPE_INT32, label=kinds.LABEL_OPTIONAL)
    one, many = kinds.LABEL_OPTIONAL, kinds.LABEL_REPEATED
    for number, (name, type_, label, type_name) in enumerate(
        [
            ("id", kinds.TYPE_UINT64, one, ""),
            ("names", kinds.TYPE_STRING, many, ""),
            ("tags", kinds.TYPE_MESSAGE, many, ".p.Order.TagsEntry"),
            ("color", kinds.TYPE_ENUM, one, ".p.Color"),
            ("at", kinds.TYPE_MESSAGE, one, ".google.protobuf.Timestamp"),
            ("parent", kinds.TYPE_MESSAGE, one, ".p.Order"),
        ]
    ):
        message.field.add(
            name=name, number=number + 1, type=type_, label=label, type_name=type_name or None
        )
    file.message_type.add(name="Other")
    return parse_schema("protobuf", base64.b64encode(file.SerializeToString()).decode(), {})


def test_objects_become_structs_and_what_has_no_one_type_is_text() -> None:
    schema = json_schema(
        {
            "type": "object",
            "$defs": {"tree": {"properties": {"left": {"$ref": "#/$defs/tree"}}}},
            "properties": {
                "id": {"type": "integer"},
                "price": {"type": ["number", "null"]},
                "name": {"anyOf": [{"type": "null"}, {"type": "string"}]},
                "on": {"type": "boolean"},
                "tags": {"type": "array", "items": {"type": "string"}},
                "counts": {"type": "object", "additionalProperties": {"type": "integer"}},
                "any": {},
                "tree": {"$ref": "#/$defs/tree"},
            },
        }
    )
    decoder = column_decoder(schema)
    assert decoder.type == pa.struct(
        [
            ("id", pa.int64()),
            ("price", pa.float64()),
            ("name", pa.string()),
            ("on", pa.bool_()),
            ("tags", pa.list_(pa.string())),
            ("counts", pa.map_(pa.string(), pa.int64())),
            ("any", pa.string()),
            ("tree", pa.struct([("left", pa.string())])),
        ]
    )
    value = {
        "id": 2.0,
        "price": 3,
        "name": None,
        "on": True,
        "tags": ["a", None],
        "counts": {"x": 1},
        "any": [1, {"b": 2}],
        "tree": {"left": {"left": {}}},
        "unknown": 1,
    }
    got = decoder.decode([json.dumps(value).encode(), prefix(9) + b'{"id": 1}', None])
    assert got.errors == []
    assert got.ids.to_pylist() == [None, 9, None]
    first, second, third = got.column.to_pylist()
    assert first == {
        "id": 2,
        "price": 3.0,
        "name": None,
        "on": True,
        "tags": ["a", None],
        "counts": [("x", 1)],
        "any": '[1,{"b":2}]',
        "tree": {"left": '{"left":{}}'},
    }
    assert (second["id"], second["any"], third) == (1, None, None)


def test_values_that_do_not_fit_are_null_and_told() -> None:
    decoder = column_decoder(json_schema({"properties": {"id": {"type": "integer"}}}))
    values = [b'{"id": 1}', b"[]", b"no json", b'{"id": "1"}', b'{"id": 99999999999999999999}']
    got = decoder.decode(pa.array(values, pa.binary()))
    assert got.column.to_pylist() == [{"id": 1}, None, None, None, None]
    assert [row for row, _ in got.errors] == [1, 2, 3, 4]


def test_avro_keeps_its_logical_types() -> None:
    schema = avro_schema(
        ("id", {"type": "long"}),
        ("day", {"type": {"type": "int", "logicalType": "date"}}),
        ("at", {"type": {"type": "long", "logicalType": "timestamp-millis"}}),
        (
            "price",
            {"type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        ),
        ("kind", {"type": {"type": "enum", "name": "K", "symbols": ["A", "B"]}}),
        ("maybe", {"type": ["null", "string"], "default": None}),
        ("either", {"type": ["int", "string"]}),
        ("tags", {"type": {"type": "map", "values": {"type": "array", "items": "int"}}}),
    )
    decoder = column_decoder(schema, bare=True)
    datum = {
        "id": 5,
        "day": date(2024, 2, 29),
        "at": MOMENT,
        "price": Decimal("12.50"),
        "kind": "B",
        "maybe": None,
        "either": "x",
        "tags": {"a": [1, 2]},
    }
    got = decoder.decode([avro_bytes(schema, datum)])
    assert got.errors == []
    (row,) = got.column.to_pylist()
    assert row == {**datum, "either": '"x"', "tags": [("a", [1, 2])]}


def test_avro_of_an_older_version_is_brought_to_the_newer_type() -> None:
    old = avro_schema(("id", {"type": "int"}), ("gone", {"type": "string"}))
    new = avro_schema(("id", {"type": "long"}), ("more", {"type": "string", "default": "-"}))
    versions = {1: old, 2: new}
    decoder = column_decoder(new, versions.__getitem__)
    values = [
        prefix(1) + avro_bytes(old, {"id": 1, "gone": "x"}),
        prefix(2) + avro_bytes(new, {"id": 2, "more": "y"}),
    ]
    got = decoder.decode(values)
    assert got.ids.to_pylist() == [1, 2]
    assert got.column.to_pylist() == [{"id": 1, "more": "-"}, {"id": 2, "more": "y"}]


def test_an_unknown_id_is_an_error_of_its_row() -> None:
    def nobody(id_: int) -> Any:
        raise SchemaNotFound(id_)

    schema = avro_schema(("id", {"type": "int"}))
    value = avro_bytes(schema, {"id": 1})
    got = column_decoder(schema, nobody).decode([value, prefix(7) + value])
    assert got.column.to_pylist() == [None, None]
    assert got.errors == [
        (0, "it does not begin with the id of a schema"),
        (1, "there is no schema 7"),
    ]


def test_a_registry_that_is_away_says_nothing_about_a_value() -> None:
    def away(id_: int) -> Any:
        raise Unavailable

    schema = avro_schema(("id", {"type": "int"}))
    with pytest.raises(Unavailable):
        column_decoder(schema, away).decode([prefix(7) + avro_bytes(schema, {"id": 1})])


def test_protobuf_messages_become_structs() -> None:
    schema = proto_schema()
    decoder = column_decoder(schema, lambda _: schema)
    order = schema.message_class([0])
    message = order(id=1 << 63, names=["a", "b"], tags={"x": 1}, color=1)
    message.at.FromDatetime(MOMENT)
    message.parent.id = 7
    data = message.SerializeToString()
    got = decoder.decode(
        [prefix(1) + each for each in (b"\0" + data, b"\0", b"\x02\x02", b"\0\xff")] + [b"\0"]
    )
    assert [row for row, _ in got.errors] == [2, 3, 4], got.errors
    row, empty, other, broken, _ = got.column.to_pylist()
    assert row == {
        "id": Decimal(1 << 63),
        "names": ["a", "b"],
        "tags": [("x", 1)],
        "color": "BLUE",
        "at": MOMENT,
        "parent": '{"id": "7"}',
    }
    assert column_decoder(schema, bare=True).decode([data]).column.to_pylist() == [row]
    assert (empty["id"], empty["at"], empty["names"], other, broken) == (0, None, [], None, None)


def test_a_message_can_be_named() -> None:
    schema = proto_schema()
    assert column_decoder(schema, message="Order").type == column_decoder(schema).type
    assert pa.types.is_string(column_decoder(schema, message="p.Other").type)
    for schema_, name in ((schema, "Nobody"), (json_schema(True), "Order")):
        with pytest.raises(InvalidInput, match="message"):
            column_decoder(schema_, message=name)
