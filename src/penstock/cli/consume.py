"""`penstock consume`: receive messages, write them out, and only then ack them."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Annotated, BinaryIO, NamedTuple, cast

import pyarrow as pa
import typer

from penstock.cli.completion import topic_names
from penstock.cli.exits import Exit
from penstock.cli.message_source import MessageSource, QueueSource, StreamSource, Wanted
from penstock.cli.output import note
from penstock.cli.session import Session, connected
from penstock.cli.signals import Signals
from penstock.cli.writers import OutFile, OutputFormat, form_of, writer
from penstock.durations import parse_ns
from penstock.errors import InvalidInput

EXAMPLES = """
[bold]Examples[/bold]

What is ready, a value a line; it is acked once it is printed:

[cyan]  penstock consume orders --group billing[/cyan]

For ever, as JSON, for another program:

[cyan]  penstock consume orders -g billing --follow --json | jq .value[/cyan]

One message; the exit code is 1 if there is none within 20 seconds:

[cyan]  penstock consume orders -g billing --max 1 --wait 20s[/cyan]

Into a Parquet file; or, for ever, into one every minute:

[cyan]  penstock consume orders -g archive --out orders.parquet[/cyan]

[cyan]  penstock consume orders -g archive --out lake/ --format parquet --follow[/cyan]

In order, from two hours ago, without taking work from anybody:

