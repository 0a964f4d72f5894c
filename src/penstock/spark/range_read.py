"""What every task of a read does: the messages of one range, as Arrow batches of a good size."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition

from penstock.errors import DataLost, OffsetOutOfRange
from penstock.log.base import Batches
from penstock.record.batch import Batch
from penstock.spark.bounds import Range
from penstock.spark.columns import ColumnMaker, timestamps_us
from penstock.spark.options import Target
from penstock.spark.tier import LakePart
from penstock.spark.topic_reader import TopicReader, open_topic_reader
from penstock.spark.warm_up import freeze_loaded_modules

_logger = logging.getLogger("penstock.spark")

BATCH_ROWS = 32_768
BATCH_BYTES = 8 << 20


class Split(InputPartition):
    """One task's share of a read; None where there is nothing to read."""

    def __init__(self, part: Range | LakePart | None) -> None:
        self.value = self.part = part


@dataclass(frozen=True)
class RangeReader:
    """Reads ranges. It is sent to the tasks, so it holds no more than what names the work."""

    target: Target
    schema: pa.Schema
    fail_on_data_loss: bool = True
    after_us: int | None = None
    before_us: int | None = None
    """Only messages within these times, both included; the schema need not have the column."""

    def read(self, part: Range) -> Iterator[pa.RecordBatch]:
        freeze_loaded_modules()
        maker = ColumnMaker(self.schema, part.topic, part.partition)
        for batches in self._gathered(part):
            made = maker.make(batches)
            if self.after_us is not None or self.before_us is not None:
                made = made.filter(self._mask(batches))
            if len(made):
                yield made

    def _gathered(self, part: Range) -> Iterator[list[Batch]]:
        """Frames together, until there is enough of them for one batch."""
        gathered: list[Batch] = []
        rows = size = 0
        for read in self._reads(part):
            for batch in read:
                if batch.next_offset > part.end:
                    batch = _up_to(batch, part.end)
                    if not len(batch):
                        continue
                gathered.append(batch)
                rows += len(batch)
                size += batch.nbytes
                if rows >= BATCH_ROWS or size >= BATCH_BYTES:
                    yield gathered
                    gathered, rows, size = [], 0, 0
        if gathered:
            yield gathered

    def _reads(self, part: Range) -> Iterator[Batches]:
        with closing(open_topic_reader(self.target)) as place:
            yield from self._read_place(place, part)

    def _read_place(self, place: TopicReader, part: Range) -> Iterator[Batches]:
        while part.start < part.end:
            try:
                for read in place.read(*part):
                    for damage in read.damage:
                        self.lost(f"{part.topic}/{part.partition}: {damage}")
                    part = part._replace(start=read.next_offset)
                    yield read
                return
            except OffsetOutOfRange as exc:
                kept_from = min(exc.start, part.end)
                if kept_from <= part.start:
                    kept_from = part.end  # the log is shorter than it was: it is another one
                self.lost(
                    f"{part.topic}/{part.partition}: offsets {part.start} up to {kept_from} are "
                    f"gone; the log holds {exc.start} up to {exc.end}"
                )
                part = part._replace(start=kept_from)

    def lost(self, what: str) -> None:
        """Messages are missing: an error, or a warning if the query is to go on."""
        if self.fail_on_data_loss:
            raise DataLost(
                f"{what}. Retention, compaction or damage took messages that this query has not "
                "read. To go on without them, set the option failOnDataLoss to false."
            )
        _logger.warning("%s; going on without them, as failOnDataLoss=false says", what)

    def _mask(self, batches: list[Batch]) -> pa.BooleanArray:
        stamps = pa.array(timestamps_us(batches))
        mask = pc.greater_equal(stamps, self.after_us if self.after_us is not None else -(1 << 63))
        if self.before_us is not None:
            mask = pc.and_(mask, pc.less_equal(stamps, self.before_us))
        return mask


def _up_to(batch: Batch, end: int) -> Batch:
    """Without the rows from an offset on."""
    offsets = batch.offsets.to_numpy()
    return batch.slice(0, int(offsets.searchsorted(end)))
