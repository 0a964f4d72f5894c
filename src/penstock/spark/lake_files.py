"""How a Spark job reads the files of a lake table in an object store: a task each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from penstock.spark.lake_table import Lake, LakeFile
from penstock.spark.table_files import TableFiles
from penstock.spark.table_writer import INCARNATION
from penstock.spark.warm_up import freeze_loaded_modules

_BATCH_ROWS = 32_768
_NULL = "__HIVE_DEFAULT_PARTITION__"


class _Wanted(msgspec.Struct, frozen=True):
    table: str
    storage: dict[str, str]
    files: list[LakeFile]


@dataclass
class _FileSplit(InputPartition):
    file: LakeFile


class LakeFilesSource(DataSource):
    """Registered by those who use it."""

    @classmethod
    def name(cls) -> str:
        return "penstock_lake_files"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _FilesReader(msgspec.json.decode(self.options["files"], type=_Wanted), schema)


def files_option(lake: Lake, files: Sequence[LakeFile]) -> str:
    return msgspec.json.encode(_Wanted(lake.folder, lake.storage, list(files))).decode()


class _FilesReader(DataSourceReader):
    def __init__(self, wanted: _Wanted, schema: StructType) -> None:
        self._wanted = wanted
        self._schema = to_arrow_schema(schema, timezone="UTC")

    def partitions(self) -> Sequence[InputPartition]:
        return [_FileSplit(each) for each in self._wanted.files]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _FileSplit)
        freeze_loaded_modules()
        file = partition.file
        given = {**_partition_of(file.path), INCARNATION: file.incarnation}
        with TableFiles(self._wanted.table, self._wanted.storage).parquet(file.path) as found:
            there = [name for name in self._schema.names if name in found.schema_arrow.names]
            for rows in found.iter_batches(_BATCH_ROWS, columns=there):
                columns = [
                    rows[field.name].cast(field.type)
                    if field.name in there
                    else _constant(given.get(field.name), field.type, len(rows))
                    for field in self._schema
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _constant(text: str | None, kind: pa.DataType, count: int) -> pa.Array:
    if text is None:
        return pa.nulls(count, kind)
    return pa.repeat(pa.scalar(text).cast(kind), count)


def _partition_of(path: str) -> dict[str, str | None]:
    """What a path says of the rows: `city=Oslo/part-...`."""
    parts = (part.partition("=") for part in path.split("/")[:-1])
    return {name: None if value == _NULL else unquote(value) for name, _, value in parts}