[cyan]  penstock consume orders -g audit --stream --from -2h[/cyan]
"""

_POLL_S = 20.0
_LOOK_S = 0.25  # whether there was a signal
_FILE_VISIBILITY = "10m"

Topic = Annotated[
    str, typer.Argument(metavar="TOPIC", autocompletion=topic_names, help="What to read.")
]
Group = Annotated[
    str, typer.Option("--group", "-g", metavar="GROUP", help="As a member of this group.")
]
CountMax = Annotated[int | None, typer.Option("--max", min=1, help="End after so many messages.")]
Wait = Annotated[str, typer.Option(metavar="TIME", help="End when nothing has come for this long.")]
Follow = Annotated[
    bool, typer.Option("--follow", "-f", help="Never end: wait for more, until Ctrl-C.")
]
FormName = Annotated[
    OutputFormat | None,
    typer.Option(
        "--format",
        help="text: the values, a line each. json: everything, an object a line. arrow: a "
        "stream. parquet: only with --out. By default by the name of --out, else text.",
    ),
]
Out = Annotated[
    str | None,  # not a Path, which would forget the slash at its end
    typer.Option(
        "--out",
        "-o",
        metavar="PATH",
        help="Write a file, or files in this folder, which is made if PATH ends in a slash. What "
        "is in a file is acked when the file is complete; until then its name ends in .part.",
    ),
]
PerFile = Annotated[int, typer.Option(min=1, help="With --out FOLDER: messages in a file.")]
Every = Annotated[
    str, typer.Option(metavar="TIME", help="With --out FOLDER: a new file after this long.")
]
BatchSize = Annotated[int, typer.Option(min=1, max=100_000, help="Messages to receive at once.")]
Visibility = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="How long messages are ours before others get them. By default as the topic says; "
        "10m, and extended, with --out.",
    ),
]
Partition = Annotated[int | None, typer.Option(min=0, help="Only this partition.")]
AsStream = Annotated[
    bool,
    typer.Option(
        "--stream", help="Read in order as a stream group, which takes nothing from queues."
    ),
]
From = Annotated[
    str,
    typer.Option(
        "--from",
        metavar="POSITION",
        help="Where a stream group begins that was never here: earliest, latest, an offset, a "
        "time, or how long ago (-2h).",
    ),
]


class Files(NamedTuple):
    """Where messages are written to: a file, or files in a folder."""

    out: Path
    are_many: bool
    form: OutputFormat
    per_file: int
    every_s: float


def _consume(
    session: Session,
    topic: Topic,
    group: Group,
    max_messages: CountMax = None,
    wait: Wait = "0s",
    follow: Follow = False,
    form: FormName = None,
    out: Out = None,
    per_file: PerFile = 100_000,
    every: Every = "60s",
    batch: BatchSize = 1000,
    visibility: Visibility = None,
    partition: Partition = None,
    stream: AsStream = False,
    start: From = "earliest",
) -> None:
    """Receive messages and ack them.

    A message is acked once it is written out, and given back if it could not be.
    """
    wanted = Wanted(
        topic=topic,
        group=group,
        follow=follow,
        wait_s=parse_ns(wait, "wait") / 1e9,
        count_max=max_messages,
        batch=batch,
        visibility=visibility or (_FILE_VISIBILITY if out is not None else None),
        partition=partition,
        start=start,
        is_remote=session.where.url is not None,
    )
    path = None if out is None else Path(out)
    form = form_of(form, session.json, path)
    files = None
    if out is not None and path is not None:
        are_many = out.endswith("/") or path.is_dir()
        files = Files(path, are_many, form, per_file, parse_ns(every, "every") / 1e9)
    _check(form, files, wanted)
    session.ps.describe_topic(topic)  # a topic that is not there must not wait for ever
    if files is not None and files.are_many:
        files.out.mkdir(parents=True, exist_ok=True)
    source = StreamSource(session.ps, wanted) if stream else QueueSource(session.ps, wanted)
    if not _write_out(source, wanted, form, files):
        if sys.stderr.isatty():
            note(f"nothing is ready for group {group!r}; --wait 20s or --follow waits for more")
        raise typer.Exit(Exit.NO)


def _check(form: OutputFormat, files: Files | None, wanted: Wanted) -> None:
    if form == OutputFormat.parquet and files is None:
        raise InvalidInput("Parquet needs a file: add --out")
    if files is not None and wanted.follow and not files.are_many:
        raise InvalidInput(
            f"--follow writes many files; give a folder, such as {files.out.with_suffix('')}/"
        )


def _write_out(
    source: MessageSource, wanted: Wanted, form: OutputFormat, files: Files | None
) -> int:
    """How many messages were."""
    with Signals() as signals:
        try:
            if files is None:
                return _to_stdout(source, wanted, form, signals)
            return _to_files(source, wanted, files, signals)
        finally:
            source.give_back()  # however it ends, others get what was not written out, at once


def _tables(
    source: MessageSource, wanted: Wanted, tick_s: float, signals: Signals
) -> Iterator[pa.Table | None]:
    """What comes, part by part; None every now and then while nothing comes."""
    left = wanted.count_max
    # A server can be left in the middle of a long wait. A broker in this process cannot.
    calm = nullcontext if wanted.is_remote else signals.held_off
    tick_s = tick_s if wanted.is_remote else min(tick_s, _LOOK_S)
    quiet_until = time.monotonic() + wanted.wait_s
    while left is None or left > 0:
        wait_s = _POLL_S if wanted.follow else max(0.0, quiet_until - time.monotonic())
        count = min(wanted.batch, left or wanted.batch)
        with calm():
            table = source.take(count, min(wait_s, tick_s, _POLL_S))
        if table is not None:
            left = None if left is None else left - table.num_rows
            quiet_until = time.monotonic() + wanted.wait_s
        elif not wanted.follow and time.monotonic() >= quiet_until:
            return
        yield table


def _to_stdout(source: MessageSource, wanted: Wanted, form: OutputFormat, signals: Signals) -> int:
    count = 0
    with _whole_writes() as stdout:
        out = writer(form, stdout, wanted.topic)
        for table in _tables(source, wanted, _POLL_S, signals):
            if table is not None:
                with signals.held_off():
                    out.write(table)
                    stdout.flush()
                    source.keep()
                count += table.num_rows
        out.finish()
        stdout.flush()
    return count


@contextmanager
def _whole_writes() -> Iterator[BinaryIO]:
    """Stdout as a stream that writes all or raises, also where Python runs unbuffered."""
    raw = sys.stdout.buffer
    if not isinstance(raw, io.RawIOBase):
        yield raw
        return
    buffered = io.BufferedWriter(raw)
    try:
        yield cast(BinaryIO, buffered)
    finally:
        with suppress(OSError):  # the reader is gone, as has been told
            buffered.detach()


def _to_files(source: MessageSource, wanted: Wanted, files: Files, signals: Signals) -> int:
    rolls = files.are_many
    file: OutFile | None = None
    due = 0.0
    count = 0

    def complete() -> None:
        nonlocal file
        if file is not None:
            with signals.held_off():
                file.complete()
                source.keep()
            note(f"{file.path}: {file.rows:,} messages")
            file = None

    try:
        for table in _tables(source, wanted, 1.0, signals):
            if table is not None:
                with signals.held_off():
                    if file is None:
                        file = OutFile(files.out, files.form, wanted.topic)
                        due = time.monotonic() + files.every_s
                    file.write(table)
                count += table.num_rows
            is_over = file is not None and (file.rows >= files.per_file or time.monotonic() >= due)
            if rolls and is_over:
                complete()
            with signals.held_off():
                source.hold()
        complete()
    except KeyboardInterrupt:
        complete()  # what is there is good
        raise
    finally:
        if file is not None:
            file.discard()
    return count


consume = connected(_consume)
