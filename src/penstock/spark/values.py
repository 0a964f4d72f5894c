"""`valueFormat`: the values of messages as columns, by the schemas that they name.

The type of the column is that of one schema, the reader's, which is looked up when the query is
planned; the tasks look up the others when they meet their ids.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import DataType, IntegerType, StructField, StructType

from penstock.errors import (
    InvalidInput,
    InvalidPayload,
    LogNotFound,
    SchemaNotFound,
)
from penstock.log.log_reader import LogReader
from penstock.model.schemas import version_number
from penstock.record.batch import Batch
from penstock.schema.columns import ColumnDecoder, column_decoder
from penstock.schema.definition import ParsedSchema, SchemaType
from penstock.schema.kinds import parse_schema
from penstock.schema.registry import RegistryEntry, RegistryState
from penstock.spark.columns import COLUMNS, ColumnMaker
from penstock.spark.connect import connected
from penstock.spark.options import Target, ValueFormat

ID_COLUMN = "schema_id"
"""The schema that a value names; null: it names none."""

_entries: msgspec.json.Decoder[RegistryEntry] = msgspec.json.Decoder(RegistryEntry)


class FoundSchema(msgspec.Struct, frozen=True):
    """A schema, and those that it refers to by name, as tasks are sent them."""

    type: SchemaType
    text: str
    references: tuple[tuple[str, int], ...]
    compiled: bytes


@dataclass
class Values:
    """How the values of a query are decoded; it is sent to the tasks."""

    target: Target
    format: ValueFormat
    schemas: dict[int, FoundSchema] = field(default_factory=dict)
    id: int = 0
    """Of the reader's schema."""
    _parsed: dict[int, ParsedSchema] = field(default_factory=dict, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_parsed": {}}

    @classmethod
    def planned(cls, target: Target, wanted: ValueFormat) -> Values:
        """Look up the reader's schema. Raises SubjectNotFound and the like."""
        values = cls(target, wanted)
        if wanted.id is not None:
            values.id = wanted.id
        elif target.url:
            with connected(target) as client:
                values.id = client.schemas.get(wanted.subject, wanted.version).id
        else:
            state = read_registry(target.path)
            number = version_number(wanted.version)
            values.id = state.version(target.namespace, wanted.subject, number).id
        if values.parsed(values.id).kind != wanted.kind:
            raise InvalidInput(
                f"schema {values.id} is of type {values.parsed(values.id).kind}, and valueFormat "
                f"is {wanted.kind}"
            )
        return values

    def decoder(self) -> ColumnDecoder:
        return column_decoder(
            self.parsed(self.id), self.parsed, bare=self.format.bare, message=self.format.message
        )

    def parsed(self, id_: int) -> ParsedSchema:
        """Raises SchemaNotFound."""
        found = self._parsed.get(id_)
        if found is None:
            if id_ not in self.schemas:
                self._look_up(id_)
            schema = self.schemas[id_]
            inner: dict[str, ParsedSchema] = {}
            self._references(schema, inner)
            found = parse_schema(schema.type, schema.text, inner, schema.compiled)
            self._parsed[id_] = found
        return found

    def _references(self, schema: FoundSchema, inner: dict[str, ParsedSchema]) -> None:
        """The innermost first."""
        for name, id_ in schema.references:
            if name not in inner:
                if id_ not in self.schemas:
                    self._look_up(id_)
                self._references(self.schemas[id_], inner)
                inner[name] = self.parsed(id_)

    def _look_up(self, id_: int) -> None:
        if not self.target.url:
            for number, record in read_registry(self.target.path).schemas.items():
                references = tuple((each.name, each.id) for each in record.references)
                self.schemas[number] = FoundSchema(
                    record.type, record.text, references, record.compiled
                )
            if id_ not in self.schemas:
                raise SchemaNotFound(id_)
            return
        with connected(self.target) as client:
            found = client.schemas.get_by_id(id_)
            references = tuple(
                (each.name, client.schemas.get(each.subject, each.version).id)
                for each in found.references
            )
        self.schemas[id_] = FoundSchema(found.type, found.schema, references, found.compiled or b"")


class DecodingMaker:
    """Makes record batches whose column `value` is decoded."""

    def __init__(self, schema: pa.Schema, topic: str, partition: int, values: Values) -> None:
        self._schema = schema
        plain = [
            pa.field("value", pa.binary()) if each.name == "value" else each
            for each in schema
            if each.name != ID_COLUMN
        ]
        names = [each.name for each in plain]
        if "value" not in names:
            plain.append(pa.field("value", pa.binary()))
        self._maker = ColumnMaker(pa.schema(plain), topic, partition)
        self._decoder = values.decoder()
        self._is_strict = values.format.on_error == "fail"
        self._where = f"{topic}/{partition}"

    def make(self, batches: Sequence[Batch]) -> pa.RecordBatch:
        made = self._maker.make(batches)
        decoded = self._decoder.decode(made.column("value"))
        if decoded.errors and self._is_strict:
            row, reason = decoded.errors[0]
            offset = _offset_of(batches, row)
            raise InvalidPayload(
                f"the value of {self._where} at offset {offset} cannot be decoded: {reason}. With "
                "valueOnError=null such values are null"
            )
        found = {"value": decoded.column, ID_COLUMN: decoded.ids}
        arrays = []
        for each in self._schema:
            array = found[each.name] if each.name in found else made.column(each.name)
            arrays.append(array if array.type == each.type else array.cast(each.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def decoded_columns(values: Values) -> dict[str, DataType]:
    """The columns of a read whose values are decoded."""
    kind = from_arrow_schema(pa.schema([pa.field("value", values.decoder().type)]))
    return {**COLUMNS, "value": kind.fields[0].dataType, ID_COLUMN: IntegerType()}


def decoded_schema(schema: StructType, values: Values) -> StructType:
    """The schema of a read, with what its values are instead of their bytes."""
    columns = decoded_columns(values)
    return StructType(
        [StructField(each.name, columns[each.name]) for each in schema.fields]
        + [StructField(ID_COLUMN, IntegerType())]
    )


def read_registry(folder: str) -> RegistryState:
    """The registry of a data folder, whoever works on it."""
    state = RegistryState()
    try:
        log = LogReader.open(os.path.join(folder, "schemas"))
    except LogNotFound:
        return state
    offset = log.start
    while offset < log.end:
        read = log.read(offset)
        for batch in read:
            for entry in batch.values.to_pylist():
                state.apply(_entries.decode(entry))
        offset = read.next_offset
    return state


def _offset_of(batches: Sequence[Batch], row: int) -> int:
    for batch in batches:
        if row < len(batch):
            return int(batch.offset_numbers()[row])
        row -= len(batch)
    return -1
