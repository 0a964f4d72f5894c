"""Which change of a schema is compatible. What passes must read all old data: tried at random."""

from __future__ import annotations

import base64
import json
from typing import Any

import jsonschema_rs
import pytest
from google.protobuf import descriptor_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.schema.kinds import parse_schema

CLOSED = {"additionalProperties": False}


def rules(reader: Any, writer: Any, kind: Any = "json") -> set[str]:
    """What is in the way of reading with one schema what another one wrote."""
    new, old = (parse_schema(kind, json.dumps(each), {}) for each in (reader, writer))
    return {problem.rule for problem in new.unreadable(old)}


def obj(required: tuple[str, ...] = (), closed: bool = True, **properties: Any) -> Any:
    found = {"type": "object", "properties": properties, "required": list(required)}
    return {**found, **CLOSED} if closed else found


INT, NUM, STR = {"type": "integer"}, {"type": "number"}, {"type": "string"}


@pytest.mark.parametrize(
    ("reader", "writer", "expected"),
    [
        (True, STR, set()),
        (STR, False, set()),
        (False, STR, {"REMOVED"}),
        (NUM, INT, set()),
        (INT, NUM, {"TYPE_NARROWED"}),
        ({"type": ["string", "null"]}, STR, set()),
        (STR, {"type": ["string", "null"]}, {"TYPE_NARROWED"}),
        (obj(a=INT, b=INT), obj(a=INT), set()),
        (obj(a=INT), obj(a=INT, b=INT), {"PROPERTY_REMOVED"}),
        (obj(closed=False, a=INT), obj(a=INT, b=INT), set()),
        (
            obj(closed=False, a=INT, b=INT),
            obj(closed=False, a=INT),
            {"PROPERTY_ADDED_TO_OPEN_MODEL"},
        ),
        (obj(closed=False, a=INT, b={}), obj(closed=False, a=INT), set()),
        (obj(("a",), a=INT), obj(a=INT), {"REQUIRED_ADDED"}),
        (obj(a=INT), obj(("a",), a=INT), set()),
        (obj(a=INT), obj(closed=False, a=INT), {"ADDITIONAL_PROPERTIES_NARROWED"}),
        ({"enum": [1, 2, 3]}, {"enum": [1, 2.0]}, set()),
        ({"enum": [1]}, {"enum": [1, 2]}, {"ENUM_NARROWED"}),
        ({"enum": [1]}, INT, {"ENUM_NARROWED"}),
        (INT, {"const": 3}, set()),
        ({"minimum": 1}, {"minimum": 2}, set()),
        ({"minimum": 3}, {"minimum": 2}, {"MINIMUM_NARROWED"}),
        ({"type": "string", "maxLength": 3}, STR, {"MAX_LENGTH_ADDED"}),
        ({"minimum": 3}, STR, set()),
        ({"anyOf": [INT, STR]}, INT, set()),
        ({"anyOf": [INT, STR]}, {"anyOf": [STR, INT]}, set()),
        (INT, {"anyOf": [INT, STR]}, {"TYPE_NARROWED"}),
        ({"oneOf": [INT, STR]}, STR, set()),
        ({"oneOf": [INT, NUM]}, INT, {"SUM_TYPE_AMBIGUOUS"}),
        ({"anyOf": [INT, STR]}, {"type": "null"}, {"SUM_TYPE_NARROWED"}),
        (obj(a=INT), {"allOf": [obj(a=INT), {"required": ["a"]}]}, set()),
        ({"allOf": [INT, {"minimum": 0}]}, INT, {"MINIMUM_ADDED"}),
        ({"not": STR}, {"not": STR}, set()),
        ({"not": STR}, INT, {"NOT_CHANGED"}),
        ({"type": "array", "items": INT}, {"type": "array", "items": INT}, set()),
        ({"type": "array", "items": INT}, {"type": "array", "items": NUM}, {"TYPE_NARROWED"}),
        ({"type": "array", "items": INT}, {"type": "array"}, {"TYPE_NARROWED"}),
    ],
)
def test_changes_of_a_json_schema(reader: Any, writer: Any, expected: set[str]) -> None:
    assert rules(reader, writer) == expected


def test_recursive_schemas_are_compared() -> None:
    def tree(leaf: Any) -> Any:
        node = obj(left={"$ref": "#/$defs/node"}, right={"$ref": "#/$defs/node"}, leaf=leaf)
        return {"$defs": {"node": node}, "$ref": "#/$defs/node"}

    assert rules(tree(NUM), tree(INT)) == set()
    assert rules(tree(INT), tree(NUM)) == {"TYPE_NARROWED"}


NAMES = st.sampled_from("abc")
SMALL = st.integers(0, 3)
SCALARS = (
    st.none()
    | st.booleans()
    | SMALL
    | st.sampled_from([0.5, 1.0])
    | st.sampled_from(["", "a", "ab"])
)
DOCUMENTS = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
TYPES = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])


