"""Archive: topics into lake tables, each message once, before retention may drop it."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from pyspark.errors import ParseException
from pyspark.sql.types import StructField, StructType

from penstock.errors import DataFolderInUse, DataLost, InvalidInput
from penstock.spark.bounds import DurableRange, Range, limited_by_bytes
from penstock.spark.columns import COLUMNS as MESSAGE_COLUMNS
from penstock.spark.connect import connected
from penstock.spark.lake import LakeFormat, lake_folder, open_lake, table_of
from penstock.spark.lake_sink import BAD, LakeJob, other_rules, write_lake
from penstock.spark.lake_table import Lake
from penstock.spark.options import Target, local_folder
from penstock.spark.progress import commit_progress
from penstock.spark.topic_reader import TopicReader, open_topic_reader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_CORRUPT = "_penstock_corrupt"
_BRACE_AND_MORE = r"\}[ \t\r\n]*[^ \t\r\n]"
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


class Field(NamedTuple):
    """A column that JSON values are decoded to."""

    name: str
    kind: str
    needed: bool
    """Every message has to have it: `not null`."""


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
    fail_on_data_loss: bool = True,
    every_s: float | None = None,
    round_bytes: int = ROUND_BYTES,
    report: Callable[[str], None] = lambda line: None,
) -> Archived:
    """Bring topics into tables `<lake>/<topic>`, each message once; until the end, or for ever.

    Topics of a namespace other than the default one go to `<lake>/<namespace>/<topic>`.

    With `schema`, the columns of JSON values as Spark writes them (`"amount double, city string"`),
    values are decoded; rows that do not fit go to `<lake>/<topic>.bad` with the reason. How far it
    is stands in the tables, and is told to `group`. Messages that retention or damage took before
    they were archived are an error; without `fail_on_data_loss` it goes on behind them. `every_s`:
    go on and look again after so many seconds, until interrupted by Ctrl-C; then this returns what
    was done.
    """
    target = source if isinstance(source, Target) else as_target(source)
    fields = _fields(schema) if schema else []
    done = Archived(topics=dict.fromkeys(topics, 0))
    began = time.monotonic()
    work = _Work(
        *(spark, target, lake_folder(lake), lake_format, fields, group, fail_on_data_loss),
        *(round_bytes, report, done),
    )
    _hold_retention(target, topics, group, done)
    for topic in topics:
        _tell_again(target, topic, open_lake(work.table_of(topic), lake_format), group)
    try:
        while True:
            found = sum(work.run_round(topic) for topic in topics)
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
    path = local_folder(text, "the data folder")
    return Target(path=path, namespace=namespace, api_key=api_key)  # a server may hold the folder


class _Work(NamedTuple):
    """What every round of an archive needs to know."""

    spark: SparkSession
    target: Target
    lake: str
    lake_format: LakeFormat
    fields: list[Field]
    """What JSON values are decoded to; nothing if they are kept as they are."""
    group: str
    fail_on_data_loss: bool
    round_bytes: int
    report: Callable[[str], None]
    done: Archived

    def table_of(self, topic: str) -> str:
        return table_of(self.lake, self.target.full_name(topic))

    def run_round(self, topic: str) -> int:
        """One round of one topic; how many offsets it went on."""
        job, parts = self.plan(topic)
        if not parts:
            return 0
        began = time.monotonic()
        frame = read_parts(self.spark, self.target, parts, fail_on_data_loss=self.fail_on_data_loss)
        frame = _decoded(frame, self.fields) if self.fields else frame
        frame = frame.selectExpr(
            "*", "cast(to_utc_timestamp(timestamp, current_timezone()) as date) date"
        )
        rows = write_lake(frame, job)
        commit_progress(self.target, self.group, {topic: job.ends})
        count = sum(part.end - part.start for part in parts)
        self._note(topic, job, rows, time.monotonic() - began)
        self._note_missing(topic, count - rows, count)
        return count

    def plan(self, topic: str) -> tuple[LakeJob, list[Range]]:
        """What the next round of a topic has to do; it has no parts if there is nothing."""
        name, table = self.target.full_name(topic), self.table_of(topic)
        tables = [table, f"{table}.bad"]
        lakes = [open_lake(each, self.lake_format) for each in tables]
        with closing(open_topic_reader(self.target)) as place:
            parts, starts, again = _next_parts(
                place, lakes, topic, name, self.round_bytes, self._lost
            )
        rules = _number_of(self.fields) if self.fields else None
        if again and (rules is None or lakes[1].rules(name) not in (None, rules)):
            raise other_rules(tables[1])
        job = LakeJob(
            table=table,
            format=self.lake_format,
            bad_table=tables[1] if self.fields else "",
            topic=name,
            starts=starts,
            begins={part.partition: part.start for part in parts},
            ends={part.partition: part.end for part in parts},
            rules=rules,
        )
        return job, parts

    def _note(self, topic: str, job: LakeJob, count: int, seconds: float) -> None:
        done = self.done
        done.topics[topic] = done.topics.get(topic, 0) + count
        done.rounds += 1
        for each in filter(None, (job.table, job.bad_table)):
            if each not in done.tables and os.path.isdir(each):
                done.tables.append(each)
        self.report(f"{topic}: {count:,} messages into {job.table} in {seconds:.1f} s")

    def _note_missing(self, topic: str, missing: int, count: int) -> None:
        """Damage that is no error; only tasks have seen it."""
        if missing and not self.fail_on_data_loss:
            self.done.notes.append(
                f"{topic}: {missing:,} of {count:,} messages could not be read: damage, or the "
                "compaction of the topic, took them before they were archived"
            )

    def _lost(self, what: str) -> None:
        if self.fail_on_data_loss:
            raise DataLost(
                f"{what} were dropped before they were archived. Set retention_waits_for of the "
                "topic to the archive's group; to go on without them, use --skip-lost, or in "
                "Python fail_on_data_loss=False."
            )
        note = f"{what} were dropped before they were archived"
        if note not in self.done.notes:
            self.done.notes.append(note)


def _tell_again(target: Target, topic: str, lake: Lake, group: str) -> None:
    """A run that was killed right after its commit to the table did not tell the group."""
    with closing(open_topic_reader(target)) as place:
        now = place.bounds(topic)
    known = lake.archived(target.full_name(topic), now)
    ends = {partition: offset for partition, offset in known.items() if offset is not None}
    for partition, offset in ends.items():
        _check_log(lake, topic, partition, offset, now[partition])
    if ends:
        lake.sync()  # which a run that was killed may not have got to either
        commit_progress(target, group, {topic: ends})


def _next_parts(
    place: TopicReader,
    lakes: Sequence[Lake],
    topic: str,
    name: str,
    round_bytes: int,
    lost: Callable[[str], None],
) -> tuple[list[Range], dict[int, int | None], bool]:
    """What the table does not have yet, up to the limit of a round, and what the table says of the
    topic by its full name.

    A round that was killed between its commits to the table of bad rows and to the table itself
    comes again just as it was: the one has its rows already. The last result says that it does.
    """
    now = place.bounds(topic)
    archived, *others = (lake.archived(name, now) for lake in lakes)
    parts, starts, halfway = [], {}, []
    for partition, bounds in sorted(now.items()):
        known = archived[partition]
        start = bounds.start if known is None else known
        if start < bounds.start:
            lost(f"{topic}/{partition}: offsets {start} up to {bounds.start}")
            start = bounds.start
        _check_log(lakes[0], topic, partition, start, bounds)
        if start < bounds.end:
            parts.append(Range(topic, partition, start, bounds.end))
            starts[partition] = known
            for bad in others:
                got_to = bad[partition] or 0
                if start < got_to <= bounds.end:
                    halfway.append(parts[-1]._replace(end=got_to))
    return halfway or limited_by_bytes(parts, place, round_bytes), starts, bool(halfway)


def _check_log(lake: Lake, topic: str, partition: int, offset: int, bounds: DurableRange) -> None:
    if offset > bounds.end:
        raise InvalidInput(
            f"{lake.folder} has {topic}/{partition} up to offset {offset}, but the log ends at "
            f"{bounds.end}: it is another log. Archive it to another table."
        )


def read_parts(
    spark: SparkSession,
    target: Target,
    parts: Sequence[Range],
    columns: Sequence[str] = _COLUMNS,
    *,
    fail_on_data_loss: bool = True,
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
        "failOnDataLoss": str(fail_on_data_loss),
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


def _decoded(frame: DataFrame, fields: list[Field]) -> DataFrame:
    """JSON values as columns; what does not fit has a reason in the column of bad rows."""
    kinds = "".join(f"{_name(field.name)} {field.kind}, " for field in fields)
    options = f"map('mode', 'PERMISSIVE', 'columnNameOfCorruptRecord', '{_CORRUPT}')"
    made = _text(f"{kinds}{_CORRUPT} string")
    parsed = frame.selectExpr("*", f"from_json(cast(value as string), {made}, {options}) as _json")
    checks = [
        "when value is null then 'there is no value'",
        "when _json is null then 'the value is empty'",
        f"when _json.{_CORRUPT} is not null then {_misfit(fields)}",
        f"when {_more_behind('cast(value as string)')} then 'there is more behind the JSON'",
    ]
    checks += [
        f"when _json.{_name(field.name)} is null then {_text(f'field {field.name} is missing')}"
        for field in fields
        if field.needed
    ]
    columns = [f"_json.{_name(field.name)} as {_name(field.name)}" for field in fields]
    return parsed.selectExpr(*_COLUMNS, *columns, f"case {' '.join(checks)} end as {BAD}")


def _more_behind(text: str) -> str:
    """Whether there is more than one value, as an expression; Spark reads the first only.

    As the only item of a list it must be one item, and two with another behind it: a bracket in
    what is behind the value could pass one of the two, not both. Where no brace is followed by
    anything there is no need to look.
    """
    alone = f"size(from_json(concat('[', {text}, ']'), 'array<string>')) = 1"
    followed = f"size(from_json(concat('[', {text}, ',0]'), 'array<string>')) = 2"
    goes_on = f"{text} rlike {_text(_BRACE_AND_MORE)}"
    return f"{goes_on} and not coalesce({alone} and {followed}, false)"


def _misfit(fields: list[Field]) -> str:
    """Why Spark could not make the columns of a value, as an expression."""
    text = f"_json.{_CORRUPT}"
    checks = [
        f"when try_parse_json({text}) is null then 'not JSON'",
        f"when ltrim({text}) not like '{{%' then 'JSON, but not an object'",
    ]
    for field in fields:
        path = _text(f"$['{field.name}']")
        checks.append(
            f"when _json.{_name(field.name)} is null and get_json_object({text}, {path}) is not "
            f"null then {_text(f'field {field.name} is not {field.kind}')}"
        )
    return f"case {' '.join(checks)} else 'not JSON of the schema' end"


def _name(column: str) -> str:
    return f"`{column.replace('`', '``')}`"


def _text(text: str) -> str:
    """As a literal in SQL."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _fields(schema: str) -> list[Field]:
    try:
        parsed = StructType.fromDDL(schema)
    except ParseException as exc:
        raise InvalidInput(f"the schema {schema!r} cannot be read: {exc.getCondition()}") from None
    if not isinstance(parsed, StructType):
        raise InvalidInput(f"the schema is {schema!r}; give columns, such as 'n int, city string'")
    taken = {*_COLUMNS, "date", "reason", "_json", BAD}
    for field in parsed.fields:
        if field.name.lower() in taken:
            raise InvalidInput(f"the schema has a field {field.name!r}, as every message has")
    return [Field(f.name, f.dataType.simpleString(), not f.nullable) for f in parsed.fields]


def _number_of(fields: list[Field]) -> int:
    """Another one for other fields, by which other rows would be bad."""
    digest = hashlib.sha256(msgspec.json.encode(fields)).digest()
    return int.from_bytes(digest[:8], "big") >> 1  # of 63 bits, as lake tables keep them


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
