"""`penstock publish`: from arguments, a pipe or a file."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.cli import tables, values
from penstock.cli.completion import topic_names
from penstock.cli.output import note
from penstock.cli.progress import ByteProgress
from penstock.cli.session import Session, connected
from penstock.cli.signals import Signals
from penstock.cli.sources import Chunk, Format, chunks, format_of, opened
from penstock.cli.units import moment
from penstock.errors import InvalidInput
from penstock.model.messages import NewMessage
from penstock.model.published import Delayed
from penstock.model.values import parse_time
from penstock.record.batch import Batch

EXAMPLES = """
[bold]Examples[/bold]

[cyan]  penstock publish orders "12 apples" --key c-17 --priority high --header source=shop[/cyan]

In half an hour, and worth nothing after a day:

[cyan]  penstock publish orders "a reminder" --delay 30m --ttl 24h[/cyan]

Every line of a file or a pipe is a message:

[cyan]  penstock publish orders --file orders.txt[/cyan]

[cyan]  grep ERROR app.log | penstock publish errors[/cyan]

JSON lines bring keys, headers and priorities of their own, as `consume --json` prints them:

[cyan]  echo '{"value": "12 apples", "key": "c-17"}' | penstock publish orders --format jsonl[/cyan]

Each element of an array is a message:

[cyan]  penstock publish orders --file orders.json[/cyan]

The rows of a table; without a column `value` each row becomes a JSON object:

