"""The rows of a flow: messages decoded, mapped to columns, and checked.

Beside its columns a row has what the flow needs of it: `_bad`, why it is bad, `_dropped`,
`_deleted`, `_order`, and of the message `_at`, `_topic`, `_partition` and `_offset`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, MapType, StructField, StructType, TimestampType

from penstock.errors import InvalidInput
from penstock.spark.bounds import Range
from penstock.spark.flows.definition import Flow
from penstock.spark.flows.registry import decoded_by_registry
from penstock.spark.options import Target
from penstock.spark.pipelines.archive import as_target, read_parts
from penstock.spark.pipelines.json_columns import (
    CORRUPT,
    Field,
    parse_fields,
    problem_of_json,
    quoted_name,
    quoted_text,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_OF_DATA = re.compile(r"data\.`?(\w+)`?")
_BEFORE_AND_AFTER = "before struct<{0}>, after struct<{0}>, op string, ts_ms bigint"


def target_of(flow: Flow, api_key: str = "") -> Target:
    return as_target(flow.source.place, flow.source.namespace, api_key)


def flow_frame(
    spark: SparkSession,
    flow: Flow,
    target: Target,
    parts: Sequence[Range],
    incarnation: str,
) -> DataFrame:
    """The rows of some ranges of the flow's topic."""
    frame = read_parts(
        *(spark, target, parts),
        fail_on_data_loss=not flow.source.skip_lost,
        incarnations={flow.source.topic: incarnation},
    )
    frame = _decoded(frame, flow, target)
    deleted = ["value is null"]
    if flow.decode.format == "debezium":
        deleted.append("_op = 'd'")
    if flow.target.delete_when:
        deleted.append(f"coalesce(({flow.target.delete_when}), false)")
    frame = frame.withColumn("_deleted", F.expr(" or ".join(deleted)))
    columns = _with_keys(frame, _columns(frame, flow), flow.target.key)
    mapped = frame.selectExpr(
        *(f"({text}) as {quoted_name(name)}" for name, text in columns.items()),
        f"({flow.target.order_by or 'null'}) as _order",
        "timestamp as _at",
        "topic as _topic",
        "partition as _partition",
        "offset as _offset",
        "_deleted",
        "_undecoded",
        "key as _key",
        "value as _value",
        "headers as _headers",
        "priority as _priority",
        "id as _id",
    )
    return _checked(mapped, flow)


def value_columns(frame: DataFrame) -> list[str]:
    """Those that the flow's author named."""
    return [name for name in frame.columns if not name.startswith("_")]


def _decoded(frame: DataFrame, flow: Flow, target: Target) -> DataFrame:
    """With `data`, and `_undecoded`, why there is none."""
    match flow.decode.format:
        case "json":
            fields = parse_fields(flow.decode.schema)
            removes = flow.target.kind != "append" or not any(each.needed for each in fields)
            return _from_json(frame, fields, removes)
        case "debezium":
            if flow.target.kind != "current":
                # A tombstone says no more than the delete before it, and does not say when. Where
                # a compaction has left it alone, the current state still has to hear of it.
                frame = frame.where("value is not null")
            return _from_debezium(frame, flow.decode.schema, bool(flow.target.key))
        case "registry":
            return decoded_by_registry(frame, flow.decode, target)
        case _:
            return frame.withColumn("_undecoded", F.expr("cast(null as string)"))


def _from_json(frame: DataFrame, fields: list[Field], removes: bool) -> DataFrame:
    """`data` and `_undecoded`; `removes`: a value that is null is right, for it removes its key."""
    parsed, problem = problem_of_json(frame, fields)
    problem = f"if(value is null, null, {problem})" if removes else problem
    parsed = parsed.withColumn("_undecoded", F.expr(problem))
    return parsed.withColumn("data", F.col("_json").dropFields(CORRUPT)).drop("_json")


def _from_debezium(frame: DataFrame, schema: str, has_key: bool) -> DataFrame:
    """The envelope of a change, as it is or as the `payload` beside its schema. `has_key`: a delete
    need not have the row that it deletes, which not every database tells."""
    needs_data = "data is null and _op != 'd'" if has_key else "data is null"
    inner = ", ".join(f"{quoted_name(field.name)}: {field.kind}" for field in parse_fields(schema))
    envelope = _BEFORE_AND_AFTER.format(inner)
    either = quoted_text(f"{envelope}, payload struct<{_as_fields(envelope)}>")
    frame = frame.withColumn("_envelope", F.expr(f"from_json(cast(value as string), {either})"))
    return frame.selectExpr(
        "*",
        "coalesce(_envelope.payload.op, _envelope.op) as _op",
        "coalesce(_envelope.payload.ts_ms, _envelope.ts_ms) as ts_ms",
        "coalesce(_envelope.payload.after, _envelope.after, _envelope.payload.before, "
        "_envelope.before) as data",
    ).withColumn(
        "_undecoded",
        F.expr(
            "case when value is null then null when _op is null then 'no change of Debezium' "
            f"when {needs_data} then 'a change without before and after' end"
        ),
    )


