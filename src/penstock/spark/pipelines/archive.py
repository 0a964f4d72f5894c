"""Archive: topics into lake tables, each message once, before retention may drop it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql.types import StructField, StructType

from penstock.errors import DataFolderInUse, DataLost, InvalidInput
from penstock.spark.bounds import Range, limited_by_bytes
from penstock.spark.columns import COLUMNS as MESSAGE_COLUMNS
from penstock.spark.connecting import connected
from penstock.spark.lake import Lake, LakeFormat, open_lake
from penstock.spark.lake_sink import BAD, LakeJob, write_lake
from penstock.spark.options import Target, local_folder
from penstock.spark.place import Place, open_place
from penstock.spark.progress import commit_progress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_CORRUPT = "_penstock_corrupt"
ROUND_BYTES = 2 << 30
SPLIT_BYTES = 128 << 20
_COLUMNS = (
    "key",
    "value",
    "topic",
    "partition",
    "offset",
    "timestamp",
    "headers",
    "priority",
    "expires_at",
    "id",
)


class Archived(msgspec.Struct, kw_only=True):
    """What an archive run did."""

    topics: dict[str, int] = {}
    """Messages by topic."""
    tables: list[str] = []
    rounds: int = 0
    seconds: float = 0.0
    notes: list[str] = []

    @property
    def rows(self) -> int:
        return sum(self.topics.values())


def archive(
    spark: SparkSession,
    source: str | Target,
    lake: str,
    topics: Sequence[str],
    *,
    lake_format: LakeFormat = "delta",
    schema: str = "",
    group: str = "archive",
    every_s: float | None = None,
    round_bytes: int = ROUND_BYTES,
    report: Callable[[str], None] = lambda line: None,
) -> Archived:
    """Bring topics into tables `<lake>/<topic>`, each message once; until the end, or for ever.

    With `schema`, the columns of JSON values as Spark writes them (`"amount double, city string"`),
    values are decoded; rows that do not fit go to `<lake>/<topic>.bad` with the reason. How far it
    is stands in the tables, and is told to `group`. `every_s`: go on and look again after so many
    seconds, until interrupted by Ctrl-C; then this returns what was done.
    """
    target = source if isinstance(source, Target) else as_target(source)
    done = Archived(topics=dict.fromkeys(topics, 0))
    began = time.monotonic()
    _hold_retention(target, topics, group, done)
    for topic in topics:
        _tell_again(target, topic, open_lake(table_of(lake, topic), lake_format), group)
    try:
        while True:
            found = sum(
                _archive_topic(
                    *(spark, target, topic, lake, lake_format, schema, group, round_bytes),
                    *(report, done),
                )
                for topic in topics
            )
            done.seconds = time.monotonic() - began
            if not found:
                if every_s is None:
                    return done
                time.sleep(every_s)
    except KeyboardInterrupt:
        if every_s is None:
            raise
        return done


def as_target(text: str, namespace: str = "default", api_key: str = "") -> Target:
    """A data folder or a URL."""
    if "://" in text and not text.startswith("file:"):
        return Target(url=text, namespace=namespace, api_key=api_key)
    return Target(path=local_folder(text, "the data folder"), namespace=namespace)


def table_of(lake: str, topic: str) -> str:
    return os.path.join(os.path.abspath(lake), *topic.split("/"))


def _archive_topic(
    spark: SparkSession,
    target: Target,
    topic: str,
    lake_folder: str,
    lake_format: LakeFormat,
    schema: str,
    group: str,
    round_bytes: int,
    report: Callable[[str], None],
    done: Archived,
) -> int:
    """One round of one topic; how many offsets it went on."""
    table = table_of(lake_folder, topic)
    lakes = [open_lake(table, lake_format)]
    if schema:
        lakes.append(open_lake(f"{table}.bad", lake_format))
    with closing(open_place(target)) as place:
        parts, starts = _next_parts(place, lakes, topic, round_bytes)
    if not parts:
        return 0
    job = LakeJob(
        table=table,
        format=lake_format,
        bad_table=f"{table}.bad" if schema else "",
        topic=topic,
        starts=starts,
        ends={part.partition: part.end for part in parts},
    )
    began = time.monotonic()
    frame = read_parts(spark, target, parts)
    frame = _decoded(frame, schema) if schema else frame
    frame = frame.selectExpr(
        "*", "cast(to_utc_timestamp(timestamp, current_timezone()) as date) date"
    )
    write_lake(frame, job)
    commit_progress(target, group, {topic: job.ends})
    count = sum(part.end - part.start for part in parts)
    done.topics[topic] = done.topics.get(topic, 0) + count
    done.rounds += 1
    for each in filter(None, (job.table, job.bad_table)):
        if each not in done.tables and os.path.isdir(each):
            done.tables.append(each)
    seconds = time.monotonic() - began
    report(f"{topic}: {count:,} messages into {table} in {seconds:.1f} s")
    return count


def _tell_again(target: Target, topic: str, lake: Lake, group: str) -> None:
    """A run that was killed right after its commit to the table did not tell the group."""
    with closing(open_place(target)) as place:
        known = {partition: lake.archived(topic, partition) for partition in place.bounds(topic)}
    ends = {partition: offset for partition, offset in known.items() if offset is not None}
    if ends:
        commit_progress(target, group, {topic: ends})


def _next_parts(
    place: Place, lakes: Sequence[Lake], topic: str, round_bytes: int
) -> tuple[list[Range], dict[int, int | None]]:
    """What the table does not have yet, up to the limit of a round, and what the table says.

    A round that was killed between its commits to the table of bad rows and to the table itself
    comes again just as it was: the one has its rows already.
    """
    lake, parts, starts, halfway = lakes[0], [], {}, []
    for partition, bounds in sorted(place.bounds(topic).items()):
        archived = lake.archived(topic, partition)
        start = bounds.start if archived is None else archived
        if start < bounds.start:
            raise DataLost(
                f"{topic}/{partition}: offsets {start} up to {bounds.start} were dropped before "
                "they were archived. Set retention_waits_for of the topic to the archive's group."
            )
        if start > bounds.end:
            raise InvalidInput(
                f"{lake.folder} has {topic}/{partition} up to offset {start}, but the log ends at "
                f"{bounds.end}: it is another log. Archive it to another table."
            )
        if start < bounds.end:
            parts.append(Range(topic, partition, start, bounds.end))
            starts[partition] = archived
            for bad in lakes[1:]:
                got_to = bad.archived(topic, partition) or 0
                if start < got_to <= bounds.end:
                    halfway.append(parts[-1]._replace(end=got_to))
    return halfway or limited_by_bytes(parts, place, round_bytes), starts


def read_parts(
    spark: SparkSession, target: Target, parts: Sequence[Range], columns: Sequence[str] = _COLUMNS
) -> DataFrame:
    """The messages of some ranges, with the columns of a lake table, or fewer."""
    starts: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    assigned: dict[str, list[int]] = {}
    for part in parts:
        starts.setdefault(part.topic, {})[str(part.partition)] = part.start
        ends.setdefault(part.topic, {})[str(part.partition)] = part.end
        assigned.setdefault(part.topic, []).append(part.partition)
    options = {
        **target_options(target),
        "assign": msgspec.json.encode(assigned).decode(),
        "startingOffsets": msgspec.json.encode(starts).decode(),
        "endingOffsets": msgspec.json.encode(ends).decode(),
        "maxBytesPerPartition": str(SPLIT_BYTES),
    }
    schema = StructType([StructField(name, MESSAGE_COLUMNS[name]) for name in columns])
    return spark.read.format("penstock").schema(schema).options(**options).load()


def target_options(target: Target) -> dict[str, str]:
    given = {
        "path": target.path,
        "url": target.url,
        "namespace": target.namespace,
        "apiKey": target.api_key,
    }
    return {name: value for name, value in given.items() if value}


def _decoded(frame: DataFrame, schema: str) -> DataFrame:
    """JSON values as columns; what does not fit has a reason in the column of bad rows."""
    fields = _fields(schema)
    kinds = ", ".join(f"`{name}` {kind}" for name, kind, _ in fields)
    options = f"map('mode', 'PERMISSIVE', 'columnNameOfCorruptRecord', '{_CORRUPT}')"
    parsed = frame.selectExpr(
        "*", f"from_json(cast(value as string), '{kinds}, {_CORRUPT} string', {options}) as _json"
    )
    checks = [
        "when value is null then 'there is no value'",
        "when _json is null then 'the value is empty'",
        f"when _json.{_CORRUPT} is not null then {_misfit(fields)}",
        "when rtrim(cast(value as string)) not like '%}' then 'there is more behind the JSON'",
    ]
    checks += [
        f"when _json.`{name}` is null then 'field {name} is missing'"
        for name, _, needed in fields
        if needed
    ]
    columns = [f"_json.`{name}` as `{name}`" for name, _, _ in fields]
    return parsed.selectExpr(*_COLUMNS, *columns, f"case {' '.join(checks)} end as {BAD}")


def _misfit(fields: list[tuple[str, str, bool]]) -> str:
    """Why Spark could not make the columns of a value, as an expression."""
    text = f"_json.{_CORRUPT}"
    checks = [
        f"when try_parse_json({text}) is null then 'not JSON'",
        f"when ltrim({text}) not like '{{%' then 'JSON, but not an object'",
    ]
    checks += [
        f"when _json.`{name}` is null and get_json_object({text}, '$.{name}') is not null "
        f"then 'field {name} is not {kind}'"
        for name, kind, _ in fields
    ]
    return f"case {' '.join(checks)} else 'not JSON of the schema' end"


def _fields(schema: str) -> list[tuple[str, str, bool]]:
    """Name, type, and whether every message has to have it (`not null`)."""
    parsed = StructType.fromDDL(schema)
    assert isinstance(parsed, StructType)
    taken = {*_COLUMNS, "date", "reason"}
    for field in parsed.fields:
        if field.name in taken:
            raise InvalidInput(f"the schema has a field {field.name!r}, as every message has")
    return [(f.name, f.dataType.simpleString(), not f.nullable) for f in parsed.fields]


def _hold_retention(target: Target, topics: Sequence[str], group: str, done: Archived) -> None:
    """See to it that retention waits for the archive, if the broker can be reached."""
    try:
        with connected(target, patience_s=0) as client:
            for topic in topics:
                groups = client.describe_topic(topic).retention_waits_for
                if group not in groups:
                    client.alter_topic(topic, retention_waits_for=[*groups, group])
    except DataFolderInUse as exc:
        done.notes.append(
            f"{exc.owner} holds {target}, so nobody told it to wait for this archive: set "
            f"retention_waits_for=[{group!r}] on the topics"
        )
