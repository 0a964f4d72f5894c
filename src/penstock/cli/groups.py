"""`penstock group`: who reads, how far they are, and where they go on.

A queue group belongs to a topic and has messages to do; a stream group reads topics in order and
has committed positions. Both may have the same name; --kind says which is meant.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Any

import msgspec
import typer

from penstock.cli import tables, values
from penstock.cli.completion import topic_names
from penstock.cli.exits import Exit
from penstock.cli.session import Session, Yes, command
from penstock.cli.units import moment
from penstock.client.client import Client
from penstock.errors import GroupNotFound, InvalidInput
from penstock.model.names import parse_topic

commands = typer.Typer()


class Kind(StrEnum):
    """How a group reads."""

    queue = "queue"
    stream = "stream"


Group = Annotated[str, typer.Argument(metavar="GROUP", help="The name of the group.")]
KindOption = Annotated[
    Kind | None, typer.Option("--kind", help="If there is a queue and a stream group of the name.")
]
TopicOption = Annotated[
    str | None,
    typer.Option(
        "--topic", metavar="TOPIC", autocompletion=topic_names, help="Only on this topic."
    ),
]


class GroupPartition(msgspec.Struct, frozen=True, kw_only=True):
    """A group on a partition."""

    group: str
    kind: Kind
    topic: str
    partition: int
    committed: int
    """All below this offset is done."""
    lag: int
    """Messages that are not done."""
    member: str | None = None
    last_heartbeat_us: int | None = None


@command(commands, "list")
def list_(
    session: Session,
    topic: Annotated[
        str | None,
        typer.Argument(
            metavar="TOPIC", autocompletion=topic_names, help="Only the groups of this topic."
        ),
    ] = None,
) -> None:
    """List the groups, what they have to do, and how many members their streams have."""
    rows: list[dict[str, Any]] = []
    for name in [topic] if topic else session.ps.topics():
        rows += [
            {
                "group": group.group,
                "kind": Kind.queue,
                "topic": name,
                "lag": group.depth,
                "in_flight": group.in_flight,
                "members": None,
            }
            for group in session.ps.stats(name).groups
        ]
    for name in session.ps.stream_groups():
        places = [p for p in _stream_places(session, name) if topic in (None, p.topic)]
        rows += [
            {
                "group": name,
                "kind": Kind.stream,
                "topic": on,
                "lag": sum(p.lag for p in places if p.topic == on),
                "in_flight": None,
                "members": len({p.member for p in places if p.topic == on and p.member}),
            }
            for on in dict.fromkeys(p.topic for p in places)
        ]
    if session.json:
        tables.document({"groups": rows})
    else:
        head = ("group", "kind", "topic", "to do", "in flight", "members")
        tables.table(head, [tuple(row.values()) for row in rows])


@command(commands)
def describe(
    session: Session, group: Group, topic: TopicOption = None, kind: KindOption = None
) -> None:
    """Show where a group is on each partition, and what is in its hands."""
    places = _places(session, group, topic, kind)
    queues = [
        (name, stats)
        for name in dict.fromkeys(p.topic for p in places if p.kind == Kind.queue)
        for stats in session.ps.stats(name).groups
        if stats.group == group
    ]
    if session.json:
        shown = [{"topic": name, **msgspec.to_builtins(stats)} for name, stats in queues]
        tables.document({"group": group, "places": places, "queues": shown})
        return
    _show_places(places)
    _show_members(places)
    for name, stats in queues:
        tables.say("")
        tables.facts(
            [
                ("topic", name),
                ("ready", stats.ready),
                ("in flight", stats.in_flight),
                ("retrying", stats.retrying),
                ("oldest", None if stats.oldest_age_us is None else _age(stats.oldest_age_us)),
                ("delivered/s", stats.deliver_rate),
                ("acked/s", stats.ack_rate),
                ("ready by priority", _by_priority(stats.ready_by_priority)),
            ]
        )


LAG = """
[bold]Examples[/bold]

[cyan]  penstock group lag billing[/cyan]

An alarm: the exit code is 1 if more than 1000 messages wait:

[cyan]  penstock group lag billing --topic orders --max 1000[/cyan]
"""


@command(commands, examples=LAG)
def lag(
    session: Session,
    group: Group,
    topic: TopicOption = None,
    kind: KindOption = None,
    most: Annotated[
        int | None, typer.Option("--max", min=0, help="End with 1 if the lag is longer than this.")
    ] = None,
) -> None:
    """Show how many messages a group has still to do, by partition and together."""
    places = _places(session, group, topic, kind)
    total = sum(place.lag for place in places)
    if session.json:
        tables.document({"group": group, "lag": total, "places": places})
    else:
        _show_places(places)
        tables.say(f"{total:,} to do")
    if most is not None and total > most:
        raise typer.Exit(Exit.NO)


RESET = """
[bold]Examples[/bold]

All again:

[cyan]  penstock group reset billing orders --to earliest[/cyan]

From two hours ago, from a time, from an offset:

[cyan]  penstock group reset billing orders --to -2h[/cyan]

[cyan]  penstock group reset audit orders --to 2030-01-31T12:00:00Z --kind stream[/cyan]

