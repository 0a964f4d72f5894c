"""`penstock stats`: how the topics stand, once or live."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from penstock.cli import tables
from penstock.cli.completion import topic_names
from penstock.cli.session import Session, connected
from penstock.cli.units import duration, size
from penstock.durations import parse_ns
from penstock.model.stats import LatencyStats, TopicStats

EXAMPLES = """
[bold]Examples[/bold]

[cyan]  penstock stats[/cyan]

How long the messages of a topic wait, and are worked on:

[cyan]  penstock stats orders[/cyan]

[cyan]  penstock stats orders payments --json | jq '.topics[].depth'[/cyan]

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
    "published/s",
    "delivered/s",
    "acked/s",
)
_GROUP_HEAD = (
    "topic",
    "group",
    "to do",
    "in flight",
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
) -> None:
    """How the topics stand, once or live.

    What is in them, what is to do, and the rates of the last ten seconds. Of topics that are named
    also their queue groups: how long messages waited for their first hand-out, and were worked on
    until their ack. With --watch and --json, a document a line.
    """
    if not watch:
        found = _look(session, topic)
        if session.json:
            tables.document({"topics": found, "totals": _totals(found)})
        else:
            tables.table(_HEAD, [_row(stats) for stats in found])
            if topic:
                _show_groups(found)
        return
    every_s = max(parse_ns(every, "every") / 1e9, 0.1)
    try:
        if session.json or not sys.stdout.isatty():
            _watch_lines(session, topic, every_s)
        else:
            _watch_screen(session, topic, every_s)
    except KeyboardInterrupt:
        return  # that is how it ends


def _show_groups(found: Sequence[TopicStats]) -> None:
    """How each queue group of these topics gets on, and how long that takes."""
    rows = [
        (
            stats.topic,
            group.group,
            group.depth,
            group.in_flight,
            *_took(group.waited),
            *_took(group.handled),
        )
        for stats in found
        for group in stats.groups
    ]
    if rows:
        tables.say("")
        tables.table(_GROUP_HEAD, rows)
        tables.say("Times are of the last five minutes.", "dim")


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
            tables.table(_HEAD, [_row(stats) for stats in found])
        sys.stdout.flush()
        time.sleep(every_s)


def _watch_screen(session: Session, topics: list[str] | None, every_s: float) -> None:
    console = Console()
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            found = _look(session, topics)
            live.update(_screen(session.where.target, found, console.height), refresh=True)
            time.sleep(every_s)


def _screen(target: str, found: Sequence[TopicStats], height: int) -> Group:
    totals = _totals(found)
    now = datetime.now(UTC).strftime("%H:%M:%S UTC")
    title = Text.assemble(
        (f"{target}  ", "bold"),
        (f"{now}   ", "dim"),
        f"{len(found):,} topics, {totals['messages']:,.0f} messages, ",
        size(int(totals["size_bytes"])),
    )
    busy = sorted(found, key=lambda s: (-(s.publish_rate + s.ack_rate), -s.depth, s.topic))
    room = max(1, height - 6)
    table = Table(box=None, pad_edge=False, header_style="dim", expand=True)
    for number, name in enumerate(_HEAD):
        table.add_column(name, justify="left" if number == 0 else "right", no_wrap=True)
    for stats in busy[:room]:
        style = "red" if stats.dead else "yellow" if stats.depth and not stats.ack_rate else ""
        table.add_row(*map(tables.cell, _row(stats)), style=style)
    hidden = Text(f"and {len(busy) - room:,} more" if len(busy) > room else "", style="dim")
    hint = Text("red: dead letters; yellow: work that nobody does; Ctrl-C ends", style="dim")
    return Group(title, Text(), table, hidden, hint)


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
