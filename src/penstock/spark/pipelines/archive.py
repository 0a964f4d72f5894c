"""Archive: topics into lake tables, each message once, before retention may drop it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql.types import StructType

from penstock.errors import DataFolderInUse, DataLost, InvalidInput
from penstock.spark.bounds import Range, limited_by_bytes
from penstock.spark.connecting import connected
from penstock.spark.lake import Lake, LakeFormat, open_lake
from penstock.spark.lake_sink import BAD, LakeJob, write_lake
from penstock.spark.options import Target
from penstock.spark.place import Place, open_place
from penstock.spark.progress import commit_progress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
    seconds, until interrupted.
    """
    target = source if isinstance(source, Target) else as_target(source)
    done = Archived(topics=dict.fromkeys(topics, 0))
    began = time.monotonic()
    _hold_retention(target, topics, group, done)
    while True:
        found = sum(
            _archive_topic(
                spark, target, topic, lake, lake_format, schema, group, round_bytes, report, done
            )
            for topic in topics
        )
        done.seconds = time.monotonic() - began
        if not found:
            if every_s is None:
                return done
            time.sleep(every_s)


def as_target(text: str) -> Target:
    """A data folder or a URL."""
    if "://" in text and not text.startswith("file:"):
        return Target(url=text)
    return Target(path=os.path.abspath(text.removeprefix("file:")))


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
    with closing(open_place(target)) as place:
        parts, starts = _next_parts(place, open_lake(table, lake_format), topic, round_bytes)
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


def _next_parts(
    place: Place, lake: Lake, topic: str, round_bytes: int
) -> tuple[list[Range], dict[int, int | None]]:
    """What the table does not have yet, up to the limit of a round, and what the table says."""
    parts, starts = [], {}
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
    return limited_by_bytes(parts, place, round_bytes), starts


def read_parts(
    spark: SparkSession, target: Target, parts: Sequence[Range], split_bytes: int = SPLIT_BYTES
) -> DataFrame:
    """The messages of some ranges, with the columns of a lake table."""
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
        "maxBytesPerPartition": str(split_bytes),
        "includeHeaders": "true",
    }
    frame = spark.read.format("penstock").options(**options).load()
    return frame.select(*_COLUMNS)


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
    corrupt = "_penstock_corrupt"
    kinds = ", ".join(f"`{name}` {kind}" for name, kind, _ in fields)
    options = f"map('mode', 'PERMISSIVE', 'columnNameOfCorruptRecord', '{corrupt}')"
    parsed = frame.selectExpr(
        "*", f"from_json(cast(value as string), '{kinds}, {corrupt} string', {options}) as _json"
    )
    checks = ["when value is null then 'there is no value'"]
    checks.append(f"when _json.{corrupt} is not null then 'not JSON of the schema'")
    checks += [
        f"when _json.`{name}` is null then 'field {name} is missing'"
        for name, _, needed in fields
        if needed
    ]
    columns = [f"_json.`{name}` as `{name}`" for name, _, _ in fields]
    return parsed.selectExpr(*_COLUMNS, *columns, f"case {' '.join(checks)} end as {BAD}")


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
