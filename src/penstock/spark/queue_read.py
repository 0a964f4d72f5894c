"""`mode=queue`: micro-batches of leased messages, acked when they are done.

The offset of a batch is the name of a file in which its messages wait with their receipts, so a
batch that runs again is the same batch, and needs no offset before it. A file is written when its
messages are leased, and goes when they are acked: that is when Spark plans the next batch.

A query that fails is begun again with the batch that failed, and may fail again. After some times
the messages are given back: they come again later, and die as those of any consumer do.
"""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from penstock.durations import parse_ns
from penstock.errors import InvalidInput
from penstock.log.files import DiskFiles
from penstock.spark.columns import COLUMNS, ColumnMaker, read_schema
from penstock.spark.connect import connected
from penstock.spark.options import ReadOptions

_logger = logging.getLogger("penstock.spark")

BatchName: TypeAlias = dict[str, str]

MESSAGES_MAX = 10_000
RUNS_MAX = 3
_RECEIVE_MAX = 100_000
_LEASED = {"receipt": StringType(), "delivery_count": IntegerType()}


def queue_schema(schema: StructType) -> StructType:
    """The columns of a read, and those of a lease."""
    return StructType(schema.fields + [StructField(n, kind) for n, kind in _LEASED.items()])


class Rows(InputPartition):
    """Some rows of a batch's file."""

    def __init__(self, path: str, start: int, count: int) -> None:
        self.value = self.path = path
        self.start, self.count = start, count


class QueueReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Leases, plans and acks in one process; tasks only read the file of their batch."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        for field in schema.fields:
            if {**COLUMNS, **_LEASED}.get(field.name) != field.dataType:
                raise InvalidInput(f"there is no column {field.name!r} of this type to be leased")
        self._options = options
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._folder = os.path.join(options.spool, f"queue-{options.group}")
        self._files = DiskFiles()
        self._left: int | None = None
        self._begun: set[str] = set()

    def initialOffset(self) -> BatchName:
        return {"batch": ""}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """As many as there are now; those that come meanwhile may be among them."""
        with connected(self._options.target) as client:
            self._left = 0
            for topic in self._options.subscription.topics:
                stats = client.stats(topic)
                mine = [g for g in stats.groups if g.group == self._options.group]
                self._left += mine[0].depth - mine[0].in_flight if mine else stats.messages

    def latestOffset(self, start: BatchName, limit: ReadLimit) -> BatchName:
        with connected(self._options.target) as client:
            self._ack(client, start["batch"])
            name = self._lease(client)
        return {"batch": name} if name else start

    def partitions(self, start: BatchName, end: BatchName) -> list[InputPartition]:
        path = self._path(end["batch"])
        if not end["batch"] or not os.path.exists(path):
            return [Rows("", 0, 0)]  # acked already
        rows = _read(path)
        runs = self._count_run(end["batch"])
        with connected(self._options.target) as client:
            receipts = rows.column("receipt").to_pylist()
            if runs > RUNS_MAX:
                error = f"a batch of {len(rows)} with this message failed {RUNS_MAX} times"
                _logger.warning("%s; they are given back", error)
                client.nack(self._options.group, receipts, error=error)
                self._forget(end["batch"])
                return [Rows("", 0, 0)]
            lost = client.extend(self._options.group, receipts, visibility=self._options.visibility)
        if lost:
            _logger.warning("%d leases of a batch are over; it runs without them", len(lost))
            rows = rows.filter(pa.array([receipt not in lost for receipt in receipts]))
            self._write(path, rows)
        pieces = min(self._options.partitions_min or 1, max(1, len(rows)))
        step = -(-len(rows) // pieces) or 1
        return [Rows(path, at, step) for at in range(0, max(1, len(rows)), step)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Rows)
        if partition.path:
            some = _read(partition.path).slice(partition.start, partition.count)
            columns = [some.column(field.name).cast(field.type) for field in self._schema]
            yield from pa.Table.from_arrays(columns, schema=self._schema).to_batches()

    def commit(self, end: BatchName) -> None:
        """Nothing: it comes late, and never for the last batch. See `latestOffset`."""

    def _lease(self, client: Any) -> str:
        """Take messages and keep them in a file; its name, "" if there are none."""
        options = self._options
        wanted = options.offsets_per_trigger_max or MESSAGES_MAX
        if self._left is not None:
            wanted = min(wanted, self._left)
        parts: list[pa.Table] = []
        for topic in options.subscription.topics:
            if wanted > 0:
                batch = client.receive_batch(
                    topic,
                    options.group,
                    min(wanted, _RECEIVE_MAX),
                    visibility=options.visibility,
                    consumer="spark",
                )
                wanted -= len(batch)
                parts += _tables(topic, batch)
        if not parts:
            return ""
        rows = pa.concat_tables(parts)
        if self._left is not None:
            self._left -= len(rows)
        name = uuid.uuid4().hex
        self._write(self._path(name), rows)
        return name

    def _ack(self, client: Any, name: str) -> None:
        """A batch is done. What was settled meanwhile, or lost, is not ours to settle."""
        self._remove_leftovers(name)
        if name and os.path.exists(self._path(name)):
            receipts = _read(self._path(name)).column("receipt").to_pylist()
            refused = client.ack(self._options.group, receipts)
            for error in refused.values():
                _logger.info("not acked: %s", error)
            self._forget(name)

    def _count_run(self, name: str) -> int:
        """How many queries have begun this batch: this one, and those that failed."""
        path = f"{self._path(name)}.runs"
        if name not in self._begun:
            self._begun.add(name)
            with open(path, "ab") as file:
                file.write(b".")
        return os.path.getsize(path)

    def _forget(self, name: str) -> None:
        for path in (self._path(name), f"{self._path(name)}.runs"):
            with suppress(FileNotFoundError):
                os.unlink(path)

    def _remove_leftovers(self, name: str) -> None:
        """Files of batches that never ran, whose leases are long over."""
        old = time.time() - 2 * parse_ns(self._options.visibility, "visibility") / 1e9
        with suppress(FileNotFoundError):
            for other in os.listdir(self._folder):
                path = os.path.join(self._folder, other)
                if not other.startswith(f"{name}.arrow") and os.path.getmtime(path) < old:
                    os.unlink(path)

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, f"{name}.arrow")

    def _write(self, path: str, rows: pa.Table) -> None:
        self._files.make_folder(self._folder)
        with open(f"{path}.tmp", "wb") as file:
            with pa.ipc.new_file(file, rows.schema) as out:
                out.write_table(rows)
            file.flush()
            os.fsync(file.fileno())
        self._files.rename(f"{path}.tmp", path)
        self._files.sync_folder(self._folder)


def _read(path: str) -> pa.Table:
    with pa.memory_map(path) as file, pa.ipc.open_file(file) as rows:
        return rows.read_all()


def _tables(topic: str, received: Any) -> list[pa.Table]:
    """What was received, with the columns of a message and of its lease."""
    if not len(received):
        return []
    every = to_arrow_schema(read_schema(include_headers=True), timezone="UTC")
    leases = received.table().select(["partition", "delivery_count"])
    made: list[pa.RecordBatch] = []
    at = 0
    for batch in received.batches:
        partition = leases.column("partition")[at].as_py()
        made.append(ColumnMaker(every, topic, partition).make([batch]))
        at += len(batch)
    table = pa.Table.from_batches(made)
    receipts: Sequence[str] = received.receipts()
    table = table.append_column("receipt", pa.array(receipts, pa.string()))
    return [table.append_column("delivery_count", leases.column("delivery_count"))]
