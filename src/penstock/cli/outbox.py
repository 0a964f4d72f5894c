"""`penstock outbox`: publish what transactions of a database left in its outbox."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Annotated, get_args

import typer

from penstock.cli import tables
from penstock.cli.guard import guarded
from penstock.cli.session import Json, Session, command
from penstock.cli.units import moment
from penstock.errors import InvalidInput, PenstockError, Unavailable
from penstock.outbox.database import Database, DatabaseKind, database_of, errors_of, open_url
from penstock.outbox.relay import BATCH_ROWS_MAX, Relay
from penstock.outbox.table import counts, retry_refused
from penstock.outbox.table import ddl as ddl_of

commands = typer.Typer()

EXAMPLES = """
[bold]Examples[/bold]

[cyan]  penstock outbox relay --database postgresql://shop@db/shop --url http://localhost:8080[/cyan]

[cyan]  penstock outbox relay --database sqlite:///shop.db --data ./data --once[/cyan]
"""

DatabaseUrl = Annotated[
    str,
    typer.Option(
        "--database",
        metavar="URL",
        envvar="PENSTOCK_OUTBOX",
        help="sqlite:///shop.db, postgresql://user@host/shop or mysql://user@host/shop. A password "
        "is better kept in $PENSTOCK_OUTBOX, which other users of the machine do not see.",
    ),
]


@command(commands, examples=EXAMPLES)
def relay(
    session: Session,
    database: DatabaseUrl,
    once: Annotated[
        bool, typer.Option("--once", help="End when everything is published that is there now.")
    ] = False,
    poll: Annotated[
        str, typer.Option(metavar="TIME", help="How long to wait when there is nothing.")
    ] = "500ms",
    batch: Annotated[
        int, typer.Option(min=1, max=BATCH_ROWS_MAX, help="Rows to publish at once.")
    ] = 500,
) -> None:
    """Publish the rows of an outbox and delete them, until SIGTERM or Ctrl-C.

    Any number may run: one is at work, the others go on when it ends.
    """
    logging.basicConfig(
        level="INFO", format="%(asctime)s %(levelname)-7s %(name)s: %(message)s", stream=sys.stderr
    )
    with _opened(database) as first:  # what is wrong from the start is told, not waited for
        counts(first)
    working = Relay(lambda: open_url(database), session.ps, batch_rows=batch, poll=poll)
    with closing(working):
        if once:
            working.drain()
        else:
            working.run(_stopped_by_signals())
    if session.json:
        tables.document({"published": working.published, "refused": working.refused})
    else:
        tables.say(f"{working.published:,} published, {working.refused:,} refused")


@commands.command()
@guarded
def create(database: DatabaseUrl) -> None:
    """Make the table of the outbox, if it is not there."""
    with _opened(database) as opened:
        opened.execute(ddl_of(opened.kind))


@commands.command()
@guarded
def ddl(
    kind: Annotated[
        str, typer.Argument(metavar="DATABASE", help=f"{', '.join(get_args(DatabaseKind))}.")
    ],
) -> None:
    """Print the statement that makes the table, for your migrations."""
    found = next((each for each in get_args(DatabaseKind) if each == kind), None)
    if found is None:
        raise InvalidInput(f"{kind!r}: give one of {', '.join(get_args(DatabaseKind))}")
    typer.echo(f"{ddl_of(found)};")


@commands.command()
@guarded
def status(database: DatabaseUrl, as_json: Json = False) -> None:
    """How many rows wait, since when, and how many the broker has refused."""
    with _opened(database) as opened:
        pending, refused, oldest_us = counts(opened)
    if as_json:
        tables.document({"pending": pending, "refused": refused, "oldest_us": oldest_us})
        return
    oldest = None if oldest_us is None else moment(oldest_us)
    tables.facts([("pending", pending), ("oldest (UTC)", oldest), ("refused", refused)])


@commands.command()
@guarded
def retry(database: DatabaseUrl) -> None:
    """Let the relay try again the rows that the broker has refused."""
    with _opened(database) as opened:
        tables.say(f"{retry_refused(opened):,} to be tried again")


@contextmanager
def _opened(url: str) -> Iterator[Database]:
    """The database, whose errors are told in a sentence."""
    try:
        connection = open_url(url)
    except PenstockError:
        raise
    except Exception as exc:
        raise Unavailable(f"the database cannot be opened: {exc}") from exc
    with closing(connection):
        try:
            yield database_of(connection)
        except errors_of(connection) as exc:
            raise Unavailable(
                f"the database says: {exc}. `penstock outbox create` makes the table"
            ) from exc


def _stopped_by_signals() -> threading.Event:
    """Set by SIGTERM and Ctrl-C, so that no row is left between its publish and its end."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    return stop
