"""Which webhooks there are: the fold of a journal. Posting is a server's matter.

Changes are durable when the call returns. What a receiver answered lately is kept in memory only.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

import msgspec

from penstock.broker.journal import LazyJournal
from penstock.clock import Clock
from penstock.errors import InvalidInput, WebhookNotFound
from penstock.model.names import group_name
from penstock.model.webhooks import (
    Webhook,
    WebhookAttempt,
    WebhookRecord,
    WebhookSettings,
    check_webhook,
    new_secret,
    secret_key,
    webhook_group,
)

NAME_LENGTH_MAX = 64
WEBHOOKS_MAX = 10_000
_ATTEMPTS_KEPT = 100
_OLD_SECRET_S = 24 * 3600
_CHECKPOINT_BYTES = 1 << 20


class _Changed(msgspec.Struct, frozen=True, tag="changed"):
    webhook: WebhookRecord


class _Deleted(msgspec.Struct, frozen=True, tag="deleted"):
    namespace: str
    name: str


class _All(msgspec.Struct, frozen=True, tag="all"):
    """A checkpoint."""

    webhooks: list[WebhookRecord]


_entries = msgspec.json.Decoder(_Changed | _Deleted | _All)


class _Standing:
    """What a server knows of a webhook since it began."""

    def __init__(self) -> None:
        self.attempts: deque[WebhookAttempt] = deque(maxlen=_ATTEMPTS_KEPT)
        self.delivered = 0
        self.failed = 0
        self.failing_since_us: int | None = None


class Webhooks:
    """Any thread may call."""

    def __init__(self, journal: LazyJournal, clock: Clock) -> None:
        self._journal = journal
        self._clock = clock
        self._lock = threading.Lock()
        self._records: dict[tuple[str, str], WebhookRecord] = {}
        self._standings: dict[tuple[str, str], _Standing] = {}
        self._tests: deque[tuple[str, str]] = deque(maxlen=1000)
        self.on_change: Callable[[], None] = lambda: None
        """Called after each change; a server listens."""
        for entry in journal.entries():
            self._fold(_entries.decode(entry))

    def put(
        self, namespace: str, name: str, settings: WebhookSettings, secret: str | None
    ) -> WebhookRecord:
        """Make a webhook, or change the settings of the one of that name."""
        check_name(name)
        check_webhook(settings)
        if secret is not None:
            secret_key(secret)
        with self._lock:
            known = self._records.get((namespace, name))
            if known is None and len(self._records) >= WEBHOOKS_MAX:
                raise InvalidInput(f"there are {WEBHOOKS_MAX} webhooks already")
            if known is not None and known.settings.topic != settings.topic:
                raise InvalidInput(
                    f"webhook {name} reads {known.settings.topic}; make another one for "
                    f"{settings.topic}"
                )
            record = WebhookRecord(
                namespace=namespace,
                name=name,
                settings=settings,
                secret=secret or (known.secret if known else new_secret()),
                created_at_us=known.created_at_us if known else self._now_us(),
            )
            self._store(_Changed(record))
        self.on_change()
        return record

    def change(self, namespace: str, name: str, **changes: object) -> WebhookRecord:
        """Pause, disable or rotate: fields of the record, or `paused`."""
        with self._lock:
            record = self._record(namespace, name)
            if "paused" in changes:
                settings = msgspec.structs.replace(record.settings, paused=changes.pop("paused"))
                changes["settings"] = settings
            record = msgspec.structs.replace(record, **changes)
            self._store(_Changed(record))
        self.on_change()
        return record

    def rotate(self, namespace: str, name: str) -> WebhookRecord:
        """A new secret; for a day both sign."""
        old = self.get(namespace, name).secret
        until_us = self._now_us() + _OLD_SECRET_S * 1_000_000
        return self.change(
            namespace, name, secret=new_secret(), old_secret=old, old_until_us=until_us
        )

    def delete(self, namespace: str, name: str) -> WebhookRecord:
        with self._lock:
            record = self._record(namespace, name)
            self._store(_Deleted(namespace, name))
            self._standings.pop((namespace, name), None)
        self.on_change()
        return record

    def get(self, namespace: str, name: str) -> WebhookRecord:
        with self._lock:
            return self._record(namespace, name)

    def all(self, namespace: str | None = None) -> list[WebhookRecord]:
        with self._lock:
            return [
                record
                for (where, _), record in sorted(self._records.items())
                if namespace in (None, where)
            ]

    def view(self, record: WebhookRecord) -> Webhook:
        standing = self._standing(record.namespace, record.name)
        return Webhook(
            name=record.name,
            namespace=record.namespace,
            group=webhook_group(record.name),
            settings=record.settings,
            created_at_us=record.created_at_us,
            disabled=record.disabled,
            delivered=standing.delivered,
            failed=standing.failed,
            failing_since_us=standing.failing_since_us,
        )

    def attempts(self, namespace: str, name: str) -> list[WebhookAttempt]:
        self.get(namespace, name)
        return list(reversed(self._standing(namespace, name).attempts))

    def attempted(self, namespace: str, name: str, attempt: WebhookAttempt) -> None:
        """A server has tried to post: note what came of it."""
        standing = self._standing(namespace, name)
        standing.attempts.append(attempt)
        if attempt.error:
            standing.failed += 1
            if standing.failing_since_us is None:
                standing.failing_since_us = attempt.at_us
        else:
            standing.delivered += 1
            standing.failing_since_us = None

    def ask_for_test(self, namespace: str, name: str) -> None:
        """Have a server send an example; the attempt tells what came of it."""
        self.get(namespace, name)
        self._tests.append((namespace, name))
        self.on_change()

    def take_tests(self) -> list[tuple[str, str]]:
        taken = []
        while self._tests:
            taken.append(self._tests.popleft())
        return taken

    def close(self) -> None:
        self._journal.close()

    def _record(self, namespace: str, name: str) -> WebhookRecord:
        record = self._records.get((namespace, name))
        if record is None:
            raise WebhookNotFound(f"there is no webhook {name!r:.100} in namespace {namespace!r}")
        return record

    def _standing(self, namespace: str, name: str) -> _Standing:
        return self._standings.setdefault((namespace, name), _Standing())

    def _store(self, entry: _Changed | _Deleted) -> None:
        """Appended, durable, believed."""
        journal = self._journal.made()
        journal.append(msgspec.json.encode(entry)).result()
        self._fold(entry)
        if journal.bytes_since_checkpoint > _CHECKPOINT_BYTES:
            journal.checkpoint(msgspec.json.encode(_All(list(self._records.values()))))

    def _fold(self, entry: _Changed | _Deleted | _All) -> None:
        match entry:
            case _Changed(webhook=record):
                self._records[record.namespace, record.name] = record
            case _Deleted(namespace=namespace, name=name):
                self._records.pop((namespace, name), None)
            case _All(webhooks=records):
                self._records = {(each.namespace, each.name): each for each in records}

    def _now_us(self) -> int:
        return self._clock.wall_ns() // 1000


def check_name(name: str) -> None:
    if len(name) > NAME_LENGTH_MAX:
        raise InvalidInput(f"the name of a webhook has {NAME_LENGTH_MAX} characters at most")
    group_name(name)
