"""`penstock pipeline run NAME`: the ready pipelines on Spark, each a command."""

from __future__ import annotations

import fnmatch
import inspect
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cached_property
from importlib import import_module
from threading import Event, Thread
from typing import Annotated, Any, NamedTuple, TypeAlias

import msgspec
import typer
import typer.core
from rich.console import Console
from rich.status import Status
from rich.table import Table

from penstock.cli import flows
from penstock.cli.flows import Conf, settings_of, show
from penstock.cli.guard import guarded
from penstock.cli.output import wants_json
from penstock.cli.session import ApiKey, Function, Json, Namespace, option, with_options
from penstock.cli.signals import Signals
from penstock.durations import parse_ns
from penstock.errors import InvalidInput, LogNotFound, MissingExtra


class _Pipelines(typer.core.TyperGroup):
    """Says of what is none of them which there are."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            ctx.fail(f"there is no pipeline {args[0]!r}; there are: {', '.join(self.commands)}")
        return super().resolve_command(ctx, args)


commands = typer.Typer()
pipelines = typer.Typer(cls=_Pipelines, no_args_is_help=True)
commands.add_typer(
    pipelines,
    name="run",
    help="Run a pipeline. It can be stopped at any time, and goes on where it was.",
)

flows.register(commands)

To = Annotated[str, typer.Option(metavar="PLACE", help="A lake, a folder for tables, or a broker.")]
Topics = Annotated[
    list[str] | None,
    typer.Option(help="Which topics; may be given again, or be a pattern such as 'orders-*'."),
]
Where = Annotated[str, typer.Option(metavar="SQL", help="Only those for which this is true.")]
Storage = Annotated[
    list[str] | None,
    typer.Option(
        "--storage",
        metavar="NAME=VALUE",
        help="A setting of the object store; may be given again. By default of the environment.",
    ),
]
SkipLost = Annotated[
    bool, typer.Option("--skip-lost", help="Go on without what retention or damage took.")
]

_SHARED = [
    option(
        "source",
        Annotated[
            str,
            typer.Option("--from", metavar="PLACE", help="A data folder, a URL, or a lake table."),
        ],
        inspect.Parameter.empty,
    ),
    option(
        "once",
        Annotated[bool, typer.Option("--once", help="Stop at the end; the default.")],
        False,
    ),
    option(
        "follow",
        Annotated[bool, typer.Option("--follow", help="Go on, looking every second.")],
        False,
    ),
    option(
        "every", Annotated[str, typer.Option(metavar="TIME", help="Go on, looking so often.")], ""
    ),
    option(
        "master", Annotated[str, typer.Option(help="A Spark master; by default this machine.")], ""
    ),
    option("conf", Conf, None),
    option("json", Json, False),
    option("api_key", ApiKey, None),
    option("namespace", Namespace, None),
]

_err = Console(stderr=True)


@commands.callback()
def pipeline() -> None:
    """Ready pipelines on Spark: archive, replay, dead-letters, rollup, compact."""


class Work:
    """What all pipelines have in common: where from, how often, and the functions themselves."""

    def __init__(
        self, name: str, source: str, pause_s: float | None, namespace: str | None, key: str | None
    ) -> None:
        self.name = name
        self.source = source
        self.pause_s = pause_s
        """None: once."""
        self._namespace = namespace or os.environ.get("PENSTOCK_NAMESPACE") or "default"
        self._api_key = key or os.environ.get("PENSTOCK_API_KEY") or ""

    @cached_property
    def pipelines(self) -> Any:
        try:
            return import_module("penstock.spark.pipelines")
        except ModuleNotFoundError as exc:
            if exc.name not in ("pyspark", "deltalake", "pandas"):
                raise
            raise MissingExtra("spark", "a pipeline") from None

    def broker(self, place: str) -> Any:
        """Where a broker is or was; looked at before Spark is started, which takes long."""
        target = self.pipelines.as_target(place, self._namespace, self._api_key)
        if target.path and not os.path.isdir(target.path):
            raise LogNotFound(f"there is no data folder {target.path}")
        return target

    def table(self, place: str, storage: dict[str, str] | None = None) -> str:
        """A lake table that is there."""
        folder: str = self.pipelines.found_lake(place, storage).folder
        return folder

    def lake(self, place: str) -> str:
        """A folder that is a lake, or will be."""
        folder: str = self.pipelines.lake_folder(self.place(place))
        return folder

    def topics(self, given: list[str] | None) -> list[str]:
        """Those that were named, and those that there are now for what is a pattern."""
        if not given:
            raise InvalidInput("say which topics: --topic")
        if not any(set("*?[") & set(each) for each in given):
            return given
        known = self.pipelines.topics_of(self.broker(self.source))
        found = [
            topic
            for each in given
            for topic in (fnmatch.filter(known, each) if set("*?[") & set(each) else [each])
        ]
        if not found:
            raise InvalidInput(f"no topic is like {' or '.join(given)}: there are {len(known)}")
        return list(dict.fromkeys(found))

    def place(self, to: str) -> str:
        if not to:
            raise InvalidInput(f"{self.name} needs --to")
        return to


Job: TypeAlias = Callable[[Any], Any]
"""Given a Spark session, does the work once; what was done."""


def _pipeline(
    name: str, *, examples: str = "", goes_on: bool = False
) -> Callable[[Callable[..., Job]], Callable[..., Job]]:
    """Make a command of a function that checks its options and returns the job.

    `goes_on`: the pipeline itself sees to it that it goes on, with --follow and --every.
    """

    def register(function: Callable[..., Job]) -> Callable[..., Job]:
        own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
        source, *others = _SHARED

        def run(**options: Any) -> None:
            given = {each.name: options.pop(each.name) for each in _SHARED}
            if given["once"] + given["follow"] + bool(given["every"]) > 1:
                raise InvalidInput("give one of --once, --follow and --every")
            pause_s = parse_ns(given["every"], "every") / 1e9 if given["every"] else None
            pause_s = 1.0 if given["follow"] else pause_s
            work = Work(name, given["source"], pause_s, given["namespace"], given["api_key"])
            how = _How(given["master"], settings_of(given["conf"]), given["json"], goes_on)
            _run(work, function(work, **options), how)

        command: Function = guarded(with_options(run, function, [source, *own, *others]))
        pipelines.command(name, epilog=examples)(command)
        return function

    return register


class _How(NamedTuple):
    """How a pipeline is run, and its result shown."""

    master: str
    conf: dict[str, str]
    json: bool
    goes_on: bool


def _run(work: Work, job: Job, how: _How) -> None:
    name = f"penstock {work.name}"
    with work.pipelines.session(how.master, name, how.conf) as spark, Signals():
        while True:
            with _progress(spark, work.name):
                done = job(spark)
            if how.json:
                show(done, True)
            else:
                _show(work.name, done)
            if work.pause_s is None or how.goes_on:
                return
            time.sleep(work.pause_s)


ARCHIVE = """
[bold]Examples[/bold]

