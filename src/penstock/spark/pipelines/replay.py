"""Replay: messages of a log or of a lake table, once more into a topic, each once, at a rate."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from pyspark.sql import Observation
from pyspark.sql.functions import expr

from penstock.errors import DataLost, InvalidInput
from penstock.log.files import DiskFiles, write_durably
from penstock.record.schema import parse_priority
from penstock.spark.bounds import Range
from penstock.spark.columns import COLUMNS
from penstock.spark.lake_table import message_column
from penstock.spark.options import Position, Subscription, Target
from penstock.spark.pipelines.archive import as_target, read_parts, target_options
from penstock.spark.pipelines.lake_read import read_lake
from penstock.spark.positions import present, ranges, resolve
from penstock.spark.staging import Staging
from penstock.spark.topic_reader import open_topic_reader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ORIGIN_HEADER = "penstock-replayed-from"
ROUND_MESSAGES = 1_000_000
ROUND_S = 5.0  # of a replay at a rate


class Replayed(msgspec.Struct, kw_only=True):
    """What a replay did."""

    messages: int = 0
    """How many were sent."""
    offsets: int = 0
    """How many were looked at; with a filter fewer are sent."""
    rounds: int = 0
    resumed: bool = False
    seconds: float = 0.0


class _Plan(msgspec.Struct, frozen=True):
    """What is replayed, decided once: a replay that is begun again is the same."""

    stages: list[list[Range]]
    """One for a replay with an end; one that follows adds what has come since."""
    round_messages: int
    asked: dict[str, str]
    incarnations: dict[str, str] = {}
    """Of the topics that are read, when the first stage was planned."""


def replay(
    spark: SparkSession,
    source: str | Target,
    to: str | Target,
    topic: str,
    *,
    name: str,
    from_topic: str = "",
    lake: bool = False,
    start_us: int | None = None,
    end_us: int | None = None,
    where: str = "",
    rate: float | None = None,
    priority: str = "",
    state: str = "",
    fail_on_data_loss: bool = True,
    every_s: float | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> Replayed:
    """Publish messages of `source` (a folder or URL, or with `lake` a table) to a topic again.

    `where` is a condition in SQL on the columns of a message. `rate` is messages a second. With
    `priority` all have that one, and not their own: "background" comes behind live work. The
    `name` stands for this replay: run it again under the same name, and it goes on where it was
    broken off, or does nothing if it was done. Its plan is kept in the folder `state`. Messages of
    a log that retention or damage took are an error; without `fail_on_data_loss` it goes on without
    them. `every_s`: go on with what has come since, looking after so many seconds, until
    interrupted by Ctrl-C; then this returns what was done.
    """
    if every_s is not None and end_us is not None:
        raise InvalidInput("a replay up to a time has an end: it cannot follow what comes")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
        raise InvalidInput(f"the name {name!r} is not made of letters, digits, '.', '_', '-'")
    target = to if isinstance(to, Target) else as_target(to)
    if every_s is not None and not lake and from_topic == topic and _same(source, target):
        raise InvalidInput(
            f"a replay of {topic} into itself has an end: it cannot follow what it sends"
        )
    folder = os.path.abspath(state) if state else _state_of(target)
    asked = {
        "source": str(source),
        "topic": topic,
        "from": from_topic,
        "where": where,
        "start": str(start_us),
        "end": str(end_us),
    }
    if priority:
        asked["priority"] = str(int(parse_priority(priority)))

    def parts() -> tuple[list[Range], dict[str, str]]:
        return _parts(spark, source, lake, from_topic, start_us, end_us)

    plan, resumed = _planned(folder, name, asked, parts, rate)
    done = Replayed(resumed=resumed)
    work = _Work(
        *(spark, source, lake, target, topic, name, folder, where, start_us, end_us, rate),
        *(asked.get("priority", "priority"), fail_on_data_loss),
    )
    try:
        while True:
            work.run(plan, done, report)
            if every_s is None:
                return done
            longer = _longer(plan, *parts())
            if longer == plan:
                time.sleep(every_s)
            else:
                plan = longer
                _keep(folder, name, plan)
    except KeyboardInterrupt:
        if every_s is None:
            raise
        return done


class _Work(NamedTuple):
    """What every round of a replay needs to know."""

    spark: SparkSession
    source: str | Target
    lake: bool
    target: Target
    topic: str
    name: str
    folder: str
    where: str
    start_us: int | None
    end_us: int | None
    rate: float | None
    priority: str
    """An expression in SQL."""
    fail_on_data_loss: bool

    def run(self, plan: _Plan, done: Replayed, report: Callable[[str], None]) -> None:
        """The rounds of a plan that are not done yet, no faster than the rate."""
        staging, sink = os.path.join(self.folder, "staging"), f"replay-{self.name}"
        began, before = time.monotonic(), done.messages
        last = Staging(staging, sink).done
        for number, parts in enumerate(_rounds(plan)):
            if number <= last:
                continue
            counted = Observation()
            frame = self.read(parts, plan.incarnations)
            frame = _messages(frame, self.where, self.start_us, self.end_us, self.priority)
            options = {
                **target_options(self.target),
                "topic": self.topic,
                "sinkId": sink,
                "batchId": str(number),
                "staging": staging,
            }
            frame = frame.observe(counted, expr("count(1) as sent"))
            frame.write.format("penstock").options(**options).mode("append").save()
            done.messages += counted.get.get("sent", 0)
            done.offsets += sum(part.end - part.start for part in parts)
            done.rounds += 1
            report(f"{self.topic}: {done.messages:,} messages of {done.offsets:,} sent")
            if self.rate:
                due = began + (done.messages - before) / self.rate
                time.sleep(max(0.0, due - time.monotonic()))
            done.seconds += time.monotonic() - began
            began, before = time.monotonic(), done.messages

    def read(self, parts: list[Range], incarnations: dict[str, str]) -> DataFrame:
        if not self.lake:
            source = self.source
            target = source if isinstance(source, Target) else as_target(source)
            return read_parts(
                *(self.spark, target, parts),
                fail_on_data_loss=self.fail_on_data_loss,
                incarnations=incarnations,
            )
        wanted = " or ".join(
            f"(topic = '{p.topic}' and partition = {p.partition} and offset >= {p.start} "
            f"and offset < {p.end})"
            for p in parts
        )
        return _of_lake(self.spark, str(self.source)).where(wanted)


def _of_lake(spark: SparkSession, table: str) -> DataFrame:
    """With fields of values that have a column of a message's name as `value_...`."""
    frame = read_lake(spark, table)
    aside = [name for name in COLUMNS if message_column(name, frame.columns) != name]
    names = {name: f"value_{name}" for name in aside}
    frame = frame.withColumnsRenamed(names)
    return frame.withColumnsRenamed({f"message_{name}": name for name in aside})


