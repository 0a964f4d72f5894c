"""`penstock namespace`: tenants, what they may use, and what they do."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from penstock.cli import tables, values
from penstock.cli.session import Session, Yes, command
from penstock.cli.units import moment
from penstock.model.namespaces import NamespaceDescription

commands = typer.Typer()

EXAMPLES = """
[bold]Examples[/bold]

[cyan]  penstock namespace create shop[/cyan]

[cyan]  penstock namespace quotas shop publish_messages=1000 storage_bytes=10000000000 topics=50[/cyan]

[cyan]  penstock namespace describe shop[/cyan]
"""  # noqa: E501 - a line break in here would be one on the screen

Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the namespace.")]


@command(commands, examples=EXAMPLES)
def create(session: Session, name: Name) -> None:
    """Make a namespace, unless it is there."""
    _show(session, session.ps.create_namespace(name))


@command(commands, "list")
def list_(session: Session) -> None:
    """The namespaces that were made or have topics."""
    for name in session.ps.namespaces():
        if session.json:
            tables.line({"namespace": name})
        else:
            tables.say(name)


@command(commands)
def describe(session: Session, name: Name) -> None:
    """What a namespace may use, and what it does use."""
    _show(session, session.ps.describe_namespace(name))


@command(commands)
def quotas(
    session: Session,
    name: Name,
    given: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME=VALUE",
            help="publish_messages, publish_bytes, receive_messages, receive_bytes (a second), "
            "storage_bytes, topics, partitions, groups, connections, delayed, schedules, webhooks, "
            "message_bytes, retention, policy (delay, refuse, warn).",
        ),
    ] = None,
) -> None:
    """Set the quotas of a namespace, in place of those that it had; nothing: no quotas."""
    options: dict[str, Any] = values.settings(given)
    _show(session, session.ps.set_quotas(name, **options))


@command(commands)
def delete(
    session: Session,
    name: Name,
    force: Annotated[
        bool, typer.Option("--force", help="With its topics, schedules and webhooks.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Delete a namespace and its quotas. Ends with 1 if there was none."""
    session.confirm(f"Delete namespace {name}{' with all that is in it' * force}?", yes)
    found = session.ps.delete_namespace(name, force=force)
    if session.json:
        tables.document({"found": found})
    else:
        tables.say(f"namespace {name} is deleted" if found else f"there is no namespace {name}")
    if not found:
        raise typer.Exit(1)


@command(commands)
def audit(
    session: Session,
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Of this one; by default of all.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="So many entries.")] = 50,
) -> None:
    """Who did what to a server, newest first."""
    page = session.ps.audit(name, limit=limit)
    if session.json:
        for each in page.entries:
            tables.line(each)
        return
    tables.table(
        ("time (UTC)", "who", "from", "did", "namespace", "to", "said", "refused"),
        [
            (
                moment(each.at_us),
                each.actor,
                each.address,
                each.action,
                each.namespace,
                each.target,
                each.detail,
                each.error,
            )
            for each in page.entries
        ],
        cut=("said",),
    )


def _show(session: Session, described: NamespaceDescription) -> None:
    if session.json:
        tables.document(described)
        return
    used = msgspec.structs.asdict(described.usage)
    allowed = msgspec.structs.asdict(described.quotas)
    policy = allowed.pop("policy")
    tables.say(f"namespace {described.namespace}, policy {policy}")
    tables.table(
        ("what", "quota", "used"),
        [(what, quota, _shown(used.get(what))) for what, quota in allowed.items()],
    )


def _shown(value: float | None) -> float | None:
    return round(value, 1) if isinstance(value, float) else value
