"""`penstock transaction`: what was done together, and what was refused and why."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli import tables
from penstock.cli.session import Session, command
from penstock.cli.units import moment
from penstock.model.transactions import TransactionOutcome

commands = typer.Typer()


@command(commands, "list")
def list_(
    session: Session,
    limit: Annotated[int, typer.Option(min=1, help="At most so many, the newest.")] = 100,
) -> None:
    """List the last transactions: those of 24 hours, and those that were refused lately.

    With --json, an object a line.
    """
    found = session.ps.transactions(limit)
    if session.json:
        for each in found:
            tables.line(each)
        return
    tables.table(
        ("transaction", "time (UTC)", "state", "published", "settled", "offsets", "producer"),
        [
            (
                each.id,
                moment(each.at_us),
                each.state,
                sum(stored.count for stored in each.published),
                sum(settled.count for settled in each.settled),
                len(each.offsets),
                each.producer,
            )
            for each in found
        ],
        drop=("producer", "offsets"),
    )


@command(commands)
def show(
    session: Session,
    id: Annotated[str, typer.Argument(metavar="ID", help="The id of the transaction.")],
) -> None:
    """Show what a transaction did, or why it was refused."""
    _show(session, session.ps.describe_transaction(id))


def _show(session: Session, found: TransactionOutcome) -> None:
    if session.json:
        tables.document(found)
        return
    holder = f"{found.producer}, epoch {found.epoch}" if found.producer else None
    tables.facts(
        [
            ("transaction", found.id),
            ("state", found.state),
            ("time (UTC)", moment(found.at_us)),
            ("number", found.number or None),
            ("producer", holder),
        ]
    )
    done = [
        ("published", each.topic, f"{run.count:,} in partition {run.partition}", _where(run.offset))
        for each in found.published
        for run in each.runs
    ]
    done += [
        ("delayed", each.topic, f"{run.count:,} in partition {run.partition}", run.id)
        for each in found.published
        for run in each.delayed
    ]
    done += [
        (each.verb, each.topic, f"{each.count:,} of group {each.group}", "")
        for each in found.settled
    ]
    done += [("offsets", "", f"of stream group {group}", "") for group in found.offsets]
    if done:
        tables.say("")
        tables.table(("done", "topic", "messages", "where"), done, cut=("where",))
    if found.reasons:
        tables.say("")
        tables.table(
            ("refused", "code", "why"),
            [(each.item, each.code, each.detail) for each in found.reasons],
            cut=("why",),
        )


def _where(offset: int) -> str:
    return f"from offset {offset}" if offset >= 0 else ""
