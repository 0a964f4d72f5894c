"""Roll-ups: how much came, minute by minute, how far the groups are, and how long messages take; as
tables and a chart.

<out>/per_minute/   topic, priority, minute, messages, bytes (one Parquet file)
<out>/groups/       taken_at, topic, group, mode, priority, lag, oldest_age_s (a file a run)
<out>/dead_letters/ taken_at, topic, group, reason, error, count (a file a run)
<out>/latencies/    topic, group, priority, minute, kind, messages, mean_s, p50_s, p95_s, p99_s,
                    max_s (one Parquet file; see `latencies.py`)
<out>/traces/       topic, group, event, minute, messages (one Parquet file; see `trace_counts.py`)
<out>/rollup.html   all of it as a chart that needs nothing but a browser

Each run counts what has come since the last one and adds it to the table, so what retention drops
later stays counted. The table's file says up to which offsets it has counted, so both change at
once: a run that is killed has counted nothing or everything.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.functions import expr

from penstock.errors import DataFolderInUse
from penstock.log.files import DiskFiles, write_durably
from penstock.record.schema import TIMESTAMP, Priority
from penstock.spark.bounds import Range
from penstock.spark.chart import page
from penstock.spark.connect import connected
from penstock.spark.options import Offsets, Subscription, Target
from penstock.spark.pipelines.archive import as_target, read_parts
from penstock.spark.pipelines.latencies import LatencyTable
from penstock.spark.pipelines.trace_counts import TraceTable
from penstock.spark.positions import present
from penstock.spark.topic_reader import open_topic_reader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Counts: TypeAlias = dict[tuple[str, int, int], tuple[int, int]]
"""Messages and bytes, by topic, priority and minute (in microseconds since 1970)."""

PER_MINUTE = pa.schema(
    [
        ("topic", pa.string()),
        ("priority", pa.int32()),
        ("minute", TIMESTAMP),
        ("messages", pa.int64()),
        ("bytes", pa.int64()),
    ]
)
GROUPS = pa.schema(
    [
        ("taken_at", TIMESTAMP),
        ("topic", pa.string()),
        ("group", pa.string()),
        ("mode", pa.string()),
        ("priority", pa.int32()),
        ("lag", pa.int64()),
        ("oldest_age_s", pa.float64()),
    ]
)
"""A row for all priorities together, where `priority` is null, and one for each that has any."""

DEAD_LETTERS = pa.schema(
    [
        ("taken_at", TIMESTAMP),
        ("topic", pa.string()),
        ("group", pa.string()),
        ("reason", pa.string()),
        ("error", pa.string()),
        ("count", pa.int64()),
    ]
)
"""A row for each cause; where there are no letters, one that counts none."""

RUNS_SHOWN = 240
_OFFSETS = b"penstock.offsets"
_INCARNATIONS = b"penstock.incarnations"


class RolledUp(msgspec.Struct, kw_only=True):
    """What a roll-up found."""

    messages: int = 0
    """In the table, counted by this run and those before."""
    bytes: int = 0
    minutes: int = 0
    new_messages: int = 0
    groups: int = 0
    dead_letters: int = 0
    latency_minutes: int = 0
    """In the table of latencies, of this run and those before."""
    trace_events: int = 0
    """Events of traced messages that this run has counted."""
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
    """Count what has come to topics by minute and priority, and how far their groups are."""
    target = source if isinstance(source, Target) else as_target(source)
    began = time.monotonic()
    done = RolledUp()
    table = os.path.join(os.path.abspath(out), "per_minute", "rollup.parquet")
    counts, offsets, counted = _read_table(table)
    parts, ends, incarnations = _new_parts(target, topics, offsets, counted, done)
    if parts:
        new = _count(spark, target, parts, incarnations)
        done.notes += _missing(parts, new)
        done.new_messages = sum(messages for messages, _ in new.values())
        for place, (messages, size) in new.items():
            known = counts.get(place, (0, 0))
            counts[place] = known[0] + messages, known[1] + size
        _write_table(table, counts, ends, {**counted, **incarnations})
    done.messages = sum(messages for messages, _ in counts.values())
    done.bytes = sum(size for _, size in counts.values())
    done.minutes = len({minute for _, _, minute in counts})
    report(f"{done.new_messages:,} new messages; {done.messages:,} of {done.minutes:,} minutes")
    latencies = LatencyTable(os.path.join(os.path.abspath(out), "latencies", "rollup.parquet"))
    traces = TraceTable(os.path.join(os.path.abspath(out), "traces", "rollup.parquet"))
    groups, letters = _ask(target, topics, latencies, traces, done)
    done.groups = len({(row["topic"], row["group"]) for row in groups})
    done.latency_minutes = latencies.minutes
    if latencies.minutes:
        latencies.write()
    if not traces.is_empty:
        traces.write()
    done.dead_letters = sum(row["count"] for row in letters)
    _append(os.path.join(out, "groups"), groups, GROUPS)
    _append(os.path.join(out, "dead_letters"), letters, DEAD_LETTERS)
    done.chart = os.path.join(os.path.abspath(out), "rollup.html")
    lags = [row for row in _history(os.path.join(out, "groups")) if row["priority"] is None]
    causes = _history(os.path.join(out, "dead_letters"))
    shown = page(_rows(counts), lags, latencies.rows(), causes)
    _write(done.chart, shown.encode())
    done.seconds = time.monotonic() - began
    return done


def _new_parts(
    target: Target,
    topics: Sequence[str],
    offsets: Offsets,
    known: dict[str, str],
    done: RolledUp,
) -> tuple[list[Range], Offsets, dict[str, str]]:
    """What was not counted yet, what is counted when it is, and which topics that are."""
    incarnations: dict[str, str] = {}
    ends = {topic: dict(each) for topic, each in offsets.items()}
    parts = []
    with closing(open_topic_reader(target)) as place:
        for topic, each in present(place, Subscription(topics=tuple(topics))).items():
            incarnations[topic] = each.incarnation
            if known.get(topic, each.incarnation) != each.incarnation:
                done.notes.append(f"{topic} was deleted and made again: the new one is counted too")
                ends[topic] = {}
            for partition, bounds in each.items():
                start = ends.setdefault(topic, {}).get(partition, bounds.start)
                if start > bounds.end:
                    done.notes.append(f"{topic}/{partition} begins anew: it is another log")
                    start = bounds.start
                if start < bounds.start:
                    done.notes.append(
                        f"{topic}/{partition}: offsets {start} up to {bounds.start} were dropped "
                        "before they were counted"
                    )
                ends[topic][partition] = bounds.end
                part = Range(topic, partition, max(start, bounds.start), bounds.end)
                parts += [part] if part.start < part.end else []
    return parts, ends, incarnations


def _count(
    spark: SparkSession, target: Target, parts: Sequence[Range], incarnations: dict[str, str]
) -> Counts:
    columns = ("value", "topic", "timestamp", "priority")
    # What is damaged stays so: a table that waited for it would never go on.
    frame = read_parts(
        *(spark, target, parts, columns), fail_on_data_loss=False, incarnations=incarnations
    )
    counted = frame.selectExpr(
        "topic",
        "priority",
        "unix_micros(timestamp) div 60000000 as minute",
        "coalesce(octet_length(value), 0) as size",
    )
    counted = counted.groupBy("topic", "priority", "minute").agg(
        expr("count(1)"), expr("sum(size)")
    )
    return {(row[0], row[1], row[2] * 60_000_000): (row[3], row[4]) for row in counted.collect()}


def _missing(parts: Sequence[Range], counts: Counts) -> Iterator[str]:
    for topic in dict.fromkeys(part.topic for part in parts):
        offsets = sum(part.end - part.start for part in parts if part.topic == topic)
        found = sum(messages for (name, _, _), (messages, _) in counts.items() if name == topic)
        if found < offsets:
            yield (
                f"{topic}: {offsets - found:,} of {offsets:,} messages were gone before they were "
                "counted: expired, compacted or damaged"
            )


def _read_table(path: str) -> tuple[Counts, Offsets, dict[str, str]]:
    if not os.path.exists(path):
        return {}, {}, {}
    table = pq.read_table(path)
    offsets = msgspec.json.decode(table.schema.metadata[_OFFSETS], type=Offsets)
    incarnations = msgspec.json.decode(
        table.schema.metadata.get(_INCARNATIONS, b"{}"), type=dict[str, str]
    )
    table = table.set_column(2, "minute", table["minute"].cast(TIMESTAMP).cast(pa.int64()))
    rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
    return {row[:3]: row[3:] for row in rows}, offsets, incarnations


def _write_table(path: str, counts: Counts, offsets: Offsets, incarnations: dict[str, str]) -> None:
    metadata = {_OFFSETS: offsets, _INCARNATIONS: incarnations}
    schema = PER_MINUTE.with_metadata({n: msgspec.json.encode(v) for n, v in metadata.items()})
    _write(path, _as_parquet(pa.Table.from_pylist(_rows(counts), schema=schema)))


def _as_parquet(table: pa.Table) -> bytes:
    made = pa.BufferOutputStream()
    pq.write_table(table, made)
    data: bytes = made.getvalue().to_pybytes()
    return data


def _write(path: str, data: bytes) -> None:
    files = DiskFiles()
    files.make_folder(os.path.dirname(path))
    write_durably(files, path, data)


def _rows(counts: Counts) -> list[dict[str, Any]]:
    """Rows of the table, in the order of time."""
    return [
        {
            "topic": topic,
            "priority": priority,
            "minute": datetime.fromtimestamp(minute / 1e6, UTC),
            "messages": messages,
            "bytes": size,
        }
        for (topic, priority, minute), (messages, size) in sorted(
            counts.items(), key=lambda item: (item[0][2], item[0])
        )
    ]


def _ask(
    target: Target,
    topics: Sequence[str],
    latencies: LatencyTable,
    traces: TraceTable,
    done: RolledUp,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What only the broker knows: the groups of both modes, the dead letters by their cause, how
    long messages take, and what became of those that are traced."""
    taken_at = datetime.now(UTC)
    try:
        with connected(target, patience_s=0) as client:
            found = [*_queue_groups(client, topics), *_stream_groups(client, topics, taken_at)]
            letters = [*_dead_letters(client, topics)]
            latencies.update(client, topics)
            note = traces.update(client)
            done.notes += [note] if note else []
            done.trace_events = traces.new_events
    except DataFolderInUse as exc:
        done.notes.append(
            f"no lag of groups and no latencies, nor traces: {exc.owner} holds {target} for "
            "itself alone"
        )
        return [], []
    names = ("topic", "group", "mode", "priority", "lag", "oldest_age_s")
    groups = [{"taken_at": taken_at, **dict(zip(names, row, strict=True))} for row in found]
    return groups, [{"taken_at": taken_at, **row} for row in letters]


