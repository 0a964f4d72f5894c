"""The inbox: which messages were worked on, noted in the transaction that did the work.

A message that is delivered again, because its ack was lost after the commit, is then known.
"""

from __future__ import annotations

import time
from typing import Any, Protocol

from penstock.outbox.database import database_of

TABLE = "penstock_inbox"


class HasId(Protocol):
    """A message that was received."""

    @property
    def id(self) -> str: ...


def create_inbox(connection: Any) -> None:
    """Make the table if it is not there, in the connection's transaction."""
    database_of(connection).execute(
        f"CREATE TABLE IF NOT EXISTS {TABLE} (consumer VARCHAR(255) NOT NULL, "
        "id VARCHAR(64) NOT NULL, worked_on_at_us BIGINT NOT NULL, PRIMARY KEY (consumer, id))"
    )


def first_time(connection: Any, message: HasId | str, *, consumer: str) -> bool:
    """Note a message, or any id, in the connection's transaction; False: it was noted before.

    Rows are yours to delete once no delivery of their message can come again.
    """
    database = database_of(connection)
    insert, conflict = "INSERT", " ON CONFLICT DO NOTHING"
    if database.kind == "mysql":
        insert, conflict = "INSERT IGNORE", ""
    id_ = message if isinstance(message, str) else message.id
    noted = database.execute(
        f"{insert} INTO {TABLE} (consumer, id, worked_on_at_us) VALUES (?, ?, ?){conflict}",
        (consumer, id_, time.time_ns() // 1000),
    )
    return noted == 1