[cyan]  penstock publish orders --file orders.parquet --key-column customer[/cyan]
"""

_FILE_PANEL = "Many messages"

Topic = Annotated[
    str, typer.Argument(metavar="TOPIC", autocompletion=topic_names, help="Where to.")
]
Values = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="VALUE", help="The messages. Without any, the lines of stdin or --file."
    ),
]
Key = Annotated[
    str | None,
    typer.Option("--key", "-k", help="Messages of one key go to one partition, in order."),
]
Priority = Annotated[
    str | None,
    typer.Option("--priority", "-p", help="critical, high, normal, low or background."),
]
Headers = Annotated[
    list[str] | None,
    typer.Option("--header", metavar="NAME=VALUE", help="A header; any number of them."),
]
Delay = Annotated[
    str | None, typer.Option(metavar="TIME", help="Deliver after this long: 30s, 2h, 90d.")
]
DeliverAt = Annotated[
    str | None,
    typer.Option(metavar="MOMENT", help="Deliver then, such as 2030-01-31T12:00:00Z."),
]
Ttl = Annotated[
    str | None, typer.Option(metavar="TIME", help="Not to be delivered after this long.")
]
Partition = Annotated[int | None, typer.Option(min=0, help="This partition, whatever the key.")]
DedupId = Annotated[
    str | None,
    typer.Option(metavar="ID", help="Not stored if this id was seen lately; for one message."),
]
DedupWindow = Annotated[
    str | None,
    typer.Option(
        metavar="TIME", help="How long the id is remembered, if not for the topic's dedup_window."
    ),
]
File = Annotated[
    Path | None,
    typer.Option(
        "--file", "-f", metavar="PATH", help="Read this file.", rich_help_panel=_FILE_PANEL
    ),
]
FormatName = Annotated[
    Format | None,
    typer.Option(
        "--format",
        help="lines: each line is a value. jsonl: each line, or element of an array, is a message "
        "as JSON, with its key and so on. json: each is a value; also JSON that is spread over "
        "lines. arrow, parquet: tables. whole: all of it is one message. By default by the file's "
        "name, else lines; a file .json is jsonl if consume wrote it, else json.",
        rich_help_panel=_FILE_PANEL,
    ),
]
KeyColumn = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Of a table: the column that is the key; each row becomes a JSON object.",
        rich_help_panel=_FILE_PANEL,
    ),
]
BatchSize = Annotated[
    int,
    typer.Option(min=1, help="Messages to send at once.", rich_help_panel=_FILE_PANEL),
]


class ChunkPublisher:
    """Publishes chunks with the same options, and counts."""

    def __init__(
        self, session: Session, topic: str, options: dict[str, Any], signals: Signals
    ) -> None:
        self._ps = session.ps
        self._topic = topic
        self._signals = signals
        self._options = {name: value for name, value in options.items() if value is not None}
        self.count = 0
        self.last: Any = None

    def all(self, values: list[str]) -> None:
        if len(values) == 1:
            self.one(values[0])
        else:
            self.chunk(Chunk(values))

    def one(self, value: bytes | str, **more: Any) -> None:
        with self._signals.held_off():
            self.last = self._ps.publish(self._topic, value, **(self._options | more))
            self.count += 1

    def chunk(self, chunk: Chunk) -> None:
        options = dict(self._options)
        rows = len(chunk.messages)
        messages = chunk.messages
        if isinstance(messages, Batch):
            for name in ("key", "headers", "priority"):
                if name in options:
                    raise InvalidInput(f"a table of messages brings its own {name}")
        else:
            key, headers = options.pop("key", None), options.pop("headers", None)
            options["keys"] = chunk.keys or (None if key is None else [key] * rows)
            options["headers"] = chunk.headers or (None if headers is None else [headers] * rows)
            if "priority" not in options and chunk.priorities:
                options["priority"] = chunk.priorities
        options["dedup_ids"] = chunk.dedup_ids
        if chunk.dedup_ids is None:
            options.pop("dedup_window", None)  # there is nothing to be remembered
        if rows:
            with self._signals.held_off():
                self._ps.publish_batch(self._topic, messages, **options)
                self.count += rows
        for message in chunk.alone:
            self.one(message.value_bytes() or b"", **_own_options(message))


def _own_options(message: NewMessage) -> dict[str, Any]:
    """What one message of a file says for itself."""
    found = {
        "key": message.key_bytes(),
        "headers": message.header_bytes() or None,
        "priority": message.priority,
        "ttl": message.ttl,
        "delay": message.delay,
        "deliver_at": None
        if message.deliver_at is None
        else parse_time(message.deliver_at, "deliver_at"),
        "partition": message.partition,
        "dedup_id": message.dedup_id,
        "dedup_window": message.dedup_window,
    }
    return {name: value for name, value in found.items() if value is not None}


def _publish(
    session: Session,
    topic: Topic,
    value: Values = None,
    key: Key = None,
    priority: Priority = None,
    header: Headers = None,
    delay: Delay = None,
    deliver_at: DeliverAt = None,
    ttl: Ttl = None,
    partition: Partition = None,
    dedup_id: DedupId = None,
    dedup_window: DedupWindow = None,
    file: File = None,
    format_: FormatName = None,
    key_column: KeyColumn = None,
    batch: BatchSize = 10_000,
) -> None:
    """Publish messages, one or millions.

    When it ends with 0 they survive what the topic's fsync setting promises.
    """
    if value and file is not None:
        raise InvalidInput("give values or --file, not both")
    if dedup_id is not None and (value is None or len(value) != 1):
        raise InvalidInput("--dedup-id is for one message; JSON lines have a field dedup_id each")
    options = {
        "key": key,
        "priority": priority,
        "headers": values.headers(header),
        "ttl": ttl,
        "delay": delay,
        "deliver_at": None if deliver_at is None else values.moment(deliver_at, "deliver-at"),
        "partition": partition,
        "dedup_id": dedup_id,
        "dedup_window": dedup_window,
    }
    with Signals() as signals:
        publishing = ChunkPublisher(session, topic, options, signals)
        started = time.monotonic()  # when it is connected
        with _telling_how_far(publishing):
            if value:
                publishing.all(value)
            else:
                _from_source(publishing, file, format_of(file, format_), batch, key_column)
    _report(session, topic, publishing, time.monotonic() - started)


@contextmanager
def _telling_how_far(publishing: ChunkPublisher) -> Iterator[None]:
    """An error in the middle says how much was published, for who tries again."""
    try:
        yield
    except BaseException as exc:
        if publishing.count:
            exc.add_note(f"{publishing.count:,} messages were published before that")
        raise


def _from_source(
    publishing: ChunkPublisher,
    file: Path | None,
    format_: Format | None,
    batch: int,
    key_column: str | None,
) -> None:
    with opened(file) as source:
        if source.isatty():
            note("One message a line; Ctrl-D ends.")
        size = file.stat().st_size if file is not None and source is not sys.stdin.buffer else 0
        with ByteProgress(size, "published") as progress:
            progress.name(str(file or "stdin"))
            for chunk in chunks(source, format_, batch, key_column):
                publishing.chunk(chunk)
                if size:
                    progress.reach(source.tell())


def _report(session: Session, topic: str, publishing: ChunkPublisher, seconds: float) -> None:
    last = publishing.last if publishing.count == 1 else None
    if session.json:
        tables.document({"topic": topic, "published": publishing.count, "message": last})
    elif isinstance(last, Delayed):
        known = "was there already, and " if last.duplicate else ""
        when = f"will be delivered at {moment(last.deliver_at_us)} UTC"
        tables.say(f"{last.id} {known}{when if last.deliver_at_us else 'was due before'}")
    elif last is not None:
        known = "was there already," if last.duplicate else "is"
        where = "delayed to" if last.offset < 0 else f"at offset {last.offset} of"
        tables.say(f"{last.id or 'it'} {known} {where} {topic}/{last.partition}")
    else:
        rate = publishing.count / max(seconds, 1e-9)
        what = "message" if publishing.count == 1 else "messages"
        tables.say(f"{publishing.count:,} {what} published in {seconds:.1f} s, {rate:,.0f}/s")


publish = connected(_publish)
