"""Archive: topics into lake tables, each message once, before retention may drop it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, get_args

import msgspec
from pyspark.sql.types import StructField, StructType

from penstock.errors import DataFolderInUse, DataLost, InvalidInput
from penstock.model.names import DEAD_LETTER_SUFFIX
from penstock.model.schemas import version_number
from penstock.spark.bounds import DurableRange, Range, limited_by_bytes
from penstock.spark.columns import COLUMNS as MESSAGE_COLUMNS
from penstock.spark.connect import connected
from penstock.spark.lake import LakeFormat, open_lake, table_of
from penstock.spark.lake_sink import BAD, LakeJob, other_rules, write_lake
from penstock.spark.lake_table import (
    Lake,
    LakeFile,
    incarnation_of,
    rules_of,
    stand_of,
    topic_mark,
)
from penstock.spark.options import Target, ValueFormat, lake_folder, local_folder
from penstock.spark.pipelines.json_columns import (
    Field,
    ValuesAs,
    number_of_fields,
    parse_fields,
    problem_of_json,
    quoted_name,
    quoted_text,
)
from penstock.spark.pipelines.lake_read import messages_of, read_files
from penstock.spark.pipelines.registry_values import (
    is_like,
    reader_of,
    rules_of_reader,
    with_values,
)
from penstock.spark.progress import commit_progress
from penstock.spark.range_archive import archive_ranges
from penstock.spark.table_writer import INCARNATION
from penstock.spark.topic_reader import TopicReader, open_topic_reader
from penstock.spark.values import Values

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


_MESSAGE = StructType([StructField(name, MESSAGE_COLUMNS[name]) for name in _COLUMNS])
_OF_THE_TABLE = {
    "date",
    "reason",
    "_json",
    "_undecoded",
    BAD,
    INCARNATION,
    *(f"message_{c}" for c in _COLUMNS),
}
"""Fields of values that have such a name are `value_...` in the table."""
STRUCT = "data"
_REREAD = "penstock:reread:"


class Archived(msgspec.Struct, kw_only=True):
    """What an archive run did."""

    topics: dict[str, int] = {}
    """Messages by topic."""
    bad: int = 0
    """Of them those that did not fit the schema, and are in the tables of bad rows."""
    reread: int = 0
    """Rows that were among them, and fit the schema by now."""
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
    storage: Mapping[str, str] | None = None,
    schema: str = "",
    value_format: str = "",
    value_subject: str = "",
    value_version: str | int = "latest",
    values_as: ValuesAs = "columns",
    partition_by: Sequence[str] | None = None,
    statistics: Sequence[str] | None = None,
    reread: bool = False,
    group: str = "archive",
    fail_on_data_loss: bool = True,
    every_s: float | None = None,
    round_bytes: int = ROUND_BYTES,
    report: Callable[[str], None] = lambda line: None,
) -> Archived:
    """Bring topics into tables `<lake>/<topic>`, each message once; until the end, or for ever.

    Topics of a namespace other than the default one go to `<lake>/<namespace>/<topic>`. A lake may
    be in an object store; `storage` are its settings, as deltalake takes them, by default those of
    the environment.

    With `schema`, the columns of JSON values as Spark writes them (`"amount double, city string"`),
    values are decoded; rows that do not fit go to `<lake>/<topic>.bad` with the reason, and come
    back with `reread`, if they fit the schema by then. A field may have any name: the column of a
    message that has it too is `message_...` then; or, with `values_as="struct"`, all fields are in
    one column `data`.

    With `value_format` `json`, `avro` or `protobuf` they are decoded by the schema registry: each
    value by the schema that it names, to the columns of one version of `value_subject`, by default
    the newest of `<topic>-value`.

    A table is partitioned by `date`, or by the columns `partition_by` if they are given when it is
    made; none at all are `[]`. Of the columns `statistics`, and of the offset, its commits say
    which values are in each file, so that readers pass over files.

    How far it is stands in the tables, and is told to `group`. Messages that retention or damage
    took before they were archived are an error; without `fail_on_data_loss` it goes on behind them.
    `every_s`: go on and look again after so many seconds, until interrupted by
    Ctrl-C; then this returns what was done.
    """
    target = source if isinstance(source, Target) else as_target(source)
    fields = parse_fields(schema) if schema else []
    registered = _value_format(value_format, value_subject, str(value_version))
    if values_as not in get_args(ValuesAs):
        raise InvalidInput(f"values_as is {values_as!r}; it is columns or struct")
    if fields and registered:
        raise InvalidInput("values are decoded by a schema or by a value format, not by both")
    if reread and not (fields or registered):
        raise InvalidInput("bad rows are read again by a 'schema', or by a value format")
    done = Archived(topics=dict.fromkeys(topics, 0))
    began = time.monotonic()
    work = _Work(
        *(spark, target, lake_folder(lake), lake_format, dict(storage or {}), fields, registered),
        *(values_as, group, fail_on_data_loss, round_bytes, report, done),
        *(_list(partition_by), _list(statistics)),
    )
    _hold_retention(target, topics, group, done)
    for topic in topics:
        _tell_again(target, topic, work.open(work.table_of(topic)), group)
    if reread:
        for topic in topics:
            work.reread(topic)
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


def _list(names: Sequence[str] | None) -> list[str] | None:
    return None if names is None else [*names]


def _value_format(kind: str, subject: str, version: str) -> ValueFormat | None:
    if kind not in ("", "json", "avro", "protobuf"):
        raise InvalidInput(f"the value format is {kind!r:.100}; it is json, avro or protobuf")
    if not kind:
        if subject or version != "latest":
            raise InvalidInput("a subject or a version is for a value format: json, avro, protobuf")
        return None
    version_number(version)
    return ValueFormat(kind=kind, subject=subject, version=version)  # type: ignore[arg-type]


def as_target(text: str, namespace: str = "default", api_key: str = "") -> Target:
    """A data folder or a URL."""
    if "://" in text and not text.startswith("file:"):
        return Target(url=text, namespace=namespace, api_key=api_key)
    path = local_folder(text, "the data folder")
    return Target(path=path, namespace=namespace, api_key=api_key)  # a server may hold the folder


def topics_of(target: Target) -> list[str]:
    """The topics of a namespace, without those of dead letters."""
    with closing(open_topic_reader(target)) as place:
        topics = place.topics()
    return [each for each in topics if not each.endswith(DEAD_LETTER_SUFFIX)]


class _Work(NamedTuple):
    """What every round of an archive needs to know."""

    spark: SparkSession
    target: Target
    lake: str
    lake_format: LakeFormat
    storage: dict[str, str]
    fields: list[Field]
    """What JSON values are decoded to, if they are."""
    registered: ValueFormat | None
    """How values are decoded by the registry, if they are."""
    values_as: ValuesAs
    group: str
    fail_on_data_loss: bool
    round_bytes: int
    report: Callable[[str], None]
    done: Archived
    partition_by: list[str] | None = None
    statistics: list[str] | None = None
    """Of the tables; None: as they are, or as tables are made."""

    def table_of(self, topic: str) -> str:
        return table_of(self.lake, self.target.full_name(topic))

    def open(self, table: str) -> Lake:
        return open_lake(table, self.lake_format, self.storage)

    def run_round(self, topic: str) -> int:
        """One round of one topic; how many offsets it went on."""
        job, parts = self.plan(topic)
        if not parts:
            return 0
        began = time.monotonic()
        incarnations = {topic: incarnation_of(job.topic)}
        given = read_options(
            *(self.target, parts),
            fail_on_data_loss=self.fail_on_data_loss,
            incarnations=incarnations,
        )
        if job.rules is not None:
            frame = self.spark.read.format("penstock").schema(_MESSAGE).options(**given).load()
            frame = frame.selectExpr(
                "*", "cast(to_utc_timestamp(timestamp, current_timezone()) as date) date"
            )
            rows = write_lake(self._decoded(frame, topic, job.rules), job)
        else:
            rows = archive_ranges(self.spark, job, _MESSAGE, given)
        commit_progress(self.target, self.group, {topic: job.ends}, incarnations)
        count = sum(part.end - part.start for part in parts)
        self.done.bad += rows.bad
        self._note(topic, job, rows.every, time.monotonic() - began)
        self._note_missing(topic, count - rows.every, count)
        return count

    def reread(self, topic: str) -> None:
        """Rows that were bad and fit the schema by now go to the table."""
        while self._reread(topic):
            pass

    def _reread(self, topic: str) -> bool:
        """Once; whether that finished what was begun with another version of the schema.

        First the table gets the rows, with a mark for each file of bad rows that they are from;
        then these files are replaced. Who comes after one that was killed in between finds the
        marks.
        """
        table = self.table_of(topic)
        main, bad = self.open(table), self.open(f"{table}.bad")
        files = bad.files() if bad.exists() else []
        if not files:
            return False
        rules = self._rules(topic)
        assert rules is not None, "archive checks it"
        known = main.marks([_REREAD + each.path for each in files])
        others = set(known.values()) - {rules}
        if others:
            begun = others.pop()
            if others or not self.registered or not is_like(begun, rules):
                raise other_rules(bad.folder)
            rules = begun  # of the version that was the newest then
            files = [each for each in files if known.get(_REREAD + each.path) == rules]
        new = [each for each in files if _REREAD + each.path not in known]
        job = LakeJob(table=table, format=self.lake_format, storage=self.storage)
        if new:
            noted = {_REREAD + each.path: rules for each in new}
            frame = self._again(bad, new, topic, rules).where(f"{BAD} is null").drop(BAD)
            rows = write_lake(frame, msgspec.structs.replace(job, noted=noted))
            self.done.reread += rows.every
        rest = self._again(bad, files, topic, rules).where(f"{BAD} is not null")
        removed = [each.path for each in files]
        job = msgspec.structs.replace(job, table=bad.folder, removed=removed)
        write_lake(rest.withColumnRenamed(BAD, "reason"), job)
        self.report(f"{topic}: {self.done.reread:,} rows that were bad are good now")
        return rules != self._rules(topic)

    def _again(self, bad: Lake, files: Sequence[LakeFile], topic: str, rules: int) -> DataFrame:
        frame = read_files(self.spark, bad, files, incarnations=True)
        frame = messages_of(frame, [*_COLUMNS, "date", INCARNATION])
        return self._decoded(frame, topic, rules, [INCARNATION])

    def _decoded(
        self, frame: DataFrame, topic: str, rules: int, more: Sequence[str] = ()
    ) -> DataFrame:
        """Values as columns; what does not fit has a reason in the column of bad rows."""
        if self.registered is None:
            parsed, problem = problem_of_json(frame, self.fields)
            names: list[str] | None = [field.name for field in self.fields]
        else:
            wanted = msgspec.structs.replace(self.registered, id=reader_of(rules))
            parsed, names = with_values(frame, Values.planned(self.target, wanted))
            problem = "case when value is null then 'there is no value' else _undecoded end"
        return _laid_out(parsed, names, problem, self.values_as, more)

    def _rules(self, topic: str) -> int | None:
        """By which good rows are told from bad ones now; None: there are no bad ones."""
        if self.registered is None:
            return number_of_fields(self.fields, self.values_as) if self.fields else None
        subject = self.registered.subject or f"{topic}-value"
        wanted = msgspec.structs.replace(self.registered, subject=subject)
        return rules_of_reader(Values.planned(self.target, wanted), self.values_as)

    def plan(self, topic: str) -> tuple[LakeJob, list[Range]]:
        """What the next round of a topic has to do; it has no parts if there is nothing."""
        name, table = self.target.full_name(topic), self.table_of(topic)
        tables = [table, f"{table}.bad"]
        lakes = [self.open(each) for each in tables]
        with closing(open_topic_reader(self.target)) as place:
            following = _next_round(place, lakes, topic, name, self.round_bytes, self._lost)
        parts, topic_and_incarnation = following.parts, topic_mark(name, following.incarnation)
        rules = self._rules(topic) if parts else None
        known = rules_of(lakes[1], topic_and_incarnation)
        if following.again and self.registered and rules and known and is_like(known, rules):
            rules = known  # of the schema that was the newest when the round began
        if following.again and (rules is None or known not in (None, rules)):
            raise other_rules(tables[1])
        job = LakeJob(
            table=table,
            format=self.lake_format,
            storage=self.storage,
            bad_table="" if rules is None else tables[1],
            topic=topic_and_incarnation,
            adopted=following.adopted,
            starts=following.starts,
            begins={part.partition: part.start for part in parts},
            ends={part.partition: part.end for part in parts},
            rules=rules,
            partition_by=self.partition_by,
            statistics=self.statistics,
        )
        return job, parts

    def _note(self, topic: str, job: LakeJob, count: int, seconds: float) -> None:
        done = self.done
        done.topics[topic] = done.topics.get(topic, 0) + count
        done.rounds += 1
        for each in filter(None, (job.table, job.bad_table)):
            if each not in done.tables and self.open(each).exists():
                done.tables.append(each)
        self.report(f"{topic}: {count:,} messages into {job.table} in {seconds:.1f} s")

    def _note_missing(self, topic: str, missing: int, count: int) -> None:
        """Damage that is no error; only tasks have seen it."""
        if missing and not self.fail_on_data_loss:
            self.done.notes.append(
                f"{topic}: {missing:,} of {count:,} messages could not be read: damage, or the "
                "compaction of the topic, took them before they were archived"
            )

    def _lost(self, what: str, cure: str) -> None:
        if self.fail_on_data_loss:
            raise DataLost(
                f"{what}. {cure}; to go on without them, use --skip-lost, or in Python "
                "fail_on_data_loss=False."
            )
        note = what
        if note not in self.done.notes:
            self.done.notes.append(note)


def _tell_again(target: Target, topic: str, lake: Lake, group: str) -> None:
    """A run that was killed right after its commit to the table did not tell the group."""
    with closing(open_topic_reader(target)) as place:
        now = place.bounds(topic)
    known = stand_of(lake, target.full_name(topic), now.incarnation, now).ends
    ends = {partition: offset for partition, offset in known.items() if offset is not None}
    for partition, offset in ends.items():
        _check_log(lake, topic, partition, offset, now[partition])
    if ends:
        lake.sync()  # which a run that was killed may not have got to either
        commit_progress(target, group, {topic: ends}, {topic: now.incarnation})


class _Round(NamedTuple):
    """What a table does not have yet, up to the limit of a round."""

    parts: list[Range]
    starts: dict[int, int | None]
    """What the table says of the topic."""
    again: bool
    """It was begun before: the table of bad rows has its rows already."""
    incarnation: str
    adopted: bool


def _next_round(
    place: TopicReader,
    lakes: Sequence[Lake],
    topic: str,
    name: str,
    round_bytes: int,
    lost: Callable[[str, str], None],
) -> _Round:
    """A round that was killed between its commits to the table of bad rows and to the table itself
    comes again just as it was. A topic that was deleted and made again begins at its beginning.
    """
    now = place.bounds(topic)
    stand, *others = (stand_of(lake, name, now.incarnation, now) for lake in lakes)
    if stand.is_other:
        lost(
            f"topic {topic} was deleted and made again: what was left of the former one went "
            "before it was archived",
            "The new one will be archived from its beginning, into the same table",
        )
    parts, starts, halfway = [], {}, []
    for partition, bounds in sorted(now.items()):
        known = stand.ends[partition]
        start = bounds.start if known is None else known
        if start < bounds.start:
            lost(
                f"{topic}/{partition}: offsets {start} up to {bounds.start} were dropped before "
                "they were archived",
                "Set retention_waits_for of the topic to the archive's group",
            )
            start = bounds.start
        _check_log(lakes[0], topic, partition, start, bounds)
        if start < bounds.end:
            parts.append(Range(topic, partition, start, bounds.end))
            starts[partition] = known
            for bad in others:
                got_to = bad.ends[partition] or 0
                if start < got_to <= bounds.end:
                    halfway.append(parts[-1]._replace(end=got_to))
    parts = halfway or limited_by_bytes(parts, place, round_bytes)
    return _Round(parts, starts, bool(halfway), now.incarnation, stand.is_adopted)


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
    incarnations: Mapping[str, str] = MappingProxyType({}),
) -> DataFrame:
    """The messages of some ranges, with the columns of a lake table, or fewer."""
    options = read_options(
        *(target, parts), fail_on_data_loss=fail_on_data_loss, incarnations=incarnations
    )
    schema = StructType([StructField(name, MESSAGE_COLUMNS[name]) for name in columns])
    return spark.read.format("penstock").schema(schema).options(**options).load()


def read_options(
    target: Target,
    parts: Sequence[Range],
    *,
    fail_on_data_loss: bool,
    incarnations: Mapping[str, str],
) -> dict[str, str]:
    """Those by which a batch read has the messages of some ranges."""
    starts: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    assigned: dict[str, list[int]] = {}
    for part in parts:
        starts.setdefault(part.topic, {})[str(part.partition)] = part.start
        ends.setdefault(part.topic, {})[str(part.partition)] = part.end
        assigned.setdefault(part.topic, []).append(part.partition)
    return {
        **target_options(target),
        "assign": msgspec.json.encode(assigned).decode(),
        "startingOffsets": msgspec.json.encode(starts).decode(),
        "endingOffsets": msgspec.json.encode(ends).decode(),
        "maxBytesPerPartition": str(SPLIT_BYTES),
        "failOnDataLoss": str(fail_on_data_loss),
        "incarnations": msgspec.json.encode(dict(incarnations)).decode(),
    }


def target_options(target: Target) -> dict[str, str]:
    given = {
        "path": target.path,
        "url": target.url,
        "namespace": target.namespace,
        "apiKey": target.api_key,
    }
    return {name: value for name, value in given.items() if value}


def _laid_out(
    parsed: DataFrame,
    fields: list[str] | None,
    problem: str,
    values_as: ValuesAs,
    more: Sequence[str],
) -> DataFrame:
    """A table's columns, of messages with their value as `_json`, which may be no struct."""
    if fields is None:
        columns = [f"if({problem} is null, _json, null) as {STRUCT}"]
        taken: set[str] = set()
    elif values_as == "struct":
        inside = [f"{quoted_text(name)}, _json.{quoted_name(name)}" for name in fields]
        columns = [f"if({problem} is null, named_struct({', '.join(inside)}), null) as {STRUCT}"]
        taken = set()
    else:
        names = {name: _name_in_table(name) for name in fields}
        columns = [f"_json.{quoted_name(f)} as {quoted_name(name)}" for f, name in names.items()]
        taken = {name.lower() for name in names.values()}
    own = [f"{name} as message_{name}" if name in taken else name for name in _COLUMNS]
    return parsed.selectExpr(*own, "date", *more, *columns, f"{problem} as {BAD}")


def _name_in_table(field: str) -> str:
    return f"value_{field}" if field.lower() in _OF_THE_TABLE else field


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
