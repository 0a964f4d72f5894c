"""Schemas and data of strangers: refused, or bounded, in little time."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from typing import Any

import pytest
from google.protobuf import descriptor_pb2

from penstock.errors import InvalidInput, InvalidSchema
from penstock.schema.kinds import parse_schema

SECONDS_MAX = 5.0  # on a busy machine; each takes a few milliseconds


def _number(case: Any) -> str:
    """A name for a case that says nothing and has no spaces."""
    return hashlib.sha256(repr(case).encode()).hexdigest()[:6]


@pytest.fixture(autouse=True)
def _quick() -> Any:
    began = time.process_time()
    yield
    assert time.process_time() - began < SECONDS_MAX


def nested(depth: int) -> Any:
    schema: Any = {}
    for _ in range(depth):
        schema = {"properties": {"a": schema}}
    return schema


def doubling(times: int, keyword: str = "allOf") -> Any:
    definitions: dict[str, Any] = {
        f"a{n}": {keyword: [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(times)
    }
    definitions[f"a{times}"] = {"type": "integer"}
    return {"$defs": definitions, "$ref": "#/$defs/a0"}


def doubling_below(times: int) -> Any:
    """Each level of the document is looked at twice as often as the one above."""
    definitions: dict[str, Any] = {
        f"a{n}": {"allOf": [{"properties": {"a": {"$ref": f"#/$defs/a{n + 1}"}}}] * 2}
        for n in range(times)
    }
    definitions[f"a{times}"] = {}
    return {"$defs": definitions, "$ref": "#/$defs/a0"}


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "http://127.0.0.1:1/schema.json"},
        {"$ref": "file:///etc/passwd"},
        {"$schema": "http://127.0.0.1:1/meta.json"},
        {"properties": {"a": {"$ref": "other.json"}}},
        {"$ref": "#/nowhere"},
        {"$ref": 5},
        {"$ref": "#"},
        {"anyOf": [{"$ref": "#"}, {}]},
        {"not": {"$ref": "#"}},
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        doubling(40),
        doubling(40, "oneOf"),
        {"pattern": "(a+)+$", "maxLength": "x"},
        {"pattern": "(?=a)b"},
        {"pattern": r"(a)\1"},
        {"pattern": "((a{200}){200}){200}"},
        {"patternProperties": {f"a{n}": {} for n in range(600)}},
        nested(200),
        {"properties": {f"p{n}": {} for n in range(20_000)}},
        {"type": "thing"},
        {"description": "x" * (1 << 20)},
        [],
        5,
    ],
    ids=_number,
)
def test_a_json_schema_is_refused(schema: Any) -> None:
    with pytest.raises(InvalidSchema):
        parse_schema("json", json.dumps(schema), {})


def test_patterns_match_in_linear_time() -> None:
    schema = parse_schema("json", '{"pattern": "^(a+)+$"}', {})
    value = b'"' + b"a" * 100_000 + b'!"'
    assert len(schema.check([value] * 20)) == 20


def test_a_recursive_schema_is_checked_to_a_depth_at_which_that_is_cheap() -> None:
    below = parse_schema("json", json.dumps(doubling_below(40)), {})
    assert below.check([json.dumps(nested(30)).encode()]) != []
    twice = {"anyOf": [{"properties": {"a": {"$ref": "#"}}, "required": [n]} for n in "bc"]}
    schema = parse_schema("json", json.dumps(twice), {})
    shallow: Any = {"c": 1}
    for _ in range(5):
        shallow = {"a": shallow, "c": 1}
    deep = shallow
    for _ in range(200):
        deep = {"a": deep, "c": 1}
    assert schema.check([json.dumps(shallow).encode()]) == []
    (mismatch,) = schema.check([json.dumps(deep).encode()])
    assert "levels deep" in mismatch.reason


@pytest.mark.parametrize("depth", [100, 10_000, 200_000])
def test_deep_documents_are_answered(depth: int) -> None:
    tree = {"type": "array", "items": {"$ref": "#"}}
    for given in (tree, {"type": "array"}):
        schema = parse_schema("json", json.dumps(given), {})
        found = schema.check([b"[" * depth + b"]" * depth])
        if depth != 10_000:  # that depends on how deep Python may go in this process
            assert (found == []) == (depth == 100)


@pytest.mark.parametrize(
    "value", [b"", b"\xff", b"NaN", b"1" * 100_000, b'{"a":', b"1e999999"], ids=_number
)
def test_odd_documents_are_answered(value: bytes) -> None:
    schema = parse_schema("json", '{"type": "object"}', {})
    assert len(schema.check([value])) == 1


@pytest.mark.parametrize(
    "schema",
    [
        "{",
        "5",
        '"nothing"',
        json.dumps({"type": "array", "items": "null"}),
        json.dumps({"type": "array", "items": {"type": "record", "name": "E", "fields": []}}),
        json.dumps({"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}),
        json.dumps({"type": "record", "name": "R", "__fastavro_parsed__": True, "fields": 5}),
        json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": "Other"}]}),
        json.dumps({"type": "record", "fields": []}),
        json.dumps({"type": "enum", "name": "E", "symbols": ["a", "a"]}),
        json.dumps({"type": "fixed", "name": "F", "size": -1}),
    ],
    ids=_number,
)
def test_an_avro_schema_is_refused(schema: str) -> None:
    with pytest.raises(InvalidSchema):
        parse_schema("avro", schema, {})


def test_an_avro_record_that_doubles_is_refused() -> None:
    inner: Any = {"type": "record", "name": "R40", "fields": []}
    for n in reversed(range(40)):
        fields = [{"name": "a", "type": inner}, {"name": "b", "type": f"R{n + 1}"}]
        inner = {"type": "record", "name": f"R{n}", "fields": fields}
    with pytest.raises(InvalidSchema, match=r"values|deeper"):
        parse_schema("avro", json.dumps(inner), {})


LIST = {"type": "record", "name": "L", "fields": [{"name": "next", "type": ["null", "L"]}]}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (LIST, b"\x02" * 1_000_000 + b"\0"),
        ("bytes", b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f"),
        ("string", b"\x01"),
        ("string", b"\x02\xff"),
        ("long", b"\xff" * 20),
        ("int", b""),
        ({"type": "array", "items": "int"}, b"\xfe\xff\xff\xff\x0f"),
        ({"type": "map", "values": "null"}, b"\xfe\xff\xff\xff\x0f\x00"),
        ({"type": "enum", "name": "E", "symbols": ["a"]}, b"\x7e"),
        (["null", "int"], b"\x7e"),
    ],
    ids=_number,
)
def test_avro_data_is_refused(schema: Any, value: bytes) -> None:
    found = parse_schema("avro", json.dumps(schema), {}).check([value, value])
    assert [each.row for each in found] == [0, 1]


def test_the_depth_of_avro_data_is_bounded_not_its_use() -> None:
    schema = parse_schema("avro", json.dumps(LIST), {})
    assert schema.check([b"\x02" * 100 + b"\0"]) == []


@pytest.mark.parametrize("text", ["", "AAAA", "////", "Zm9v"], ids=_number)
def test_text_that_is_no_descriptor_has_to_be_compiled(text: str) -> None:
    with pytest.raises(InvalidSchema):
        parse_schema("protobuf", text, {})


def test_a_descriptor_that_does_not_fit_together_is_refused() -> None:
    file = descriptor_pb2.FileDescriptorProto(name="a", syntax="proto3")
    file.dependency.append("nowhere.proto")
    file.message_type.add(name="M")
    with pytest.raises(InvalidSchema, match="nowhere"):
        parse_schema("protobuf", base64.b64encode(file.SerializeToString()).decode(), {})


def test_another_language_is_refused() -> None:
    with pytest.raises(InvalidInput, match="xml"):
        parse_schema("xml", "<a/>", {})  # type: ignore[arg-type]
