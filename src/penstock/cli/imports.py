"""`penstock import`: messages from elsewhere."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from penstock.cli import tables
from penstock.cli.output import note
from penstock.cli.progress import ByteProgress
from penstock.cli.session import Session, command
from penstock.errors import InvalidInput
from penstock.transfer.files import read_file
from penstock.transfer.foreign import Foreign
from penstock.transfer.goqueue import GoQueueFolder
from penstock.transfer.importing import Importer
from penstock.transfer.kafka import KafkaTopics
from penstock.transfer.ledgerq import LedgerQFolder

commands = typer.Typer()

_DAMAGE_SHOWN = 20

LEDGERQ = """
[bold]Examples[/bold]

[cyan]  penstock import ledgerq ./orders-queue orders --data ./data[/cyan]

With its dead letters:

[cyan]  penstock import ledgerq ./dead orders.dlq --dead-letters-of orders --data ./data[/cyan]
"""

GOQUEUE = """
[bold]Examples[/bold]

[cyan]  penstock import goqueue ./goqueue-data --data ./data[/cyan]

[cyan]  penstock import goqueue ./goqueue-data --topic orders --url http://localhost:8080[/cyan]
"""

FILE = """
[bold]Examples[/bold]

[cyan]  penstock import file orders.jsonl orders --data ./data[/cyan]

[cyan]  penstock import file orders.parquet orders --data ./data[/cyan]
"""

KAFKA = """
[bold]Examples[/bold]

[cyan]  penstock import kafka localhost:9092 --topic orders --group billing --data ./data[/cyan]

With TLS and a password: kafka.toml has lines such as security_protocol = "SASL_SSL".

[cyan]  penstock import kafka kafka.shop.example:9093 --settings kafka.toml --data ./data[/cyan]
"""

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="Where the messages go.")]


@command(commands, examples=LEDGERQ, makes_folder=True)
def ledgerq(
    session: Session,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A queue of LedgerQ.")],
    topic: Topic,
    dead_letters_of: Annotated[
        str | None,
        typer.Option(metavar="TOPIC", help="It holds the dead letters of this topic."),
    ] = None,
) -> None:
    """Import a queue of LedgerQ, which is only read.

    Its read position becomes that of the group `ledgerq`. Again, it imports what is new.
    """
    _import(session, LedgerQFolder(folder, topic, dead_letters_of), None)


@command(commands, examples=GOQUEUE, makes_folder=True)
def goqueue(
    session: Session,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A data folder of GoQueue.")],
    topic: Annotated[
        list[str] | None, typer.Option(metavar="TOPIC", help="Only this one; may be repeated.")
    ] = None,
) -> None:
    """Import topics of GoQueue, which are only read: messages, delays, groups, dead letters."""
    names = {name: name for name in topic} if topic else None
    _import(session, GoQueueFolder(folder), names)


@command(commands, "file", examples=FILE, makes_folder=True)
def file_(
    session: Session,
    path: Annotated[Path, typer.Argument(metavar="FILE", help="JSON lines (.jsonl) or Parquet.")],
    topic: Topic,
) -> None:
    """Import a file of JSON lines or Parquet, as `penstock export` writes them."""
    _import(session, read_file(path, topic), None)


@command(commands, examples=KAFKA, makes_folder=True)
def kafka(
    session: Session,
    servers: Annotated[str, typer.Argument(metavar="HOST:PORT", help="The Kafka cluster.")],
    topic: Annotated[
        list[str] | None, typer.Option(metavar="TOPIC", help="Only this one; may be repeated.")
    ] = None,
    group: Annotated[
        list[str] | None,
        typer.Option(metavar="GROUP", help="With the offsets of this group; may be repeated."),
    ] = None,
    settings: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="TOML with settings of kafka-python's clients, for TLS and SASL."
        ),
    ] = None,
) -> None:
    """Import topics of a Kafka cluster, which is only read. Again, it imports what is new."""
    options = {} if settings is None else _read_settings(settings)
    note(f"connecting to Kafka at {servers}")
    source = KafkaTopics(servers, topic or (), group or (), **options)
    try:
        _import(session, source, None)
    finally:
        source.close()


def _read_settings(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise InvalidInput(f"{path} cannot be read: {exc.strerror}") from exc
    except ValueError as exc:
        raise InvalidInput(f"{path} is not TOML: {exc}") from exc


def _import(session: Session, source: Foreign, names: dict[str, str] | None) -> None:
    total = sum(topic.size_bytes for topic in source.topics())
    with ByteProgress(total, "imported") as progress:

        def advance(name: str, count: int) -> None:
            progress.name(name)
            progress.advance(count)

        done = Importer(session.ps, source, advance=advance).run(names)
    for damage in source.damage[:_DAMAGE_SHOWN]:
        note(f"damaged: {damage.path} at {damage.position}: {damage.reason}")
    if len(source.damage) > _DAMAGE_SHOWN:
        note(f"and {len(source.damage) - _DAMAGE_SHOWN} more places")
    if session.json:
        places = [each._asdict() for each in source.damage]
        tables.document({"topics": msgspec.to_builtins(done), "damage": places})
    else:
        heads = ("topic", "messages", "delayed", "known", "expired", "positions")
        tables.table(
            heads,
            [tuple(f"{getattr(x, h):,}" if h != "topic" else x.topic for h in heads) for x in done],
        )
    if source.damage:
        raise typer.Exit(1)
