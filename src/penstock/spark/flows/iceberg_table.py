"""Iceberg tables of flows: rows, how far they are, and counts, in one commit.

A round that changes rows replaces the files that they are in: which ones is seen by the columns of
the keys. What is kept beside the rows are properties of the table, which change in the same commit.
New files that no commit names are garbage: of a run that was killed, or was refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InvalidInput, LakeConflict
from penstock.spark.flows.definition import Flow
from penstock.spark.flows.marked_table import MarkedTable
from penstock.spark.flows.merging import (
    ORDER,
    having_keys,
    last_of_each,
    latest_of_each,
    newer,
    summed,
    with_intervals,
)
from penstock.spark.iceberg_lake import IcebergLake
from penstock.spark.lake import open_lake, remove_garbage
from penstock.spark.lake_table import LakeFile, TableChange, lay_out
from penstock.spark.table_files import TableFiles
from penstock.spark.table_layout import TableLayout
from penstock.spark.table_writer import LakeFilesWriter

SMALL_BYTES = 64 << 20
"""Files that are not longer are written together by `compact`."""


class IcebergFlowTable(MarkedTable):
    """The Iceberg table of one flow."""

    def __init__(self, flow: Flow) -> None:
        super().__init__(flow)
        lake = open_lake(self.uri, "iceberg", flow.storage)
        assert isinstance(lake, IcebergLake)
        self._lake = lake
        self._files = TableFiles(lake.folder, lake.storage)

    def marks(self, names: Iterable[str]) -> dict[str, int]:
        return self._lake.marks(names)

    def schema(self) -> pa.Schema | None:
        return self._lake.schema() if self._lake.exists() else None

    def committed_us(self) -> int | None:
        return self._lake.committed_us()

    def write(
        self, rows: pa.Table, number: int, change: TableChange, counts: dict[str, int]
    ) -> None:
        if self.flow.target.kind == "history":
            names = ["valid_from" if name == ORDER else name for name in rows.column_names]
            rows = rows.rename_columns(names)
        layout, schema = self._laid_out(rows.schema)
        rows = _fitted(rows, schema)
        files = self._lake.files()
        known = _Known(self._files, files, schema)
        rows, keys = self._merged(rows, known)
        replaced = known.having(rows, keys) if keys is not None else {}
        new = LakeFilesWriter(self._files, schema, layout=layout)
        for path, is_replaced in replaced.items():
            _write(new, known.read(path).filter(pc.invert(is_replaced)))
        _write(new, rows)
        added = new.close()
        # The last look, after that at the files: who has come in between has changed the round.
        before = self.marks(self.names())
        if before.get(self.mark("round"), 0) not in (0, number - 1):
            raise LakeConflict(f"{self.uri}: another run of flow {self.flow.name} is at work")
        change = msgspec.structs.replace(
            change,
            schema=schema,
            added=added,
            removed=[*replaced],
            noted=self.noted(before, number, counts),
            layout=layout,
        )
        self._lake.commit(change)

    def compact(self, z_order: Sequence[str], older_s: float | None) -> tuple[int, int, int]:
        """Write small files together, all of them if rows are to be sorted; how many files there
        are now instead of how many before, and how many were removed for good."""
        layout = self._lake.layout()
        if layout is None:
            raise InvalidInput(f"there is no table {self.uri} yet: apply the flow first")
        files = self._lake.files()
        small = [each for each in files if z_order or each.size_bytes <= SMALL_BYTES]
        added: list[LakeFile] = []
        if len(small) > 1:
            schema = self._lake.schema()
            known = _Known(self._files, small, schema)
            rows = pa.concat_tables([known.read(each.path) for each in small])
            if z_order:
                rows = rows.sort_by([(name, "ascending") for name in z_order])
            new = LakeFilesWriter(self._files, schema, layout=layout)
            _write(new, rows)
            added = new.close()
            removed = [each.path for each in small]
            self._lake.commit(TableChange(schema, added, removed, layout=layout))
        gone = 0 if older_s is None else remove_garbage(self._lake, older_s)
        return len(added), len(small) if added else 0, gone

    def _laid_out(self, given: pa.Schema) -> tuple[TableLayout, pa.Schema]:
        """How the table is partitioned, and all of its columns."""
        target = self.flow.target
        schema = pa.schema([each.with_nullable(True) for each in self._columns(given)])
        is_there = self._lake.exists()
        by = None if is_there else target.partition_by
        layout = lay_out(self._lake, schema, by, target.statistics or None)
        if is_there:
            return layout, self._lake.schema()
        return msgspec.structs.replace(layout, properties=target.properties), schema

    def _columns(self, given: pa.Schema) -> pa.Schema:
        if self.flow.target.kind != "history":
            return given
        order = given.field("valid_from").type
        return given.append(pa.field("valid_to", order)).append(pa.field("is_current", pa.bool_()))

    def _merged(self, rows: pa.Table, known: _Known) -> tuple[pa.Table, Sequence[str] | None]:
        """The rows that the table gets, and by which columns they take the place of others."""
        target = self.flow.target
        match target.kind:
            case "current":
                there = known.rows_like(rows, target.key)
                rows = latest_of_each(rows, target.key, lambda _: there)
                ordered = bool(target.order_by)
                return newer(rows, there, target.key, ordered=ordered), target.key
            case "history":
                every = pa.concat_tables([known.rows_like(rows, target.key), rows])
                every = last_of_each(every, [*target.key, "valid_from"])
                return _fitted(with_intervals(every, target.key), rows.schema), target.key
            case "aggregate":
                measures = self.flow.measures()
                groups = [name for name in rows.column_names if name not in measures]
                every = pa.concat_tables([known.rows_like(rows, groups), rows])
                return summed(every, measures), groups
            case _:
                return rows, None


class _Known:
    """Rows of some files of a table, with all columns that the table has."""

    def __init__(self, place: TableFiles, files: Sequence[LakeFile], schema: pa.Schema) -> None:
        self._place = place
        self._paths = [each.path for each in files]
        self._schema = schema

    def read(self, path: str, columns: Sequence[str] | None = None) -> pa.Table:
        wanted = [each for each in self._schema if columns is None or each.name in columns]
        with self._place.parquet(path) as file:
            there = [each.name for each in wanted if each.name in file.schema_arrow.names]
            return _fitted(file.read(columns=there), pa.schema(wanted))

    def having(self, rows: pa.Table, keys: Sequence[str]) -> dict[str, pa.BooleanArray]:
        """By the path of a file that has any: which of its rows have the key of one of these."""
        found = {}
        for path in self._paths if len(rows) else ():
            there = self.read(path, keys) if keys else self.read(path)
            has_key = having_keys(there, rows, keys)
            if pc.any(has_key).as_py():
                found[path] = has_key
        return found

    def rows_like(self, rows: pa.Table, keys: Sequence[str]) -> pa.Table:
        """Those with the key of one of these."""
        found = self.having(rows, keys).items()
        some = (self.read(path).filter(has_key) for path, has_key in found)
        return pa.concat_tables([self._schema.empty_table(), *some])


def _write(files: LakeFilesWriter, rows: pa.Table) -> None:
    for batch in rows.combine_chunks().to_batches():
        files.write(batch)


def _fitted(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """With the columns of a table, and their types; what is not there is null."""

    def columns() -> Iterator[pa.ChunkedArray]:
        for field in schema:
            if field.name in rows.column_names:
                yield rows[field.name].cast(field.type)
            else:
                yield pa.chunked_array([pa.nulls(len(rows), field.type)], field.type)

    return pa.Table.from_arrays(list(columns()), schema=schema)
