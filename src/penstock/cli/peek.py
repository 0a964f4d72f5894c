"""`penstock peek`: look at messages without taking them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from penstock.cli import tables, values
from penstock.cli.completion import topic_names
from penstock.cli.session import Session, connected
from penstock.cli.units import moment
from penstock.record.batch import Message
from penstock.record.schema import Priority
from penstock.wire.json_forms import view

EXAMPLES = """
[bold]Examples[/bold]

The oldest ten messages, of all partitions:

[cyan]  penstock peek orders[/cyan]

From an offset, from a time, from an hour ago:

[cyan]  penstock peek orders --partition 3 --at 1200 --limit 5[/cyan]

[cyan]  penstock peek orders --at 2030-01-31T12:00:00Z[/cyan]

[cyan]  penstock peek orders --at -1h --json | jq .headers[/cyan]
"""

_SHOWN = 80


def _peek(
    session: Session,
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", autocompletion=topic_names, help="Where to look.")
    ],
    partition: Annotated[
        int | None, typer.Option(min=0, help="In this partition; by default in all, by time.")
    ] = None,
    at: Annotated[
        str,
        typer.Option(
            metavar="POSITION", help="From earliest, an offset, a time, or how long ago (-2h)."
        ),
    ] = "earliest",
    limit: Annotated[int, typer.Option(min=0, help="So many messages.")] = 10,
) -> None:
    """Look at messages without taking them.

    With --json, an object a line.
    """
    found = session.ps.peek(topic, partition=partition, at=values.position(at, "at"), limit=limit)
    if session.json:
        for message in found:
            tables.line(message_fields(topic, message.partition, message))
        return
    tables.table(
        ("partition", "offset", "time (UTC)", "priority", "key", "value"),
        [
            (
                str(m.partition),
                str(m.offset),
                moment(m.timestamp_us),
                Priority(m.priority).name.lower(),
                preview(m.key),
                preview(m.value),
            )
            for m in found
        ],
        cut=("key", "value"),
    )


def message_fields(topic: str, partition: int | None, message: Message) -> dict[str, Any]:
    """A message as JSON has it, with its place."""
    place: dict[str, Any] = {"topic": topic}
    if partition is not None:
        place["partition"] = partition
    return {**place, **msgspec.to_builtins(view(message))}


def preview(data: bytes | None, length: int = _SHOWN) -> str | None:
    """The beginning of a value, as text."""
    if data is None:
        return None
    text = data[: 4 * length].decode(errors="backslashreplace")
    return text if len(text) <= length else text[: length - 3] + "..."


peek = connected(_peek)
