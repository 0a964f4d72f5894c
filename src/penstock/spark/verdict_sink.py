"""`mode=queue` on the way out: rows say what becomes of the messages that were leased.

A row has the `receipt` of a message and a `verdict`: `ack`, `retry` (again later, as a nack) or
`reject` (to the dead letters), and may have an `error`, which the dead letter keeps, and the
`delay` of a retry. Messages without a row, or with a verdict that is null, are acked with their
batch. A commit that is repeated finds receipts that are settled already, and passes over them.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import DataType, NumericType, StringType, StructType

from penstock.durations import Duration, parse_ns
from penstock.errors import InvalidInput
from penstock.spark.connect import connected
from penstock.spark.options import WriteOptions
from penstock.spark.warm_up import freeze_loaded_modules

_logger = logging.getLogger("penstock.spark")

VERDICTS = ("ack", "retry", "reject")
COLUMNS: dict[str, tuple[type[DataType], ...]] = {
    "receipt": (StringType,),
    "verdict": (StringType,),
    "error": (StringType,),
    "delay": (NumericType, StringType),
}
_NEEDED = ("receipt", "verdict")

Verdict: TypeAlias = tuple[str, str, Duration | None]
"""What, why, and when again."""


@dataclass
class Verdicts(WriterCommitMessage):
    """Receipts by what is to become of their messages."""

    receipts: dict[Verdict, list[str]] = field(default_factory=dict)


class VerdictWriter(DataSourceStreamArrowWriter, DataSourceArrowWriter):
    """For a stream and for `foreachBatch`."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        _check(schema)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Verdicts:
        freeze_loaded_modules()
        found: defaultdict[Verdict, list[str]] = defaultdict(list)
        for rows in iterator:
            for row in rows.to_pylist():
                if row["verdict"] is not None and row["receipt"] is not None:
                    found[_verdict(row)].append(row["receipt"])
        return Verdicts(dict(found))

    def commit(
        self, messages: Sequence[WriterCommitMessage | None], batchId: int | None = None
    ) -> None:
        every: defaultdict[Verdict, list[str]] = defaultdict(list)
        for message in messages:
            if isinstance(message, Verdicts):
                for verdict, receipts in message.receipts.items():
                    every[verdict] += receipts
        if every:
            self._settle(every)

    def abort(
        self, messages: Sequence[WriterCommitMessage | None], batchId: int | None = None
    ) -> None:
        """Nothing was settled, or all will be once more."""

    def _settle(self, every: dict[Verdict, list[str]]) -> None:
        group = self._options.group
        with connected(self._options.target) as client:
            for (verdict, error, delay), receipts in every.items():
                if verdict == "ack":
                    refused = client.ack(group, receipts)
                elif verdict == "retry":
                    refused = client.nack(group, receipts, error=error, delay=delay)
                else:
                    refused = client.reject(group, receipts, reason=error)
                for why in refused.values():
                    _logger.info("no %s: %s", verdict, why)


def _check(schema: StructType) -> None:
    names = schema.fieldNames()
    for name in _NEEDED:
        if name not in names:
            raise InvalidInput(f"with mode=queue a column {name!r} is needed, for the verdict")
    for each in schema.fields:
        if each.name not in COLUMNS:
            raise InvalidInput(
                f"column {each.name!r} says nothing of a message that is leased: "
                f"{', '.join(COLUMNS)}. Select those"
            )
        if not isinstance(each.dataType, COLUMNS[each.name]):
            raise InvalidInput(
                f"column {each.name!r} is of type {each.dataType.simpleString()}; allowed: "
                f"{', '.join(kind.typeName() for kind in COLUMNS[each.name])}. Cast it."
            )


def _verdict(row: dict[str, str]) -> Verdict:
    if row["verdict"] not in VERDICTS:
        raise InvalidInput(f"the verdict {row['verdict']!r} is not one of {', '.join(VERDICTS)}")
    delay = row.get("delay")
    if delay is not None and row["verdict"] == "retry":
        parse_ns(delay, "delay")
        return "retry", row.get("error") or "", delay
    return row["verdict"], row.get("error") or "", None
