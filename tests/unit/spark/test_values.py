"""`valueFormat`: values as columns, by the schemas that they name."""

from __future__ import annotations

import pickle
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import pytest

import penstock
from penstock.broker.broker import Broker
from penstock.errors import InvalidInput, InvalidPayload, SubjectNotFound
from penstock.log.local_engine import LocalEngine
from penstock.schema.framing import prefix
from penstock.spark.source import PenstockDataSource
from tests.integration.server.running import RunningServer

ORDER = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "item": {"type": "string"}},
    "required": ["id"],
}
OLD = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}
NEW = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "int"}, {"name": "item", "type": "string", "default": "-"}],
}


def avro(schema: Any, datum: Any) -> bytes:
    out = BytesIO()
    fastavro.schemaless_writer(out, schema, datum)
    return out.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "data")


@pytest.fixture
def ps(folder: str) -> Any:
    with penstock.connect(folder) as client:
        client.create_topic("orders", fsync="always")
        yield client


def rows(**options: str) -> list[dict[str, Any]]:
    source = PenstockDataSource({"subscribe": "orders", **options})
    reader = pickle.loads(pickle.dumps(source)).reader(source.schema())
    found: list[dict[str, Any]] = []
    for partition in reader.partitions():
        for batch in pickle.loads(pickle.dumps(reader)).read(partition):
            found += batch.to_pylist()
    return found


def test_json_values_become_a_struct(ps: Any, folder: str) -> None:
    ps.schemas.register("orders-value", ORDER)
    ps.publish_batch("orders", [b'{"id":1,"item":"apples"}', prefix(1) + b'{"id":2}', None])
    schema = PenstockDataSource(
        {"subscribe": "orders", "path": folder, "valueFormat": "json"}
    ).schema()
    assert schema["value"].simpleString() == "value:struct<id:bigint,item:string>"
    assert schema["schema_id"].simpleString() == "schema_id:int"
    found = rows(path=folder, valueFormat="json")
    assert [row["value"] for row in found] == [
        {"id": 1, "item": "apples"},
        {"id": 2, "item": None},
        None,
    ]
    assert [row["schema_id"] for row in found] == [None, 1, None]


def test_avro_of_every_version_has_the_type_of_one(ps: Any, folder: str) -> None:
    ps.schemas.register("orders-value", OLD, "avro")
    ps.schemas.register("orders-value", NEW, "avro")
    ps.publish_batch(
        "orders",
        [prefix(1) + avro(OLD, {"id": 1}), prefix(2) + avro(NEW, {"id": 2, "item": "pears"})],
    )
    for options in ({"path": folder}, {"path": folder, "valueSchemaId": "2"}):
        found = rows(valueFormat="avro", **options)
        assert [row["value"] for row in found] == [
            {"id": 1, "item": "-"},
            {"id": 2, "item": "pears"},
        ]
    found = rows(path=folder, valueFormat="avro", valueVersion="1")
    assert [row["value"] for row in found] == [{"id": 1}, {"id": 2}]
    assert [row["schema_id"] for row in found] == [1, 2]


def test_a_server_tells_the_schemas_with_what_they_refer_to(folder: str) -> None:
    broker = Broker(LocalEngine(folder))
    with broker, RunningServer(broker) as server, penstock.connect(server.url) as ps:
        (row,) = rows_with_references(ps, server.url)
    assert row["value"] == {"item": {"name": "apples"}}


def rows_with_references(ps: Any, url: str) -> list[dict[str, Any]]:
    ps.create_topic("orders")
    ps.schemas.register("item", {"type": "object", "properties": {"name": {"type": "string"}}})
    order = {"type": "object", "properties": {"item": {"$ref": "item.json"}}}
    ps.schemas.register("orders-value", order, references=[("item.json", "item", 1)])
    ps.publish("orders", {"item": {"name": "apples"}})
    ps.sync()
    return rows(url=url, valueFormat="json")


def test_a_value_that_does_not_fit_ends_the_query_or_is_null(ps: Any, folder: str) -> None:
    ps.schemas.register("orders-value", ORDER)
    ps.publish_batch("orders", [b'{"id":1}', b"no json"])
    with pytest.raises(InvalidPayload, match="orders/0 at offset 1"):
        rows(path=folder, valueFormat="json")
    found = rows(path=folder, valueFormat="json", valueOnError="null")
    assert [row["value"] for row in found] == [{"id": 1, "item": None}, None]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"valueFormat": "xml"}, "xml"),
        ({"valueSubject": "s"}, "valueSubject"),
        ({"valueFormat": "json", "valueOnError": "skip"}, "skip"),
        ({"valueFormat": "json", "valueFraming": "5"}, "valueFraming"),
        ({"valueFormat": "json", "valueSchemaId": "x"}, "valueSchemaId"),
        ({"valueFormat": "json", "valueVersion": "newest"}, "version"),
        ({"valueFormat": "json", "subscribe": "a,b"}, "valueSubject"),
        ({"valueFormat": "avro"}, "type json"),
        ({"valueFormat": "json", "tier": "lake+log", "lake": "/x"}, "valueFormat"),
    ],
)
def test_wrong_options_say_so(ps: Any, folder: str, options: dict[str, str], message: str) -> None:
    ps.schemas.register("orders-value", ORDER)
    with pytest.raises(InvalidInput, match=message):
        rows(**{"path": folder, **options})


def test_without_a_schema_there_is_no_column(ps: Any, folder: str) -> None:
    with pytest.raises(SubjectNotFound):
        rows(path=folder, valueFormat="json")
