"""The clients of Confluent, unmodified, against the registry of a server."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.schema_registry import (
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    SchemaRegistryError,
    header_schema_id_serializer,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from penstock.broker.broker import Broker
from penstock.errors import SchemaMismatch
from penstock.server.keys import KeyStore
from tests.integration.server.running import RunningServer
from tests.left_open import left_open

__all__ = ["left_open"]

pytestmark = pytest.mark.filterwarnings("ignore")  # of the client and of httpx

ORDER = {
    "type": "object",
    "title": "Order",
    "properties": {"id": {"type": "integer"}, "item": {"type": "string"}},
    "required": ["id"],
    "additionalProperties": False,
}
AVRO_ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [{"name": "id", "type": "long"}, {"name": "item", "type": "string"}],
}
VALUE = SerializationContext("orders", MessageField.VALUE)


@pytest.fixture
def registry(server: RunningServer) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": f"{server.url}/schema-registry"}) as client:
        yield client


def message_class(name: str = "Order", text_field: str = "item") -> Any:
    """A class as protoc's generated code would have it."""
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name=name)
    kinds = descriptor_pb2.FieldDescriptorProto
    for number, (field, kind) in enumerate(
        [("id", kinds.TYPE_INT64), (text_field, kinds.TYPE_STRING)]
    ):
        message.field.add(name=field, number=number + 1, type=kind, label=kinds.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"shop.{name}"))


def error_of(call: Any) -> tuple[int, int]:
    with pytest.raises(SchemaRegistryError) as caught:
        call()
    return caught.value.http_status_code, caught.value.error_code


def test_the_json_serializer_goes_there_and_back(registry: Any, ps: Any) -> None:
    ps.create_topic("orders", schema_check="full")
    serialize = JSONSerializer(json.dumps(ORDER), registry)
    ps.publish("orders", serialize({"id": 1, "item": "apple"}, VALUE))
    (message,) = ps.receive("orders", "g")
    assert message.value[:5] == b"\0" + (1).to_bytes(4, "big")
    deserialize = JSONDeserializer(json.dumps(ORDER), schema_registry_client=registry)
    assert deserialize(message.value, VALUE) == {"id": 1, "item": "apple"}
    with pytest.raises(SchemaMismatch, match="/id"):
        ps.publish("orders", message.value[:5] + b'{"id": "one"}')


def test_the_avro_serializer_goes_there_and_back(registry: Any, ps: Any) -> None:
    ps.create_topic("orders", schema_check="full")
    serialize = AvroSerializer(registry, json.dumps(AVRO_ORDER))
    value = serialize({"id": 7, "item": "pear"}, VALUE)
    ps.publish("orders", value)
    newer = json.loads(json.dumps(AVRO_ORDER))
    newer["fields"].append({"name": "price", "type": "double", "default": 1.5})
    deserialize = AvroDeserializer(registry, json.dumps(newer))
    (message,) = ps.receive("orders", "g")
    assert deserialize(message.value, VALUE) == {"id": 7, "item": "pear", "price": 1.5}
    with pytest.raises(SchemaMismatch, match="/item"):
        ps.publish("orders", value[:-2])


def test_the_protobuf_serializer_goes_there_and_back(registry: Any, ps: Any) -> None:
    ps.create_topic("orders", schema_check="full")
    order = message_class()
    serialize = ProtobufSerializer(order, registry)
    value = serialize(order(id=3, item="plum"), VALUE)
    ps.publish("orders", value)
    (message,) = ps.receive("orders", "g")
    found = ProtobufDeserializer(order, {"use.deprecated.format": False}, registry)(
        message.value, VALUE
    )
    assert (found.id, found.item) == (3, "plum")
    with pytest.raises(SchemaMismatch, match="/item"):
        ps.publish("orders", value[:-2])


def test_the_id_may_be_in_a_header(registry: Any, ps: Any) -> None:
    ps.create_topic("orders", schema_check="full")
    conf = {"schema.id.serializer": header_schema_id_serializer}
    serialize = JSONSerializer(json.dumps(ORDER), registry, conf=conf)
    context = SerializationContext("orders", MessageField.VALUE, headers=[])
    value = serialize({"id": 1}, context)
    headers = dict(context.headers)
    assert json.loads(value) == {"id": 1}
    ps.publish("orders", value, headers=headers)
    with pytest.raises(SchemaMismatch):
        ps.publish("orders", b'{"id": "x"}', headers=headers)


