"""`penstock trace`: what happened to a message, from publish to ack."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Annotated

import typer

from penstock.cli import tables, values
from penstock.cli.completion import topic_names
from penstock.cli.exits import Exit
from penstock.cli.output import write_line
from penstock.cli.session import Session, connected
from penstock.cli.units import duration, moment
from penstock.errors import InvalidInput
from penstock.model.traces import Trace, TraceEvent

EXAMPLES = """
[bold]Examples[/bold]

Where is my message? By its id, by a trace id, by where it lies:

[cyan]  penstock trace 01M7RCBFDTRVJ1Y5CBMPJ00001[/cyan]

[cyan]  penstock trace 4bf92f3577b34da6a3ce929d0e0e4736[/cyan]

[cyan]  penstock trace --topic orders --partition 0 --offset 1200[/cyan]

The messages of a key, and all to which something happened in the last ten minutes:

[cyan]  penstock trace --topic orders --key c-17[/cyan]

[cyan]  penstock trace --topic orders --since -10m --json | jq .events[][/cyan]
"""

_ID_LETTERS, _TRACE_LETTERS = 26, 32


def _trace(
    session: Session,
    which: Annotated[
        str | None,
        typer.Argument(metavar="[ID]", help="The id of a message (26 letters) or of a trace (32)."),
    ] = None,
    topic: Annotated[
        str | None, typer.Option(autocompletion=topic_names, help="Messages of this topic.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="Those with this key.")] = None,
    partition: Annotated[int | None, typer.Option(min=0, help="With --offset: one.")] = None,
    offset: Annotated[int | None, typer.Option(min=0, help="With --partition: one.")] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="From a time on, or how long ago (-2h); by default -1h."),
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="Before a time; by default now.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="So many messages.")] = 20,
) -> None:
    """What happened to a message.

    Published, delivered, acked, and all in between. With --json, a life a line. Ends with 1 if
    nothing is known.
    """
    left, after = limit, None
    found = 0
    message_id, trace_id = _ids(which)
    while left > 0:
        page = session.ps.trace(
            topic,
            message_id=message_id,
            trace_id=trace_id,
            key=key,
            partition=partition,
            offset=offset,
            since=_time(since, "since"),
            until=_time(until, "until"),
            after=after,
            limit=min(left, 1000),
        )
        for each in page:
            if session.json:
                tables.line(each)
            else:
                _show(each, is_first=not found)
            found += 1
        left -= len(page)
        after = page.next
        if after is None:
            break
    if not found:
        if not session.json:
            tables.say(
                "Nothing is known: it was not traced (see trace_sample), is too old, or never was."
            )
        raise typer.Exit(Exit.NO)


def _ids(which: str | None) -> tuple[str | None, str | None]:
    if which is None or len(which) == _ID_LETTERS:
        return which, None
    if len(which) == _TRACE_LETTERS:
        return None, which
    raise InvalidInput(
        f"{which!r:.100} is neither the id of a message, which has {_ID_LETTERS} letters, nor that "
        f"of a trace, which has {_TRACE_LETTERS}"
    )


def _time(text: str | None, name: str) -> datetime | None:
    if text is None:
        return None
    found = values.position(text, name)
    if not isinstance(found, datetime):
        raise InvalidInput(f"{name} is {text!r:.100}; give a time, or how long ago, such as -2h")
    return found


def _show(trace: Trace, *, is_first: bool) -> None:
    if not is_first:
        write_line("")
    where = f"{trace.topic}, partition {trace.partition}"
    if trace.offset is not None:
        where += f", offset {trace.offset}"
    write_line(f"{trace.id or 'a message'} of {where}")
    if trace.trace_id:
        write_line((f"trace {trace.trace_id}", "dim"))
    before_us = trace.events[0].at_us
    for event in trace.events:
        when = f"+{duration(event.at_us - before_us)}"
        if event is trace.events[0]:
            when = moment(event.at_us)
        write_line(f"  {when:>23}  {event.event:<13}  {', '.join(_said(event, trace))}".rstrip())


def _said(event: TraceEvent, trace: Trace) -> Iterator[str]:
    if event.topic != trace.topic or event.event in ("moved", "redriven"):
        yield f"{event.topic} {event.partition}:{event.offset}"
    if event.group:
        yield f"group {event.group}"
    if event.consumer:
        yield f"consumer {event.consumer}"
    if event.delivery_count > 1:
        yield f"delivery {event.delivery_count}"
    if event.until_us is not None and event.event in _UNTIL:
        yield f"{_UNTIL[event.event]} {moment(event.until_us)}"
    if event.error:
        yield event.error


_UNTIL = {
    "scheduled": "due",
    "delivered": "held until",
    "extended": "held until",
    "nacked": "again from",
    "lease_expired": "again from",
}

trace = connected(_trace)
