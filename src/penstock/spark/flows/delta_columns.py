"""Columns of a flow's Delta table: new ones, and wider types for those that are there.

Delta's library cannot change a type, so the table is then written anew, in one commit; it goes
through this process a batch at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import deltalake
import pyarrow as pa

from penstock.errors import InvalidInput
from penstock.spark.lake_table import is_narrower


def columns_of(table: deltalake.DeltaTable) -> pa.Schema:
    """As Spark hands rows over, whichever view or large type a reader prefers."""
    return pa.schema([plain(each) for each in pa.schema(table.schema().to_arrow())])


def plain(field: pa.Field) -> pa.Field:
    kinds = {
        pa.string_view(): pa.string(),
        pa.large_string(): pa.string(),
        pa.binary_view(): pa.binary(),
        pa.large_binary(): pa.binary(),
    }
    return field.with_type(kinds.get(field.type, field.type))


def make_room(table: deltalake.DeltaTable, given: pa.Schema, marks: Mapping[str, int]) -> None:
    """Give a table the columns of some rows; one of a type that is not wider is refused. `marks`:
    what the table keeps and a run that is at work besides would change, so that one is refused."""
    known, delta = columns_of(table), deltalake.Schema.from_arrow(given)
    there = {each.name: each for each in table.schema().fields}
    wider = []
    for field, each in zip(given, delta.fields, strict=True):
        if each.name not in there or there[each.name].type == each.type:
            continue
        kind = known.field(each.name).type
        if is_narrower(kind, field.type):
            wider.append(field)
        elif not is_narrower(field.type, kind):
            raise InvalidInput(
                f"column {each.name!r} of {table.table_uri} is of type {kind}, and the flow makes "
                f"it {field.type}: cast it, or write to another table"
            )
    if wider:
        _widen(table, known, wider, marks)
    if new := [each for each in delta.fields if each.name not in there]:
        table.alter.add_columns(new)


def fitted(rows: pa.Table, table: deltalake.DeltaTable, names: Mapping[str, str]) -> pa.Table:
    """Rows with the types of a table, whose columns may have other `names`."""
    known = columns_of(table)
    for number, field in enumerate(rows.schema):
        kind = known.field(names.get(field.name, field.name)).type
        if is_narrower(field.type, kind):
            rows = rows.set_column(number, field.name, rows.column(number).cast(kind))
    return rows


def _widen(
    table: deltalake.DeltaTable, known: pa.Schema, wider: list[pa.Field], marks: Mapping[str, int]
) -> None:
    for field in wider:
        number = known.get_field_index(field.name)
        known = known.set(number, known.field(number).with_type(field.type))

    present = table.to_pyarrow_dataset()  # it cannot be asked for in the middle of a write

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in present.to_batches():
            yield batch.select(known.names).cast(known)

    deltalake.write_deltalake(
        table,
        pa.RecordBatchReader.from_batches(known, batches()),
        mode="overwrite",
        schema_mode="overwrite",
        partition_by=table.metadata().partition_columns or None,
        commit_properties=deltalake.CommitProperties(
            app_transactions=[deltalake.Transaction(*each) for each in sorted(marks.items())]
        ),
    )
    table.update_incremental()
