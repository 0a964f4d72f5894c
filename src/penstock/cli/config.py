"""`penstock config`: the configuration in force, and where it comes from."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli import tables
from penstock.cli.guard import guarded
from penstock.cli.session import Json
from penstock.configuration import load

commands = typer.Typer()


@commands.callback()
def config() -> None:
    """The configuration of the server."""


ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", metavar="FILE", help="A YAML file. By default $PENSTOCK_CONFIG."
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Any setting; it beats file and environment."),
]

SHOW = """
[bold]Examples[/bold]

[cyan]  penstock config show --config penstock.yaml[/cyan]

Would this do?

[cyan]  PENSTOCK_PORT=9000 penstock config show --set idle_timeout=2m[/cyan]
"""


@commands.command(epilog=SHOW)
@guarded
def show(config: ConfigFile = None, set_: Set = None, as_json: Json = False) -> None:
    """Print every setting of the server that is in force, and where it comes from.

    From the weakest: default, file, environment (PENSTOCK_PORT), flag.
    """
    found = load(config_file(config), os.environ, {"--set": set_ or []})
    if as_json:
        tables.document({s.name: {"value": s.value, "from": s.origin} for s in found.settings()})
        return
    tables.table(
        ("setting", "value", "from"),
        [(s.name, "null" if s.value is None else str(s.value), s.origin) for s in found.settings()],
    )


def config_file(given: Path | None) -> Path | None:
    named = os.environ.get("PENSTOCK_CONFIG")
    return given or (Path(named) if named else None)
