"""What `penstock publish` reads: lines, JSON lines, Arrow, Parquet, as batches to publish."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.cli.tables import encode
from penstock.errors import InvalidInput
from penstock.wire.messages import NewMessage
from penstock.wire.values import headers_to_bytes

_CHUNK_BYTES = 1 << 20
_BATCH_BYTES = 8 << 20
_LINE_BYTES_MAX = 64 << 20

_MESSAGE_COLUMNS = ("key", "value", "headers", "priority", "expires_at")
# What `consume` and `peek` say about where a message was; a new message has a place of its own.
_PLACE = ("topic", "partition", "offset", "id", "timestamp_us", "delivery_count", "receipt")


class Format(StrEnum):
    """What the input is made of."""

    lines = "lines"
    jsonl = "jsonl"
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

    messages: Sequence[bytes | str | None] | pa.Table
    keys: Sequence[bytes | str | None] | None = None
    headers: Sequence[dict[str, bytes | None] | None] | None = None
    priorities: Sequence[int | str] | None = None
    dedup_ids: Sequence[str | None] | None = None
    alone: Sequence[NewMessage] = ()
    """Messages with a time, a partition or a lifetime of their own."""


def format_of(path: Path | None, given: Format | None) -> Format:
    if given is not None:
        return given
    return _SUFFIXES.get(path.suffix.lower(), Format.lines) if path else Format.lines


@contextmanager
def opened(path: Path | None) -> Iterator[BinaryIO]:
    """A file, or what is piped in."""
    if path is None or str(path) == "-":
        yield sys.stdin.buffer
    else:
        with path.open("rb") as file:
            yield file


def chunks(
    source: BinaryIO, format_: Format, rows_max: int, key_column: str | None
) -> Iterator[Chunk]:
    """All that a source holds, part by part."""
    match format_:
        case Format.lines:
            return (Chunk(lines) for lines in _line_batches(source, rows_max))
        case Format.jsonl:
            return _json_chunks(source, rows_max)
        case Format.whole:
            return iter([Chunk([source.read()])])
        case Format.arrow | Format.parquet:
            return _table_chunks(source, format_, rows_max, key_column)


def _line_batches(source: BinaryIO, rows_max: int) -> Iterator[list[bytes]]:
    """Lines without their ends; empty ones are left out. What a pipe brings is not held back."""
    for lines in _lines_as_they_come(source):
        batch: list[bytes] = []
        held = 0
        for line in lines:
            line = line.removesuffix(b"\r")
            if line:
                batch.append(line)
                held += len(line)
                if len(batch) >= rows_max or held >= _BATCH_BYTES:
                    yield batch
                    batch, held = [], 0
        if batch:
            yield batch


def _lines_as_they_come(source: BinaryIO) -> Iterator[list[bytes]]:
    read = source.read1 if isinstance(source, io.BufferedReader) else source.read
    rest = b""
    while chunk := read(_CHUNK_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > _LINE_BYTES_MAX:
            raise InvalidInput("a line is longer than 64 MiB; is this a file of lines?")
        yield lines
    yield [rest]


def _json_chunks(source: BinaryIO, rows_max: int) -> Iterator[Chunk]:
    number = 0
    for lines in _line_batches(source, rows_max):
        together: list[NewMessage] = []
        alone: list[NewMessage] = []
        for line in lines:
            number += 1
            message = _message(line, number)
            apart = (message.ttl, message.delay, message.deliver_at, message.partition)
            (together if apart == (None,) * 4 else alone).append(message)
        yield Chunk(
            [m.value_bytes() for m in together],
            keys=_any([m.key_bytes() for m in together]),
            headers=_any([headers_to_bytes(m.headers) or None for m in together]),
            priorities=[m.priority for m in together],
            dedup_ids=_any([m.dedup_id for m in together]),
            alone=alone,
        )


def _message(line: bytes, number: int) -> NewMessage:
    try:
        fields = msgspec.json.decode(line)
        if not isinstance(fields, dict):
            raise InvalidInput("an object is wanted")
        if "offset" in fields:  # one that was consumed, and is published again
            fields = {k: v for k, v in fields.items() if k not in (*_PLACE, "expires_at_us")}
        if "value" not in fields and "value_base64" not in fields:
            raise InvalidInput("there is no field 'value' or 'value_base64'")
        return msgspec.convert(fields, NewMessage)
    except (msgspec.MsgspecError, UnicodeDecodeError, InvalidInput) as exc:
        raise InvalidInput(
            f"message {number}: {exc}. Each line is a message such as "
            '{"value": "12 apples", "key": "c-17"}; for lines that are values as they are, '
            "use --format lines"
        ) from None


def _any(column: list[Any]) -> list[Any] | None:
    """A column, or nothing if nobody uses it."""
    return column if any(item is not None for item in column) else None


def _table_chunks(
    source: BinaryIO, format_: Format, rows_max: int, key_column: str | None
) -> Iterator[Chunk]:
    try:
        for batch in _record_batches(source, format_, rows_max):
            for start in range(0, batch.num_rows, rows_max):
                yield _table_chunk(batch.slice(start, rows_max), key_column)
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


def _table_chunk(batch: pa.RecordBatch, key_column: str | None) -> Chunk:
    """Messages as columns or, where there is no column `value`, each row as a JSON object."""
    names = batch.schema.names
    if key_column is not None and key_column not in names:
        raise InvalidInput(f"there is no column {key_column!r}; there are {', '.join(names)}")
    if "value" in names and key_column is None:
        return Chunk(pa.table(batch).select([n for n in _MESSAGE_COLUMNS if n in names]))
    rows = batch.to_pylist()
    keys = None if key_column is None else [_key(row[key_column]) for row in rows]
    return Chunk([encode(row) for row in rows], keys=keys)


def _key(value: Any) -> bytes | str | None:
    return value if isinstance(value, bytes | str | None) else str(value)
