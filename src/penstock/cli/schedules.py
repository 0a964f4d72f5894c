"""`penstock schedule`: messages that are published again and again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, get_args
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import typer

from penstock.cli import tables, values
from penstock.cli.completion import topic_names
from penstock.cli.exits import Exit
from penstock.cli.peek import preview
from penstock.cli.publish import Headers, Key, Priority, Ttl
from penstock.cli.session import Session, Yes, command
from penstock.cli.units import duration, moment
from penstock.errors import InvalidInput
from penstock.model.schedules import ScheduleDescription, ScheduleFire
from penstock.schedule.definition import CatchUpPolicy, Overlap

commands = typer.Typer()

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the schedule.")]

PUT = """
[bold]Examples[/bold]

Each night, as the clocks in Berlin show it:

[cyan]  penstock schedule put nightly --topic jobs --value report --cron "30 2 * * *" --timezone Europe/Berlin[/cyan]

Every quarter of an hour, each time at another moment of the first minute, unless the last one is still at work:

[cyan]  penstock schedule put poll --topic jobs --every 15m --jitter 1m --overlap skip --group workers[/cyan]

Once:

[cyan]  penstock schedule put launch --topic jobs --at 2030-01-31T12:00:00Z[/cyan]
"""  # noqa: E501 - a line break in here would be one on the screen


@command(commands, examples=PUT)
def put(
    session: Session,
    name: Name,
    topic: Annotated[
        str,
        typer.Option("--topic", metavar="TOPIC", autocompletion=topic_names, help="Where to."),
    ],
    value: Annotated[str | None, typer.Option(help="The value of the messages.")] = None,
    key: Key = None,
    headers: Headers = None,
    priority: Priority = None,
    ttl: Ttl = None,
    cron: Annotated[
        str | None,
        typer.Option(help='Minute, hour, day, month, weekday, as in "30 2 * * *"; or @daily.'),
    ] = None,
    every: Annotated[
        str | None, typer.Option(metavar="TIME", help="At this interval, from 10ms up.")
    ] = None,
    at: Annotated[str | None, typer.Option(metavar="MOMENT", help="Once, at this moment.")] = None,
    timezone: Annotated[
        str, typer.Option(metavar="ZONE", help="In which --cron is meant, as Europe/Berlin.")
    ] = "UTC",
    start: Annotated[
        str | None, typer.Option(metavar="MOMENT", help="No fire before this moment.")
    ] = None,
    end: Annotated[
        str | None, typer.Option(metavar="MOMENT", help="No fire after this moment.")
    ] = None,
    jitter: Annotated[
        str | None, typer.Option(metavar="TIME", help="Each fire is late by up to so much.")
    ] = None,
    overlap: Annotated[
        str,
        typer.Option(
            help="While --group has not settled the last message: allow, skip, buffer_one."
        ),
    ] = "allow",
    group: Annotated[
        str | None, typer.Option(metavar="GROUP", help="Whose settling counts for --overlap.")
    ] = None,
    catch_up: Annotated[
        str, typer.Option(metavar="TIME", help="How long ago a missed fire may be made up for.")
    ] = "1d",
    catch_up_policy: Annotated[
        str, typer.Option(help="Of the fires that were missed make: last, all, none.")
    ] = "last",
    paused: Annotated[
        bool | None, typer.Option("--paused/--not-paused", help="By default as it is.")
    ] = None,
) -> None:
    """Make a schedule, or change the one of that name."""
    found = session.ps.schedule(
        name,
        topic=topic,
        value=value,
        key=key,
        headers=values.headers(headers),
        priority=priority or "normal",
        ttl=ttl,
        cron=cron,
        every=every,
        at=_moment("at", at),
        timezone=timezone,
        start=_moment("start", start),
        end=_moment("end", end),
        jitter=jitter,
        overlap=_one_of("overlap", overlap, Overlap),
        group=group,
        catch_up=catch_up,
        catch_up_policy=_one_of("catch_up_policy", catch_up_policy, CatchUpPolicy),
        paused=paused,
    )
    _show(session, found)


@command(commands, "list")
def list_(session: Session) -> None:
    """List the schedules of a namespace, with their next fires.

    With --json, an object a line.
    """
    if session.json:
        for each in session.ps.schedules():
            tables.line(each)
        return
    tables.table(
        ("schedule", "topic", "when", "next (UTC)", "next (its zone)", "fired", "state"),
        [
            (
                each.name,
                each.topic,
                _when(each),
                *_next(each),
                each.fired,
                _state(each),
            )
            for each in session.ps.schedules()
        ],
        cut=("when", "state"),
        drop=("next (its zone)",),
    )


@command(commands)
def describe(session: Session, name: Name) -> None:
    """Show a schedule, its next ten fires and its last twenty."""
    _show(session, session.ps.describe_schedule(name))


@command(commands)
def pause(session: Session, name: Name) -> None:
    """No fires until it is resumed; those in between are not made up for."""
    _show(session, session.ps.pause_schedule(name))


@command(commands)
def resume(session: Session, name: Name) -> None:
    """Go on with the next fire after now."""
    _show(session, session.ps.resume_schedule(name))


@command(commands)
def trigger(session: Session, name: Name) -> None:
    """Fire once now, paused or not."""
    fire = session.ps.trigger_schedule(name)
    if session.json:
        tables.document({"schedule": name, "fire": fire})
    else:
        tables.say(f"fire {fire.number:,} of {name}: message {fire.id}")


@command(commands)
def backfill(
    session: Session,
    name: Name,
    since: Annotated[str, typer.Argument(metavar="SINCE", help="From this moment on.")],
    until: Annotated[str, typer.Argument(metavar="UNTIL", help="Up to this moment.")],
    yes: Yes = False,
) -> None:
    """Make all fires of a time that is over, again or for the first time; at most 1,000."""
    first, last = values.moment(since, "since"), values.moment(until, "until")
    session.confirm(f"Make all fires of {name} from {since} to {until}?", yes)
    count = session.ps.backfill_schedule(name, first, last)
    if session.json:
        tables.document({"schedule": name, "fired": count})
    else:
        tables.say(f"{count:,} fires")


@command(commands)
def delete(session: Session, name: Name, yes: Yes = False) -> None:
    """It fires no more; what it has published stays. Ends with 1 if there is none."""
    session.confirm(f"Delete schedule {name}?", yes)
    found = session.ps.delete_schedule(name)
    if session.json:
        tables.document({"schedule": name, "deleted": found})
    else:
        tables.say(f"schedule {name} is deleted" if found else f"there is no schedule {name}")
    if not found:
        raise typer.Exit(Exit.NO)


def _show(session: Session, found: ScheduleDescription) -> None:
    if session.json:
        tables.document(found)
        return
    optional = [
        ("value", preview(found.value_bytes()) if found.value_bytes() is not None else None),
        ("key", preview(found.key_bytes()) if found.key_bytes() is not None else None),
        ("start (UTC)", None if found.start_us is None else moment(found.start_us)),
        ("end (UTC)", None if found.end_us is None else moment(found.end_us)),
        ("jitter", found.jitter),
        ("group", found.group),
        ("buffered (UTC)", None if found.buffered_us is None else moment(found.buffered_us)),
        ("error", found.error or None),
    ]
    tables.facts(
        [
            ("schedule", found.name),
            ("topic", found.topic),
            ("when", _when(found)),
            ("time zone", found.timezone),
            ("state", "paused" if found.paused else "active"),
            ("fired", found.fired),
            ("skipped", found.skipped),
            ("overlap", found.overlap),
            ("catch up", f"{found.catch_up_policy}, within {found.catch_up}"),
            *((name, value) for name, value in optional if value is not None),
        ]
    )
    if found.next_us:
        tables.say("")
        rows = [(moment(each), _local(each, found.timezone)) for each in found.next_us]
        if found.timezone == "UTC":
            tables.table(("next (UTC)",), [row[:1] for row in rows])
        else:
            tables.table(("next (UTC)", f"next ({found.timezone})"), rows)
    if found.last:
        tables.say("")
        tables.table(
            ("fire", "for (UTC)", "late", "kind", "message"),
            [
                (
                    fire.number,
                    moment(fire.scheduled_for_us),
                    _late(fire),
                    fire.kind,
                    fire.id or fire.error or "not published yet",
                )
                for fire in found.last
            ],
            cut=("message",),
        )


def _when(found: ScheduleDescription) -> str:
    if found.cron is not None:
        return found.cron
    if found.every is not None:
        return f"every {found.every}"
    return f"at {moment(found.at_us or 0)}"


def _next(found: ScheduleDescription) -> tuple[str | None, str | None]:
    if not found.next_us:
        return None, None
    return moment(found.next_us[0]), _local(found.next_us[0], found.timezone)


def _state(found: ScheduleDescription) -> str:
    if found.paused:
        return "paused"
    return found.error or ("active" if found.next_us else "over")


def _local(moment_us: int, zone: str) -> str:
    """A time as the clocks of a zone show it, with how far they are from UTC."""
    at = _EPOCH + timedelta(microseconds=moment_us)
    try:
        local = at.astimezone(ZoneInfo(zone))
    except ZoneInfoNotFoundError:  # the broker's machine knows it, this one does not
        return "-"
    return local.strftime("%Y-%m-%d %H:%M:%S %z")


def _late(fire: ScheduleFire) -> str | None:
    late_us = fire.fired_at_us - fire.scheduled_for_us
    return duration(late_us) if fire.kind == "scheduled" and late_us >= 0 else None


def _moment(name: str, text: str | None) -> datetime | None:
    return None if text is None else values.moment(text, name)


def _one_of(name: str, text: str, kind: Any) -> Any:
    """One of the words of a Literal."""
    if text not in get_args(kind):
        raise InvalidInput(f"{name} is {text!r:.100}; allowed: {', '.join(get_args(kind))}")
    return text
