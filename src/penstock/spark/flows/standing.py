"""`plan_flow` and `flow_status`: what a flow would do, and how it stands."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema

from penstock.spark.bounds import Range
from penstock.spark.flows.definition import Flow, load_flow
from penstock.spark.flows.marked_table import MarkedTable
from penstock.spark.flows.rows import flow_frame, target_of, value_columns
from penstock.spark.flows.run import (
    TargetTable,
    following_of,
    is_topic,
    standing_of,
    table_of_flow,
)
from penstock.spark.lake_table import is_narrower
from penstock.spark.topic_reader import open_topic_reader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class FlowPlan(msgspec.Struct, kw_only=True):
    """What a run of a flow would change."""

    flow: str
    target: str
    exists: bool
    messages: int = 0
    """That wait."""
    columns: dict[str, str] = {}
    new_columns: list[str] = []
    wider_columns: dict[str, str] = {}
    """The types that columns of the table have, which get those of the flow."""
    backfill: list[str] = []
    """What rows that are in the table already do not have, and how to get it."""
    notes: list[str] = []


class FlowStatus(msgspec.Struct, kw_only=True):
    """How a flow stands."""

    flow: str
    target: str
    round: int = 0
    lag: int = 0
    """Messages that are not in the target yet."""
    lag_s: float = 0.0
    """How long the oldest of them has been there."""
    freshness_s: float | None = None
    """How long ago the target was last committed to."""
    rows: int = 0
    bad: int = 0
    dropped: int = 0
    warned: int = 0
    last_commit_us: int | None = None
    notes: list[str] = []


def plan_flow(
    spark: SparkSession, flow: str | Mapping[str, Any] | Flow, *, api_key: str = ""
) -> FlowPlan:
    """What `apply_flow` would change, and what it would leave to be backfilled. Changes nothing."""
    declared = load_flow(flow)
    target = target_of(declared, api_key)
    following = following_of(declared, target)
    topic = declared.source.topic
    nothing = [Range(topic, part.partition, part.start, part.start) for part in following.parts]
    frame = flow_frame(spark, declared, target, nothing[:1], following.incarnation)
    columns = {name: frame.schema[name].dataType.simpleString() for name in value_columns(frame)}
    made = FlowPlan(
        flow=declared.name,
        target=declared.target.table or declared.target.topic,
        exists=standing_of(declared).round > 0,
        messages=sum(part.end - part.start for part in following.parts),
        columns=columns,
        notes=following.lost,
    )
    if declared.target.kind != "topic":
        table = table_of_flow(declared)
        _compare(made, table)
        if isinstance(table, MarkedTable) and declared.target.kind != "aggregate":
            _compare_types(made, table, to_arrow_schema(frame.schema, timezone="UTC"))
    return made


def flow_status(flow: str | Mapping[str, Any] | Flow, *, api_key: str = "") -> FlowStatus:
    """How far a flow is behind, and what it has done so far. Needs no Spark."""
    declared = load_flow(flow)
    target = target_of(declared, api_key)
    following, at = following_of(declared, target), standing_of(declared)
    oldest = min((_time_of(target, part) for part in following.parts), default=None)
    committed_us = None if is_topic(declared) else table_of_flow(declared).committed_us()
    now = time.time()
    return FlowStatus(
        flow=declared.name,
        target=declared.target.table or declared.target.topic,
        round=at.round,
        lag=sum(part.end - part.start for part in following.parts),
        lag_s=0.0 if oldest is None else max(0.0, now - oldest / 1e6),
        freshness_s=None if committed_us is None else max(0.0, now - committed_us / 1e6),
        last_commit_us=committed_us,
        notes=following.lost,
        **{name: at.counts.get(name, 0) for name in ("rows", "bad", "dropped", "warned")},
    )


def _compare(made: FlowPlan, table: TargetTable) -> None:
    known = table.columns()
    if known is None:
        return
    if table.flow.target.kind != "aggregate":
        made.new_columns = [name for name in made.columns if name not in known]
    for name in made.new_columns:
        made.backfill.append(
            f"column {name!r} is null in the rows that are there: to fill it, apply the flow under "
            "another name to another table"
        )
    before = table.definition()
    if before is not None and before != table.flow.number and not made.new_columns:
        made.backfill.append(
            "the flow was declared otherwise when the rows that are there were made: they stay as "
            "they are"
        )


def _compare_types(made: FlowPlan, table: MarkedTable, wanted: pa.Schema) -> None:
    known = table.schema()
    for name in made.columns:
        if known is None or name not in known.names:
            continue
        kind, other = known.field(name).type, wanted.field(name).type
        if is_narrower(kind, other):
            made.wider_columns[name] = from_arrow_type(kind).simpleString()
        elif kind != other and not is_narrower(other, kind) and not pa.types.is_nested(kind):
            made.notes.append(
                f"column {name!r} of the table is {from_arrow_type(kind).simpleString()}, and "
                f"{made.columns[name]} is not wider: to apply the flow will be refused"
            )


def _time_of(target: Any, part: Range) -> int:
    """When the first message of a range was stored."""
    with closing(open_topic_reader(target)) as place:
        for read in place.read(part.topic, part.partition, part.start, part.start + 1):
            for batch in read:
                stamps = batch.timestamps_us()
                if len(stamps):
                    return int(stamps[0])
    return int(time.time() * 1e6)


def as_metrics(status: FlowStatus) -> str:
    """A status in the text format of Prometheus."""
    flow = status.flow  # whose name needs no escaping
    lines = []
    for name, kind, help_, value in (
        ("lag_messages", "gauge", "Messages that are not in the target yet.", status.lag),
        ("lag_seconds", "gauge", "Age of the oldest of them.", status.lag_s),
        ("freshness_seconds", "gauge", "Since the last commit.", status.freshness_s),
        ("rounds_total", "counter", "Rounds that are in the target.", status.round),
        ("rows_total", "counter", "Good rows.", status.rows),
        ("bad_rows_total", "counter", "Rows that became dead letters.", status.bad),
        ("dropped_rows_total", "counter", "Rows that were left out.", status.dropped),
        ("warned_rows_total", "counter", "Rows that only warned.", status.warned),
    ):
        if value is not None:
            metric = f"penstock_flow_{name}"
            lines += [f"# HELP {metric} {help_}", f"# TYPE {metric} {kind}"]
            lines.append(f'{metric}{{flow="{flow}"}} {value}')
    return "\n".join([*lines, ""])
