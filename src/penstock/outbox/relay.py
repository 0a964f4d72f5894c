"""The relay: publishes the rows of an outbox, in order, and deletes them.

One relay of a database is at work; others stand by and go on when it ends. A row is deleted after
the broker has it. What a crash leaves in between is sent again with the same deduplication id, and
so is stored once, as long as the relay is back within the topic's `dedup_window`. A row that the
broker refuses for good is kept with its error, and the rows behind it go on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from penstock.client.client import Client
from penstock.durations import Duration, parse_ms
from penstock.errors import InvalidInput, PenstockError, TopicNotFound
from penstock.outbox.database import Database, RelayLock, database_of, errors_of
from penstock.outbox.table import OutboxRow, counts, delete, refuse, waiting

log = logging.getLogger("penstock.outbox")

BATCH_ROWS_MAX = 10_000
_PAUSE_S_MAX = 30.0
_REFUSALS = (InvalidInput, TopicNotFound)
"""What is wrong with a message, and not with the broker or the way to it."""


class RelayStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How an outbox stands."""

    pending: int
    refused: int
    oldest_published_at_us: int | None
    """Of the rows that wait; None: none does."""


class Relay:
    """Publishes what transactions left in the outbox of a database.

    `connect` opens a connection, such as `lambda: psycopg.connect(url)`, that nobody else uses; it
    is called again when the database was away. What the relay does there it commits at once.
    """

    def __init__(
        self,
        connect: Callable[[], Any],
        ps: Client,
        *,
        batch_rows: int = 500,
        poll: Duration = "500ms",
    ) -> None:
        if not 1 <= batch_rows <= BATCH_ROWS_MAX:
            raise InvalidInput(f"batch_rows is {batch_rows}; from 1 to {BATCH_ROWS_MAX}")
        self._connect = connect
        self._ps = ps
        self._batch_rows = batch_rows
        self._poll_s = parse_ms(poll, "poll") / 1000
        self._connection: Any = None
        self._database: Database | None = None
        self._lock: RelayLock | None = None
        self.published = 0
        """Rows, since it began."""
        self.refused = 0

    def step(self) -> int | None:
        """Publish one batch of rows: how many were settled; None: another relay is at work."""
        database = self._opened()
        if self._lock is None or not self._lock.take():
            self._commit()
            return None
        rows = waiting(database, self._batch_rows)
        self._commit()
        for topic, together in _runs(rows):
            self._publish(database, topic, together)
        return len(rows)

    def drain(self) -> int:
        """Publish all that is there now; how many rows that were."""
        settled = 0
        while count := self.step():
            settled += count
        return settled

    def run(self, stop: threading.Event) -> None:
        """Go on until `stop` is set; what is away, the broker or the database, is waited for."""
        failures = 0
        try:
            while not stop.is_set():
                pause_s = self._poll_s
                try:
                    settled = self.step()
                    failures = 0
                    if settled:
                        continue
                except self._away() as exc:
                    pause_s = min(0.1 * 2**failures, _PAUSE_S_MAX)
                    failures += 1
                    log.warning("the outbox waits %.1f s: %s", pause_s, exc)
                    self.close()
                stop.wait(pause_s)
        finally:
            self.close()

    def status(self) -> RelayStatus:
        pending, refused, oldest_us = counts(self._opened())
        self._commit()
        return RelayStatus(pending=pending, refused=refused, oldest_published_at_us=oldest_us)

    def close(self) -> None:
        """Close the connection; the next call opens another."""
        if self._lock is not None:
            self._lock.release()
        if self._connection is not None:
            self._connection.close()
        self._connection = self._database = self._lock = None

    def _opened(self) -> Database:
        if self._database is None:
            self._connection = self._connect()
            self._database = database_of(self._connection)
            self._lock = RelayLock(self._database)
        return self._database

    def _commit(self) -> None:
        """No transaction is open while the broker is asked, and none is left open at the end:
        else what was deleted would come back, or publishers wait for the relay. Where each
        statement is committed by itself this does nothing."""
        self._connection.commit()

    def _away(self) -> tuple[type[Exception], ...]:
        """What is raised when the broker or the database is not there."""
        if self._connection is None:  # `connect` itself failed, with whatever its driver raises
            return (Exception,)
        return PenstockError, *errors_of(self._connection)

    def _publish(self, database: Database, topic: str, rows: list[OutboxRow]) -> None:
        """Publish rows of a topic and delete them; what is refused is kept, and told."""
        try:
            if len(rows) == 1:
                self._publish_one(topic, rows[0])
            else:
                self._publish_batch(topic, rows)
        except _REFUSALS as exc:
            if len(rows) > 1:  # which of them is it?
                for row in rows:
                    self._publish(database, topic, [row])
                return
            refuse(database, rows[0], f"{exc.code}: {exc}")
            self._commit()
            self.refused += 1
            log.error("the broker refuses row %s of the outbox: %s", rows[0].id, exc)
            return
        delete(database, rows)
        self._commit()
        self.published += len(rows)

    def _publish_batch(self, topic: str, rows: list[OutboxRow]) -> None:
        ps, topic = self._where(topic)
        ps.publish_batch(
            topic,
            [row.value for row in rows],
            keys=[row.key for row in rows],
            headers=[row.headers for row in rows],
            priority=[row.priority for row in rows],
            dedup_ids=[row.id for row in rows],
        )

    def _publish_one(self, topic: str, row: OutboxRow) -> None:
        ps, topic = self._where(topic)
        rest: dict[str, Any] = {}
        if row.deliver_at_us is not None:
            rest["deliver_at"] = row.deliver_at_us / 1e6
        if row.expires_at_us is not None:
            from_us = max(time.time_ns() // 1000, row.deliver_at_us or 0)
            # One that is over already is stored, and expires, as the topic's settings say.
            rest["ttl"] = max(row.expires_at_us - from_us, 1000) / 1e6
        ps.publish(
            topic,
            row.value,
            key=row.key,
            headers=row.headers,
            priority=row.priority,
            dedup_id=row.id,
            **rest,
        )

    def _where(self, topic: str) -> tuple[Client, str]:
        """A topic without a namespace is in that of the relay's client."""
        namespace, slash, name = topic.rpartition("/")
        return (self._ps.in_namespace(namespace), name) if slash else (self._ps, topic)


def _runs(rows: list[OutboxRow]) -> Iterator[tuple[str, list[OutboxRow]]]:
    """Rows that can be published together, topic by topic: order is promised within a topic."""
    by_topic: dict[str, list[OutboxRow]] = {}
    for row in rows:
        by_topic.setdefault(row.topic, []).append(row)
    for topic, its_rows in by_topic.items():
        together: list[OutboxRow] = []
        for row in its_rows:
            if row.deliver_at_us is None and row.expires_at_us is None:
                together.append(row)
                continue
            if together:  # what lies before it is before it
                yield topic, together
                together = []
            yield topic, [row]
        if together:
            yield topic, together
