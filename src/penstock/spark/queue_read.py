"""`mode=queue`: micro-batches of leased messages, acked when they are done.

The offset of a batch is the name of a file in which its messages wait with their receipts, so a
batch that runs again is the same batch, and needs no offset before it. A file is written when its
messages are leased, and goes when they are acked: that is when Spark plans the next batch.

A query that fails is begun again with the batch that failed, as halves of it, until a message that
fails stands alone: `queue_batches.py` says how.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
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
from penstock.spark.columns import COLUMNS, ColumnMaker, read_schema
from penstock.spark.connect import connected
from penstock.spark.options import ReadOptions
from penstock.spark.queue_batches import QueueBatches, failures_of, successes_of

_logger = logging.getLogger("penstock.spark")

BatchName: TypeAlias = dict[str, str]

MESSAGES_MAX = 10_000
RUNS_MAX = 3
"""In how many batches a message fails, alone in the end, until it is taken for the cause; one will
do if somebody says what they ended with."""
SUSPECTS_MAX = 16
_RECEIVE_MAX = 100_000
_LEASED = {"receipt": StringType(), "delivery_count": IntegerType()}


def queue_schema(schema: StructType) -> StructType:
    """The columns of a read, and those of a lease."""
    return StructType(schema.fields + [StructField(n, kind) for n, kind in _LEASED.items()])


class Rows(InputPartition):
    """Some rows of a batch, by its name; "": of none."""

    def __init__(self, batch: str, start: int, count: int) -> None:
        self.value = self.batch = batch
        self.start, self.count = start, count


class QueueReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Leases, plans and acks in one process; tasks only read the file of their batch."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        for field in schema.fields:
            if {**COLUMNS, **_LEASED}.get(field.name) != field.dataType:
                raise InvalidInput(f"there is no column {field.name!r} of this type to be leased")
        self._options = options
        self._schema = to_arrow_schema(schema, timezone="UTC")
        folder = os.path.join(options.spool, f"queue-{options.group}")
        self._batches = QueueBatches(folder, options.spool_storage)
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
            name = self._batches.take_waiting()
            if not name:
                self._give_back_suspects(client)
                self._batches.forget_successes()
                name = self._lease(client)
        return {"batch": name, "staging": self._batches.folder} if name else start

    def partitions(self, start: BatchName, end: BatchName) -> list[InputPartition]:
        name = end["batch"]
        if not self._batches.has(name):
            return [Rows("", 0, 0)]  # acked already
        with connected(self._options.target) as client:
            rows = self._to_run(client, name)
            rows = self._held(client, name, rows) if len(rows) else rows
        pieces = min(self._options.partitions_min or 1, max(1, len(rows)))
        step = -(-len(rows) // pieces) or 1
        name = name if len(rows) else ""
        return [Rows(name, at, step) for at in range(0, max(1, len(rows)), step)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Rows)
        if partition.batch:
            some = self._batches.read(partition.batch).slice(partition.start, partition.count)
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
        return self._batches.add(rows)

    def _to_run(self, client: Any, name: str) -> pa.Table:
        """What a batch is now: all of it the first time, then less and less."""
        rows = self._batches.read(name)
        if name in self._begun:
            return rows
        self._begun.add(name)
        runs = self._batches.count_run(name)
        if runs > 1 and len(rows) > 1:
            rows = self._batches.halve(name, rows)
            _logger.warning("a batch has failed: it goes on with %d of its messages", len(rows))
        elif runs > 1:
            failures = failures_of(rows) + runs - 1
            error = self._batches.error_of(name)
            if error or failures >= RUNS_MAX:
                error = (
                    error or f"{failures} batches with this message failed, the last had it alone"
                )
                self._failed_alone(client, name, rows, error)
                return rows.slice(0, 0)
        return rows

    def _held(self, client: Any, name: str, rows: pa.Table) -> pa.Table:
        """Those whose leases go on; the leases of what waits go on too."""
        options, receipts = self._options, rows.column("receipt").to_pylist()
        others = self._batches.waiting_receipts()
        lost = client.extend(options.group, [*receipts, *others], visibility=options.visibility)
        if lost.keys() & set(receipts):
            rows = rows.filter(pa.array([receipt not in lost for receipt in receipts]))
            _logger.warning("some leases of a batch are over; %d messages are left", len(rows))
            self._batches.write(name, rows)
        return rows

    def _ack(self, client: Any, name: str) -> None:
        """A batch is done. What was settled meanwhile, or lost, is not ours to settle."""
        older_s = 2 * parse_ns(self._options.visibility, "visibility") / 1e9
        self._batches.remove_leftovers(name, older_s)
        if not self._batches.has(name):
            return
        receipts = self._batches.read(name).column("receipt").to_pylist()
        refused = client.ack(self._options.group, receipts)
        for error in refused.values():
            _logger.info("not acked: %s", error)
        if receipts:
            self._batches.note_success()
            # So it was not the surroundings that let the others fail.
            for _, receipt, error in self._batches.suspects():
                client.reject(self._options.group, receipt, reason=error)
            self._batches.forget_suspects()
        self._batches.forget(name)

    def _failed_alone(self, client: Any, name: str, rows: pa.Table, error: str) -> None:
        was_halved = failures_of(rows) > 0
        if was_halved and self._batches.successes > successes_of(rows):
            client.reject(self._options.group, rows.column("receipt").to_pylist(), reason=error)
            self._batches.forget(name)
            return
        self._batches.suspect(name, rows, error)
        self._give_up_if_all_fail(client)

    def _give_up_if_all_fail(self, client: Any) -> None:
        """Message after message fails alone and none succeeds: it is not their fault."""
        suspects = self._batches.suspects()
        if len(suspects) >= SUSPECTS_MAX:
            error = suspects[-1][2]
            _logger.warning("whatever is tried fails: the batch is given back (%s)", error)
            client.nack(self._options.group, self._batches.waiting_receipts(), error=error)
            self._batches.forget_waiting()
            self._batches.forget_suspects()

    def _give_back_suspects(self, client: Any) -> None:
        """Nothing else is there by which to tell whose fault it is: they are tried again later."""
        for _, receipt, error in self._batches.suspects():
            client.nack(self._options.group, receipt, error=error)
        self._batches.forget_suspects()


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
