"""`penstock pipeline apply|plan|status FLOW`: declared flows."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from importlib import import_module
from typing import Annotated, Any

import msgspec
import typer

from penstock.cli.guard import guarded
from penstock.cli.output import note, write_line
from penstock.cli.session import ApiKey, Json
from penstock.cli.signals import Signals
from penstock.durations import parse_ns
from penstock.errors import InvalidInput, MissingExtra

FlowFile = Annotated[str, typer.Argument(metavar="FLOW", help="A YAML file that declares a flow.")]
Master = Annotated[str, typer.Option(help="A Spark master; by default this machine.")]
Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark; may be given again."),
]


def register(commands: typer.Typer) -> None:
    """Add the commands of flows to those of pipelines."""
    for command in (apply, plan, status, optimize):
        commands.command()(guarded(command))


def apply(
    flow: FlowFile,
    follow: Annotated[bool, typer.Option("--follow", help="Go on, looking every second.")] = False,
    every: Annotated[str, typer.Option(metavar="TIME", help="Go on, looking so often.")] = "",
    master: Master = "",
    conf: Conf = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Bring a flow up to the end of its topic, each message once."""
    if follow and every:
        raise InvalidInput("give --follow or --every, not both")
    every_s = parse_ns(every, "every") / 1e9 if every else 1.0 if follow else None
    flows, pipelines = _modules()
    declared = flows.load_flow(flow)
    name = f"penstock flow {declared.name}"
    with pipelines.session(master, name, settings_of(conf)) as spark, Signals():
        done = flows.apply_flow(
            spark, declared, api_key=api_key or "", every_s=every_s, report=note
        )
    show(done, json)


def plan(
    flow: FlowFile,
    master: Master = "",
    conf: Conf = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Show what a flow would change, and what it would leave to be backfilled."""
    flows, pipelines = _modules()
    declared = flows.load_flow(flow)
    with pipelines.session(master, f"penstock plan {declared.name}", settings_of(conf)) as spark:
        show(flows.plan_flow(spark, declared, api_key=api_key or ""), json)


def status(
    flow: FlowFile,
    api_key: ApiKey = None,
    json: Json = False,
    prometheus: Annotated[
        bool, typer.Option("--prometheus", help="As metrics, for a textfile collector.")
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Again every two seconds.")] = False,
) -> None:
    """Show how far a flow is behind, and what it has done."""
    flows, _ = _modules()
    declared = flows.load_flow(flow)
    while True:
        found = flows.flow_status(declared, api_key=api_key or "")
        if prometheus:
            print(flows.as_metrics(found), end="", flush=True)
        else:
            show(found, json)
        if not watch:
            return
        time.sleep(2)


def optimize(
    flow: FlowFile,
    z_order: Annotated[
        list[str] | None,
        typer.Option(
            "--z-order", metavar="COLUMN", help="Lay alike rows together; more than once."
        ),
    ] = None,
    vacuum: Annotated[
        str, typer.Option(metavar="TIME", help="Remove files of versions older than this.")
    ] = "",
    json: Json = False,
) -> None:
    """Rewrite a flow's table in fewer files, sorted if that is wanted."""
    flows, _ = _modules()
    show(flows.optimize_flow(flow, z_order=z_order or (), vacuum=vacuum or None), json)


def settings_of(given: list[str] | None, option: str = "--conf") -> dict[str, str]:
    """Settings as --conf and --storage have them."""
    for each in given or ():
        if "=" not in each:
            raise InvalidInput(f"{option} is {each!r}; give NAME=VALUE, as spark-submit takes it")
    return dict(each.split("=", 1) for each in given or ())


def show(done: Any, as_json: bool) -> None:
    """What was done or found: a line each, or one of JSON."""
    if as_json:
        print(msgspec.json.encode(done).decode(), flush=True)
        return
    for field, value in msgspec.structs.asdict(done).items():
        if value in ([], {}, "", None):
            continue
        shown = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else value
        shown = f"{value:.1f}" if isinstance(value, float) else shown
        if isinstance(value, dict):
            shown = ", ".join(f"{name} {each}" for name, each in value.items())
        if isinstance(value, list):
            shown = "; ".join(map(str, value))
        if field.endswith("_us"):
            moment = datetime.fromtimestamp(value // 1_000_000, UTC)
            field, shown = field.removesuffix("_us"), f"{moment:%Y-%m-%d %H:%M:%S} UTC"
        write_line(f"  {field.replace('_', ' ')}: {shown}")


def _modules() -> tuple[Any, Any]:
    try:
        return import_module("penstock.spark.flows"), import_module("penstock.spark.pipelines")
    except ModuleNotFoundError as exc:
        if exc.name not in ("pyspark", "deltalake", "pandas", "yaml"):
            raise
        raise MissingExtra("spark", "a flow") from None