Bring a topic into a Delta table, once; and every five minutes:

[cyan]  penstock pipeline run archive --from ./data --topic orders --to ./lake[/cyan]

[cyan]  penstock pipeline run archive --from ./data --topic orders --to ./lake --every 5m[/cyan]
"""


@_pipeline("archive", examples=ARCHIVE, goes_on=True)
def archive(
    work: Work,
    to: To = "",
    topic: Topics = None,
    storage: Storage = None,
    lake_format: Annotated[str, typer.Option("--format", help="delta or iceberg.")] = "delta",
    schema: Annotated[
        str, typer.Option(help='Columns of JSON values, "amount double, city string".')
    ] = "",
    value_format: Annotated[
        str,
        typer.Option(
            "--value-format",
            metavar="json|avro|protobuf",
            help="Decode values by the schema registry, instead of by --schema.",
        ),
    ] = "",
    value_subject: Annotated[
        str, typer.Option(help="Of which subject; by default TOPIC-value.")
    ] = "",
    value_version: Annotated[
        str, typer.Option(help="Of which version the columns are.")
    ] = "latest",
    values_as: Annotated[
        str,
        typer.Option(
            "--values-as",
            metavar="columns|struct",
            help="Fields as columns, beside which columns of a message may be message_...; or all "
            "of them in one column, data.",
        ),
    ] = "columns",
    partition_by: Annotated[
        list[str] | None,
        typer.Option(
            "--partition-by",
            metavar="COLUMN",
            help="Of a new table; may be given again; 'none' for none. By default date.",
        ),
    ] = None,
    statistics: Annotated[
        list[str] | None,
        typer.Option(
            "--statistics",
            metavar="COLUMN",
            help="Note which values of it each file has, so that readers pass over files; may be "
            "given again.",
        ),
    ] = None,
    reread: Annotated[
        bool, typer.Option("--reread", help="Bring in bad rows that fit the schema by now.")
    ] = False,
    group: Annotated[str, typer.Option(help="The group that is told.")] = "archive",
    skip_lost: SkipLost = False,
) -> Job:
    """Bring topics into a lake, each into a table of its own, exactly once."""
    topics, lake, source = work.topics(topic), work.lake(to), work.broker(work.source)
    store = settings_of(storage, "--storage")
    return lambda spark: work.pipelines.archive(
        spark,
        source,
        lake,
        topics,
        lake_format=lake_format,
        storage=store,
        schema=schema,
        value_format=value_format,
        value_subject=value_subject,
        value_version=value_version,
        values_as=values_as,
        partition_by=[] if partition_by == ["none"] else partition_by or None,
        statistics=statistics or None,
        reread=reread,
        group=group,
        fail_on_data_loss=not skip_lost,
        every_s=work.pause_s,
        report=_say,
    )


REPLAY = """
[bold]Examples[/bold]