[cyan]  penstock group reset audit orders --to 1200 --partition 3[/cyan]
"""


@command(commands, examples=RESET)
def reset(
    session: Session,
    group: Group,
    topic: Annotated[
        str,
        typer.Argument(
            metavar="TOPIC", autocompletion=topic_names, help="The topic to go back on."
        ),
    ],
    to: Annotated[
        str,
        typer.Option(
            metavar="POSITION", help="earliest, latest, an offset, a time, or how long ago (-2h)."
        ),
    ],
    partition: Annotated[int | None, typer.Option(min=0, help="Only this partition.")] = None,
    kind: KindOption = None,
) -> None:
    """Let a group go on elsewhere: back, to do messages again, or ahead, to skip them.

    A stream group must have no members meanwhile.
    """
    where = values.position(to, "to")
    if kind is None:
        kind = _only_kind(session.ps, group, topic)
    if kind == Kind.stream:
        session.ps.reset_stream_group(group, topic, where, partition=partition)
    else:
        session.ps.seek(topic, group, where, partition=partition)
    places = _places(session, group, topic, kind)
    if session.json:
        tables.document({"group": group, "kind": kind, "topic": topic, "places": places})
    else:
        _show_places(places)


@command(commands)
def delete(
    session: Session,
    group: Group,
    topic: Annotated[
        str | None,
        typer.Option(
            "--topic",
            metavar="TOPIC",
            autocompletion=topic_names,
            help="The topic of a queue group; else of all.",
        ),
    ] = None,
    kind: KindOption = None,
    yes: Yes = False,
) -> None:
    """Forget a group: what it has done, and where it is. A stream group must have no members."""
    if kind is None and topic is not None:
        kind = Kind.queue
    places = _places(session, group, topic, kind)
    kinds = sorted({place.kind for place in places})
    if len(kinds) > 1:
        raise InvalidInput(f"there is a queue group {group} and a stream group; say which: --kind")
    session.confirm(f"Forget the {kinds[0]} group {group}?", yes)
    if kinds[0] == Kind.stream:
        session.ps.delete_stream_group(group)
    else:
        for name in dict.fromkeys(place.topic for place in places):
            session.ps.delete_group(name, group)
    if session.json:
        tables.document({"group": group, "kind": kinds[0], "deleted": True})
    else:
        tables.say(f"{kinds[0]} group {group} is deleted")


# What there is.


def _places(
    session: Session, group: str, topic: str | None, kind: Kind | None
) -> list[GroupPartition]:
    ps = session.ps
    found: list[GroupPartition] = []
    if kind in (None, Kind.queue):
        for name in [topic] if topic else ps.topics():
            found += _queue_places(ps, group, name)
    if kind in (None, Kind.stream) and group in ps.stream_groups():
        found += [p for p in _stream_places(session, group) if topic in (None, p.topic)]
    if not found:
        error = GroupNotFound(group)
        where = f" on {topic}" if topic else ""
        error.args = (f"there is no {kind or 'queue or stream'} group {group!r}{where}",)
        raise error
    return found


def _queue_places(ps: Client, group: str, topic: str) -> Iterator[GroupPartition]:
    for stats in ps.stats(topic).groups:
        if stats.group == group:
            for partition, committed in sorted(stats.committed.items()):
                yield GroupPartition(
                    group=group,
                    kind=Kind.queue,
                    topic=topic,
                    partition=partition,
                    committed=committed,
                    lag=stats.depth_by_partition[partition],
                )


def _stream_places(session: Session, group: str) -> Iterator[GroupPartition]:
    """On the topics of this namespace; a stream group may read those of others, too."""
    stream = session.ps.describe_stream_group(group)
    owners = {place: member for member, places in stream.members.items() for place in places}
    for place in sorted({*stream.committed, *stream.lag, *owners}):
        name = parse_topic(place.topic)
        if name.namespace != session.where.namespace:
            continue
        yield GroupPartition(
            group=group,
            kind=Kind.stream,
            topic=name.topic,
            partition=place.partition,
            committed=stream.committed.get(place, 0),
            lag=stream.lag.get(place, 0),
            member=owners.get(place),
            last_heartbeat_us=stream.heartbeats.get(owners.get(place, "")),
        )


def _only_kind(ps: Client, group: str, topic: str) -> Kind:
    is_queue, is_stream = group in ps.groups(topic), group in ps.stream_groups()
    if is_queue and is_stream:
        raise InvalidInput(f"there is a queue group {group} and a stream group; say which: --kind")
    if not is_queue and not is_stream:
        raise InvalidInput(
            f"there is no group {group} yet; say what it shall be: --kind queue or --kind stream"
        )
    return Kind.queue if is_queue else Kind.stream


def _show_places(places: list[GroupPartition]) -> None:
    tables.table(
        ("kind", "topic", "partition", "done up to", "to do", "member"),
        [(p.kind, p.topic, p.partition, p.committed, p.lag, p.member) for p in places],
    )


def _show_members(places: list[GroupPartition]) -> None:
    """Those of a stream group that hold a partition, and when they were last heard of."""
    heard = {p.member: p.last_heartbeat_us for p in places if p.member is not None}
    if heard:
        tables.say("")
        tables.table(
            ("member", "last heartbeat (UTC)"),
            [(member, None if at is None else moment(at)) for member, at in sorted(heard.items())],
        )


def _age(age_us: int) -> str:
    return f"{age_us / 1e6:,.1f} s"


def _by_priority(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items() if count) or "none"
