"""What every task of a read does: the messages of one range, as Arrow batches of a good size."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from penstock.errors import DataLost, LogError, OffsetOutOfRange, PenstockError
from penstock.log.base import Batches
from penstock.record.batch import Batch
from penstock.spark.bounds import Range
from penstock.spark.columns import COLUMNS, ColumnMaker, arrow_schema, timestamps_us
from penstock.spark.options import ReadOptions, Target
from penstock.spark.patience import Patience, patiently
from penstock.spark.tier import LakePart, read_part
from penstock.spark.topic_reader import TopicReader, open_topic_reader
from penstock.spark.values import DecodingMaker, Values, decoded_columns
from penstock.spark.warm_up import freeze_loaded_modules

_logger = logging.getLogger("penstock.spark")

BATCH_ROWS = 32_768
BATCH_BYTES = 8 << 20


class Split(InputPartition):
    """One task's share of a read; None where there is nothing to read."""

    def __init__(self, part: Range | LakePart | None, incarnation: str | None = None) -> None:
        self.value = self.part = part
        self.incarnation = incarnation
        """Of the topic; None: it was planned by who did not know."""


class PackedSplit(InputPartition):
    """Several small shares as one task: to start a task costs more than to read little."""

    def __init__(self, splits: list[Split]) -> None:
        self.value = self.splits = splits

    @property
    def ranges(self) -> list[Range]:
        return [each.part for each in self.splits if isinstance(each.part, Range)]

    @property
    def incarnations(self) -> dict[str, str | None]:
        return {part.topic: e.incarnation for part, e in zip(self.ranges, self.splits, strict=True)}


def as_tasks(tasks: Sequence[Sequence[Range]], topics: Mapping[str, str]) -> list[InputPartition]:
    """Shares of a read, each by the incarnation of its topic as far as that is known."""
    made: list[InputPartition] = []
    for parts in tasks:
        splits = [Split(part, topics.get(part.topic)) for part in parts]
        made.append(splits[0] if len(splits) == 1 else PackedSplit(splits))
    return made