Send what came on a day to another topic, from the table:

[cyan]  penstock pipeline run replay --from ./lake/orders --lake --to ./data --topic again --name r1 --since 2026-11-14 --until 2026-11-15[/cyan]
"""  # noqa: E501 - a line break in here would be one on the screen


@_pipeline("replay", examples=REPLAY, goes_on=True)
def replay(
    work: Work,
    to: To = "",
    topic: Annotated[list[str] | None, typer.Option(help="The topic to send to.")] = None,
    from_topic: Annotated[str, typer.Option(help="The topic whose log is read.")] = "",
    lake: Annotated[bool, typer.Option("--lake", help="--from is a lake table.")] = False,
    name: Annotated[str, typer.Option(help="Its name, to go on under.")] = "",
    since: Annotated[str, typer.Option(metavar="TIME", help="From this time on.")] = "",
    until: Annotated[str, typer.Option(metavar="TIME", help="Before this time.")] = "",
    where: Where = "",
    rate: Annotated[float, typer.Option(help="Messages a second; 0: no limit.")] = 0.0,
    priority: Annotated[
        str, typer.Option(help="Instead of their own; background comes behind live work.")
    ] = "",
    state: Annotated[str, typer.Option(help="A folder for its plan.")] = "",
    skip_lost: SkipLost = False,
) -> Job:
    """Send messages of the past to a topic again, from a log or from a lake."""
    topics, to = work.topics(topic), work.place(to)
    if len(topics) != 1 or not name:
        raise InvalidInput("a replay needs one --topic, and a --name to go on under")
    source = work.table(work.source) if lake else work.broker(work.source)
    start_us, end_us, target = _time_us(since), _time_us(until), work.broker(to)
    return lambda spark: work.pipelines.replay(
        spark,
        source,
        target,
        topics[0],
        name=name,
        from_topic=from_topic or topics[0],
        lake=lake,
        start_us=start_us,
        end_us=end_us,
        where=where,
        rate=rate or None,
        priority=priority,
        state=state,
        fail_on_data_loss=not skip_lost,
        every_s=work.pause_s,
        report=_say,
    )


DEAD_LETTERS = """
[bold]Examples[/bold]

