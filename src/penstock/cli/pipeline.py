"""`penstock pipeline`: the ready pipelines on Spark."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from importlib import import_module
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from penstock.cli.guard import guarded
from penstock.durations import parse_ns
from penstock.errors import InvalidInput, MissingExtra

commands = typer.Typer()

EXAMPLES = """
[bold]Examples[/bold]

Bring a topic into a Delta table, once; and every five minutes:

[cyan]  penstock pipeline run archive --from ./data --topic orders --to ./lake[/cyan]

[cyan]  penstock pipeline run archive --from ./data --topic orders --to ./lake --every 5m[/cyan]

Send what came on a day to another topic, from the table:

[cyan]  penstock pipeline run replay --from ./lake/orders --lake --to ./data --topic again --name r1 --since 2026-11-14 --until 2026-11-15[/cyan]

What died of what; then back to work with what timed out:

[cyan]  penstock pipeline run dead-letters --from ./data --topic orders[/cyan]

[cyan]  penstock pipeline run dead-letters --from ./data --topic orders --redrive --where "error like '%timeout%'"[/cyan]
"""  # noqa: E501 - a line break in here would be one on the screen

NAMES = ("archive", "replay", "dead-letters", "rollup", "compact")

_err = Console(stderr=True)


@commands.callback()
def pipeline() -> None:
    """Ready pipelines on Spark: archive, replay, dead-letters, rollup, compact."""


@commands.command(epilog=EXAMPLES)
@guarded
def run(
    name: Annotated[str, typer.Argument(metavar="NAME", help=", ".join(NAMES) + ".")],
    source: Annotated[
        str, typer.Option("--from", metavar="PLACE", help="A data folder, a URL, or a lake table.")
    ],
    to: Annotated[
        str, typer.Option(metavar="PLACE", help="A lake, a folder for tables, or a broker.")
    ] = "",
    topic: Annotated[
        list[str] | None, typer.Option(help="Which topics; for replay, where to.")
    ] = None,
    from_topic: Annotated[str, typer.Option(help="replay: the topic whose log is read.")] = "",
    once: Annotated[bool, typer.Option("--once", help="Stop at the end; the default.")] = False,
    follow: Annotated[bool, typer.Option(help="archive: go on, looking every second.")] = False,
    every: Annotated[
        str, typer.Option(metavar="TIME", help="archive, rollup: go on, so often.")
    ] = "",
    master: Annotated[str, typer.Option(help="A Spark master; by default this machine.")] = "",
    lake_format: Annotated[str, typer.Option("--format", help="delta or parquet.")] = "delta",
    schema: Annotated[
        str, typer.Option(help='archive: columns of JSON values, "amount double, city string".')
    ] = "",
    group: Annotated[str, typer.Option(help="archive: the group that is told.")] = "archive",
    lake: Annotated[bool, typer.Option(help="replay: --from is a lake table.")] = False,
    job: Annotated[str, typer.Option("--name", help="replay: its name, to go on under.")] = "",
    since: Annotated[str, typer.Option(metavar="TIME", help="replay: from this time on.")] = "",
    until: Annotated[str, typer.Option(metavar="TIME", help="replay: before this time.")] = "",
    where: Annotated[
        str, typer.Option(metavar="SQL", help="replay, dead-letters: a condition.")
    ] = "",
    rate: Annotated[float, typer.Option(help="replay: messages a second; 0: no limit.")] = 0.0,
    state: Annotated[str, typer.Option(help="replay: a folder for its plan.")] = "",
    redrive: Annotated[bool, typer.Option(help="dead-letters: send them back to work.")] = False,
    discard: Annotated[bool, typer.Option(help="dead-letters: throw them away.")] = False,
    unique_by: Annotated[str, typer.Option(help="compact: id or key, to drop duplicates.")] = "",
) -> None:
    """Run a pipeline. It can be stopped at any time, and goes on where it was."""
    if name not in NAMES:
        raise InvalidInput(f"there is no pipeline {name!r}; there are: {', '.join(NAMES)}")
    if once + follow + bool(every) > 1:
        raise InvalidInput("give one of --once, --follow and --every")
    if redrive and discard:
        raise InvalidInput("give --redrive or --discard, not both")
    pipelines = _pipelines()
    topics = list(topic or ())
    pause_s = 1.0 if follow else parse_ns(every, "every") / 1e9 if every else None
    if name != "compact" and not topics:
        raise InvalidInput("say which topics: --topic")
    if name in ("archive", "replay", "rollup") and not to:
        raise InvalidInput(f"{name} needs --to")
    with pipelines.session(master, f"penstock {name}") as spark:
        while True:
            if name == "archive":
                done = pipelines.archive(
                    spark,
                    source,
                    to,
                    topics,
                    lake_format=lake_format,
                    schema=schema,
                    group=group,
                    every_s=pause_s,
                    report=_say,
                )
            elif name == "replay":
                if len(topics) != 1 or not job:
                    raise InvalidInput("a replay needs one --topic, and a --name to go on under")
                done = pipelines.replay(
                    spark,
                    source,
                    to,
                    topics[0],
                    name=job,
                    from_topic=from_topic or topics[0],
                    lake=lake,
                    start_us=_time_us(since),
                    end_us=_time_us(until),
                    where=where,
                    rate=rate or None,
                    state=state,
                    report=_say,
                )
            elif name == "dead-letters":
                action = "redrive" if redrive else "discard" if discard else "triage"
                done = pipelines.dead_letters(
                    spark, source, topics, action=action, where=where, report=_say
                )
                _show_causes(done)
            elif name == "rollup":
                done = pipelines.rollup(spark, source, topics, to, report=_say)
            else:
                done = pipelines.compact(spark, source, unique_by=unique_by or None, report=_say)
            _show(name, done)
            if pause_s is None or name != "rollup":
                return
            time.sleep(pause_s)


def _pipelines() -> Any:
    try:
        return import_module("penstock.spark.pipelines")
    except ModuleNotFoundError as exc:
        if exc.name not in ("pyspark", "deltalake", "pandas"):
            raise
        raise MissingExtra("spark", "a pipeline") from None


def _say(line: str) -> None:
    _err.print(line, markup=False, highlight=False)


def _show(name: str, done: Any) -> None:
    """What was done, a line each."""
    print(f"{name}: done")
    for field, value in msgspec.structs.asdict(done).items():
        if value in ([], {}, "", None) or field == "causes":
            continue
        shown = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else value
        shown = f"{value:.1f}" if isinstance(value, float) else shown
        print(f"  {field.replace('_', ' ')}: {shown}")


def _show_causes(done: Any) -> None:
    if not done.causes:
        return
    table = Table("letters", "topic", "reason", "hour", "error", "a sample")
    for cause in done.causes:
        sample = cause.samples[0] if cause.samples else ""
        row = (f"{cause.count:,}", cause.topic, cause.reason, cause.hour, cause.error, sample)
        table.add_row(*(part.replace("[", "\\[") for part in row))
    Console().print(table)


def _time_us(text: str) -> int | None:
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(f"{text!r} is no time; write it as 2026-11-15T08:30:00Z") from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1_000_000)
