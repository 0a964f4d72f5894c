"""`penstock dlq`: what was given up, and why."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import msgspec
import typer

from penstock.cli import tables
from penstock.cli.completion import topic_names
from penstock.cli.peek import message_fields, preview
from penstock.cli.session import Session, Yes, command
from penstock.cli.units import moment
from penstock.client.client import Client
from penstock.errors import InvalidInput, LogNotFound
from penstock.model.dead_letters import Letter

commands = typer.Typer()


class Reason(StrEnum):
    """Why a message was given up."""

    max_retries = "max_retries"
    rejected = "rejected"
    expired = "expired"


class RedriveTarget(StrEnum):
    """Who gets a letter again."""

    group = "group"
    topic = "topic"


Topic = Annotated[
    str,
    typer.Argument(
        metavar="TOPIC",
        autocompletion=topic_names,
        help="The topic whose messages died; not TOPIC.dlq.",
    ),
]
Ids = Annotated[list[str] | None, typer.Argument(metavar="ID", help="Ids of letters, from list.")]
ReasonOption = Annotated[
    Reason | None, typer.Option("--reason", help="Only those that died of this.")
]
GroupOption = Annotated[
    str | None, typer.Option("--group", metavar="GROUP", help="Only those of this group.")
]
ErrorOption = Annotated[
    str | None,
    typer.Option("--error", metavar="TEXT", help="Only those whose error contains this text."),
]
To = Annotated[
    RedriveTarget,
    typer.Option("--to", help="Only the group in which a letter failed, or all of the topic."),
]
All = Annotated[bool, typer.Option("--all", help="All of them.")]


class Filter(msgspec.Struct, frozen=True):
    """Which letters."""

    ids: frozenset[str]
    reason: str | None
    group: str | None
    error: str | None

    def __call__(self, letter: Letter) -> bool:
        return (
            (not self.ids or letter.id in self.ids or letter.origin.id in self.ids)
            and self.reason in (None, letter.reason)
            and self.group in (None, letter.origin.group)
            and (self.error is None or self.error in letter.error)
        )

    @property
    def is_everything(self) -> bool:
        return not (self.ids or self.reason or self.group or self.error)


@command(commands, "list")
def list_(
    session: Session,
    topic: Topic,
    reason: ReasonOption = None,
    group: GroupOption = None,
    error: ErrorOption = None,
    limit: Annotated[int, typer.Option(min=1, help="So many at the most.")] = 100,
) -> None:
    """List dead letters, oldest first. With --json, an object a line."""
    session.ps.describe_topic(topic)
    chosen = Filter(frozenset(), reason, group, error)
    letters = list(session.ps.dead_letters(topic).list(chosen, limit))
    if session.json:
        for letter in letters:
            tables.line(_fields(letter))
        return
    tables.table(
        ("id", "reason", "attempts", "last tried (UTC)", "group", "error", "value"),
        [
            (
                letter.id,
                letter.reason,
                letter.attempts,
                moment(letter.origin.last_delivery_us) if letter.origin.last_delivery_us else None,
                letter.origin.group,
                preview(letter.error.encode(), 40),
                preview(letter.value, 40),
            )
            for letter in letters
        ],
        cut=("error", "value"),
        drop=("last tried (UTC)", "attempts", "group"),
    )


@command(commands)
def groups(session: Session, topic: Topic) -> None:
    """Count dead letters by the reason and the first line of the error."""
    session.ps.describe_topic(topic)
    found = session.ps.dead_letters(topic).groups()
    if session.json:
        tables.document(found)
        return
    tables.table(
        ("letters", "reason", "group", "last (UTC)", "error"),
        [
            (each.count, each.reason, each.group, moment(each.last_us), each.error or None)
            for each in found.groups
        ],
        cut=("error",),
    )


@command(commands)
def show(
    session: Session,
    topic: Topic,
    id_: Annotated[str, typer.Argument(metavar="ID", help="The letter's id, or its message's.")],
) -> None:
    """Show one dead letter with its whole story."""
    (letter,) = _find(session.ps, topic, [id_])
    if session.json:
        tables.document(_fields(letter))
        return
    origin = letter.origin
    tables.facts(
        [
            ("id", letter.id),
            ("message", origin.id),
            ("from", f"{origin.topic}/{origin.partition} at offset {origin.offset}"),
            ("published (UTC)", moment(origin.published_at_us)),
            ("group", origin.group),
            ("last consumer", origin.consumer or None),
            ("reason", origin.reason),
            ("attempts", origin.attempts),
            ("first tried (UTC)", origin.first_delivery_us and moment(origin.first_delivery_us)),
            ("last tried (UTC)", origin.last_delivery_us and moment(origin.last_delivery_us)),
            ("error", origin.error or None),
            ("key", preview(letter.key, 1000)),
            *((f"header {name}", preview(value)) for name, value in letter.headers.items()),
            ("value", preview(letter.value, 100_000)),
        ]
    )


REDRIVE = """
[bold]Examples[/bold]

