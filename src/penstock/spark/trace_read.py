"""`mode=trace`: the lives of messages, a row for each event of each message.

A position is an offset of the log of traces; a task reads from one up to another. Events are asked
of the broker: of a server, or of whoever is at work on the folder.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from penstock.errors import InvalidInput, PenstockError
from penstock.spark.connect import connected
from penstock.spark.options import (
    Target,
    checked,
    parse_patience,
    parse_target,
    parse_time_us,
)
from penstock.spark.patience import Patience, patiently
from penstock.trace.exploded import EVENTS, exploded

_logger = logging.getLogger("penstock.spark")

TRACE_OPTIONS = (
    "path",
    "url",
    "apiKey",
    "namespace",
    "mode",
    "subscribe",
    "startingOffsets",
    "startingTimestamp",
    "patience",
)
_TASK_BLOCKS_MIN = 64
"""Of up to 4096 runs of messages each; one is stored each second while anything happens."""

_TASKS_MAX = 200

_FIRST_PATIENCE_S = 5.0

StreamOffset: TypeAlias = dict[str, Any]


class TraceOptions(msgspec.Struct, frozen=True, kw_only=True):
    target: Target
    topics: tuple[str, ...] = ()
    """Empty: all of the namespace."""
    starting: Literal["earliest", "latest"] | int | None = None
    """A number is a time in microseconds."""
    patience_s: float = 900.0


class TraceSplit(InputPartition):
    """The events from a position on and before another."""

    def __init__(self, start: int, stop: int) -> None:
        super().__init__((start, stop))
        self.start, self.stop = start, stop


def is_of_traces(options: Mapping[str, str]) -> bool:
    given = {name.lower(): value for name, value in options.items()}
    return given.get("mode", "").lower() == "trace"


def trace_schema() -> StructType:
    return from_arrow_schema(EVENTS)


def parse_trace_options(given: Mapping[str, str]) -> TraceOptions:
    options = checked(given, TRACE_OPTIONS)
    named = [topic.strip() for topic in options.get("subscribe", "").split(",")]
    return TraceOptions(
        target=parse_target(options),
        topics=tuple(topic for topic in named if topic),
        starting=_starting(options),
        patience_s=parse_patience(options),
    )


class _Reading(NamedTuple):
    """What tasks need to know."""

    options: TraceOptions
    columns: list[str]

    @classmethod
    def of(cls, options: TraceOptions, schema: StructType) -> _Reading:
        unknown = [name for name in schema.names if name not in EVENTS.names]
        if unknown:
            raise InvalidInput(
                f"events of traces have no column {unknown[0]!r}; they have "
                f"{', '.join(EVENTS.names)}"
            )
        return cls(options, schema.names)

    def split(self, start: int, stop: int) -> list[InputPartition]:
        """Always the same for the same bounds: Spark repeats a batch after a failure."""
        step = max(_TASK_BLOCKS_MIN, (stop - start) // _TASKS_MAX + 1)
        return [TraceSplit(first, min(first + step, stop)) for first in range(start, stop, step)]

    def read(self, split: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(split, TraceSplit)
        position, options = split.start, self.options
        since_us = options.starting if isinstance(options.starting, int) else 0
        patience = Patience(options.patience_s)
        while position < split.stop:
            try:
                with connected(options.target) as client:
                    while position < split.stop:
                        page = client.trace_blocks(position, stop=split.stop)
                        patience.succeeded()
                        for block in page.blocks:
                            for batch in exploded(block, options.topics, since_us):
                                yield batch.select(self.columns)
                        if page.next <= position:
                            return  # the log ends here: its end was lost
                        position = page.next
            except (PenstockError, OSError) as exc:
                patience.wait(exc, f"reading traces of {options.target}")

    def bounds(self, patience_s: float) -> tuple[int, int]:
        """Where to begin, as the options say, and where the events end now."""
        return patiently(self._bounds, patience_s, f"looking for traces of {self.options.target}")

    def _bounds(self) -> tuple[int, int]:
        starting = self.options.starting
        since = starting / 1e6 if isinstance(starting, int) else None
        with connected(self.options.target) as client:
            found = client.trace_blocks(stop=0, since=since)
        return (found.end if starting == "latest" else min(found.next, found.end)), found.end


class TraceReader(DataSourceReader):
    """All events that there are now."""

    def __init__(self, options: TraceOptions, schema: StructType) -> None:
        self._reading = _Reading.of(options, schema)

    def partitions(self) -> list[InputPartition]:
        start, end = self._reading.bounds(_FIRST_PATIENCE_S)
        return self._reading.split(start, end) or [TraceSplit(0, 0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._reading.read(partition)


class TraceStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The events as they come."""

    def __init__(self, options: TraceOptions, schema: StructType) -> None:
        if options.starting is None:
            options = msgspec.structs.replace(options, starting="latest")
        self._reading = _Reading.of(options, schema)
        self._last: int | None = None

    def initialOffset(self) -> StreamOffset:
        return {"position": self._reading.bounds(_FIRST_PATIENCE_S)[0]}

    def prepareForTriggerAvailableNow(self) -> None:
        self._last = self._end()

    def latestOffset(self, start: StreamOffset, limit: ReadLimit) -> StreamOffset:
        end = self._end() if self._last is None else self._last
        begin: int = start["position"]
        if end < begin:
            _logger.warning(
                "the query stands at %d, and the log of traces ends at %d: it is another one, or "
                "its end was lost; it is read from its beginning",
                begin,
                end,
            )
            return {"position": end, "from": 0}
        if end == begin:
            return start
        return {"position": end}

    def partitions(self, start: StreamOffset, end: StreamOffset) -> list[InputPartition]:
        begin: int = end["from"] if "from" in end else start["position"]
        return self._reading.split(begin, end["position"]) or [TraceSplit(0, 0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._reading.read(partition)

    def commit(self, end: StreamOffset) -> None:
        """Nothing: a query's checkpoint says where it stands."""

    def stop(self) -> None:
        """Nothing is open."""

    def _end(self) -> int:
        return self._reading.bounds(self._reading.options.patience_s)[1]


def _starting(options: Mapping[str, str]) -> Literal["earliest", "latest"] | int | None:
    if given := options.get("startingTimestamp"):
        return parse_time_us(given, "startingTimestamp")
    text = options.get("startingOffsets", "").lower()
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    if text:
        raise InvalidInput(
            f"startingOffsets of mode=trace is earliest or latest, not {text!r:.100}"
        )
    return None