@dataclass(frozen=True)
class RangeReader:
    """Reads ranges. It is sent to the tasks, so it holds no more than what names the work."""

    target: Target
    schema: pa.Schema
    fail_on_data_loss: bool = True
    after_us: int | None = None
    before_us: int | None = None
    """Only messages within these times, both included; the schema need not have the column."""
    patience_s: float = 0.0
    """How long a task waits for a server that is away."""
    values: Values | None = None
    """How values are decoded; None: they stay bytes."""

    @classmethod
    def of(cls, options: ReadOptions, schema: StructType, patience_s: float = 0.0) -> RangeReader:
        values = None
        if options.values is not None:
            values = Values.planned(options.target, options.values)
        columns = COLUMNS if values is None else decoded_columns(values)
        return cls(
            options.target,
            arrow_schema(schema, columns),
            options.fail_on_data_loss,
            values=values,
            patience_s=patience_s,
        )

    def read_split(self, split: InputPartition) -> Iterator[pa.RecordBatch]:
        """A task's share of a read, whatever it is."""
        if isinstance(split, PackedSplit):
            return self.read_packed(split)
        assert isinstance(split, Split)
        if isinstance(split.part, LakePart):
            return read_part(split.part, self.schema)
        if split.part is None:
            return iter(())
        return self.read(split.part, split.incarnation)

    def read(
        self, part: Range, incarnation: str | None = None, opened: TopicReader | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The messages of a range of the topic that has this incarnation."""
        freeze_loaded_modules()
        maker: ColumnMaker | DecodingMaker
        if self.values is None:
            maker = ColumnMaker(self.schema, part.topic, part.partition)
        else:
            maker = DecodingMaker(self.schema, part.topic, part.partition, self.values)
        for batches in self._gathered(part, incarnation, opened):
            made = maker.make(batches)
            if self.after_us is not None or self.before_us is not None:
                made = made.filter(self._mask(batches))
            if len(made):
                yield made

    def read_packed(self, packed: PackedSplit) -> Iterator[pa.RecordBatch]:
        """Several ranges, through one opened place: their rows together, for each batch costs Spark
        about as much as a thousand rows."""
        with closing(open_topic_reader(self.target)) as place:
            yield from _together(self._packed(packed, place))

    def _packed(self, packed: PackedSplit, place: TopicReader) -> Iterator[pa.RecordBatch]:
        """Which topics they are is asked once before and once after, not for each range."""
        topics = packed.incarnations
        now = {topic: self._incarnation(place, topic) for topic in topics}
        others = {topic for topic, known in topics.items() if known not in (None, now[topic])}
        for topic in sorted(others):
            self.recreated(topic)
        for part in packed.ranges:
            if part.topic not in others:
                yield from self.read(part, None, place)
        for topic in sorted(topics.keys() - others):
            if topics[topic] not in (None, self._incarnation(place, topic)):
                raise _recreated(topic)  # what was read may be of both

    def _incarnation(self, place: TopicReader, topic: str) -> str:
        return patiently(lambda: place.incarnation(topic), self.patience_s, f"reading {topic}")

    def _gathered(
        self, part: Range, incarnation: str | None, opened: TopicReader | None
    ) -> Iterator[list[Batch]]:
        """Frames together, until there is enough of them for one batch."""
        gathered: list[Batch] = []
        rows = size = 0
        for read in self._reads(part, incarnation, opened):
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

    def _reads(
        self, part: Range, incarnation: str | None, opened: TopicReader | None = None
    ) -> Iterator[Batches]:
        patience = Patience(self.patience_s)
        while True:
            try:
                for read in self._reads_once(part, incarnation, opened):
                    yield read
                    part = part._replace(start=read.next_offset)
                    patience.succeeded()
                return
            except (OSError, PenstockError) as exc:
                if isinstance(exc, LogError):  # of the log itself, which is there
                    raise
                opened = None  # it may be of no use any more
                patience.wait(exc, f"reading {part.topic}/{part.partition}")

    def _reads_once(
        self, part: Range, incarnation: str | None, opened: TopicReader | None
    ) -> Iterator[Batches]:
        place_of = nullcontext(opened) if opened else closing(open_topic_reader(self.target))
        with place_of as place:
            if incarnation is not None and place.incarnation(part.topic) != incarnation:
                self.recreated(part.topic)
                return
            yield from self._read_place(place, part)
            if incarnation is not None and place.incarnation(part.topic) != incarnation:
                raise _recreated(part.topic)  # what was read may be of both: not even a part of it

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

    def recreated(self, topic: str) -> None:
        """A topic is another one than it was: an error, or a warning if the query is to go on."""
        if self.fail_on_data_loss:
            raise _recreated(topic)
        _logger.warning("%s, as failOnDataLoss=false says", _recreated(topic))

    def _mask(self, batches: list[Batch]) -> pa.BooleanArray:
        stamps = pa.array(timestamps_us(batches))
        mask = pc.greater_equal(stamps, self.after_us if self.after_us is not None else -(1 << 63))
        if self.before_us is not None:
            mask = pc.and_(mask, pc.less_equal(stamps, self.before_us))
        return mask


def _together(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Small batches as larger ones."""
    gathered: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        gathered.append(batch)
        rows += len(batch)
        size += batch.nbytes
        if rows >= BATCH_ROWS or size >= BATCH_BYTES:
            yield _as_one(gathered)
            gathered, rows, size = [], 0, 0
    if gathered:
        yield _as_one(gathered)


def _as_one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    (made,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return made


def _recreated(topic: str) -> DataLost:
    return DataLost(
        f"topic {topic} was deleted and made again, so that what was left of the former one is "
        "gone. With the option failOnDataLoss=false a query goes on with the new one, from its "
        "beginning"
    )


def _up_to(batch: Batch, end: int) -> Batch:
    """Without the rows from an offset on."""
    offsets = batch.offsets.to_numpy()
    return batch.slice(0, int(offsets.searchsorted(end)))