What died of what; then back to work with what timed out:

[cyan]  penstock pipeline run dead-letters --from ./data --topic orders[/cyan]

[cyan]  penstock pipeline run dead-letters --from ./data --topic orders --redrive --where "error like '%timeout%'"[/cyan]
"""  # noqa: E501 - a line break in here would be one on the screen


@_pipeline("dead-letters", examples=DEAD_LETTERS)
def dead_letters(
    work: Work,
    topic: Topics = None,
    where: Where = "",
    redrive: Annotated[bool, typer.Option("--redrive", help="Send them back to work.")] = False,
    discard: Annotated[bool, typer.Option("--discard", help="Throw them away.")] = False,
) -> Job:
    """Sort dead letters by what they died of; send them back to work, or throw them away."""
    topics = work.topics(topic)
    if redrive and discard:
        raise InvalidInput("give --redrive or --discard, not both")
    action = "redrive" if redrive else "discard" if discard else "triage"
    source = work.broker(work.source)
    return lambda spark: work.pipelines.dead_letters(
        spark, source, topics, action=action, where=where, report=_say
    )


@_pipeline("rollup")
def rollup(work: Work, to: To = "", topic: Topics = None) -> Job:
    """Count messages, bytes and latencies by the minute, as tables and a chart."""
    topics, folder, source = work.topics(topic), work.lake(to), work.broker(work.source)
    return lambda spark: work.pipelines.rollup(spark, source, topics, folder, report=_say)


@_pipeline("compact")
def compact(
    work: Work,
    unique_by: Annotated[str, typer.Option(help="id or key, to drop duplicates.")] = "",
    widen: Annotated[
        str, typer.Option(metavar="COLUMNS", help='Give columns wider types, "n bigint".')
    ] = "",
    storage: Storage = None,
) -> Job:
    """Rewrite a lake table in fewer files, without duplicates if that is wanted."""
    store = settings_of(storage, "--storage")
    table = work.table(work.source, store)
    return lambda spark: work.pipelines.compact(
        spark, table, unique_by=unique_by or None, widen=widen, storage=store, report=_say
    )


@contextmanager
def _progress(spark: Any, name: str) -> Iterator[None]:
    """On a terminal: how many tasks of the present jobs are done."""
    if not _err.is_terminal:
        yield
        return
    ended = Event()
    tracker = spark.sparkContext.statusTracker()

    def look(status: Status) -> None:
        while not ended.wait(0.5):
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            stages = [stage for stage in stages if stage is not None]
            if stages:
                tasks = sum(stage.numTasks for stage in stages)
                finished = sum(stage.numCompletedTasks for stage in stages)
                status.update(f"{name}: {finished:,} of {tasks:,} tasks")
            else:
                status.update(f"{name}: planning, or waiting")

    with _err.status(f"{name}: starting") as status:
        looking = Thread(target=look, args=(status,), daemon=True)
        looking.start()
        try:
            yield
        finally:
            ended.set()
            looking.join()


def _say(line: str) -> None:
    if wants_json():
        return
    _err.print(line, markup=False, highlight=False, soft_wrap=True)


def _show(name: str, done: Any) -> None:
    """What was done, a line each; at once, since the pipeline may go on for days."""
    if getattr(done, "causes", None):
        _show_causes(done)
    lines = [f"{name}: done"]
    for field, value in msgspec.structs.asdict(done).items():
        if value in ([], {}, "", None) or field == "causes":
            continue
        shown = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else value
        shown = f"{value:.1f}" if isinstance(value, float) else shown
        lines.append(f"  {field.replace('_', ' ')}: {shown}")
    print(*lines, sep="\n", flush=True)


def _show_causes(done: Any) -> None:
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
