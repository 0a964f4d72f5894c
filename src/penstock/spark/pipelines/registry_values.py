"""Values of an archive by the schema registry, and the number that stands for the schema.

The number is that of the rules by which good rows were told from bad ones: a digest of how, and in
its lower 32 bits the id of the reader's schema. A round that is done again takes that one, though
there may be a newer version since.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from penstock.spark.values import Values

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ID_BITS = 32


def rules_of_reader(values: Values, values_as: str) -> int:
    how = hashlib.sha256(f"registry {values.format.kind} {values_as}".encode()).digest()
    return int.from_bytes(how[:4], "big") >> 1 << _ID_BITS | values.id


def is_like(one: int, other: int) -> bool:
    """Whether two differ at most in the reader's schema."""
    return one >> _ID_BITS == other >> _ID_BITS


def reader_of(rules: int) -> int:
    """The id of the reader's schema."""
    return rules & ((1 << _ID_BITS) - 1)


def with_values(frame: DataFrame, values: Values) -> tuple[DataFrame, list[str] | None]:
    """With the decoded values as `_json`, and as `_undecoded` why there is none; and which fields
    they have, None if they are no struct."""
    kind = from_arrow_schema(pa.schema([("_json", values.decoder().type)])).fields[0]
    schema = StructType([*frame.schema.fields, kind, StructField("_undecoded", StringType())])

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        decoder = values.decoder()
        for rows in batches:
            column, _, errors = decoder.decode(rows.column("value"))
            said: list[str | None] = [None] * len(rows)
            for row, error in errors:
                said[row] = error
            yield pa.RecordBatch.from_arrays(
                [*rows.columns, column, pa.array(said, pa.string())],
                names=[*rows.schema.names, "_json", "_undecoded"],
            )

    names = kind.dataType.names if isinstance(kind.dataType, StructType) else None
    return frame.mapInArrow(work, schema), names
