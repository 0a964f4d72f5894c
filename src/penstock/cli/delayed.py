"""`penstock delayed`: messages that wait for their time."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli import tables
from penstock.cli.completion import topic_names
from penstock.cli.exits import Exit
from penstock.cli.peek import message_fields, preview
from penstock.cli.session import Session, command
from penstock.cli.units import moment

commands = typer.Typer()

Topic = Annotated[
    str, typer.Argument(metavar="TOPIC", autocompletion=topic_names, help="The name of the topic.")
]


@command(commands, "list")
def list_(
    session: Session,
    topic: Topic,
    limit: Annotated[int, typer.Option(min=1, help="So many at the most.")] = 100,
) -> None:
    """List messages that wait, in the order in which they were published.

    With --json, an object a line.
    """
    found = list(session.ps.delayed(topic, limit))
    if session.json:
        for each in found:
            fields = message_fields(topic, None, each.message)
            # Where it lies while it waits says nothing about where it will be.
            kept = {k: v for k, v in fields.items() if k not in ("offset", "timestamp_us")}
            tables.line({**kept, "id": each.id, "deliver_at_us": each.deliver_at_us})
        return
    tables.table(
        ("id", "due (UTC)", "key", "value"),
        [
            (
                each.id,
                moment(each.deliver_at_us),
                preview(each.message.key),
                preview(each.message.value),
            )
            for each in found
        ],
        cut=("key", "value"),
    )


@command(commands)
def cancel(
    session: Session,
    topic: Topic,
    ids: Annotated[list[str], typer.Argument(metavar="ID", help="As publish and list show it.")],
) -> None:
    """Take delayed messages back. Ends with 1 if one of them is delivered or cancelled already."""
    gone = [id_ for id_ in ids if not session.ps.cancel(topic, id_)]
    if session.json:
        cancelled = [id_ for id_ in ids if id_ not in gone]
        tables.document({"topic": topic, "cancelled": cancelled, "too_late": gone})
    else:
        tables.say(f"{len(ids) - len(gone):,} cancelled")
        for id_ in gone:
            tables.say(f"{id_} is delivered or cancelled already", "yellow")
    if gone:
        raise typer.Exit(Exit.NO)


@command(commands)
def stats(
    session: Session,
    topic: Annotated[
        str | None,
        typer.Argument(metavar="TOPIC", autocompletion=topic_names, help="One only; else all."),
    ] = None,
) -> None:
    """How many messages wait, when the next of them falls due, and what became of the others since
    the broker was opened: delivered, cancelled, or expired before they fell due."""
    found = session.ps.delay_stats(topic)
    if session.json:
        tables.document({"topic": topic, "stats": found})
        return
    due = None if found.next_due_us is None else moment(found.next_due_us)
    tables.facts(
        [
            ("pending", found.pending),
            ("next due (UTC)", due),
            ("delivered", found.delivered),
            ("cancelled", found.cancelled),
            ("expired", found.expired),
        ]
    )
