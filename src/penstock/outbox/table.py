"""The table of the outbox: a row is a message that a transaction has published.

    position        in the order in which they are published
    id              a ULID, by which the broker knows a row that it was sent before
    topic           as the publisher named it: `topic`, or `namespace/topic`
    key, value      as bytes
    headers         as a JSON object, as in HTTP
    priority        0 (critical) to 4 (background)
    deliver_at_us   for a delayed message
    expires_at_us   for one with a TTL
    published_at_us when the row was inserted
    error           why the broker will not take it; NULL: it waits to be published

Rows are inserted by publishers, in transactions of theirs, and deleted by the relay.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import msgspec

from penstock.client.arguments import Value, one_message
from penstock.durations import Duration, Moment, parse_ms, parse_us
from penstock.errors import InvalidInput
from penstock.model.names import parse_topic
from penstock.model.values import HeaderValue, headers_to_bytes, headers_to_text
from penstock.outbox.database import Database, DatabaseKind, Rows, database_of
from penstock.record.batch import HeaderMap, Payload
from penstock.record.schema import new_batch_ulid, ulid_text

TABLE = "penstock_outbox"

READ_BYTES_MAX = 16 << 20
"""Values that a relay has in memory at a time."""

_COLUMNS = (
    "id, topic, message_key, message_value, headers, priority, deliver_at_us, expires_at_us, "
    "published_at_us"
)
_TYPES: dict[DatabaseKind, dict[str, str]] = {
    "sqlite": {"position": "INTEGER PRIMARY KEY AUTOINCREMENT", "bytes": "BLOB"},
    "postgresql": {
        "position": "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
        "bytes": "BYTEA",
    },
    "mysql": {"position": "BIGINT AUTO_INCREMENT PRIMARY KEY", "bytes": "LONGBLOB"},
}
_headers = msgspec.json.Decoder(dict[str, HeaderValue])


class OutboxRow(NamedTuple):
    """A message that waits to be published."""

    position: int
    id: str
    topic: str
    key: bytes | None
    value: bytes | None
    headers: dict[str, bytes | None]
    priority: int
    deliver_at_us: int | None
    expires_at_us: int | None
    published_at_us: int


def ddl(kind: DatabaseKind) -> str:
    """The statement that makes the table, for your migrations."""
    if kind not in _TYPES:
        raise InvalidInput(f"{kind!r} is no database of the outbox; {', '.join(_TYPES)} are")
    types = _TYPES[kind]
    return f"""CREATE TABLE IF NOT EXISTS {TABLE} (
    position {types["position"]},
    id CHAR(26) NOT NULL UNIQUE,
    topic VARCHAR(320) NOT NULL,
    message_key {types["bytes"]},
    message_value {types["bytes"]},
    headers {types["bytes"]},
    priority SMALLINT NOT NULL,
    deliver_at_us BIGINT,
    expires_at_us BIGINT,
    published_at_us BIGINT NOT NULL,
    error TEXT
)"""


def create_table(connection: Any) -> None:
    """Make the table if it is not there, in the connection's transaction."""
    database = database_of(connection)
    database.execute(ddl(database.kind))


def publish(
    connection: Any,
    topic: str,
    value: Value,
    *,
    key: Payload = None,
    headers: HeaderMap | None = None,
    priority: int | str = 2,
    ttl: Duration | None = None,
    delay: Duration | None = None,
    deliver_at: Moment | None = None,
) -> str:
    """Publish a message if, and when, the connection's transaction commits; its id in the outbox.

    The arguments are those of `Client.publish`, and a topic may be `namespace/topic`. Nothing is
    retried here: an error of the database is the caller's.
    """
    database = database_of(connection)
    parse_topic(topic)
    message = one_message(value, key, headers, priority).messages()[0]
    now_us = time.time_ns() // 1000
    if delay is not None and deliver_at is not None:
        raise InvalidInput("give delay or deliver_at, not both")
    due_us = None if deliver_at is None else parse_us(deliver_at, "deliver_at")
    if delay is not None:
        due_us = now_us + parse_ms(delay, "delay") * 1000
    expires_us = None if ttl is None else (due_us or now_us) + parse_ms(ttl, "ttl") * 1000
    shown = headers_to_text(message.headers)
    id_ = ulid_text(new_batch_ulid(time.time_ns()))
    database.execute(
        f"INSERT INTO {TABLE} ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            id_,
            topic,
            message.key,
            message.value,
            None if shown is None else msgspec.json.encode(shown),
            int(message.priority),
            due_us,
            expires_us,
            now_us,
        ),
    )
    return id_


def waiting(database: Database, limit: int, bytes_max: int = READ_BYTES_MAX) -> list[OutboxRow]:
    """The first rows that are to be published, in their order: so many, and so many bytes, but
    at least one if there is any."""
    those = f"FROM {TABLE} WHERE error IS NULL ORDER BY position LIMIT"
    left_bytes, count = bytes_max, 0
    for (size,) in database.rows(f"SELECT COALESCE(LENGTH(message_value), 0) {those} {limit:d}"):
        left_bytes -= size
        if left_bytes < 0 and count:
            break
        count += 1
    found = database.rows(f"SELECT position, {_COLUMNS} {those} {count:d}") if count else []
    return [_row(*each) for each in found]


def delete(database: Database, rows: list[OutboxRow]) -> None:
    marks = ", ".join("?" * len(rows))
    database.execute(
        f"DELETE FROM {TABLE} WHERE position IN ({marks})", [row.position for row in rows]
    )


def refuse(database: Database, row: OutboxRow, reason: str) -> None:
    """Keep a row that the broker does not take, out of the way of the others."""
    # As ASCII: a reason may quote the message, and a NUL, or a letter that is not in the character
    # set of the database, would be refused by that one, again and again.
    text = reason[:1000].encode("unicode_escape").decode("ascii")
    database.execute(f"UPDATE {TABLE} SET error = ? WHERE position = ?", (text, row.position))


def retry_refused(database: Database) -> int:
    """Let the relay try again what was refused; how many there are."""
    return database.execute(f"UPDATE {TABLE} SET error = NULL WHERE error IS NOT NULL")


def counts(database: Database) -> tuple[int, int, int | None]:
    """Rows that wait, rows that were refused, and when the oldest that waits was inserted."""
    pending, oldest_us = database.rows(
        f"SELECT COUNT(*), MIN(published_at_us) FROM {TABLE} WHERE error IS NULL"
    )[0]
    refused: Rows = database.rows(f"SELECT COUNT(*) FROM {TABLE} WHERE error IS NOT NULL")
    return int(pending), int(refused[0][0]), oldest_us


def _row(
    position: int, id_: str, topic: str, key: Any, value: Any, headers: Any, *rest: Any
) -> OutboxRow:
    decoded = {} if headers is None else headers_to_bytes(_headers.decode(bytes(headers)))
    return OutboxRow(position, id_, topic, _bytes(key), _bytes(value), decoded, *rest)


def _bytes(data: Any) -> bytes | None:
    return None if data is None else bytes(data)  # drivers give a memoryview or a bytearray