def test_a_descriptor_and_its_text_are_the_same_schema(
    registry: Any, server: RunningServer
) -> None:
    text = 'syntax = "proto3";\npackage shop;\nmessage Order { int64 id = 1; string item = 2; }'
    first = registry.register_schema("text", Schema(text, "PROTOBUF"))
    order = message_class()
    descriptor = descriptor_pb2.FileDescriptorProto()
    order.DESCRIPTOR.file.CopyToProto(descriptor)
    given = base64.b64encode(descriptor.SerializeToString()).decode()
    assert registry.register_schema("descriptor", Schema(given, "PROTOBUF")) == first
    assert registry.get_schema(first).schema_str == text
    with SchemaRegistryClient({"url": f"{server.url}/schema-registry"}) as other:
        serialized = other.get_schema(first, fmt="serialized").schema_str
    found = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(serialized))
    assert found.message_type[0].name == "Order"


def test_what_the_client_asks_of_subjects_and_versions(registry: Any) -> None:
    schema = Schema(json.dumps(ORDER), "JSON")
    wider = Schema(
        json.dumps({**ORDER, "properties": {**ORDER["properties"], "n": {"type": "null"}}}), "JSON"
    )
    assert registry.register_schema("orders-value", schema) == 1
    assert registry.register_schema("copies-value", schema) == 1
    assert registry.register_schema("orders-value", wider) == 2
    assert registry.get_subjects() == ["copies-value", "orders-value"]
    assert registry.get_subjects(subject_prefix="ord") == ["orders-value"]
    assert registry.get_versions("orders-value") == [1, 2]
    latest = registry.get_latest_version("orders-value")
    assert (latest.version, latest.schema_id, latest.subject) == (2, 2, "orders-value")
    assert registry.get_version("orders-value", 1).schema_id == 1
    assert registry.lookup_schema("orders-value", schema).version == 1
    assert registry.get_subjects_by_schema_id(1) == ["copies-value", "orders-value"]
    places = [(each.subject, each.version) for each in registry.get_schema_versions(2)]
    assert places == [("orders-value", 2)]
    assert registry.get_schema_types() == ["AVRO", "JSON", "PROTOBUF"]
    assert registry.get_schema_by_guid(latest.guid).schema_type == "JSON"
    assert registry.get_contexts() == ["."]


def test_references_between_schemas(registry: Any) -> None:
    customer = {"type": "record", "name": "Customer", "fields": [{"name": "n", "type": "string"}]}
    order = {"type": "record", "name": "Order", "fields": [{"name": "who", "type": "Customer"}]}
    registry.register_schema("customer", Schema(json.dumps(customer), "AVRO"))
    referring = Schema(json.dumps(order), "AVRO", [SchemaReference("Customer", "customer", 1)])
    number = registry.register_schema("order-value", referring)
    assert registry.get_schema(number).references[0].subject == "customer"
    assert registry.get_referenced_by("customer", 1) == [number]
    serialize = AvroSerializer(registry, referring, conf={"auto.register.schemas": False})
    value = serialize({"who": {"n": "Ada"}}, SerializationContext("order", "value"))
    assert value[:5] == b"\0" + number.to_bytes(4, "big")
    assert error_of(lambda: registry.delete_subject("customer")) == (422, 42206)


def test_compatibility_and_its_levels(registry: Any) -> None:
    registry.register_schema("orders-value", Schema(json.dumps(ORDER), "JSON"))
    narrower = Schema(json.dumps({**ORDER, "required": ["id", "item"]}), "JSON")
    assert registry.get_compatibility() == "BACKWARD"
    assert registry.test_compatibility("orders-value", narrower) is False
    assert error_of(lambda: registry.register_schema("orders-value", narrower)) == (409, 409)
    assert error_of(lambda: registry.get_compatibility("orders-value")) == (404, 40408)
    registry.set_compatibility("orders-value", "FORWARD")
    assert registry.get_compatibility("orders-value") == "FORWARD"
    assert registry.test_compatibility("orders-value", narrower) is True
    assert registry.register_schema("orders-value", narrower) == 2
    registry.delete_config("orders-value")
    assert error_of(lambda: registry.get_compatibility("orders-value")) == (404, 40408)
    assert error_of(lambda: registry.set_compatibility("x", "SIDEWARD")) == (422, 42203)


