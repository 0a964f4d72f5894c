"""Messages as they leave: text, JSON lines, Arrow or Parquet, to stdout or into files.

A file appears under its name when it is complete and synced; until then it ends in `.part`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.cli.tables import encode
from penstock.client.stream_progress import StreamMessage
from penstock.model.values import Base64, to_text
from penstock.record.schema import HEADERS, READ_SCHEMA, TIMESTAMP, Priority, parse_ulid, ulid_text


class OutputFormat(StrEnum):
    """How messages are written."""

    text = "text"
    json = "json"
    arrow = "arrow"
    parquet = "parquet"


_SUFFIXES = {
    ".jsonl": OutputFormat.json,
    ".ndjson": OutputFormat.json,
    ".json": OutputFormat.json,
    ".arrow": OutputFormat.arrow,
    ".arrows": OutputFormat.arrow,
    ".parquet": OutputFormat.parquet,
}
_SUFFIX_OF = {
    OutputFormat.text: ".txt",
    OutputFormat.json: ".jsonl",
    OutputFormat.arrow: ".arrows",
    OutputFormat.parquet: ".parquet",
}

TABLE = READ_SCHEMA.append(pa.field("partition", pa.int32())).append(
    pa.field("delivery_count", pa.int32())
)


def form_of(given: OutputFormat | None, as_json: bool, out: Path | None) -> OutputFormat:
    if given is not None:
        return given
    if as_json:
        return OutputFormat.json
    return _SUFFIXES.get(out.suffix.lower(), OutputFormat.text) if out else OutputFormat.text


class TableWriter(Protocol):
    """Writes tables of messages to a stream. `finish` writes what belongs at the end."""

    def write(self, table: pa.Table) -> None: ...

    def finish(self) -> None: ...


class _TextWriter:
    """The values, a line each."""

    def __init__(self, stream: BinaryIO, topic: str) -> None:
        self._stream = stream

    def write(self, table: pa.Table) -> None:
        values = (value or b"" for value in table.column("value").to_pylist())
        self._stream.write(b"\n".join([*values, b""]))

    def finish(self) -> None:
        pass


class _JsonWriter:
    """A JSON object each, as `publish --format jsonl` reads them."""

    def __init__(self, stream: BinaryIO, topic: str) -> None:
        self._stream = stream
        self._topic = topic

    def write(self, table: pa.Table) -> None:
        lines = [encode(row) for row in json_rows(self._topic, table)]
        self._stream.write(b"\n".join([*lines, b""]))

    def finish(self) -> None:
        pass


class _ArrowWriter:
    """An Arrow IPC stream."""

    def __init__(self, stream: BinaryIO, topic: str) -> None:
        self._writer = pa.ipc.new_stream(stream, TABLE)

    def write(self, table: pa.Table) -> None:
        self._writer.write_table(table)

    def finish(self) -> None:
        self._writer.close()


class _ParquetWriter:
    def __init__(self, stream: BinaryIO, topic: str) -> None:
        self._writer = pq.ParquetWriter(stream, TABLE, compression="zstd")

    def write(self, table: pa.Table) -> None:
        self._writer.write_table(table)

    def finish(self) -> None:
        self._writer.close()


_WRITERS: dict[OutputFormat, Any] = {
    OutputFormat.text: _TextWriter,
    OutputFormat.json: _JsonWriter,
    OutputFormat.arrow: _ArrowWriter,
    OutputFormat.parquet: _ParquetWriter,
}


def writer(form: OutputFormat, stream: BinaryIO, topic: str) -> TableWriter:
    made: TableWriter = _WRITERS[form](stream, topic)
    return made


class OutFile:
    """A file that is there as a whole or not at all."""

    def __init__(self, out: Path, form: OutputFormat, topic: str) -> None:
        """`out` is the file, or the folder for one with a name of its own."""
        if out.is_dir():
            now = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f")
            out = out / f"{topic.replace('/', '.')}-{now}{_SUFFIX_OF[form]}"
        if out.exists():
            raise FileExistsError(
                errno.EEXIST, "it exists already; give another name, or a folder", str(out)
            )
        self.path = out
        self._part = out.with_name(out.name + ".part")
        self._stream = self._part.open("wb")
        self._writer = writer(form, self._stream, topic)
        self.rows = 0

    def write(self, table: pa.Table) -> None:
        self._writer.write(table)
        self.rows += table.num_rows

    def complete(self) -> None:
        """All of it is on the disk, under its name."""
        self._writer.finish()
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self._stream.close()
        os.replace(self._part, self.path)
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def discard(self) -> None:
        self._stream.close()
        self._part.unlink(missing_ok=True)


def json_rows(topic: str, table: pa.Table) -> Iterator[dict[str, Any]]:
    """Messages as JSON objects, without the fields that are empty."""
    times = {
        name: table.column(name).cast(pa.int64()).to_pylist()
        for name in ("timestamp", "expires_at")
    }
    for number, row in enumerate(table.drop_columns(["timestamp", "expires_at"]).to_pylist()):
        value, value_base64 = to_text(row["value"])
        key, key_base64 = to_text(row["key"])
        fields = {
            "topic": topic,
            "partition": row["partition"],
            "offset": row["offset"],
            "id": ulid_text(int.from_bytes(row["id"], "big")),
            "timestamp_us": times["timestamp"][number],
            "key": key,
            "key_base64": key_base64,
            "value": value,
            "value_base64": value_base64,
            "headers": {h["key"]: _header(h["value"]) for h in row["headers"] or ()} or None,
            "priority": Priority(row["priority"]).name.lower(),
            "expires_at_us": times["expires_at"][number],
            "delivery_count": row["delivery_count"],
        }
        yield {name: field for name, field in fields.items() if field is not None}


def stream_table(messages: Iterable[StreamMessage]) -> pa.Table:
    """Messages of a stream, as the columns that a receive gives."""
    rows = list(messages)
    columns = [
        pa.array([m.offset for m in rows], pa.int64()),
        pa.array([parse_ulid(m.id).to_bytes(16, "big") for m in rows], pa.binary(16)),
        pa.array([m.timestamp_us for m in rows], pa.int64()).view(TIMESTAMP),
        pa.array([int(m.priority) for m in rows], pa.uint8()),
        pa.nulls(len(rows), TIMESTAMP),
        pa.array([m.key for m in rows], pa.binary()),
        pa.array([m.value for m in rows], pa.binary()),
        pa.array([list(m.headers.items()) or None for m in rows], HEADERS),
        pa.array([m.partition for m in rows], pa.int32()),
        pa.nulls(len(rows), pa.int32()),
    ]
    return pa.Table.from_arrays(columns, schema=TABLE)


def _header(data: bytes | None) -> str | Base64 | None:
    text, encoded = to_text(data)
    return text if encoded is None else Base64(encoded)
