"""`write` and `writeStream` with `.format("penstock")`.

Tasks lay their rows down in files (`staging.py`); the driver's commit publishes them. A batch of a
stream is known by the query and its number, so it is published once however often it runs.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from penstock.errors import InvalidInput
from penstock.spark.connect import connected
from penstock.spark.options import WriteOptions
from penstock.spark.outgoing import check_schema, to_messages
from penstock.spark.patience import patiently
from penstock.spark.staging import Staging
from penstock.spark.warm_up import freeze_loaded_modules

QUERY_PROPERTY = "sql.streaming.queryId"
BATCH_PROPERTY = "streaming.sql.batchId"


@dataclass
class Staged(WriterCommitMessage):
    """What one task laid down."""

    sink: str
    batch: int
    file: str
    query: str = ""
    """The id of the stream, which its checkpoint keeps; "" for a batch write."""


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of one query."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_schema(schema, options.topic)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        context = TaskContext.get()
        assert context is not None
        query = context.getLocalProperty(QUERY_PROPERTY)
        sink = self._options.sink or query
        batch = context.getLocalProperty(BATCH_PROPERTY)
        assert sink is not None
        assert batch is not None
        staged = _stage(self._options, sink, int(batch), context.partitionId(), iterator)
        staged.query = query or ""
        return staged

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        staged = _staged(messages)
        if staged:
            _publish(self._options, staged, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Also called when `commit` failed half way: what was decided on stays."""
        staged = _staged(messages)
        if staged:
            _staging(self._options, staged).discard(batchId, _files(staged))


class BatchWriter(DataSourceArrowWriter):
    """Writes once. With the options sinkId and batchId a write that is repeated is the same one."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        check_schema(schema, options.topic)
        if overwrite:
            raise InvalidInput("messages can be added to a topic, not replaced: use mode('append')")
        self._options = options
        if not options.sink:
            self._options = msgspec.structs.replace(options, sink=f"write-{uuid.uuid4().hex}")
        self._named = bool(options.sink)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        context = TaskContext.get()
        task = 0 if context is None else context.partitionId()
        return _stage(self._options, self._options.sink, self._options.batch, task, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        staged = _staged(messages)
        if not staged:
            return
        _publish(self._options, staged, self._options.batch)
        if not self._named:
            _staging(self._options, staged).remove()

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        staged = _staged(messages)
        if staged:
            _staging(self._options, staged).discard(self._options.batch, _files(staged))


def _stage(
    options: WriteOptions, sink: str, batch: int, task: int, rows: Iterator[pa.RecordBatch]
) -> Staged:
    freeze_loaded_modules()
    now_us = time.time_ns() // 1000
    messages = (to_messages(each, options.topic, now_us) for each in rows if len(each))
    staging = Staging(options.staging, sink, options.staging_storage)
    return Staged(sink, batch, staging.stage(batch, task, messages))


def _publish(options: WriteOptions, staged: Sequence[Staged], batch: int) -> None:
    staging, files = _staging(options, staged), _files(staged)
    if options.sink and staged[0].query:
        staging.check_query(staged[0].query)
    if not staging.is_nothing(batch, files):
        patiently(
            lambda: _publish_once(options, staging, batch, files),
            options.patience_s,
            f"publishing batch {batch} to {options.target}",
        )


def _publish_once(options: WriteOptions, staging: Staging, batch: int, files: list[str]) -> None:
    """What was published already is not again, however often this is broken off."""
    with connected(options.target) as client:
        staging.publish(batch, files, client)


def _staging(options: WriteOptions, staged: Sequence[Staged]) -> Staging:
    return Staging(options.staging, staged[0].sink, options.staging_storage)


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    return [message for message in messages if isinstance(message, Staged)]


def _files(staged: Sequence[Staged]) -> list[str]:
    return [message.file for message in staged if message.file]
