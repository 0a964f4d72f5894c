"""Values decoded by the schema registry: JSON, Avro and Protobuf, in the executors.

All versions of a subject are fetched when a round is planned and go with the tasks, so that they
need no broker, and a round decodes in each attempt alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from penstock.errors import SchemaNotFound
from penstock.schema.columns import ColumnDecoder, column_decoder
from penstock.schema.kinds import parse_schema
from penstock.spark.connect import connected
from penstock.spark.flows.definition import Decode
from penstock.spark.options import Target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.schema.definition import ParsedSchema


class _Version(NamedTuple):
    id: int
    kind: Any
    schema: str
    references: dict[str, _Version]
    compiled: bytes

    def parsed(self) -> ParsedSchema:
        references = {name: each.parsed() for name, each in self.references.items()}
        return parse_schema(self.kind, self.schema, references, self.compiled)


class _Decoding(NamedTuple):
    """What a task needs to know; made anew in it."""

    reader: _Version
    versions: list[_Version]

    def decoder(self) -> ColumnDecoder:
        known = {each.id: each for each in self.versions}

        def find(id_: int) -> ParsedSchema:
            if id_ not in known:
                raise SchemaNotFound(id_)
            return known[id_].parsed()

        return column_decoder(self.reader.parsed(), find)


def decoded_by_registry(frame: DataFrame, decode: Decode, target: Target) -> DataFrame:
    """With `data` and `_undecoded`."""
    decoding = _fetched(decode, target)
    kind = decoding.decoder().type
    data = from_arrow_schema(pa.schema([("data", kind)])).fields[0]
    schema = StructType([*frame.schema.fields, data, StructField("_undecoded", StringType())])

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        decoder = decoding.decoder()
        for rows in batches:
            column, _, errors = decoder.decode(rows.column("value"))
            said: list[str | None] = [None] * len(rows)
            for row, error in errors:
                said[row] = error
            yield pa.RecordBatch.from_arrays(
                [*rows.columns, column, pa.array(said, pa.string())],
                names=[*rows.schema.names, "data", "_undecoded"],
            )

    return frame.mapInArrow(work, schema)


def _fetched(decode: Decode, target: Target) -> _Decoding:
    with connected(target) as client:
        wanted = "latest" if decode.version is None else decode.version
        reader = _version(client, decode.subject, wanted)
        numbers = client.schemas.versions(decode.subject)
        versions = [_version(client, decode.subject, number) for number in numbers]
    return _Decoding(reader, versions)


def _version(client: Any, subject: str, version: int | str) -> _Version:
    found = client.schemas.get(subject, version)
    references = {
        each.name: _version(client, each.subject, each.version) for each in found.references
    }
    return _Version(found.id, found.type, found.schema, references, found.compiled or b"")