def schemas() -> st.SearchStrategy[Any]:
    plain = st.fixed_dictionaries(
        {},
        optional={
            "type": TYPES | st.lists(TYPES, min_size=1, max_size=3, unique=True),
            "enum": st.lists(SCALARS, min_size=1, max_size=3),
            "const": SCALARS,
            "minimum": SMALL,
            "exclusiveMaximum": SMALL,
            "minLength": SMALL,
            "maxItems": SMALL,
            "minProperties": SMALL,
            "uniqueItems": st.booleans(),
            "pattern": st.sampled_from(["^a", "b$"]),
        },
    )

    def deeper(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        some = st.lists(inner, min_size=1, max_size=2)
        return st.fixed_dictionaries(
            {},
            optional={
                "type": TYPES,
                "properties": st.dictionaries(NAMES, inner, max_size=3),
                "patternProperties": st.dictionaries(
                    st.sampled_from(["^a", "^."]), inner, max_size=1
                ),
                "additionalProperties": inner,
                "required": st.lists(NAMES, max_size=2, unique=True),
                "items": inner,
                "prefixItems": some,
                "anyOf": some,
                "oneOf": some,
                "allOf": some,
                "not": inner,
                "contains": inner,
                "propertyNames": inner,
                "minimum": SMALL,
            },
        )

    return st.recursive(st.booleans() | plain, deeper, max_leaves=6)


@settings(max_examples=120, deadline=None)
@given(schemas(), schemas(), st.lists(DOCUMENTS, min_size=1, max_size=8))
def test_what_is_called_compatible_reads_all_that_was_written(
    reader: Any, writer: Any, documents: list[Any]
) -> None:
    if not rules(reader, writer):
        new, old = jsonschema_rs.validator_for(reader), jsonschema_rs.validator_for(writer)
        for document in documents:
            assert new.is_valid(document) or not old.is_valid(document)


@settings(max_examples=50, deadline=None)
@given(schemas())
def test_every_schema_reads_what_it_wrote_itself_or_says_that_it_cannot_tell(schema: Any) -> None:
    undecided = {"SUM_TYPE_AMBIGUOUS", "SUM_TYPE_NARROWED", "ENUM_NARROWED", "TYPE_NARROWED"}
    assert rules(schema, schema) <= undecided


def record(*fields: Any) -> Any:
    return {"type": "record", "name": "R", "fields": [dict(each) for each in fields]}


@pytest.mark.parametrize(
    ("reader", "writer", "is_compatible"),
    [
        ("long", "int", True),
        ("int", "long", False),
        (record({"name": "a", "type": "int", "default": 1}), record(), True),
        (record({"name": "a", "type": "int"}), record(), False),
        (record(), record({"name": "a", "type": "int"}), True),
        (["null", "int"], "int", True),
        ("int", ["null", "int"], False),
    ],
)
def test_changes_of_an_avro_schema(reader: Any, writer: Any, is_compatible: bool) -> None:
    assert (rules(reader, writer, "avro") == set()) is is_compatible


KINDS = descriptor_pb2.FieldDescriptorProto
OPTIONAL, REPEATED = KINDS.LABEL_OPTIONAL, KINDS.LABEL_REPEATED


def proto(*fields: Any, messages: tuple[str, ...] = ("M",), package: str = "p") -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="x", package=package, syntax="proto3")
    for name in messages:
        message = file.message_type.add(name=name)
        if name == "M":
            for number, name_, kind, label in fields:
                message.field.add(name=name_, number=number, type=kind, label=label)
    return parse_schema("protobuf", base64.b64encode(file.SerializeToString()).decode(), {})


A = (1, "a", KINDS.TYPE_INT32, OPTIONAL)


@pytest.mark.parametrize(
    ("reader", "writer", "expected"),
    [
        (proto(A), proto(), set()),
        (proto(), proto(A), set()),
        (proto((1, "b", KINDS.TYPE_INT64, OPTIONAL)), proto(A), set()),
        (proto((1, "a", KINDS.TYPE_STRING, OPTIONAL)), proto(A), {"FIELD_KIND_CHANGED"}),
        (proto((1, "a", KINDS.TYPE_SINT32, OPTIONAL)), proto(A), {"FIELD_KIND_CHANGED"}),
        (proto((1, "a", KINDS.TYPE_INT32, REPEATED)), proto(A), {"FIELD_LABEL_CHANGED"}),
        (proto(A, messages=("M", "N")), proto(A), set()),
        (proto(A), proto(A, messages=("M", "N")), {"MESSAGE_REMOVED"}),
        (proto(A, messages=("N", "M")), proto(A, messages=("M", "N")), {"MESSAGE_MOVED"}),
        (proto(A, package="q"), proto(A), {"PACKAGE_CHANGED"}),
    ],
)
def test_changes_of_a_protobuf_schema(reader: Any, writer: Any, expected: set[str]) -> None:
    assert {problem.rule for problem in reader.unreadable(writer)} == expected