def test_deleting_softly_and_for_ever(registry: Any, server: RunningServer) -> None:
    schema = Schema(json.dumps(ORDER), "JSON")
    registry.register_schema("orders-value", schema)
    assert error_of(lambda: registry.delete_subject("orders-value", permanent=True)) == (404, 40405)
    assert registry.delete_version("orders-value", 1) == 1
    assert registry.get_subjects() == []
    assert registry.get_subjects(deleted=True) == ["orders-value"]
    assert registry.get_schema(1).schema_type == "JSON"  # what is published can still be read
    with SchemaRegistryClient({"url": f"{server.url}/schema-registry"}) as other:
        assert other.register_schema("orders-value", schema) == 1
        assert other.delete_subject("orders-value") == [2]
        assert other.delete_subject("orders-value", permanent=True) == [1, 2]
    with SchemaRegistryClient({"url": f"{server.url}/schema-registry"}) as other:
        assert error_of(lambda: other.get_schema(1)) == (404, 40403)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda r: r.get_versions("nobody"), (404, 40401)),
        (lambda r: r.get_version("known", 9), (404, 40402)),
        (lambda r: r.get_version("known", 0), (422, 42202)),
        (lambda r: r.get_schema(99), (404, 40403)),
        (lambda r: r.lookup_schema("known", Schema('"string"', "AVRO")), (404, 40403)),
        (lambda r: r.register_schema("known", Schema("{", "AVRO")), (422, 42201)),
        (lambda r: r.register_schema("x", Schema('{"type": 5}', "JSON")), (422, 42201)),
        (lambda r: r.register_schema("x", Schema("message {", "PROTOBUF")), (422, 42201)),
        (lambda r: r.register_schema("x", Schema("{}", "YAML")), (422, 42201)),
        (lambda r: r.get_mode("known"), (404, 40409)),
        (lambda r: r.update_mode("known", "FAST"), (422, 42204)),
        (lambda r: r.update_mode("known", "IMPORT"), (422, 422)),
    ],
)
def test_errors_have_the_numbers_of_the_dialect(
    registry: Any, call: Any, expected: tuple[int, int]
) -> None:
    registry.register_schema("known", Schema('"int"', "AVRO"))
    assert error_of(lambda: call(registry)) == expected


def test_a_registry_is_imported_with_its_ids(registry: Any) -> None:
    assert registry.update_global_mode("IMPORT") == "IMPORT"
    client = registry._rest_client
    given = {"schema": '"long"', "id": 4711, "version": 3}
    assert client.post("subjects/old/versions", body=given)["id"] == 4711
    assert registry.update_global_mode("READWRITE") == "READWRITE"
    assert registry.get_version("old", 3).schema_id == 4711
    assert registry.register_schema("new", Schema('"float"', "AVRO")) == 4712
    registry.update_mode("new", "READONLY")
    refused = error_of(lambda: registry.register_schema("new", Schema('"double"', "AVRO")))
    assert refused == (422, 42205)


def test_keys_come_as_bearer_or_as_the_password_of_basic(broker: Broker) -> None:
    keys = KeyStore.open(broker.folder)
    admin = keys.create("admin", role="admin").token
    reader = keys.create("reader", role="readonly").token
    schema = Schema('"string"', "AVRO")
    with RunningServer(broker, keys) as server:
        url = f"{server.url}/schema-registry"
        basic = {"url": url, "basic.auth.user.info": f"me:{admin}"}
        assert SchemaRegistryClient(basic).register_schema("s", schema) == 1
        bearer = {
            "url": url,
            "bearer.auth.credentials.source": "STATIC_TOKEN",
            "bearer.auth.token": reader,
            "bearer.auth.logical.cluster": "c",
            "bearer.auth.identity.pool.id": "p",
        }
        with SchemaRegistryClient(bearer) as reading:
            assert reading.get_versions("s") == [1]
            assert error_of(lambda: reading.register_schema("t", schema))[0] == 403
            assert error_of(lambda: reading.delete_subject("s"))[0] == 403
        wrong = {"url": url, "basic.auth.user.info": "me:nonsense"}
        assert error_of(lambda: SchemaRegistryClient(wrong).get_subjects())[0] == 401


def test_a_key_of_a_namespace_asks_there(broker: Broker) -> None:
    keys = KeyStore.open(broker.folder)
    token = keys.create("eu", role="admin", namespace="eu").token
    with RunningServer(broker, keys) as server:
        user = {"basic.auth.user.info": f"me:{token}"}
        here = f"{server.url}/v1/namespaces/eu/schema-registry"
        with SchemaRegistryClient({"url": here, **user}) as client:
            assert client.register_schema("s", Schema('"string"', "AVRO")) == 1
        with SchemaRegistryClient({"url": f"{server.url}/schema-registry", **user}) as client:
            assert error_of(client.get_subjects)[0] == 403
