"""Dead letters: what died of what, when; then back to work, or thrown away, by a condition.

The broker says which letters are still there; Spark does the counting and the conditions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import pyarrow as pa

from penstock.errors import InvalidInput
from penstock.record.schema import TIMESTAMP
from penstock.spark.connect import connected
from penstock.spark.options import Target
from penstock.spark.pipelines.archive import as_target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Action = Literal["triage", "redrive", "discard"]

LETTERS = pa.schema(
    [
        ("topic", pa.string()),
        ("reason", pa.string()),
        ("error", pa.string()),
        ("attempts", pa.int32()),
        ("group", pa.string()),
        ("consumer", pa.string()),
        ("died_at", TIMESTAMP),
        ("published_at", TIMESTAMP),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("priority", pa.int32()),
        ("id", pa.string()),
    ]
)
"""The columns that a condition may speak of."""


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """Letters that died alike, in one hour."""

    topic: str
    reason: str
    error: str
    hour: str
    count: int
    attempts: float
    samples: list[str]


class Triaged(msgspec.Struct, kw_only=True):
    """What there was, and what was done."""

    letters: int = 0
    chosen: int = 0
    causes: list[Cause] = []
    redriven: int = 0
    discarded: int = 0
    seconds: float = 0.0


def dead_letters(
    spark: SparkSession,
    source: str | Target,
    topics: Sequence[str],
    *,
    action: Action = "triage",
    where: str = "",
    samples: int = 3,
    report: Callable[[str], None] = lambda line: None,
) -> Triaged:
    """Count the dead letters of topics by reason, error and hour; redrive or discard some or all.

    `where` is a condition in SQL on the columns of `LETTERS`, such as
    `reason = 'max_retries' and error like '%timeout%'`.
    """
    if action not in ("triage", "redrive", "discard"):
        raise InvalidInput(f"action is {action!r}; it is triage, redrive or discard")
    target = source if isinstance(source, Target) else as_target(source)
    began = time.monotonic()
    done = Triaged()
    with connected(target) as client:
        letters = {topic: list(client.dead_letters(topic).list()) for topic in topics}
        done.letters = sum(map(len, letters.values()))
        report(f"{done.letters:,} dead letters in {len(topics)} topics")
        frame = letters_frame(spark, letters)
        frame = frame.where(where) if where else frame
        done.causes = _causes(frame, samples)
        done.chosen = sum(cause.count for cause in done.causes)
        if action != "triage" and done.chosen:
            ids = {row.id for row in frame.select("id").collect()}
            for topic, some in letters.items():
                mine = [letter for letter in some if letter.id in ids]
                if mine and action == "redrive":
                    done.redriven += client.dead_letters(topic).redrive(mine)
                elif mine:
                    done.discarded += client.dead_letters(topic).purge(mine)
    done.seconds = time.monotonic() - began
    return done


def letters_frame(spark: SparkSession, letters: dict[str, list[Any]]) -> DataFrame:
    """Letters by topic as a data frame."""
    rows = [
        {
            "topic": topic,
            "reason": letter.reason,
            "error": letter.error,
            "attempts": letter.attempts,
            "group": letter.origin.group,
            "consumer": letter.origin.consumer,
            "died_at": letter.message.timestamp_us,
            "published_at": letter.origin.published_at_us,
            "key": letter.key,
            "value": letter.value,
            "priority": letter.message.priority,
            "id": letter.id,
        }
        for topic, some in letters.items()
        for letter in some
    ]
    return spark.createDataFrame(pa.Table.from_pylist(rows, schema=LETTERS))


def _causes(frame: DataFrame, samples: int) -> list[Cause]:
    shown = "substring(coalesce(cast(value as string), ''), 1, 120)"
    grouped = frame.selectExpr(
        "topic",
        "reason",
        "error",
        "date_format(died_at, 'yyyy-MM-dd HH:00') as hour",
        "attempts",
        f"{shown} as sample",
    ).groupBy("topic", "reason", "error", "hour")
    counted = grouped.agg(
        {"*": "count", "attempts": "avg", "sample": "collect_list"}
    ).withColumnsRenamed(
        {"count(1)": "letters", "avg(attempts)": "tries", "collect_list(sample)": "samples"}
    )
    counted = counted.selectExpr(
        "topic", "reason", "error", "hour", "letters", "tries", f"slice(samples, 1, {samples}) s"
    )
    return [
        Cause(
            topic=row.topic,
            reason=row.reason,
            error=row.error,
            hour=row.hour,
            count=row.letters,
            attempts=row.tries,
            samples=list(row.s),
        )
        for row in counted.orderBy("letters", ascending=False).collect()
    ]
