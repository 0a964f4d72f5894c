"""Values of messages as one Arrow column, by the schemas that they name.

`column_decoder(schema, known)` makes a decoder for the type of one schema, the reader's; each value
is read as the schema says whose id it begins with (`framing`), and brought to the reader's type. A
value that does not fit is null, and told in `errors`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NamedTuple, cast

import pyarrow as pa

from penstock.errors import InvalidInput, PenstockError, SchemaNotFound
from penstock.schema.definition import ParsedSchema, shortened
from penstock.schema.framing import PREFIX_BYTES, schema_id_of

_ID_MAX = (1 << 31) - 1
KnownSchemas = Callable[[int], ParsedSchema]
"""The schema of an id; raises SchemaNotFound."""


class ValueRefused(Exception):
    """A value does not fit the type of the column."""


class ColumnType(NamedTuple):
    """A type of Arrow, and how a value comes to be one of it."""

    type: pa.DataType
    shape: Callable[[Any], Any]


class DecodedColumn(NamedTuple):
    column: pa.Array
    ids: pa.Array
    """Of the schema that each value names, as int32; null: it names none."""
    errors: list[tuple[int, str]]
    """Rows that are null because they could not be read, and why."""


class ColumnDecoder(ABC):
    """For one schema. It may be used by one thread at a time."""

    type: pa.DataType
    """Of the column; a struct where the schema is a record, an object or a message."""

    def __init__(self, schema: ParsedSchema, known: KnownSchemas | None, *, bare: bool) -> None:
        self._schema = schema
        self._known = known
        self._bare = bare
        self._writers: dict[int, ParsedSchema] = {}

    def decode(self, values: Sequence[bytes | None] | pa.Array) -> DecodedColumn:
        """The values of messages; null stays null. Raises Unavailable and the like if a schema
        cannot be looked up now."""
        if isinstance(values, pa.Array | pa.ChunkedArray):
            values = values.to_pylist()
        rows: list[Any] = []
        ids: list[int | None] = []
        errors: list[tuple[int, str]] = []
        for row, value in enumerate(values):
            id_ = None
            found = None
            if value is not None:
                try:
                    id_, found = self._value(value)
                except (ValueRefused, PenstockError) as exc:
                    if isinstance(exc, PenstockError) and exc.retriable:
                        raise  # a registry that is away says nothing about the value
                    errors.append((row, shortened(exc)))
            rows.append(found)
            ids.append(id_)
        return DecodedColumn(self._column(rows, errors), pa.array(ids, pa.int32()), errors)

    @abstractmethod
    def _read(self, payload: bytes, writer: ParsedSchema | None) -> Any:
        """A value as `pa.array` takes it. `writer`: None where it is bare, and the reader's own.
        Raises ValueRefused."""

    def _value(self, value: bytes) -> tuple[int | None, Any]:
        if self._bare:
            return None, self._read(value, None)
        id_ = schema_id_of(value)
        if id_ is not None and id_ <= _ID_MAX:
            return id_, self._read(value[PREFIX_BYTES:], self._writer(id_))
        if self._schema.kind == "json":  # which never begins with a zero byte
            return None, self._read(value, None)
        raise ValueRefused("it does not begin with the id of a schema")

    def _writer(self, id_: int) -> ParsedSchema:
        found = self._writers.get(id_)
        if found is None:
            if self._known is None:
                raise SchemaNotFound(id_)
            found = self._known(id_)
            if found.kind != self._schema.kind:
                raise ValueRefused(f"schema {id_} is of type {found.kind}, not {self._schema.kind}")
            self._writers[id_] = found
        return found

    def _column(self, rows: list[Any], errors: list[tuple[int, str]]) -> pa.Array:
        try:
            return pa.array(rows, self.type)
        except (pa.ArrowException, OverflowError, ValueError, TypeError):
            bad = dict(errors)
            for row, value in enumerate(rows):  # which one it is
                try:
                    pa.array([value], self.type)
                except (pa.ArrowException, OverflowError, ValueError, TypeError) as exc:
                    rows[row] = None
                    bad[row] = shortened(exc)
            errors[:] = sorted(bad.items())
            return pa.array(rows, self.type)


def column_decoder(
    schema: ParsedSchema,
    known: KnownSchemas | None = None,
    *,
    bare: bool = False,
    message: str | None = None,
) -> ColumnDecoder:
    """A decoder to the type of `schema`. `known`: the others that values may name. `bare`: values
    name none, and are of this schema. `message`: of Protobuf, which message of the schema they are;
    by default the first."""
    if message is not None and schema.kind != "protobuf":
        raise InvalidInput(f"a schema of type {schema.kind} has no messages")
    module = import_module(f"penstock.schema.{schema.kind}_columns")
    made = getattr(module, f"{schema.kind.capitalize()}ColumnDecoder")
    given = (message,) if schema.kind == "protobuf" else ()
    return cast("ColumnDecoder", made(schema, known, *given, bare=bare))


def as_it_is(value: Any) -> Any:
    return value