Once the bank answers again:

[cyan]  penstock dlq redrive orders --error "bank does not answer"[/cyan]

[cyan]  penstock dlq redrive orders 01M7EW3PQYPBM4QJXRVV000000[/cyan]

[cyan]  penstock dlq redrive orders --all[/cyan]
"""


@command(commands, examples=REDRIVE)
def redrive(
    session: Session,
    topic: Topic,
    ids: Ids = None,
    reason: ReasonOption = None,
    group: GroupOption = None,
    error: ErrorOption = None,
    every: All = False,
    to: To = RedriveTarget.group,
) -> None:
    """Send dead letters back to their topic as new messages: some by id, by filter, or all."""
    letters = session.ps.dead_letters(topic)
    if ids:
        _only_ids(reason, group, error, every)
        count = letters.redrive(_find(session.ps, topic, ids), to=to.value)
    else:
        count = letters.redrive(where=_filter(reason, group, error, every), to=to.value)
    _report(session, topic, "redriven", count)


@command(commands)
def purge(
    session: Session,
    topic: Topic,
    ids: Ids = None,
    reason: ReasonOption = None,
    group: GroupOption = None,
    error: ErrorOption = None,
    every: All = False,
    yes: Yes = False,
) -> None:
    """Throw dead letters away: some by id, by filter, or all."""
    letters = session.ps.dead_letters(topic)
    if ids:
        _only_ids(reason, group, error, every)
        found = _find(session.ps, topic, ids)
        session.confirm(f"Throw away {len(found)} dead letters of {topic}?", yes)
        count = letters.purge(found)
    else:
        where = _filter(reason, group, error, every)
        session.confirm(f"Throw away {'all' if every else 'these'} dead letters of {topic}?", yes)
        count = letters.purge(where=where)
    _report(session, topic, "purged", count)


def _filter(
    reason: Reason | None, group: str | None, error: str | None, every: bool
) -> Filter | None:
    chosen = Filter(frozenset(), reason, group, error)
    if chosen.is_everything != every:
        raise InvalidInput("say which: ids, --reason, --group or --error; or --all for all of them")
    return None if every else chosen


def _only_ids(reason: Reason | None, group: str | None, error: str | None, every: bool) -> None:
    if reason or group or error or every:
        raise InvalidInput("give ids, or a filter, or --all; not several of them")


def _find(ps: Client, topic: str, ids: list[str]) -> list[Letter]:
    ps.describe_topic(topic)
    found = list(ps.dead_letters(topic).list(Filter(frozenset(ids), None, None, None)))
    missing = set(ids) - {x for letter in found for x in (letter.id, letter.origin.id)}
    if missing:
        raise LogNotFound(
            f"no dead letter of {topic} has the id {', '.join(sorted(missing))}; it may have been "
            "redriven or purged"
        )
    return found


def _fields(letter: Letter) -> dict[str, Any]:
    message = message_fields(letter.origin.topic, letter.partition, letter.message)
    headers = {k: v for k, v in (message.pop("headers", None) or {}).items() if k in letter.headers}
    return {**message, **({"headers": headers} if headers else {}), "origin": letter.origin}


def _report(session: Session, topic: str, verb: str, count: int) -> None:
    if not count:
        session.ps.describe_topic(topic)  # where there is none, that is what is to be told
    if session.json:
        tables.document({"topic": topic, verb: count})
    else:
        tables.say(f"{count:,} {verb}")
