"""`penstock topic`: create, list, describe, alter, purge, delete."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from penstock.cli import tables, values
from penstock.cli.completion import topic_names
from penstock.cli.session import Session, Yes, command
from penstock.cli.units import moment, size
from penstock.durations import text
from penstock.errors import InvalidInput
from penstock.model.settings import TopicSettings

commands = typer.Typer()

NewTopic = Annotated[str, typer.Argument(metavar="TOPIC", help="The name of the topic.")]
Topic = Annotated[
    str, typer.Argument(metavar="TOPIC", autocompletion=topic_names, help="The name of the topic.")
]
Settings = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="NAME=VALUE",
        help="Settings: partitions, visibility, max_retries, backoff, ttl, retention, "
        "retention_bytes, retention_mode, fsync, codec, ordered_by_key, dedup_window, compacted "
        "and more; a wrong one is answered with all of them.",
    ),
]

CREATE = """
[bold]Examples[/bold]

[cyan]  penstock topic create orders[/cyan]

Four partitions, kept for a day, and safe against a power cut at any instant:

[cyan]  penstock topic create orders partitions=4 retention=1d fsync=always[/cyan]

Five retries, after 1 s, 3 s, 9 s and so on up to 2 minutes:

[cyan]  penstock topic create orders max_retries=5 backoff=1s,3,2m[/cyan]
"""


@command(commands, examples=CREATE, makes_folder=True)
def create(
    session: Session,
    topic: NewTopic,
    settings: Settings = None,
    partitions: Annotated[
        int | None, typer.Option("--partitions", help="The same as partitions=N.")
    ] = None,
    exist_ok: Annotated[
        bool, typer.Option("--exist-ok", help="It is no error if the topic is there already.")
    ] = False,
) -> None:
    """Create a topic. With --data the folder is made, too, if it is not there."""
    chosen = values.settings(settings)
    if partitions is not None:
        chosen["partitions"] = partitions
    made = session.ps.create_topic(topic, exist_ok=exist_ok, **chosen)
    if session.json:
        tables.document({"topic": topic, "settings": made})
    else:
        tables.say(f"topic {topic} with {made.partitions} partition{'s' * (made.partitions > 1)}")


@command(commands, "list")
def list_(session: Session) -> None:
    """List the topics of a namespace, with what is in them."""
    found = session.ps.all_stats()
    if session.json:
        tables.document({"topics": found})
        return
    tables.table(
        ("topic", "partitions", "messages", "size", "to do", "in flight", "delayed", "dead"),
        [
            (
                each.topic,
                len(each.partitions),
                each.messages,
                size(each.size_bytes),
                each.depth,
                each.in_flight,
                each.delayed,
                each.dead,
            )
            for each in found
        ],
    )


@command(commands)
def describe(session: Session, topic: Topic) -> None:
    """Show the settings of a topic, its partitions and its groups."""
    settings, stats = session.ps.describe_topic(topic), session.ps.stats(topic)
    if session.json:
        tables.document({"topic": topic, "settings": settings, "stats": stats})
        return
    made = [("created (UTC)", stats.created_us), ("updated (UTC)", stats.updated_us)]
    times = [(name, None if at_us is None else moment(at_us)) for name, at_us in made]
    tables.facts(_readable(settings))
    tables.say("")
    tables.facts(times)
    tables.say("")
    tables.table(
        (
            "partition",
            "offsets",
            "up to",
            "durable to",
            "size",
            "segments",
            "damaged",
            "published/s",
        ),
        [
            (
                p.partition,
                p.start,
                p.end,
                p.durable_end,
                size(p.size_bytes),
                p.segments,
                p.damaged,
                p.publish_rate,
            )
            for p in stats.partitions
        ],
    )
    if stats.groups:
        tables.say("")
        tables.table(
            ("queue group", "to do", "ready", "in flight", "retrying", "acked/s"),
            [
                (g.group, g.depth, g.ready, g.in_flight, g.retrying, g.ack_rate)
                for g in stats.groups
            ],
        )


ALTER = """
[bold]Examples[/bold]

[cyan]  penstock topic alter orders retention=30d max_retries=10[/cyan]

More partitions; they can be added, never taken away:

[cyan]  penstock topic alter orders partitions=8[/cyan]

No limit any more:

[cyan]  penstock topic alter orders retention=null[/cyan]
"""


@command(commands, examples=ALTER)
def alter(session: Session, topic: Topic, settings: Settings = None) -> None:
    """Change settings, or add partitions, while the topic is in use."""
    if not settings:
        raise InvalidInput("say what to change, such as retention=30d; `describe` shows all")
    changed = session.ps.alter_topic(topic, **values.settings(settings))
    if session.json:
        tables.document({"topic": topic, "settings": changed})
    else:
        tables.facts(_readable(changed))


@command(commands)
def purge(
    session: Session,
    topic: Topic,
    group: Annotated[
        str | None,
        typer.Option(metavar="GROUP", help="Only let this queue group skip what it has to do."),
    ] = None,
    yes: Yes = False,
) -> None:
    """Drop every message of a topic, or let one group skip them all."""
    whom = f"for group {group}" if group else "for everybody"
    session.confirm(f"Drop all messages of {topic} {whom}?", yes)
    count = session.ps.purge(topic, group=group)
    if session.json:
        tables.document({"topic": topic, "group": group, "purged": count})
    else:
        tables.say(f"{count:,} purged")


@command(commands)
def trim(
    session: Session,
    topic: Topic,
    before: Annotated[
        str, typer.Option(metavar="POSITION", help="An offset, a time, earliest or latest.")
    ],
    partition: Annotated[int, typer.Option(help="Of which partition.")] = 0,
    yes: Yes = False,
) -> None:
    """Drop the messages of a partition that are before a position."""
    session.confirm(f"Drop what is before {before} in partition {partition} of {topic}?", yes)
    bounds = session.ps.trim(topic, partition, values.position(before))
    if session.json:
        tables.document({"topic": topic, **msgspec.structs.asdict(bounds)})
    else:
        tables.say(f"partition {partition} begins at offset {bounds.start:,}")


@command(commands)
def compact(session: Session, topic: Topic) -> None:
    """Rewrite the files of a topic without what nobody needs any more."""
    saved = session.ps.compact(topic)
    if session.json:
        tables.document({"topic": topic, **msgspec.structs.asdict(saved)})
    else:
        tables.say(f"{saved.segments_removed:,} segments removed, {size(saved.bytes_freed)} freed")


@command(commands)
def delete(session: Session, topic: Topic, yes: Yes = False) -> None:
    """Delete a topic with all its messages. Its dead letters stay until TOPIC.dlq is deleted."""
    session.confirm(f"Delete topic {topic} and all its messages?", yes)
    session.ps.delete_topic(topic)
    if session.json:
        tables.document({"topic": topic, "deleted": True})
    else:
        tables.say(f"topic {topic} is deleted")


def _readable(settings: TopicSettings) -> list[tuple[str, object]]:
    """Settings as `topic alter` takes them: durations with their unit."""
    shown: list[tuple[str, object]] = []
    for name, value in msgspec.structs.asdict(settings).items():
        if name == "backoff":
            first, factor, longest = value
            value = f"{text(first * 1_000_000)},{factor:g},{text(longest * 1_000_000)}"
        elif isinstance(value, tuple):
            value = ",".join(map(str, value)) if len(value) > 1 else tables.encode(value).decode()
        elif name.endswith("_ms"):
            name = name.removesuffix("_ms")
            value = None if value is None else text(value * 1_000_000)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            value = str(value)
        shown.append((name, "null" if value is None else value))
    return shown
