"""`apply_flow`: rounds of a flow, each planned durably, then done, then told.

    1. `<state>/plan.json`: which offsets the round has, and the flow as it was then
    2. bad rows become dead letters (idempotent: the round is the epoch)
    3. one commit to the table: rows, offsets, incarnation, definition, counts
    4. the flow's group is told how far it is, so that retention may go on

A run that was cut short finds its plan and finishes that round as it was declared. A target that is
a topic takes the place of 3 by the sink's own decision (`staging.py`), with the round as its batch.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from penstock.errors import DataFolderInUse, DataLost
from penstock.spark.bounds import Range, limited_by_bytes
from penstock.spark.connect import connected
from penstock.spark.flows.definition import Flow, load_flow
from penstock.spark.flows.iceberg_table import IcebergFlowTable
from penstock.spark.flows.marked_table import MarkedTable
from penstock.spark.flows.postgresql import PostgresTable
from penstock.spark.flows.quarantine import quarantine
from penstock.spark.flows.rows import flow_frame, target_of, value_columns
from penstock.spark.flows.tables import FlowTable
from penstock.spark.lake_table import TableChange, stand_of, topic_mark
from penstock.spark.options import Target
from penstock.spark.pipelines.archive import as_target, target_options
from penstock.spark.progress import commit_progress
from penstock.spark.staging import Staging
from penstock.spark.topic_reader import open_topic_reader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Applied(msgspec.Struct, kw_only=True):
    """What a run of a flow did."""

    flow: str
    rounds: int = 0
    messages: int = 0
    rows: int = 0
    """That were good."""
    bad: int = 0
    """That are among the dead letters now."""
    dropped: int = 0
    warned: dict[str, int] = {}
    seconds: float = 0.0
    notes: list[str] = []


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One round, decided once."""

    flow: Flow
    round: int
    incarnation: str
    parts: list[Range]


class FlowProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a flow to a topic is."""

    round: int = 0
    incarnation: str = ""
    ends: dict[int, int] = {}
    counts: dict[str, int] = {}


TargetTable: TypeAlias = MarkedTable | PostgresTable


class Following(NamedTuple):
    """What a flow has not done yet."""

    parts: list[Range]
    incarnation: str
    is_other: bool
    """The topic was deleted and made again since."""
    lost: list[str]


def apply_flow(
    spark: SparkSession,
    flow: str | Mapping[str, Any] | Flow,
    *,
    api_key: str = "",
    every_s: float | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> Applied:
    """Bring a flow up to the end of its topic, each message once; until the end, or for ever.

    `flow` is the path of a YAML file, its content, or a `Flow`. `every_s`: go on and look again
    after so many seconds, until interrupted by Ctrl-C; then this returns what was done.
    """
    declared = load_flow(flow)
    work = FlowWork(spark, declared, target_of(declared, api_key), report)
    began = time.monotonic()
    work.hold_retention()
    work.tell_again()
    try:
        while True:
            went_on = work.run_round()
            work.done.seconds = time.monotonic() - began
            if not went_on:
                if every_s is None:
                    return work.done
                time.sleep(every_s)
    except KeyboardInterrupt:
        if every_s is None:
            raise
        return work.done


class FlowWork:
    """One flow at work."""

    def __init__(
        self, spark: SparkSession, flow: Flow, target: Target, report: Callable[[str], None]
    ) -> None:
        self._spark = spark
        self._flow = flow
        self._target = target
        self._report = report
        self.done = Applied(flow=flow.name)

    def run_round(self) -> bool:
        """The next round, or the one that was cut short; whether there was anything to do."""
        at = standing_of(self._flow)
        plan = _kept_plan(self._flow)
        if plan is None or plan.round != at.round + 1:
            plan = self._planned(at.round + 1)
            if plan is None:
                return False
            _keep(self._flow, "plan.json", plan)
        began = time.monotonic()
        frame = flow_frame(self._spark, plan.flow, self._target, plan.parts, plan.incarnation)
        counts = self._to_topic(frame, plan) if is_topic(plan.flow) else self._to_table(frame, plan)
        ends = {part.partition: part.end for part in plan.parts}
        topic = plan.flow.source.topic
        commit_progress(*(self._target, plan.flow.group, {topic: ends}), {topic: plan.incarnation})
        self.done.rounds += 1
        self.done.messages += sum(part.end - part.start for part in plan.parts)
        self.done.rows += counts["rows"]
        self.done.bad += counts["bad"]
        self.done.dropped += counts["dropped"]
        self._report(
            f"{plan.flow.name}: round {plan.round}, {counts['rows']:,} rows, {counts['bad']:,} "
            f"bad, in {time.monotonic() - began:.1f} s"
        )
        return True

    def hold_retention(self) -> None:
        """Nothing is dropped before the flow has it, if the broker can be reached."""
        try:
            with connected(self._target, patience_s=0) as client:
                topic = self._flow.source.topic
                groups = client.describe_topic(topic).retention_waits_for
                if self._flow.group not in groups:
                    client.alter_topic(topic, retention_waits_for=[*groups, self._flow.group])
        except DataFolderInUse as exc:
            self.done.notes.append(
                f"{exc.owner} holds {self._target}, so nobody told it to wait for this flow: set "
                f"retention_waits_for=[{self._flow.group!r}] on the topic"
            )

    def tell_again(self) -> None:
        """A run that was killed after its commit did not tell the group."""
        with closing(open_topic_reader(self._target)) as place:
            now = place.bounds(self._flow.source.topic)
        ends = ends_of(self._flow, self._target, now.incarnation, now)
        known = {partition: end for partition, end in ends.items() if end is not None}
        if known:
            topic = self._flow.source.topic
            commit_progress(
                *(self._target, self._flow.group, {topic: known}), {topic: now.incarnation}
            )

    def _planned(self, number: int) -> Plan | None:
        following = following_of(self._flow, self._target)
        for what in following.lost:
            if not self._flow.source.skip_lost:
                raise DataLost(f"{what}; to go on without them, set skip_lost of the source")
            if what not in self.done.notes:
                self.done.notes.append(what)
        if not following.parts:
            return None
        with closing(open_topic_reader(self._target)) as place:
            parts = limited_by_bytes(following.parts, place, self._flow.round_bytes)
        return Plan(flow=self._flow, round=number, incarnation=following.incarnation, parts=parts)

    def _to_table(self, frame: DataFrame, plan: Plan) -> dict[str, int]:
        flow, table = plan.flow, table_of_flow(plan.flow)
        frame = frame.persist() if flow.target.kind == "aggregate" else frame
        try:
            rows, bad, counts = self._collected(frame, flow)
        finally:
            frame.unpersist()
        self._quarantine(plan, bad)
        name = self._target.full_name(flow.source.topic)
        change = TableChange(
            rows.schema,
            topic=topic_mark(name, plan.incarnation),
            ends={part.partition: part.end for part in plan.parts},
        )
        table.write(rows, plan.round, change, counts)
        return counts

    def _collected(self, frame: DataFrame, flow: Flow) -> tuple[pa.Table, pa.Table, dict[str, int]]:
        """Good rows as the target takes them, bad ones, and how many there were."""
        columns = value_columns(frame)
        if flow.target.kind != "aggregate":
            every = _in_utc(frame.toArrow())
            self._check_fatal(every)
            is_bad = every["_bad"].is_valid()
            bad, good = every.filter(is_bad), every.filter(pc.invert(is_bad))
            dropped = good.filter(good["_dropped"])
            good = good.filter(pc.invert(good["_dropped"]))
            self._note_warnings(good)
            return _as_stored(good, columns, flow), bad, _counts(good, bad, dropped)
        bad = _in_utc(frame.where("_bad is not null").toArrow())
        self._check_fatal(bad)
        dropped = frame.where("_bad is null and _dropped").count()
        good_frame = frame.where("_bad is null and not _dropped and not _deleted")
        sums = _in_utc(_summed(good_frame, flow).toArrow())
        rows = int(pc.sum(sums["_rows"]).as_py() or 0)
        sums = sums.drop_columns(["_rows"])
        return sums, bad, {"rows": rows, "bad": len(bad), "dropped": dropped, "warned": 0}

    def _to_topic(self, frame: DataFrame, plan: Plan) -> dict[str, int]:
        flow = plan.flow
        every = frame.persist()
        try:
            bad = _in_utc(every.where("_bad is not null").toArrow())
            self._check_fatal(bad)
            self._quarantine(plan, bad)
            good = every.where("_bad is null and not _dropped")
            rows = good.count()
            _publish(good, flow, self._target, plan.round)
            dropped = every.where("_bad is null and _dropped").count()
        finally:
            every.unpersist()
        counts = {"rows": rows, "bad": len(bad), "dropped": dropped, "warned": 0}
        before = standing_of(flow)
        ends = before.ends if before.incarnation == plan.incarnation else {}
        _keep(
            flow,
            "done.json",
            FlowProgress(
                round=plan.round,
                incarnation=plan.incarnation,
                ends={**ends, **{part.partition: part.end for part in plan.parts}},
                counts={name: before.counts.get(name, 0) + n for name, n in counts.items()},
            ),
        )
        return counts

    def _quarantine(self, plan: Plan, bad: pa.Table) -> None:
        if len(bad):
            with connected(self._target) as client:
                quarantine(client, plan.flow, plan.round, bad)

    def _check_fatal(self, rows: pa.Table) -> None:
        fatal = rows.filter(rows["_fatal"])
        if len(fatal):
            first = fatal.slice(0, 1).to_pylist()[0]
            _forget_plan(self._flow)
            raise DataLost(
                f"flow {self._flow.name}: {len(fatal)} rows break what they must not: "
                f"{first['_bad']}, first at {first['_topic']}/{first['_partition']}@"
                f"{first['_offset']}. Nothing of the round was written"
            )

    def _note_warnings(self, rows: pa.Table) -> None:
        names = rows["_warned"].combine_chunks().flatten()
        for each in pc.value_counts(names).to_pylist():
            self.done.warned[each["values"]] = (
                self.done.warned.get(each["values"], 0) + each["counts"]
            )


def following_of(flow: Flow, target: Target) -> Following:
    """What is there that the flow has not done yet, and what it can never do."""
    topic = flow.source.topic
    with closing(open_topic_reader(target)) as place:
        now = place.bounds(topic)
    is_other = is_other_topic(flow, target, now.incarnation, now)
    ends = ends_of(flow, target, now.incarnation, now)
    lost, parts = [], []
    if is_other:
        lost.append(
            f"topic {topic} was deleted and made again: what was left of the former one is gone"
        )
    for partition, bounds in sorted(now.items()):
        known = ends.get(partition)
        start = bounds.start if known is None else known
        if start < bounds.start:
            lost.append(f"{topic}/{partition}: offsets {start} up to {bounds.start} were dropped")
            start = bounds.start
        if start > bounds.end:
            raise DataLost(
                f"flow {flow.name} is at offset {start} of {topic}/{partition}, and the log "
                f"ends at {bounds.end}: it is another log"
            )
        if start < bounds.end:
            parts.append(Range(topic, partition, start, bounds.end))
    return Following(parts, now.incarnation, is_other, lost)


def ends_of(
    flow: Flow, target: Target, incarnation: str, partitions: Any
) -> Mapping[int, int | None]:
    """Up to which offset of each partition of the topic the target has everything."""
    if is_topic(flow):
        at = standing_of(flow)
        return at.ends if at.incarnation == incarnation else {}
    name = target.full_name(flow.source.topic)
    return stand_of(table_of_flow(flow), name, incarnation, partitions).ends


def is_other_topic(flow: Flow, target: Target, incarnation: str, partitions: Any) -> bool:
    if is_topic(flow):
        at = standing_of(flow)
        return bool(at.round) and at.incarnation != incarnation
    name = target.full_name(flow.source.topic)
    return stand_of(table_of_flow(flow), name, incarnation, partitions).is_other


def standing_of(flow: Flow) -> FlowProgress:
    """How far a flow is, as its target says."""
    if not is_topic(flow):
        table = table_of_flow(flow)
        return FlowProgress(round=table.round, counts=table.counts())
    try:
        data = flow.state_files.read("done.json")
    except FileNotFoundError:
        return FlowProgress()
    return msgspec.json.decode(data, type=FlowProgress)


def table_of_flow(flow: Flow) -> TargetTable:
    """Where its rows go, if it is no topic."""
    if flow.target.database:
        return PostgresTable(flow)
    return IcebergFlowTable(flow) if flow.target.format == "iceberg" else FlowTable(flow)


def is_topic(flow: Flow) -> bool:
    return flow.target.kind == "topic"


def _kept_plan(flow: Flow) -> Plan | None:
    try:
        data = flow.state_files.read("plan.json")
    except FileNotFoundError:
        return None
    return msgspec.json.decode(data, type=Plan)


def _keep(flow: Flow, name: str, what: msgspec.Struct) -> None:
    flow.state_files.write(name, msgspec.json.encode(what))


def _forget_plan(flow: Flow) -> None:
    """Of a round of which nothing was written: it may be declared otherwise next time."""
    with suppress(FileNotFoundError):
        flow.state_files.remove("plan.json")


def _in_utc(rows: pa.Table) -> pa.Table:
    """Times as instants, in whichever zone the session shows them."""
    for number, field in enumerate(rows.schema):
        if pa.types.is_timestamp(field.type) and field.type.tz not in (None, "UTC"):
            kind = pa.timestamp("us", tz="UTC")
            rows = rows.set_column(number, field.name, rows[field.name].cast(kind))
    return rows


def _as_stored(rows: pa.Table, columns: list[str], flow: Flow) -> pa.Table:
    """The columns that the table gets."""
    if flow.target.kind == "append":
        return rows.select(columns)
    own = ["_at", "_offset", "_deleted"]
    if flow.target.kind == "history" and not flow.target.order_by:
        number = rows.schema.get_field_index("_order")
        rows = rows.set_column(number, "_order", rows["_at"])
    if flow.target.kind == "history" and _is_time(rows):
        at = pc.coalesce(rows["_order"], rows["_at"])
        rows = rows.set_column(rows.schema.get_field_index("_order"), "_order", at)
    if flow.target.order_by or flow.target.kind == "history":
        own.append("_order")
    return rows.select([*columns, *own])


def _is_time(rows: pa.Table) -> bool:
    return bool(rows["_order"].type == rows["_at"].type)


def _counts(good: pa.Table, bad: pa.Table, dropped: pa.Table) -> dict[str, int]:
    warned = int(pc.sum(pc.greater(pc.list_value_length(good["_warned"]), 0)).as_py() or 0)
    return {"rows": len(good), "bad": len(bad), "dropped": len(dropped), "warned": warned}


def _summed(frame: DataFrame, flow: Flow) -> DataFrame:
    """What a round adds to each group."""
    groups = [F.col(name) for name in flow.target.group_by]
    if flow.target.window:
        on = F.col("_at") if flow.target.on == "timestamp" else F.expr(flow.target.on)
        frame = frame.withColumn("_window", F.window(on, flow.target.window))
        groups += [
            F.col("_window.start").alias("window_start"),
            F.col("_window.end").alias("window_end"),
        ]
    measures = [
        F.expr(f"{kind}({what})").alias(name) for name, (kind, what) in flow.measures().items()
    ]
    return frame.groupBy(*groups).agg(*measures, F.count(F.lit(1)).alias("_rows"))


def _publish(frame: DataFrame, flow: Flow, source: Target, round_number: int) -> None:
    """To another topic, the round as the batch of the sink: once, however often it runs."""
    target = as_target(flow.target.place, source.namespace) if flow.target.place else source
    staging, sink = os.path.join(flow.state_folder, "staging"), f"flow-{flow.name}"
    if Staging(staging, sink, flow.storage).done >= round_number:
        return
    names = value_columns(frame)
    value = "value" if "value" in names else f"to_json(struct({', '.join(names)}))"
    key = "key" if "key" in names else "_key"
    rows = frame.selectExpr(
        f"if(_deleted, null, cast({value} as binary)) as value",
        f"cast({key} as binary) as key",
        "coalesce(_headers, array()) as headers",
        "_priority as priority",
    )
    options = {
        **target_options(target),
        "topic": flow.target.topic,
        "sinkId": sink,
        "batchId": str(round_number),
        "staging": staging,
        "stagingStorage": msgspec.json.encode(flow.storage).decode(),
    }
    rows.write.format("penstock").options(**options).mode("append").save()
