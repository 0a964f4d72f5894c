"""The commands. Only the one that is called is loaded, so that `penstock --help` is quick."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any, NamedTuple

import typer

from penstock import __version__
from penstock.cli.exits import Exit
from penstock.cli.output import wants_json
from penstock.cli.problems import report
from penstock.errors import InvalidInput

UsageError: Any = typer.BadParameter.__base__
"""Of the click that typer uses: the one that is installed, or one of its own."""


class Command(NamedTuple):
    """Where a command is: a module with a `commands` app, or a function of its own name."""

    module: str
    help: str
    panel: str


MESSAGES, LOOKING, RUNNING = "Messages", "Looking", "Running"

COMMANDS = {
    "publish": Command("publish", "Publish messages, one or millions.", MESSAGES),
    "consume": Command("consume", "Receive messages and ack them.", MESSAGES),
    "peek": Command("peek", "Look at messages without taking them.", MESSAGES),
    "search": Command("search", "Look for messages by what is in them.", MESSAGES),
    "topic": Command("topics", "Create, list, describe, alter, purge and delete topics.", MESSAGES),
    "group": Command("groups", "Consumer groups: their lag, their positions.", MESSAGES),
    "dlq": Command("dead_letters", "Dead letters: list, show, redrive and purge.", MESSAGES),
    "delayed": Command("delayed", "Messages that wait for their time.", MESSAGES),
    "schedule": Command("schedules", "Messages that are published again and again.", MESSAGES),
    "transaction": Command("transactions", "What was done together, or refused.", LOOKING),
    "trace": Command("traces", "What happened to a message.", LOOKING),
    "schema": Command("schemas", "What messages have to look like: the schema registry.", MESSAGES),
    "stats": Command("stats", "How the topics stand, once or live.", LOOKING),
    "inspect": Command("inspect", "What is in a segment, a log or a data folder.", LOOKING),
    "bench": Command("bench", "Measure a folder or a server.", LOOKING),
    "dashboard": Command("dashboard", "Look at a data folder in a browser.", LOOKING),
    "serve": Command("serve", "Run the server.", RUNNING),
    "cluster": Command("cluster", "The nodes and shards of a cluster.", RUNNING),
    "worker": Command("worker", "Run the handlers of a worker app.", RUNNING),
    "pipeline": Command("pipeline", "Ready pipelines on Spark.", RUNNING),
    "webhook": Command("webhooks", "Post the messages of a topic to a URL.", RUNNING),
    "outbox": Command("outbox", "Publish what database transactions left in a table.", RUNNING),
    "import": Command(
        "imports", "Messages from elsewhere: LedgerQ, GoQueue, Kafka, files.", MESSAGES
    ),
    "export": Command("export", "Write the messages of a topic to a file or a folder.", MESSAGES),
    "backup": Command("backup", "Copy a data folder, also while it is in use.", RUNNING),
    "restore": Command("restore", "Make a data folder of a backup.", RUNNING),
    "namespace": Command("namespaces", "Tenants: their quotas, and what they use.", RUNNING),
    "key": Command("keys", "API keys of a server: create, list and revoke.", RUNNING),
    "config": Command("config", "The configuration of the server.", RUNNING),
}

EPILOG = """
[bold]Begin[/bold]

[cyan]  export PENSTOCK_DATA=./data[/cyan]

[cyan]  penstock topic create orders[/cyan]

[cyan]  penstock publish orders "12 apples" --key c-17[/cyan]

[cyan]  penstock consume orders --group billing[/cyan]

Commands work on a folder (--data) or a server (--url), print JSON with --json, and end with 0: done, 1: the answer is no, 2: called wrongly, 3: not found, 4: something is in the way, 5: not allowed, 6: try again later, 7: failed.
"""  # noqa: E501 - a line break in here would be one on the screen


def build(*wanted: str) -> typer.Typer:
    """The app, with these commands loaded; of the others it knows the name and one sentence."""
    app = typer.Typer(
        name="penstock",
        no_args_is_help=True,
        add_completion=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        epilog=EPILOG,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(penstock)
    for name, command in COMMANDS.items():
        if name not in wanted:
            app.command(name, help=command.help, rich_help_panel=command.panel)(_not_loaded)
            continue
        module = import_module(f"penstock.cli.{command.module}")
        if hasattr(module, "commands"):
            app.add_typer(
                module.commands,
                name=name,
                help=command.help,
                rich_help_panel=command.panel,
                no_args_is_help=True,
            )
        else:
            function = getattr(module, name)
            app.command(name, epilog=module.EXAMPLES, rich_help_panel=command.panel)(function)
    return app


def run() -> int:
    """Run the command that the arguments name."""
    words = sys.argv[1:]
    if "_PENSTOCK_COMPLETE" in os.environ:  # the shell asks what could come next
        words = os.environ.get("COMP_WORDS", "").split()[1:]
        words = words or os.environ.get("_TYPER_COMPLETE_ARGS", "").split()[1:]
    called = next((word for word in words if not word.startswith("-")), "")
    app = build(called)
    if not wants_json():
        app(prog_name="penstock")
        return Exit.OK
    return _run_for_a_program(app)


def _run_for_a_program(app: typer.Typer) -> int:
    """Run a command that was called with --json: wrong options are told as JSON, too."""
    try:
        return app(prog_name="penstock", standalone_mode=False) or Exit.OK
    except UsageError as exc:
        report(InvalidInput(exc.format_message()), Exit.USAGE)
        return Exit.USAGE
    except typer.Abort:  # Ctrl-C at a question
        report(KeyboardInterrupt(), Exit.INTERRUPTED)
        return Exit.INTERRUPTED


def _not_loaded() -> None:
    raise AssertionError("only the command that is called is loaded")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"penstock {__version__}")
        raise typer.Exit


def penstock(
    show_version: bool = typer.Option(
        False, "--version", help="Show the version.", callback=_print_version, is_eager=True
    ),
) -> None:
    """A durable message queue in Python: queues and streams on one log."""
