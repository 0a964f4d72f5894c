"""The data source `penstock`, as Spark sees it."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from penstock.errors import InvalidInput
from penstock.spark.batch_read import BatchReader, FilteringReader
from penstock.spark.catalog_table import (
    check_there_are_options,
    for_reading,
    for_writing,
    kept_options,
    options_of_table,
    with_options,
)
from penstock.spark.columns import read_schema
from penstock.spark.options import (
    parse_read_options,
    parse_target,
    parse_write_options,
)
from penstock.spark.queue_read import QueueReader, queue_schema
from penstock.spark.sink import BatchWriter, StreamWriter
from penstock.spark.stream_read import MicroBatchReader
from penstock.spark.trace_read import (
    TraceReader,
    TraceStreamReader,
    is_of_traces,
    parse_trace_options,
    trace_schema,
)
from penstock.spark.values import Values, decoded_schema
from penstock.spark.verdict_sink import VerdictWriter


class PenstockDataSource(DataSource):
    """`spark.read`, `readStream`, `write` and `writeStream` with `.format("penstock")`."""

    def __init__(self, options: Mapping[str, str]) -> None:
        of_table = options_of_table(options)
        self._is_table = of_table is not None
        self.options = dict(options) if of_table is None else of_table
        # Made absolute here, by the driver: the workers may stand in another folder.
        if self.options.get("path"):
            self.options["path"] = parse_target({"path": self.options["path"]}).path

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType:
        given = for_reading(self.options) if self._is_table else self.options
        if is_of_traces(given):
            parse_trace_options(given)
            return trace_schema()
        options = parse_read_options(given)
        schema = read_schema(options.include_headers)
        if options.values is not None:
            schema = decoded_schema(schema, Values.planned(options.target, options.values))
        schema = queue_schema(schema) if options.queue else schema
        return with_options(schema, self.options) if self._is_table else schema

    def reader(self, schema: StructType) -> BatchReader | TraceReader:
        given = self._reading(schema)
        if is_of_traces(given):
            return TraceReader(parse_trace_options(given), schema)
        options = parse_read_options(given)
        if options.queue:
            raise InvalidInput("mode=queue is for readStream: a batch read has nothing to ack by")
        if options.group:
            raise InvalidInput("group is for readStream: a batch read commits no progress")
        kind = FilteringReader if options.pushdown else BatchReader
        return kind(options, schema)

    def streamReader(
        self, schema: StructType
    ) -> MicroBatchReader | QueueReader | TraceStreamReader:
        given = self._reading(schema)
        if is_of_traces(given):
            return TraceStreamReader(parse_trace_options(given), schema)
        options = parse_read_options(given)
        ending = [name for name in given if name.lower().startswith("ending")]
        if ending:
            raise InvalidInput(f"{ending[0]} is for batch reads: a stream has no end")
        return QueueReader(options, schema) if options.queue else MicroBatchReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter | VerdictWriter:
        options = parse_write_options(self._writing(schema))
        if options.queue:
            return VerdictWriter(options, schema)
        return BatchWriter(options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter | VerdictWriter:
        options = parse_write_options(self._writing(schema), stream=True)
        return VerdictWriter(options, schema) if options.queue else StreamWriter(options, schema)

    def _reading(self, schema: StructType) -> dict[str, str]:
        """The options of a read: those of the table, if it is of one, and those of the query."""
        kept = for_reading(kept_options(schema))
        options = {**kept, **self.options}
        check_there_are_options(options)
        return options

    def _writing(self, schema: StructType) -> dict[str, str]:
        """A frame that was read from a table brings its options with it: they are not the target's
        where the write says one."""
        kept = {} if {"path", "url"} & self.options.keys() else for_writing(kept_options(schema))
        options = {**kept, **self.options}
        check_there_are_options(options)
        return options
