"""Options of tables of Spark's catalog, as Spark hands them over and gives them back."""

from __future__ import annotations

import pytest
from pyspark.sql.types import StructType

from penstock.errors import InvalidInput
from penstock.spark.batch_read import BatchReader
from penstock.spark.source import PenstockDataSource

TABLE = {
    "provider": "penstock",
    "owner": "root",
    "location": "file:/data",
    "path": "file:/data",
    "comment": "orders",
    "any": "property",
    "subscribe": "orders",
    "option.subscribe": "orders",
}


def come_back(schema: StructType) -> StructType:
    """As the catalog keeps it."""
    return StructType.fromJson(schema.jsonValue())


def test_a_table_keeps_its_options_for_who_reads_it() -> None:
    schema = come_back(PenstockDataSource(TABLE).schema())
    reader = PenstockDataSource({}).reader(schema)
    assert isinstance(reader, BatchReader)
    assert reader._options.target.path == "/data"
    assert reader._options.subscription.topics == ("orders",)
    later = PenstockDataSource({"startingoffsets": "latest"}).streamReader(schema)
    assert later._options.starting is not None
    writer = PenstockDataSource({}).writer(schema, False)
    assert writer._options.topic == "orders"  # type: ignore[union-attr]


def test_a_table_of_a_server_does_not_keep_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {
        "provider": "penstock",
        "option.url": "http://h:1",
        "option.apiKey": "secret",
        "option.topic": "out",
    }
    schema = PenstockDataSource(table).schema()
    assert "secret" not in schema.json()
    monkeypatch.setenv("PENSTOCK_API_KEY", "other")
    reader = PenstockDataSource({}).reader(come_back(schema))
    assert reader._options.target.api_key == "other"
    assert reader._options.subscription.topics == ("out",)


def test_what_cannot_be_a_table_says_so() -> None:
    with pytest.raises(InvalidInput, match="unknown option 'subscibe'"):
        PenstockDataSource({**TABLE, "option.subscibe": "x"})
    with pytest.raises(InvalidInput, match="created without columns"):
        PenstockDataSource({}).reader(StructType().add("value", "binary"))
