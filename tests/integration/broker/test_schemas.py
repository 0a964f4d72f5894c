"""The registry of schemas, and what is checked at publish, through every door."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.broker import schemas
from penstock.errors import (
    InvalidInput,
    InvalidSchema,
    RegistryReadOnly,
    SchemaIncompatible,
    SchemaMismatch,
    SchemaNotFound,
    SchemaReferenced,
    SchemaVersionNotFound,
    SubjectNotDeleted,
    SubjectNotFound,
)
from penstock.schema.framing import SCHEMA_HEADER, prefix
from tests.integration.broker.world import World, take

ORDER: dict[str, Any] = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "item": {"type": "string"}},
    "required": ["id"],
    "additionalProperties": False,
}
WIDER = {**ORDER, "properties": {**ORDER["properties"], "price": {"type": "number"}}}
NARROWER = {**ORDER, "required": ["id", "item"]}
AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "int"}, {"name": "item", "type": "string"}],
}
PROTO = 'syntax = "proto3"; message Order { int64 id = 1; string item = 2; }'
GOOD, BAD = b'{"id":1}', b'{"id":"one"}'


@pytest.fixture
def orders(world: World) -> Any:
    """Through every door: a topic whose messages are checked."""
    world.ps.schemas.register("orders-value", ORDER)
    world.ps.create_topic("orders", schema_check="full")
    return world.ps


# The registry.


def test_a_schema_is_registered_found_and_listed(ps: Any) -> None:
    made = ps.schemas.register("orders-value", ORDER)
    assert (made.subject, made.version, made.id, made.type) == ("orders-value", 1, 1, "json")
    again = ps.schemas.register("orders-value", json.dumps(ORDER, indent=4))
    assert (again.version, again.id) == (1, 1)
    other = ps.schemas.register("copies-value", ORDER)
    assert (other.version, other.id) == (1, 1)
    wider = ps.schemas.register("orders-value", WIDER)
    assert (wider.version, wider.id) == (2, 2)
    assert ps.schemas.versions("orders-value") == [1, 2]
    assert ps.schemas.get("orders-value").version == 2
    assert ps.schemas.get("orders-value", 1).id == 1
    assert ps.schemas.find("orders-value", ORDER).version == 1
    by_id = ps.schemas.get_by_id(1)
    assert [(place.subject, place.version) for place in by_id.places] == [
        ("copies-value", 1),
        ("orders-value", 1),
    ]
    listed = ps.schemas.subjects()
    assert [(each.subject, each.versions[0].version) for each in listed] == [
        ("copies-value", 1),
        ("orders-value", 2),
    ]
    assert [each.subject for each in ps.schemas.subjects("ord")] == ["orders-value"]


def test_what_is_not_there_is_an_error(ps: Any) -> None:
    with pytest.raises(SubjectNotFound):
        ps.schemas.get("nobody")
    with pytest.raises(SchemaNotFound):
        ps.schemas.get_by_id(1)
    ps.schemas.register("orders-value", ORDER)
    with pytest.raises(SchemaVersionNotFound) as caught:
        ps.schemas.get("orders-value", 2)
    assert (caught.value.subject, caught.value.version) == ("orders-value", 2)
    with pytest.raises(SchemaNotFound):
        ps.schemas.find("orders-value", WIDER)
    for version in (0, -2, "newest"):
        with pytest.raises(InvalidInput, match="version"):
            ps.schemas.get("orders-value", version)
    with pytest.raises(InvalidInput, match="subject"):
        ps.schemas.register("a b", ORDER)


@pytest.mark.parametrize(
    ("level", "wider", "narrower"),
    [
        ("none", True, True),
        ("backward", True, False),
        ("forward", False, True),
        ("full", False, False),
    ],
)
def test_the_level_says_which_change_is_taken(
    sync: World, level: Any, wider: bool, narrower: bool
) -> None:
    ps = sync.ps
    ps.schemas.set_compatibility(level)
    for schema, allowed in ((WIDER, wider), (NARROWER, narrower)):
        subject = f"s{allowed}{id(schema)}"
        ps.schemas.register(subject, ORDER)
        report = ps.schemas.check(subject, schema)
        assert (report.compatible, report.level) == (allowed, level)
        if allowed:
            assert ps.schemas.register(subject, schema).version == 2
        else:
            assert report.problems[0].version == 1
            with pytest.raises(SchemaIncompatible, match=report.problems[0].rule):
                ps.schemas.register(subject, schema)


def test_a_transitive_level_compares_with_every_version(ps: Any) -> None:
    closed = {**ORDER, "properties": {"id": {"type": "integer"}}}
    as_text = {**WIDER, "properties": {**ORDER["properties"], "price": {"type": "string"}}}
    ps.schemas.set_compatibility("none", "s")
    for schema in (WIDER, closed):
        ps.schemas.register("s", schema)
    ps.schemas.set_compatibility("backward", "s")
    assert ps.schemas.check("s", as_text).compatible
    ps.schemas.set_compatibility("backward_transitive", "s")
    report = ps.schemas.check("s", as_text)
    assert [(each.path, each.version) for each in report.problems] == [("/price", 1)]
    assert ps.schemas.check("s", as_text, version=2).compatible
    assert ps.schemas.settings("s").compatibility == "backward_transitive"
    assert ps.schemas.settings().compatibility == "backward"
    assert ps.schemas.set_compatibility(None, "s").compatibility == "backward"


def test_another_language_is_no_compatible_version(ps: Any) -> None:
    ps.schemas.register("s", ORDER)
    with pytest.raises(SchemaIncompatible, match="TYPE_CHANGED"):
        ps.schemas.register("s", AVRO, "avro")


def test_deleted_versions_are_read_by_their_ids_until_they_are_gone(ps: Any) -> None:
    ps.schemas.register("s", ORDER)
    ps.schemas.register("s", WIDER)
    with pytest.raises(SubjectNotDeleted):
        ps.schemas.delete("s", permanent=True)
    assert ps.schemas.delete("s", 1) == [1]
    assert ps.schemas.versions("s") == [2]
    assert ps.schemas.get_by_id(1).schema == json.dumps(ORDER, separators=(",", ":"))
    assert ps.schemas.delete("s", 1, permanent=True) == [1]
    with pytest.raises(SchemaNotFound):
        ps.schemas.get_by_id(1)
    assert ps.schemas.delete("s") == [2]
    with pytest.raises(SubjectNotFound):
        ps.schemas.versions("s")
    assert [each.subject for each in ps.schemas.subjects(deleted=True)] == ["s"]
    assert ps.schemas.register("s", ORDER).id == 3  # an id is not given twice
    assert ps.schemas.register("s", WIDER).version == 4


def test_schemas_refer_to_each_other(ps: Any) -> None:
    ps.schemas.register("customer", {"type": "object", "required": ["name"]})
    order = {"type": "object", "properties": {"by": {"$ref": "customer.json"}}}
    ps.schemas.register("orders-value", order, references=[("customer.json", "customer", 1)])
    ps.create_topic("orders", schema_check="full")
    ps.publish("orders", {"by": {"name": "Ada"}})
    with pytest.raises(SchemaMismatch, match="/by"):
        ps.publish("orders", {"by": {}})
    with pytest.raises(SchemaReferenced):
        ps.schemas.delete("customer")
    with pytest.raises(SubjectNotFound):
        ps.schemas.register("x", order, references=[("customer.json", "clients", 1)])
    with pytest.raises(InvalidSchema, match=r"customer\.json"):
        ps.schemas.register("x", order)


def test_proto_files_import_each_other(sync: World) -> None:
    ps = sync.ps
    common = 'syntax = "proto3"; package c; message Money { int64 cents = 1; }'
    order = 'syntax = "proto3"; import "money.proto"; message Order { c.Money price = 1; }'
    ps.schemas.register("money", common, "protobuf")
    made = ps.schemas.register("o", order, "protobuf", [("money.proto", "money", 1)])
    assert made.references[0].name == "money.proto"
    sync.restart()
    assert sync.ps.schemas.check("o", order, "protobuf", [("money.proto", "money", 1)]).compatible
    with pytest.raises(InvalidSchema, match=r"money\.proto"):
        sync.ps.schemas.register("p", order, "protobuf")


def test_namespaces_have_subjects_of_their_own_and_share_ids(sync: World) -> None:
    ps, other = sync.ps, sync.client("eu")
    assert ps.schemas.register("s", ORDER).id == 1
    with pytest.raises(SubjectNotFound):
        other.schemas.get("s")
    with pytest.raises(SchemaNotFound):
        other.schemas.get_by_id(1)
    assert other.schemas.register("t", ORDER).id == 1
    assert [place.subject for place in other.schemas.get_by_id(1).places] == ["t"]
    other.schemas.set_compatibility("none")
    assert ps.schemas.settings().compatibility == "backward"


def test_a_registry_can_be_read_only_or_take_ids(ps: Any) -> None:
    ps.schemas.set_mode("import")
    made = ps.schemas.register("s", ORDER, id=77, version=5)
    assert (made.id, made.version) == (77, 5)
    with pytest.raises(InvalidInput, match="77"):
        ps.schemas.register("t", WIDER, id=77)
    with pytest.raises(RegistryReadOnly):
        ps.schemas.register("t", WIDER)
    ps.schemas.set_mode("readwrite")
    assert ps.schemas.register("s", WIDER).id == 78
    with pytest.raises(RegistryReadOnly):
        ps.schemas.register("t", NARROWER, id=9)
    with pytest.raises(InvalidInput, match="versions"):
        ps.schemas.set_mode("import")
    ps.schemas.set_mode("readonly", "s")
    with pytest.raises(RegistryReadOnly):
        ps.schemas.delete("s")
    assert ps.schemas.register("s", ORDER).id == 77  # it is there
    assert ps.schemas.set_mode(None, "s").mode == "readwrite"


def test_everything_is_there_after_a_kill_also_past_checkpoints(
    sync: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schemas, "_CHECKPOINT_BYTES", 2000)
    ps = sync.ps
    ps.schemas.set_compatibility("none", "s")
    for number in range(20):
        ps.schemas.register("s", {"const": number})
    ps.schemas.delete("s", 3)
    ps.schemas.register("p", PROTO, "protobuf")
    before = ps.schemas.describe("s", deleted=True)
    ps = sync.kill()
    assert ps.schemas.describe("s", deleted=True) == before
    assert ps.schemas.settings("s").compatibility == "none"
    assert ps.schemas.get("p").schema == PROTO
    assert ps.schemas.register("s", {"const": 99}).id == 22


# Checking.


def test_a_batch_with_one_bad_message_stores_nothing(orders: Any) -> None:
    with pytest.raises(SchemaMismatch) as caught:
        orders.publish_batch("orders", [GOOD, GOOD, BAD, b"{}", b"no json"])
    error = caught.value
    assert (error.row, error.field, error.version, error.count) == (2, "/id", 1, 3)
    assert (error.topic, error.subject) == ("orders", "orders-value")
    assert take(orders) == []
    orders.publish_batch("orders", [GOOD, GOOD])
    assert take(orders) == [GOOD, GOOD]


def test_every_way_to_publish_is_checked(orders: Any) -> None:
    with pytest.raises(SchemaMismatch):
        orders.publish("orders", BAD)
    with pytest.raises(SchemaMismatch):
        orders.publish("orders", BAD, delay="10s")
    with pytest.raises(SchemaMismatch):
        orders.publish("orders", BAD, dedup_id="a")
    with pytest.raises(SchemaMismatch):
        orders.publish("orders", BAD, key="k", headers={"a": "b"}, priority="high", ttl="1m")
    with pytest.raises(SchemaMismatch):
        orders.publish_batch("orders", [GOOD, BAD], delay="10s")
    assert take(orders) == []
    orders.publish("orders", GOOD, dedup_id="a")  # it was not taken for known
    assert take(orders) == [GOOD]
    assert orders.publish("orders", None, key="k") is not None  # a deletion fits every schema


def test_a_schedule_is_checked_when_it_is_made(orders: Any) -> None:
    with pytest.raises(SchemaMismatch):
        orders.schedule("s", topic="orders", value=BAD, every="1m")


def test_nothing_is_taken_before_there_is_a_schema(ps: Any) -> None:
    ps.create_topic("orders", schema_check="full", schema_subject="shop.Order")
    with pytest.raises(SubjectNotFound, match=r"shop\.Order"):
        ps.publish("orders", GOOD)
    ps.schemas.register("shop.Order", ORDER)
    ps.publish("orders", GOOD)
    with pytest.raises(InvalidInput, match="subject"):
        ps.alter_topic("orders", schema_subject="a/b")
    with pytest.raises(InvalidInput, match="full"):
        ps.alter_topic("orders", schema_check="some")


def test_an_id_is_looked_for_among_the_versions_of_the_subject(ps: Any) -> None:
    ps.create_topic("orders", schema_check="id")
    ps.schemas.register("other", {"const": 1})
    ps.schemas.register("orders-value", ORDER)
    ps.publish("orders", prefix(2) + b"anything")
    for value in (GOOD, b"", b"\0", prefix(1) + GOOD, prefix(99) + GOOD):
        with pytest.raises(SchemaMismatch):
            ps.publish("orders", value)
    ps.publish("orders", GOOD, headers={SCHEMA_HEADER: prefix(2)})
    with pytest.raises(SchemaMismatch):
        ps.publish("orders", GOOD, headers={SCHEMA_HEADER: prefix(1)})
    assert len(take(ps)) == 2


def test_a_version_that_a_message_names_is_that_which_counts(orders: Any) -> None:
    orders.schemas.register("orders-value", WIDER)
    orders.publish("orders", {"id": 1, "price": 2.5})
    orders.publish("orders", prefix(2) + b'{"id":1,"price":2.5}')
    with pytest.raises(SchemaMismatch) as caught:
        orders.publish("orders", prefix(1) + b'{"id":1,"price":2.5}')
    assert caught.value.version == 1
    orders.schemas.delete("orders-value", 1)
    with pytest.raises(SchemaMismatch, match="schema 1"):
        orders.publish("orders", prefix(1) + GOOD)


def test_avro_and_protobuf_name_the_field_that_is_wrong(ps: Any) -> None:
    ps.schemas.register("a-value", AVRO, "avro")
    ps.schemas.register("p-value", PROTO, "protobuf")
    for topic in ("a", "p"):
        ps.create_topic(topic, schema_check="full")
    ps.publish("a", prefix(1) + b"\x02\x08pear")
    ps.publish("p", prefix(2) + b"\0\x08\x01\x12\x04pear")
    for topic, value, field in (
        ("a", prefix(1) + b"\x02\x08pea", "/item"),
        ("a", prefix(1) + b"\x02\x08pear!", ""),
        ("p", prefix(2) + b"\0\x08\x01\x12\x04pea", "/item"),
        ("p", prefix(2) + b"\x02\x0a\x08\x01", ""),
        ("p", prefix(2), ""),
        ("a", b"\x02\x08pear", ""),
    ):
        with pytest.raises(SchemaMismatch) as caught:
            ps.publish(topic, value)
        assert caught.value.field == field


# What does not fit becomes a dead letter.


def test_messages_that_do_not_fit_become_dead_letters(orders: Any) -> None:
    orders.alter_topic("orders", schema_on_error="dead_letter")
    placed = list(orders.publish_batch("orders", [GOOD, BAD, b'{"id":2}'], keys=["a", "b", "c"]))
    assert [each.dead_letter for each in placed] == [False, True, False]
    assert [each.offset for each in placed] == [0, -1, 1]
    assert take(orders) == [GOOD, b'{"id":2}']
    (letter,) = orders.dead_letters("orders").list()
    assert (letter.value, letter.key, letter.reason) == (BAD, b"b", "schema")
    assert letter.id == placed[1].id
    assert "row 1, /id" in letter.error
    assert orders.publish("orders", BAD).dead_letter
    assert orders.publish("orders", BAD, delay="1m").dead_letter
    assert orders.stats("orders").dead == 3


def test_a_letter_is_checked_again_when_it_is_redriven(orders: Any) -> None:
    orders.alter_topic("orders", schema_on_error="dead_letter")
    orders.publish_batch("orders", [b'{"id":1,"price":2}', BAD])
    orders.schemas.register("orders-value", WIDER)
    orders.dead_letters("orders").redrive()
    assert take(orders) == [b'{"id":1,"price":2}']
    assert [letter.value for letter in orders.dead_letters("orders").list()] == [BAD]
    orders.alter_topic("orders", schema_on_error="refuse")
    with pytest.raises(SchemaMismatch):
        orders.dead_letters("orders").redrive()
    assert orders.stats("orders").dead == 1
    orders.alter_topic("orders", schema_check="none")
    orders.dead_letters("orders").redrive()
    assert take(orders) == [BAD]


def test_letters_of_a_repeated_publish_are_stored_once(orders: Any) -> None:
    orders.alter_topic("orders", schema_on_error="dead_letter")
    first = orders.publish("orders", BAD, dedup_id="a")
    again = orders.publish("orders", BAD, dedup_id="a")
    assert (again.id, again.duplicate, again.dead_letter) == (first.id, True, True)
    assert orders.stats("orders").dead == 1


def test_without_dead_letters_the_batch_is_refused(orders: Any) -> None:
    orders.alter_topic("orders", schema_on_error="dead_letter", dead_letters=False)
    with pytest.raises(SchemaMismatch):
        orders.publish_batch("orders", [GOOD, BAD])
    assert take(orders) == []


def test_what_a_producer_gathered_is_taken_or_refused_as_a_whole(sync: World) -> None:
    ps = sync.ps
    ps.schemas.register("orders-value", ORDER)
    ps.create_topic("orders", schema_check="full", schema_on_error="dead_letter")
    producer = ps.producer("orders", linger="1h")
    for value in (GOOD, BAD):
        producer.send(value)
    with pytest.raises(SchemaMismatch):
        producer.flush()
    producer.send(b'{"id":3}')
    producer.close()
    assert take(ps) == [b'{"id":3}']
    assert ps.stats("orders").dead == 0
