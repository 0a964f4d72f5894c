"""Messages as files: JSON lines and Parquet, both ways.

A line is an object with `value` (text) or `value_base64`, and what else a message has: `key`,
`headers`, `priority`, `timestamp_us`, `expires_us`, `deliver_at_us`, `partition`, `offset`. A
Parquet file has the same as columns, with values and keys as bytes.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.errors import InvalidInput
from penstock.record.schema import Priority, parse_priority
from penstock.transfer.foreign import ForeignDamage, ForeignMessage, ForeignTopic, GroupPosition

_LINE_BYTES_MAX = 256 << 20
_ROWS = 10_000
SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("id", pa.string()),
        ("timestamp_us", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.map_(pa.string(), pa.binary())),
        ("priority", pa.string()),
        ("expires_us", pa.int64()),
    ]
)


class MessageLine(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A message as a line of JSON."""

    partition: int | None = None
    offset: int | None = None
    id: str | None = None
    timestamp_us: int | None = None
    key: str | None = None
    key_base64: str | None = None
    value: str | None = None
    value_base64: str | None = None
    headers: dict[str, str | dict[str, str] | None] = {}
    priority: str | int = "normal"
    expires_us: int | None = None
    deliver_at_us: int | None = None


_lines = msgspec.json.Decoder(MessageLine)


def read_file(path: str | os.PathLike[str], topic: str) -> MessageFile:
    """By the end of its name."""
    path = os.path.abspath(os.fspath(path))
    if not os.path.isfile(path):
        raise InvalidInput(f"there is no file {path}")
    if path.endswith((".jsonl", ".ndjson", ".json")):
        return MessageFile(path, topic, _read_lines)
    if path.endswith(".parquet"):
        return MessageFile(path, topic, _read_parquet)
    raise InvalidInput(f"{path} is neither .jsonl nor .parquet")


class MessageFile:
    """A source that is one file; a message is known by its row, of the file of this content."""

    def __init__(self, path: str, topic: str, read: Any) -> None:
        self.damage: list[ForeignDamage] = []
        self._path = path
        self._topic = topic
        self._read = read
        digest = blake2b(digest_size=8)
        with open(path, "rb") as file:
            digest.update(file.read(1 << 20))
        digest.update(path.encode())
        self.source_id = f"file-{digest.hexdigest()}"

    def topics(self) -> list[ForeignTopic]:
        return [ForeignTopic(self._topic, 1, os.path.getsize(self._path))]

    def positions(self) -> list[GroupPosition]:
        return []

    def read(self, topic: ForeignTopic, partition: int, after: int) -> Iterator[ForeignMessage]:
        for message in self._read(self._path, self.damage):
            if message.number > after:
                yield message


def _read_lines(path: str, damage: list[ForeignDamage]) -> Iterator[ForeignMessage]:
    at = 0
    with open(path, "rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(_LINE_BYTES_MAX), b"")):
            if line.strip():
                try:
                    yield _of_line(number, _lines.decode(line))
                except (msgspec.DecodeError, ValueError) as exc:
                    damage.append(ForeignDamage(path, at, f"line {number + 1}: {exc}"))
            at += len(line)


def _of_line(number: int, line: MessageLine) -> ForeignMessage:
    return ForeignMessage(
        number,
        _bytes(line.value, line.value_base64),
        _bytes(line.key, line.key_base64),
        {
            name: _bytes(None, value["base64"]) if isinstance(value, dict) else _bytes(value, None)
            for name, value in line.headers.items()
        },
        _priority(line.priority),
        line.timestamp_us,
        line.expires_us,
        line.deliver_at_us,
    )


def _read_parquet(path: str, damage: list[ForeignDamage]) -> Iterator[ForeignMessage]:
    number = 0
    try:
        file = pq.ParquetFile(path)
        if "value" not in file.schema_arrow.names:
            raise InvalidInput(f"{path} has no column `value`")
        for batch in file.iter_batches(_ROWS):
            for row in batch.to_pylist(maps_as_pydicts="lossy"):
                yield ForeignMessage(
                    number,
                    _column_bytes(row["value"]),
                    _column_bytes(row.get("key")),
                    {k: _column_bytes(v) for k, v in (row.get("headers") or {}).items()},
                    _priority(row.get("priority") or "normal"),
                    row.get("timestamp_us"),
                    row.get("expires_us"),
                )
                number += 1
    except (pa.ArrowException, OSError) as exc:
        damage.append(ForeignDamage(path, number, f"row {number}: {exc}"))


def write_lines(path: str, messages: Iterable[tuple[int, Any]]) -> int:
    """Messages with their partitions; how many there were. The file is there when it is whole."""
    count = 0
    with _whole(path) as written, open(written, "wb") as out:
        for partition, message in messages:
            out.write(msgspec.json.encode(_line(partition, message)) + b"\n")
            count += 1
        out.flush()
        os.fsync(out.fileno())
    return count


def write_parquet(path: str, messages: Iterable[tuple[int, Any]]) -> int:
    count = 0
    rows: list[dict[str, Any]] = []
    with (
        _whole(path) as written,
        pq.ParquetWriter(written, SCHEMA, compression="zstd") as out,
    ):
        for partition, message in messages:
            rows.append(
                {
                    "partition": partition,
                    "offset": message.offset,
                    "id": message.id,
                    "timestamp_us": message.timestamp_us,
                    "key": message.key,
                    "value": message.value,
                    "headers": list(message.headers.items()),
                    "priority": Priority(message.priority).name.lower(),
                    "expires_us": message.expires_at_us,
                }
            )
            count += 1
            if len(rows) == _ROWS:
                out.write_table(pa.Table.from_pylist(rows, SCHEMA))
                rows = []
        if rows:
            out.write_table(pa.Table.from_pylist(rows, SCHEMA))
    return count


@contextmanager
def _whole(path: str) -> Iterator[str]:
    """Where to write what is to be at the path when it is whole; what is not is removed."""
    written = f"{path}.tmp"
    try:
        yield written
        os.replace(written, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.remove(written)
        raise


def _line(partition: int, message: Any) -> MessageLine:
    value, value_base64 = _text(message.value)
    key, key_base64 = _text(message.key)
    return MessageLine(
        partition=partition,
        offset=message.offset,
        id=message.id,
        timestamp_us=message.timestamp_us,
        key=key,
        key_base64=key_base64,
        value=value,
        value_base64=value_base64,
        headers={name: _header(each) for name, each in message.headers.items()},
        priority=Priority(message.priority).name.lower(),
        expires_us=message.expires_at_us,
    )


def _header(value: bytes | None) -> str | dict[str, str] | None:
    text, coded = _text(value)
    return {"base64": coded} if coded is not None else text


def _text(value: bytes | None) -> tuple[str | None, str | None]:
    if value is None:
        return None, None
    try:
        return value.decode(), None
    except UnicodeDecodeError:
        return None, base64.b64encode(value).decode()


def _bytes(text: str | None, coded: str | None) -> bytes | None:
    if coded is not None:
        return base64.b64decode(coded, validate=True)
    return None if text is None else text.encode()


def _column_bytes(value: Any) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _priority(given: str | int) -> int:
    return int(parse_priority(given))