def _dead_letters(client: Any, topics: Sequence[str]) -> Iterator[dict[str, Any]]:
    for topic in topics:
        found = client.dead_letters(topic).groups().groups
        for each in found:
            names = ("group", "reason", "error", "count")
            yield {"topic": topic, **{name: getattr(each, name) for name in names}}
        if not found:
            yield {"topic": topic, "group": "", "reason": "", "error": "", "count": 0}


def _queue_groups(client: Any, topics: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    for topic in topics:
        for group in client.stats(topic).groups:
            age_us = group.oldest_age_us
            age_s = None if age_us is None else age_us / 1e6
            yield topic, group.group, "queue", None, group.depth, age_s
            waiting: Counter[str] = Counter()
            for each in (
                group.ready_by_priority,
                group.in_flight_by_priority,
                group.retrying_by_priority,
            ):
                waiting.update(each)
            for name, count in waiting.items():
                if count:
                    yield topic, group.group, "queue", Priority[name.upper()].value, count, None


def _stream_groups(client: Any, topics: Sequence[str], now: datetime) -> Iterator[tuple[Any, ...]]:
    for name in client.stream_groups():
        group = client.describe_stream_group(name)
        for topic in topics:
            mine = {place: lag for place, lag in group.lag.items() if place.topic == topic}
            if mine:
                next_us = [
                    message.timestamp_us
                    for place, lag in mine.items()
                    if lag and place in group.committed
                    for message in client.peek(
                        topic, partition=place.partition, at=group.committed[place], limit=1
                    )
                ]
                oldest_us = min(next_us, default=None)
                age_s = None if oldest_us is None else now.timestamp() - oldest_us / 1e6
                yield topic, name, "stream", None, sum(mine.values()), age_s


def _append(table: str, rows: list[dict[str, Any]], schema: pa.Schema) -> None:
    _remove_unfinished(table)
    if rows:
        path = os.path.join(table, f"{time.time_ns()}.parquet")
        _write(path, _as_parquet(pa.Table.from_pylist(rows, schema=schema)))


def _remove_unfinished(table: str) -> None:
    """What a run that was killed has left: whoever reads the folder would stumble over it."""
    for name in os.listdir(table) if os.path.isdir(table) else ():
        if name.endswith(".tmp"):
            os.unlink(os.path.join(table, name))


def _history(table: str) -> list[dict[str, Any]]:
    """What the last runs found."""
    if not os.path.isdir(table):
        return []
    names = sorted(os.listdir(table))[-RUNS_SHOWN:]
    return [row for n in names for row in pq.read_table(os.path.join(table, n)).to_pylist()]
