"""Parquet files of a lake table as a task or a driver writes them: one for each partition."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.errors import InvalidInput
from penstock.spark.lake_table import LakeFile, message_column, new_file_name
from penstock.spark.table_files import TableFiles
from penstock.spark.table_layout import DATE, ColumnRange, TableLayout, partition_text, ranges_of

INCARNATION = "_incarnation"
"""The topic that a row is of, if rows of several that had its name are written again together."""
FILE_BYTES_MAX = 256 << 20
_OPEN_MAX = 1000


class LakeFilesWriter:
    """New files of one table, under names that nobody else has; a commit adds them."""

    def __init__(
        self,
        files: TableFiles,
        schema: pa.Schema,
        incarnation: str = "",
        layout: TableLayout | None = None,
    ) -> None:
        """`schema`: the columns of the files. `date` is not among them if it is in their paths."""
        self._files = files
        self._schema = schema
        self._incarnation = incarnation
        self._layout = layout or TableLayout()
        self._open: dict[tuple[Any, ...], _OpenFile] = {}
        self._done: list[LakeFile] = []

    def write(self, rows: pa.RecordBatch) -> None:
        names = list(self._layout.partition_by)
        if INCARNATION in rows.schema.names:
            names.append(INCARNATION)
        for values, some in _partitioned(rows, names):
            self._write(values, some)

    def _write(self, values: tuple[Any, ...], rows: pa.RecordBatch) -> None:
        by = self._layout.partition_by
        if values not in self._open:
            if len(self._open) >= _OPEN_MAX:
                raise InvalidInput(
                    f"one task has more than {_OPEN_MAX} values of {', '.join(by)}, and each "
                    "would be a file: partition the table by a column with fewer"
                )
            partition = {
                name: partition_text(value) for name, value in zip(by, values, strict=False)
            }
            incarnation = values[-1] if len(values) > len(by) else self._incarnation
            self._open[values] = _OpenFile(
                self._files, self._schema, partition, incarnation or "", self._layout
            )
        self._open[values].write(rows)
        if self._open[values].size_bytes > FILE_BYTES_MAX:
            self._done.append(self._open.pop(values).close())

    def close(self) -> list[LakeFile]:
        return self._done + [file.close() for file in self._open.values()]


def _partitioned(
    rows: pa.RecordBatch, names: list[str]
) -> Iterator[tuple[tuple[Any, ...], pa.RecordBatch]]:
    """Rows with the same values of some columns; one that is not there is null."""
    if not names:
        yield (), rows
        return
    name, *others = names
    if name not in rows.schema.names:
        yield from (((None, *rest), some) for rest, some in _partitioned(rows, others))
        return
    values = rows.column(name).unique()
    for number, value in enumerate(values.to_pylist()):
        of_value = values.slice(number, 1)
        some = rows if len(values) == 1 else rows.filter(pc.is_in(rows[name], of_value))
        yield from (((value, *rest), each) for rest, each in _partitioned(some, others))


class _OpenFile:
    def __init__(
        self,
        files: TableFiles,
        schema: pa.Schema,
        partition: dict[str, str | None],
        incarnation: str,
        layout: TableLayout,
    ) -> None:
        is_dated = DATE in partition and DATE not in schema.names
        self._name = new_file_name(partition[DATE] if is_dated else None, incarnation)
        self._partition = partition
        self._schema = schema
        self._offset = message_column("offset", schema.names)
        self._statistics = {self._offset, *layout.statistics}
        self._files = files
        self._stream = files.create(self._name)
        self._said: list[pq.FileMetaData] = []
        self._out = pq.ParquetWriter(
            self._stream, schema, compression="zstd", metadata_collector=self._said
        )

    @property
    def size_bytes(self) -> int:
        return int(self._stream.tell())

    def write(self, rows: pa.RecordBatch) -> None:
        # Spark hands over times in the zone of the session; it is the same moment in UTC.
        columns = {f.name: rows.column(f.name).cast(f.type) for f in self._schema}
        headers = message_column("headers", columns)
        if headers in columns:
            columns[headers] = _or_null(columns[headers])
        # Spark takes NaN for the greatest number, and a Parquet file leaves it out of its ranges.
        self._statistics -= {f.name for f in self._schema if _has_nan(columns[f.name])}
        arrays = list(columns.values())
        self._out.write_batch(pa.RecordBatch.from_arrays(arrays, schema=self._schema))

    def close(self) -> LakeFile:
        """On stable storage, under its name: retention goes by what the table says it has."""
        self._out.close()
        self._stream.close()
        size = self._files.finish(self._name)
        (said,) = self._said
        ranges = ranges_of(said, self._statistics)
        offset = ranges.pop(self._offset, ColumnRange(0, 0, 0))
        least, most = offset.least or 0, offset.most or 0
        return LakeFile(self._name, self._partition, size, said.num_rows, least, most, ranges)


def _has_nan(column: pa.Array) -> bool:
    return pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py() is True


def _or_null(column: pa.Array) -> pa.Array:
    """Lists that are empty as null, which is what the log has for no headers."""
    filled = pc.greater(pc.list_value_length(column), 0)
    return pc.if_else(filled, column, pa.scalar(None, column.type))
