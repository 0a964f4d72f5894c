"""Roll-ups: how much came, minute by minute, and how far the groups are; as tables and a chart.

<out>/per_minute/   topic, priority, minute, messages, bytes (Parquet, replaced by each run)
<out>/groups/       taken_at, topic, group, mode, lag, oldest_age_s (Parquet, a file a run)
<out>/rollup.html   both as a chart that needs nothing but a browser
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.errors import DataFolderInUse
from penstock.record.schema import TIMESTAMP
from penstock.spark.chart import page
from penstock.spark.connecting import connected
from penstock.spark.options import Target
from penstock.spark.pipelines.archive import as_target, target_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GROUPS = pa.schema(
    [
        ("taken_at", TIMESTAMP),
        ("topic", pa.string()),
        ("group", pa.string()),
        ("mode", pa.string()),
        ("lag", pa.int64()),
        ("oldest_age_s", pa.float64()),
    ]
)


class RolledUp(msgspec.Struct, kw_only=True):
    """What a roll-up found."""

    messages: int = 0
    bytes: int = 0
    minutes: int = 0
    groups: int = 0
    chart: str = ""
    seconds: float = 0.0
    notes: list[str] = []


def rollup(
    spark: SparkSession,
    source: str | Target,
    topics: Sequence[str],
    out: str,
    *,
    report: Callable[[str], None] = lambda line: None,
) -> RolledUp:
    """Count what is in the logs of topics by minute and priority, and how far their groups are."""
    target = source if isinstance(source, Target) else as_target(source)
    began = time.monotonic()
    done = RolledUp()
    per_minute = _per_minute(spark, target, topics, os.path.join(out, "per_minute"))
    done.messages = sum(row["messages"] for row in per_minute)
    done.bytes = sum(row["bytes"] for row in per_minute)
    done.minutes = len({row["minute"] for row in per_minute})
    report(f"{done.messages:,} messages of {done.minutes:,} minutes counted")
    groups = _groups(target, topics, done)
    done.groups = len(groups)
    _append(os.path.join(out, "groups"), groups)
    done.chart = os.path.join(os.path.abspath(out), "rollup.html")
    with open(done.chart, "w", encoding="utf-8") as file:
        file.write(page(per_minute, groups))
    done.seconds = time.monotonic() - began
    return done


def _per_minute(
    spark: SparkSession, target: Target, topics: Sequence[str], table: str
) -> list[dict[str, Any]]:
    reader = spark.read.format("penstock").schema(
        "value binary, topic string, timestamp timestamp, priority int"
    )
    frame = reader.options(**target_options(target), subscribe=",".join(topics)).load()
    counted = frame.selectExpr(
        "topic",
        "priority",
        "date_trunc('minute', timestamp) as minute",
        "coalesce(octet_length(value), 0) as size",
    )
    counted = counted.groupBy("topic", "priority", "minute").agg({"*": "count", "size": "sum"})
    counted = counted.withColumnsRenamed({"count(1)": "messages", "sum(size)": "bytes"})
    counted = counted.orderBy("minute", "topic", "priority").coalesce(1)
    counted.write.mode("overwrite").parquet(os.path.abspath(table))
    return [row.asDict() for row in spark.read.parquet(os.path.abspath(table)).collect()]


def _groups(target: Target, topics: Sequence[str], done: RolledUp) -> list[dict[str, Any]]:
    """The groups of both modes, as the broker sees them."""
    now = datetime.now(UTC)
    found: list[dict[str, Any]] = []
    try:
        with connected(target, patience_s=0) as client:
            for topic in topics:
                for group in client.stats(topic).groups:
                    age_us = group.oldest_age_us
                    found.append(
                        {
                            "taken_at": now,
                            "topic": topic,
                            "group": group.group,
                            "mode": "queue",
                            "lag": group.depth,
                            "oldest_age_s": None if age_us is None else age_us / 1e6,
                        }
                    )
            for name in client.stream_groups():
                lag = client.describe_stream_group(name).lag
                for topic in topics:
                    mine = [count for place, count in lag.items() if place.topic == topic]
                    if mine:
                        found.append(
                            {
                                "taken_at": now,
                                "topic": topic,
                                "group": name,
                                "mode": "stream",
                                "lag": sum(mine),
                                "oldest_age_s": None,
                            }
                        )
    except DataFolderInUse as exc:
        done.notes.append(f"no lag of groups: {exc.owner} holds {target}, and has no server")
    return found


def _append(table: str, rows: list[dict[str, Any]]) -> None:
    if rows:
        os.makedirs(table, exist_ok=True)
        name = f"{time.time_ns()}.parquet"
        pq.write_table(pa.Table.from_pylist(rows, schema=GROUPS), os.path.join(table, name))
