"""`penstock stats`: how the topics stand, once or live."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated

import msgspec
import typer

from penstock.cli import tables
from penstock.cli.completion import topic_names
from penstock.cli.session import Session, connected
from penstock.cli.units import duration, moment, size
from penstock.durations import parse_ns
from penstock.errors import InvalidInput
from penstock.model.stats import Alarm, LatencyStats, PriorityStats, TopicStats

EXAMPLES = """
[bold]Examples[/bold]

[cyan]  penstock stats[/cyan]

How long the messages of a topic wait, and are worked on:

[cyan]  penstock stats orders[/cyan]

[cyan]  penstock stats orders payments --json | jq '.topics[].depth'[/cyan]

What waits in each priority of it, and how quickly it comes and goes:

[cyan]  penstock stats orders --priorities[/cyan]

A screen that stays up to date; the busiest topics first:

[cyan]  penstock stats --watch --url http://localhost:8080[/cyan]
"""

_HEAD = (
    "topic",
    "messages",
    "size",
    "to do",
    "in flight",
    "delayed",
    "dead",
    "in/s",
    "out/s",
    "acked/s",
)
_COUNTER_HEAD = (
    "topic",
    "published",
    "delivered",
    "acked",
    "nacked",
    "rejected",
    "expired",
    "dead lettered",
)
LANE_HEAD = (
    "topic",
    "priority",
    "ready",
    "in flight",
    "in/s",
    "out/s",
    "last served (UTC)",
)
_ALARMS_MAX = 3  # on the live screen
_TO_THE_SECOND = len("2026-01-01 00:00:00")
_GROUP_HEAD = (
    "topic",
    "group",
    "to do",
    "in flight",
    "acked/s",
    "waited p50",
    "p95",
    "handled p50",
    "p95",
)


def _stats(
    session: Session,
    topic: Annotated[
        list[str] | None,
        typer.Argument(metavar="TOPIC", autocompletion=topic_names, help="Only these; else all."),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Keep a live screen, until Ctrl-C.")
    ] = False,
    every: Annotated[
        str, typer.Option(metavar="TIME", help="With --watch: how often to look.")
    ] = "1s",
    priorities: Annotated[
        bool, typer.Option("--priorities", help="By priority, of the topics that are named.")
    ] = False,
    counters: Annotated[
        bool,
        typer.Option("--counters", help="What became of the messages since the broker was opened."),
    ] = False,
) -> None:
    """How the topics stand, once or live.

    What is in them, what is to do, and the rates of the last ten seconds: messages in by publish,
    out to groups, and acked. With --watch, and of topics that are named, also their queue groups:
    how long messages waited for their first hand-out, and were worked on until their ack. With
    --watch and --json, a document a line. --priorities and --counters show other figures instead.
    """
    if (priorities or counters) and watch:
        raise InvalidInput("--watch shows neither --priorities nor --counters")
    if priorities:
        _show_priorities(session, topic)
    elif counters and not session.json:
        _show_counters(_look(session, topic))
    elif not watch:
        found = _look(session, topic)
        if session.json:
            tables.document({"topics": found, "totals": _totals(found)})
        else:
            _show(found, with_groups=bool(topic))
    else:
        _watch(session, topic, max(parse_ns(every, "every") / 1e9, 0.1))


def _watch(session: Session, topic: list[str] | None, every_s: float) -> None:
    try:
        if session.json or not sys.stdout.isatty():
            _watch_lines(session, topic, every_s)
        else:
            _watch_screen(session, topic, every_s)
    except KeyboardInterrupt:
        return  # that is how it ends


def _show(found: Sequence[TopicStats], *, with_groups: bool) -> None:
    tables.table(_HEAD, [_row(stats) for stats in found])
    for line in _alarm_lines(found):
        tables.say(line, "red")
    groups = _group_rows(found) if with_groups else []
    if groups:
        tables.say("")
        tables.table(_GROUP_HEAD, groups)
        tables.say("Times are of the last five minutes.", "dim")


def _show_counters(found: Sequence[TopicStats]) -> None:
    tables.table(
        _COUNTER_HEAD,
        [(stats.topic, *msgspec.structs.astuple(stats.counters)) for stats in found],
        cut=("topic",),
    )


def _show_priorities(session: Session, topics: list[str] | None) -> None:
    if not topics:
        raise InvalidInput("--priorities is of topics that are named")
    found = [session.ps.priority_stats(topic) for topic in topics]
    if session.json:
        tables.document({"topics": found})
        return
    tables.table(LANE_HEAD, lane_rows(found), cut=("topic",))


def lane_rows(found: Sequence[PriorityStats]) -> list[tuple[object, ...]]:
    return [
        (
            stats.topic,
            priority,
            lane.ready,
            lane.in_flight,
            float(lane.enqueue_rate),
            float(lane.dequeue_rate),
            None if lane.last_served_us is None else moment(lane.last_served_us)[:_TO_THE_SECOND],
        )
        for stats in found
        for priority, lane in stats.lanes.items()
    ]


def _group_rows(found: Sequence[TopicStats]) -> list[tuple[object, ...]]:
    """How each queue group of these topics gets on, and how long that takes."""
    return [
        (
            stats.topic,
            group.group,
            group.depth,
            group.in_flight,
            float(group.ack_rate),
            *_took(group.waited),
            *_took(group.handled),
        )
        for stats in found
        for group in stats.groups
    ]


def _alarm_lines(found: Sequence[TopicStats]) -> list[str]:
    """A sentence for each message that waits for too long."""
    return [
        f"{stats.topic}: {_who(alarm)} on partition {alarm.partition}, {duration(alarm.age_us)} old"
        for stats in found
        for alarm in stats.alarms
    ]


def _who(alarm: Alarm) -> str:
    if alarm.kind == "lag":
        return f"{alarm.mode} group {alarm.group} has work"
    return "nobody has read what is dropped soon"


def _took(latency: LatencyStats | None) -> tuple[str | None, str | None]:
    if latency is None:
        return None, None
    return duration(latency.p50_us), duration(latency.p95_us)


def _watch_lines(session: Session, topics: list[str] | None, every_s: float) -> None:
    while True:
        found = _look(session, topics)
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        if session.json:
            tables.line({"time": now, "topics": found, "totals": _totals(found)})
        else:
            tables.say(now, "dim")
            _show(found, with_groups=True)
        sys.stdout.flush()
        time.sleep(every_s)


def _watch_screen(session: Session, topics: list[str] | None, every_s: float) -> None:
    # Here, as it takes long to load, and only this needs it.
    from rich.console import Console  # noqa: PLC0415
    from rich.live import Live  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console = Console()
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            found = _look(session, topics)
            shown = screen(session.where.target, found, console.width, console.height)
            text = Text(no_wrap=True, overflow="crop")
            for line, style in shown:
                text.append(f"{line}\n", style)
            live.update(text, refresh=True)
            time.sleep(every_s)


def screen(
    target: str, found: Sequence[TopicStats], width: int, height: int
) -> list[tuple[str, str]]:
    """The lines of the live screen with their styles: the busiest topics, then their groups."""
    totals = _totals(found)
    now = datetime.now(UTC).strftime("%H:%M:%S UTC")
    counted = f"{len(found):,} topics, {totals['messages']:,.0f} messages"
    title = f"{now}   {counted}, {size(int(totals['size_bytes']))}   {target}"
    busy = sorted(found, key=lambda s: (-(s.publish_rate + s.ack_rate), -s.depth, s.topic))
    groups = _group_rows(busy)
    alarms = _alarm_lines(busy)[:_ALARMS_MAX]
    room = height - 9 - len(alarms)  # title, two heads of up to two lines, what is between, below
    topic_height = _height(_HEAD, [_row(stats) for stats in busy[: max(1, room)]], width)
    group_height = _height(_GROUP_HEAD, groups[: max(1, room)], width)
    room -= (topic_height > 1) + (group_height > 1)  # their heads are higher, too
    for_groups = max(room // 2, room - len(busy) * topic_height) // group_height
    for_groups = min(len(groups), for_groups)
    shown = busy[: max(1, (room - for_groups * group_height) // topic_height)]
    lines = [(title, "bold"), ("", "")]
    styles = [
        "red"
        if stats.dead or stats.alarms
        else "yellow"
        if stats.depth and not stats.ack_rate
        else ""
        for stats in shown
    ]
    lines += _styled(tables.lines(_HEAD, [_row(stats) for stats in shown], width), styles)
    if groups[:for_groups]:
        rows = tables.lines(_GROUP_HEAD, groups[:for_groups], width)
        lines += [("", ""), *_styled(rows, [""] * for_groups)]
    lines += [(line[:width], "red") for line in alarms]
    hidden = [
        f"{left:,} more {what}"
        for left, what in (
            (len(busy) - len(shown), "topics"),
            (len(groups) - for_groups, "groups"),
        )
        if left > 0
    ]
    hint = "red: dead letters, alarms; yellow: work that nobody does; Ctrl-C ends"
    return [*lines, (f"and {' and '.join(hidden)}" if hidden else "", "dim"), (hint, "dim")]


def _styled(rows: list[list[str]], styles: Sequence[str]) -> list[tuple[str, str]]:
    head, *body = rows
    return [
        *((line, "dim") for line in head),
        *((line, style) for row, style in zip(body, styles, strict=True) for line in row),
    ]


def _height(columns: Sequence[str], rows: Sequence[tuple[object, ...]], width: int) -> int:
    """How many lines a row has: long names have one of their own."""
    return len(tables.lines(columns, rows, width)[-1]) if rows else 1


def _look(session: Session, topics: list[str] | None) -> list[TopicStats]:
    return [session.ps.stats(topic) for topic in topics] if topics else session.ps.all_stats()


def _row(stats: TopicStats) -> tuple[object, ...]:
    return (
        stats.topic,
        stats.messages,
        size(stats.size_bytes),
        stats.depth,
        stats.in_flight,
        stats.delayed,
        stats.dead,
        float(stats.publish_rate),
        float(stats.deliver_rate),
        float(stats.ack_rate),
    )


def _totals(found: Sequence[TopicStats]) -> dict[str, float]:
    names = ("messages", "size_bytes", "depth", "in_flight", "delayed", "dead")
    rates = ("publish_rate", "deliver_rate", "ack_rate")
    return {name: sum(getattr(stats, name) for stats in found) for name in (*names, *rates)}


stats = connected(_stats)
