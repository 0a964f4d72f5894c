"""`penstock search`: look for messages by what is in them."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli import tables, values
from penstock.cli.completion import topic_names
from penstock.cli.peek import message_fields, preview
from penstock.cli.session import Session, connected
from penstock.cli.units import moment

EXAMPLES = """
[bold]Examples[/bold]

The newest order of a customer, by what is in its JSON:

[cyan]  penstock search orders --pointer /customer/id --equals 17 --newest --limit 1[/cyan]

By key and header, from an hour ago on:

[cyan]  penstock search orders --key c-17 --header type=order --at -1h[/cyan]
"""


def _search(
    session: Session,
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", autocompletion=topic_names, help="Where to look.")
    ],
    value: Annotated[str | None, typer.Option(metavar="TEXT", help="Is in the value.")] = None,
    key: Annotated[str | None, typer.Option(metavar="TEXT", help="Is in the key.")] = None,
    header: Annotated[
        str | None, typer.Option(metavar="NAME[=TEXT]", help="Has this header, with this in it.")
    ] = None,
    pointer: Annotated[
        str | None, typer.Option(metavar="POINTER", help="A JSON pointer that leads somewhere.")
    ] = None,
    equals: Annotated[
        str | None, typer.Option(metavar="JSON", help="What is there: JSON, or text.")
    ] = None,
    priority: Annotated[str | None, typer.Option(help="Of this priority.")] = None,
    partition: Annotated[int | None, typer.Option(min=0, help="In this partition.")] = None,
    at: Annotated[
        str | None,
        typer.Option(metavar="POSITION", help="From an offset, a time, or how long ago (-2h)."),
    ] = None,
    newest: Annotated[bool, typer.Option("--newest", help="The newest first.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="So many messages at the most.")] = 20,
) -> None:
    """Look for messages by what is in them.

    All that is given has to fit. With --json, an object a line.
    """
    found = session.ps.search(
        topic,
        value=value,
        key=key,
        header=header,
        pointer=pointer,
        equals=equals,
        priority=priority,
        partition=partition,
        at=None if at is None else values.position(at, "at"),
        backward=newest,
        limit=limit,
    )
    if session.json:
        for each in found:
            tables.line(message_fields(topic, each.partition, each.message))
        return
    tables.table(
        ("partition", "offset", "time (UTC)", "key", "value"),
        [
            (
                each.partition,
                each.message.offset,
                moment(each.message.timestamp_us),
                preview(each.message.key),
                preview(each.message.value),
            )
            for each in found
        ],
        cut=("key", "value"),
    )


search = connected(_search)