def _as_fields(columns: str) -> str:
    """Columns as the fields of a struct, whose types come behind a colon."""
    schema = StructType.fromDDL(columns)
    return str(schema.simpleString())[len("struct<") : -1]


def _columns(frame: DataFrame, flow: Flow) -> dict[str, str]:
    if flow.columns:
        return flow.columns
    data = [field for field in frame.schema.fields if field.name == "data"]
    if not data:
        names = ("key", "value", "topic", "partition", "offset", "timestamp", "priority", "id")
        return {name: name for name in names}
    if not isinstance(data[0].dataType, StructType):
        return {"data": "data"}
    fields: list[StructField] = data[0].dataType.fields
    return {each.name: f"data.{quoted_name(each.name)}" for each in fields}


def _with_keys(frame: DataFrame, columns: dict[str, str], keys: Sequence[str]) -> dict[str, str]:
    """What removes a key may have no data to take it from: the key of its message has it, as a
    field of a JSON object (Debezium's, too), or is it where there is only one."""
    keys = [key for key in keys if key in columns]
    mapped = frame.selectExpr(*(f"({columns[key]}) as {quoted_name(key)}" for key in keys))
    found = dict(columns)
    for field in mapped.schema.fields:
        if isinstance(field.dataType, StructType | ArrayType | MapType):
            continue
        of_data = _OF_DATA.fullmatch(columns[field.name])
        places = [
            f"{start}['{name}']"
            for name in dict.fromkeys([of_data[1] if of_data else field.name, field.name])
            for start in ("$", "$['payload']")
        ]
        texts = [f"get_json_object(string(key), {quoted_text(place)})" for place in places]
        if len(keys) == 1:
            texts.append("if(string(key) like '{%', null, string(key))")
        of_key = f"try_cast(coalesce({', '.join(texts)}) as {field.dataType.simpleString()})"
        found[field.name] = f"coalesce({columns[field.name]}, if(_deleted, {of_key}, null))"
    return found


def _checked(frame: DataFrame, flow: Flow) -> DataFrame:
    """With `_bad` and `_dropped`, and `_warned` with the names of all that only warn."""
    known = {each.lower() for each in value_columns(frame)}
    for name in [*flow.target.key, *flow.target.group_by, *flow.target.partition_by]:
        if name.lower() not in known and not (
            flow.target.kind == "aggregate" and name in ("window_start", "window_end")
        ):
            raise InvalidInput(
                f"the flow has no column {name!r}; it has {', '.join(sorted(known))}"
            )
    bad = ["when _undecoded is not null then _undecoded"]
    bad += [
        f"when {quoted_name(key)} is null then {quoted_text(f'the key {key} is null')}"
        for key in flow.target.key
    ]
    if flow.target.order_by:
        # A version in a history needs a time of its own; a time is also that of its publishing.
        is_time = isinstance(frame.schema["_order"].dataType, TimestampType)
        needs_none = flow.target.kind == "current" or is_time
        unless = "and not _deleted " if needs_none else ""
        bad.append(f"when _order is null {unless}then 'it has nothing to be ordered by'")
    # A row that only removes its key need not be like the others.
    fails = {
        each.name: f"(not _deleted and not coalesce(({each.check}), false))"
        for each in flow.expectations
    }
    actions = {each.name: each.on_fail for each in flow.expectations}
    bad += [
        f"when {fails[name]} then {quoted_text(f'{name} does not hold')}"
        for name, action in actions.items()
        if action in ("quarantine", "fail")
    ]
    dropped = [fails[name] for name, action in actions.items() if action == "drop"]
    warned = [
        f"if({fails[name]}, {quoted_text(name)}, null)"
        for name, action in actions.items()
        if action == "warn"
    ]
    fatal = [fails[name] for name, action in actions.items() if action == "fail"]
    return frame.selectExpr(
        "*",
        f"case {' '.join(bad)} end as _bad",
        f"({' or '.join(dropped) or 'false'}) as _dropped",
        f"({' or '.join(fatal) or 'false'}) as _fatal",
        f"array_compact(array({', '.join(warned) or 'cast(null as string)'})) as _warned",
    )
