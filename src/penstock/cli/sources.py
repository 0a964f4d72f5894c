"""What `penstock publish` reads: lines, JSON, Arrow, Parquet, as batches to publish."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.cli.documents import (
    as_messages,
    as_values,
    by_content,
    documents,
    lines_or_elements,
)
from penstock.cli.tables import encode
from penstock.errors import InvalidInput
from penstock.model.messages import NewMessage
from penstock.record.batch import Batch

_CHUNK_BYTES = 1 << 20
_BATCH_BYTES = 8 << 20
_LINE_BYTES_MAX = 64 << 20

_MESSAGE_COLUMNS = ("key", "value", "headers", "priority", "expires_at")


class Format(StrEnum):
    """What the input is made of."""

    lines = "lines"
    jsonl = "jsonl"
    json = "json"
    arrow = "arrow"
    parquet = "parquet"
    whole = "whole"


_SUFFIXES = {
    ".jsonl": Format.jsonl,
    ".ndjson": Format.jsonl,
    ".arrow": Format.arrow,
    ".arrows": Format.arrow,
    ".feather": Format.arrow,
    ".parquet": Format.parquet,
    ".pq": Format.parquet,
}


class Chunk(NamedTuple):
    """Some messages, as `publish_batch` takes them, or one by one in `alone`."""

    messages: Sequence[bytes | str | None] | Batch
    keys: Sequence[bytes | str | None] | None = None
    headers: Sequence[dict[str, bytes | None] | None] | None = None
    priorities: Sequence[int | str] | None = None
    dedup_ids: Sequence[str | None] | None = None
    alone: Sequence[NewMessage] = ()
    """Messages with a time, a partition or a lifetime of their own."""


def format_of(path: Path | None, given: Format | None) -> Format | None:
    """None: it is JSON of some kind, and what is in it decides."""
    if given is not None:
        return given
    if path is not None and path.suffix.lower() == ".json":
        return None
    return _SUFFIXES.get(path.suffix.lower(), Format.lines) if path else Format.lines


@contextmanager
def opened(path: Path | None) -> Iterator[BinaryIO]:
    """A file, or what is piped in."""
    if path is None or str(path) == "-":
        yield sys.stdin.buffer
    elif path.is_dir():
        raise InvalidInput(f"{path} is a folder; give a file")
    else:
        with path.open("rb") as file:
            yield file


def chunks(
    source: BinaryIO, format_: Format | None, rows_max: int, key_column: str | None
) -> Iterator[Chunk]:
    """All that a source holds, part by part."""
    match format_:
        case Format.lines:
            return (Chunk(lines) for lines in _line_batches(source, rows_max))
        case Format.jsonl | Format.json | None:
            return _json_chunks(_line_batches(source, rows_max), format_, rows_max)
        case Format.whole:
            return iter([Chunk([source.read()])])
        case Format.arrow | Format.parquet:
            return _table_chunks(source, format_, rows_max, key_column)


def _line_batches(source: BinaryIO, rows_max: int) -> Iterator[list[bytes]]:
    """Lines without their ends; empty ones are left out. What a pipe brings is not held back."""
    for lines in _lines_as_they_come(source):
        full = [line for each in lines if (line := each.removesuffix(b"\r"))]
        yield from _batches(full, rows_max)


def _batches(texts: list[bytes], rows_max: int) -> Iterator[list[bytes]]:
    return (texts[start:end] for start, end in _parts(map(len, texts), rows_max))


def _lines_as_they_come(source: BinaryIO) -> Iterator[list[bytes]]:
    read = source.read1 if isinstance(source, io.BufferedReader) else source.read
    rest = b""
    while chunk := read(_CHUNK_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > _LINE_BYTES_MAX:
            raise InvalidInput("a line is longer than 64 MiB; is this a file of lines?")
        yield lines
    yield [rest]


def _json_chunks(
    lines: Iterator[list[bytes]], format_: Format | None, rows_max: int
) -> Iterator[Chunk]:
    read = lines_or_elements if format_ == Format.jsonl else documents
    batches = (batch for texts in read(lines) for batch in _batches(texts, rows_max))
    found: Iterator[list[Any]]
    match format_:
        case Format.jsonl:
            found = as_messages(batches)
        case Format.json:
            found = as_values(batches)
        case _:
            found = by_content(batches)
    for messages in found:
        yield _message_chunk(messages) if isinstance(messages[0], NewMessage) else Chunk(messages)


def _message_chunk(messages: list[NewMessage]) -> Chunk:
    together: list[NewMessage] = []
    alone: list[NewMessage] = []
    for message in messages:
        apart = (
            message.ttl,
            message.delay,
            message.deliver_at,
            message.partition,
            message.dedup_window,
        )
        (together if apart == (None,) * len(apart) else alone).append(message)
    return Chunk(
        [m.value_bytes() for m in together],
        keys=_any([m.key_bytes() for m in together]),
        headers=_any([m.header_bytes() or None for m in together]),
        priorities=[m.priority for m in together],
        dedup_ids=_any([m.dedup_id for m in together]),
        alone=alone,
    )


def _any(column: list[Any]) -> list[Any] | None:
    """A column, or nothing if nobody uses it."""
    return column if any(item is not None for item in column) else None


def _table_chunks(
    source: BinaryIO, format_: Format, rows_max: int, key_column: str | None
) -> Iterator[Chunk]:
    try:
        for batch in _record_batches(source, format_, rows_max):
            for start in range(0, batch.num_rows, rows_max):
                yield from _row_chunks(batch.slice(start, rows_max), rows_max, key_column)
    except (pa.ArrowException, OSError) as exc:
        raise InvalidInput(f"this is not a file of {format_}: {exc}") from None


def _record_batches(source: BinaryIO, format_: Format, rows_max: int) -> Iterator[pa.RecordBatch]:
    if format_ == Format.parquet:
        seekable = source if source.seekable() else io.BytesIO(source.read())
        yield from pq.ParquetFile(seekable).iter_batches(rows_max)
        return
    if source.seekable():
        magic = source.read(6)
        source.seek(0)
        if magic == b"ARROW1":
            reader = pa.ipc.open_file(source)
            yield from (reader.get_batch(i) for i in range(reader.num_record_batches))
            return
    yield from pa.ipc.open_stream(source)


def _row_chunks(table: pa.RecordBatch, rows_max: int, key_column: str | None) -> Iterator[Chunk]:
    """Messages as columns or, where there is no column `value`, each row as a JSON object."""
    names = table.schema.names
    if key_column is not None and key_column not in names:
        raise InvalidInput(f"there is no column {key_column!r}; there are {', '.join(names)}")
    if "value" in names and key_column is None:
        batch = Batch.from_arrow(table.select([n for n in _MESSAGE_COLUMNS if n in names]))
        for start, end in _parts(batch.message_bytes(), rows_max):
            yield Chunk(batch.slice(start, end - start))
        return
    rows = table.to_pylist()
    keys = None if key_column is None else [_key(row[key_column]) for row in rows]
    values = [encode(row) for row in rows]
    for start, end in _parts(map(len, values), rows_max):
        yield Chunk(values[start:end], keys=keys and keys[start:end])


def _parts(sizes: Iterable[int], rows_max: int) -> Iterator[tuple[int, int]]:
    """Where to part rows of these sizes, so that a server takes each part."""
    start = end = held = 0
    for size in sizes:
        end += 1
        held += size
        if held >= _BATCH_BYTES or end - start >= rows_max:
            yield start, end
            start, held = end, 0
    if end > start:
        yield start, end


def _key(value: Any) -> bytes | str | None:
    return value if isinstance(value, bytes | str | None) else str(value)
