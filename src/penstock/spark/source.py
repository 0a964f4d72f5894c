"""The data source `penstock`, as Spark sees it."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from penstock.errors import InvalidInput
from penstock.spark.batch_read import BatchReader, FilteringReader
from penstock.spark.columns import read_schema
from penstock.spark.options import parse_read_options, parse_target, parse_write_options
from penstock.spark.queue_read import QueueReader, queue_schema
from penstock.spark.sink import BatchWriter, StreamWriter
from penstock.spark.stream_read import MicroBatchReader


class PenstockDataSource(DataSource):
    """`spark.read`, `readStream`, `write` and `writeStream` with `.format("penstock")`."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = dict(options)
        # Made absolute here, by the driver: the workers may stand in another folder.
        if self.options.get("path"):
            self.options["path"] = parse_target({"path": self.options["path"]}).path

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType:
        options = parse_read_options(self.options)
        schema = read_schema(options.include_headers)
        return queue_schema(schema) if options.queue else schema

    def reader(self, schema: StructType) -> BatchReader:
        options = parse_read_options(self.options)
        if options.queue:
            raise InvalidInput("mode=queue is for readStream: a batch read has nothing to ack by")
        if options.group:
            raise InvalidInput("group is for readStream: a batch read commits no progress")
        kind = FilteringReader if options.pushdown else BatchReader
        return kind(options, schema)

    def streamReader(self, schema: StructType) -> MicroBatchReader | QueueReader:
        options = parse_read_options(self.options)
        given = [name for name in self.options if name.lower().startswith("ending")]
        if given:
            raise InvalidInput(f"{given[0]} is for batch reads: a stream has no end")
        return QueueReader(options, schema) if options.queue else MicroBatchReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        return BatchWriter(parse_write_options(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        return StreamWriter(parse_write_options(self.options, stream=True), schema)
