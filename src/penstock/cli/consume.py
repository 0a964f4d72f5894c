"""`penstock consume`: receive messages, write them out, and only then ack them."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Annotated, BinaryIO, Protocol, cast

import msgspec
import pyarrow as pa
import typer

from penstock.cli import values
from penstock.cli.completion import topic_names
from penstock.cli.exits import Exit
from penstock.cli.session import Session, connected
from penstock.cli.signals import Signals
from penstock.cli.writers import Form, OutFile, form_of, stream_table, writer
from penstock.client.client import Client
from penstock.client.messages import ReceivedBatch
from penstock.durations import parse_ns
from penstock.errors import DeliveryError, InvalidInput

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


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What the options say."""

    topic: str
    group: str
    follow: bool
    wait_s: float
    count_max: int | None
    batch: int
    visibility: str | None
    partition: int | None
    start: str
    is_remote: bool


class Source(Protocol):
    """Where messages come from. What was not kept is given back."""

    def take(self, count: int, wait_s: float) -> pa.Table | None: ...

    def keep(self) -> None:
        """Everything that was taken is safe elsewhere."""
        ...

    def hold(self) -> None:
        """Everything that was taken is still being worked on."""
        ...

    def give_back(self) -> None: ...


class QueueSource:
    """Messages under leases."""

    def __init__(self, ps: Client, wanted: Wanted) -> None:
        self._ps = ps
        self._wanted = wanted
        visibility = wanted.visibility or f"{ps.describe_topic(wanted.topic).visibility_ms}ms"
        self._visibility = visibility
        self._extend_every_s = parse_ns(visibility, "visibility") / 3e9
        self._held: list[ReceivedBatch] = []
        self._extended = time.monotonic()

    def take(self, count: int, wait_s: float) -> pa.Table | None:
        batch = self._ps.receive_batch(
            self._wanted.topic,
            self._wanted.group,
            count,
            wait=wait_s,
            visibility=self._visibility,
            consumer="penstock consume",
            partition=self._wanted.partition,
        )
        if not len(batch):
            return None
        if not self._held:
            self._extended = time.monotonic()
        self._held.append(batch)
        return batch.table()

    def keep(self) -> None:
        while self._held:
            self._held[0].ack()
            self._held.pop(0)

    def hold(self) -> None:
        if time.monotonic() - self._extended > self._extend_every_s:
            self._extended = time.monotonic()
            for batch in self._held:
                batch.extend(self._visibility)

    def give_back(self) -> None:
        for batch in self._held:
            with suppress(DeliveryError):  # its lease may be over, which comes to the same
                batch.nack(delay=0)
        self._held.clear()


class StreamSource:
    """Messages in order; what was kept is committed."""

    def __init__(self, ps: Client, wanted: Wanted) -> None:
        start = values.position(wanted.start, "from")
        self._stream = ps.stream(wanted.topic, wanted.group, start=start, commit_every=None)

    def take(self, count: int, wait_s: float) -> pa.Table | None:
        first = self._stream.next(wait_s)
        if first is None:
            return None
        messages = [first]
        while len(messages) < count and (message := self._stream.next(0)) is not None:
            messages.append(message)
        return stream_table(messages)

    def keep(self) -> None:
        self._stream.commit()

    def hold(self) -> None:
        pass  # the group does not move on before the commit

    def give_back(self) -> None:
        self._stream.leave(failed=True)


def _consume(
    session: Session,
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", autocompletion=topic_names, help="What to read.")
    ],
    group: Annotated[
        str, typer.Option("--group", "-g", metavar="GROUP", help="As a member of this group.")
    ],
    max_messages: Annotated[
        int | None, typer.Option("--max", min=1, help="End after so many messages.")
    ] = None,
    wait: Annotated[
        str, typer.Option(metavar="TIME", help="End when nothing has come for this long.")
    ] = "0s",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Never end: wait for more, until Ctrl-C.")
    ] = False,
    form: Annotated[
        Form | None,
        typer.Option(
            "--format",
            help="text: the values, a line each. json: everything, an object a line. arrow: a "
            "stream. parquet: only with --out. By default by the name of --out, else text.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="PATH",
            help="Write a file, or files in this folder. What is in a file is acked when the file "
            "is complete; until then its name ends in .part.",
        ),
    ] = None,
    per_file: Annotated[
        int, typer.Option(min=1, help="With --out FOLDER: messages in a file.")
    ] = 100_000,
    every: Annotated[
        str, typer.Option(metavar="TIME", help="With --out FOLDER: a new file after this long.")
    ] = "60s",
    batch: Annotated[
        int, typer.Option(min=1, max=100_000, help="Messages to receive at once.")
    ] = 1000,
    visibility: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="How long messages are ours before others get them. By default as the topic says; "
            "10m, and extended, with --out.",
        ),
    ] = None,
    partition: Annotated[int | None, typer.Option(min=0, help="Only this partition.")] = None,
    stream: Annotated[
        bool,
        typer.Option(
            "--stream", help="Read in order as a stream group, which takes nothing from queues."
        ),
    ] = False,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="POSITION",
            help="Where a stream group begins that was never here: earliest, latest, an offset, a "
            "time, or how long ago (-2h).",
        ),
    ] = "earliest",
) -> None:
    """Receive messages and ack them.

    A message is acked once it is written out, and given back if it could not be.
    """
    form = form_of(form, session.json, out)
    if form == Form.parquet and out is None:
        raise InvalidInput("Parquet needs a file: add --out")
    if out is not None and follow and not out.is_dir():
        raise InvalidInput(f"--follow writes many files: make {out} a folder, and give that")
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
    session.ps.describe_topic(topic)  # a topic that is not there must not wait for ever
    source = StreamSource(session.ps, wanted) if stream else QueueSource(session.ps, wanted)
    with Signals() as signals:
        try:
            if out is None:
                count = _to_stdout(source, wanted, form, signals)
            else:
                every_s = parse_ns(every, "every") / 1e9
                count = _to_files(source, wanted, form, out, per_file, every_s, signals)
        finally:
            source.give_back()  # however it ends, others get what was not written out, at once
    if not count:
        raise typer.Exit(Exit.NO)


def _tables(
    source: Source, wanted: Wanted, tick_s: float, signals: Signals
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


def _to_stdout(source: Source, wanted: Wanted, form: Form, signals: Signals) -> int:
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


def _to_files(
    source: Source,
    wanted: Wanted,
    form: Form,
    out: Path,
    per_file: int,
    every_s: float,
    signals: Signals,
) -> int:
    rolls = out.is_dir()
    file: OutFile | None = None
    due = 0.0
    count = 0

    def complete() -> None:
        nonlocal file
        if file is not None:
            with signals.held_off():
                file.complete()
                source.keep()
            print(f"{file.path}: {file.rows:,} messages", file=sys.stderr)
            file = None

    try:
        for table in _tables(source, wanted, 1.0, signals):
            if table is not None:
                with signals.held_off():
                    if file is None:
                        file, due = OutFile(out, form, wanted.topic), time.monotonic() + every_s
                    file.write(table)
                count += table.num_rows
            if file is not None and rolls and (file.rows >= per_file or time.monotonic() >= due):
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