def _same(source: str | Target, target: Target) -> bool:
    found = source if isinstance(source, Target) else as_target(source)
    return (found.path, found.url, found.namespace) == (target.path, target.url, target.namespace)


def _state_of(target: Target) -> str:
    if not target.path:
        raise InvalidInput("a replay to a server needs a folder for its state: give 'state'")
    return os.path.join(target.path, "spark", "replays")


def _planned(
    folder: str,
    name: str,
    asked: dict[str, str],
    parts: Callable[[], tuple[list[Range], dict[str, str]]],
    rate: float | None,
) -> tuple[_Plan, bool]:
    try:
        data = DiskFiles().read(os.path.join(folder, f"{name}.json"))
        plan = msgspec.json.decode(data, type=_Plan)
    except FileNotFoundError:
        size = max(1, int(rate * ROUND_S)) if rate else ROUND_MESSAGES
        stage, incarnations = parts()
        plan = _Plan([stage], min(size, ROUND_MESSAGES), asked, incarnations)
        _keep(folder, name, plan)
        return plan, False
    if plan.asked != asked:
        raise InvalidInput(
            f"a replay named {name!r} was begun with {plan.asked}; give this one another name"
        )
    return plan, True


def _keep(folder: str, name: str, plan: _Plan) -> None:
    files = DiskFiles()
    files.make_folder(folder)
    write_durably(files, os.path.join(folder, f"{name}.json"), msgspec.json.encode(plan))


def _longer(plan: _Plan, present: list[Range], incarnations: dict[str, str]) -> _Plan:
    """The plan, and what there is behind the end of it."""
    for topic, planned in plan.incarnations.items():
        if incarnations.get(topic, planned) != planned:
            raise DataLost(
                f"topic {topic} was deleted and made again while this replay followed it: give "
                "another name to one that begins with the new one"
            )
    known = {(part.topic, part.partition): part.end for stage in plan.stages for part in stage}
    new = [
        part._replace(start=max(part.start, known.get((part.topic, part.partition), part.start)))
        for part in present
    ]
    new = [part for part in new if part.start < part.end]
    return msgspec.structs.replace(plan, stages=[*plan.stages, new]) if new else plan


def _parts(
    spark: SparkSession,
    source: str | Target,
    lake: bool,
    topic: str,
    start_us: int | None,
    end_us: int | None,
) -> tuple[list[Range], dict[str, str]]:
    if lake:
        frame = _of_lake(spark, str(source))
        each = frame.groupBy("topic", "partition").agg({"offset": "max"}).collect()
        firsts = frame.groupBy("topic", "partition").agg({"offset": "min"}).collect()
        starts = {(row[0], row[1]): row[2] for row in firsts}
        return sorted(Range(r[0], r[1], starts[r[0], r[1]], r[2] + 1) for r in each), {}
    if not topic:
        raise InvalidInput("say which topic is replayed")
    target = source if isinstance(source, Target) else as_target(source)
    with closing(open_topic_reader(target)) as place:
        now = present(place, Subscription(topics=(topic,)))
        begin = resolve(place, now, Position("earliest" if start_us is None else start_us))
        end = resolve(place, now, Position("latest" if end_us is None else end_us))
        incarnations = {name: each.incarnation for name, each in now.items()}
        return [part for part in ranges(begin, end) if part.start < part.end], incarnations


def _rounds(plan: _Plan) -> Iterator[list[Range]]:
    """Slices of all partitions together, in the order of their offsets."""
    for stage in plan.stages:
        each = max(1, plan.round_messages // max(1, len(stage)))
        left = list(stage)
        while left:
            yield [part._replace(end=min(part.end, part.start + each)) for part in left]
            left = [part._replace(start=part.start + each) for part in left]
            left = [part for part in left if part.start < part.end]


def _messages(
    frame: DataFrame, where: str, start_us: int | None, end_us: int | None, priority: str
) -> DataFrame:
    if start_us is not None:
        frame = frame.where(f"unix_micros(timestamp) >= {start_us}")
    if end_us is not None:
        frame = frame.where(f"unix_micros(timestamp) < {end_us}")
    if where:
        frame = frame.where(where)
    origin = (
        f"named_struct('key', '{ORIGIN_HEADER}', 'value', "
        "cast(concat(topic, '/', partition, '@', offset) as binary))"
    )
    return frame.selectExpr(
        "value",
        "key",
        f"{priority} as priority",
        f"concat(coalesce(headers, array()), array({origin})) as headers",
    )
