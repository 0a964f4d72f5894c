"""The commands, and how their errors become sentences."""

from __future__ import annotations

import sys
from importlib.metadata import version

import typer

from penstock.cli.inspect import EXAMPLES, inspect
from penstock.errors import PenstockError

app = typer.Typer(
    name="penstock",
    help="A durable message queue in Python.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(epilog=EXAMPLES)(inspect)


def run() -> int:
    """Run the command that the arguments name; 2 when it could not do what was asked."""
    try:
        app(prog_name="penstock")
    except PenstockError as exc:
        print(f"penstock: {exc}", file=sys.stderr)
    except OSError as exc:
        where = f"{exc.filename}: " if exc.filename else ""
        print(f"penstock: {where}{exc.strerror or exc}", file=sys.stderr)
    return 2


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"penstock {version('penstock')}")
        raise typer.Exit


@app.callback()
def penstock(
    show_version: bool = typer.Option(
        False, "--version", help="Show the version.", callback=_print_version, is_eager=True
    ),
) -> None:
    """A durable message queue in Python. Today: tools for its log files."""
