"""Who did what to a server: a log that is only appended to, `audit/` in the data folder.

An entry is a message whose value is an `AuditEntry` as JSON; its key is the namespace. Entries are
dropped after 90 days, or beyond 64 MiB. One that cannot be stored is a warning, and stops nobody.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import msgspec

from penstock.config import DAY_MS, LogConfig, Retention
from penstock.errors import PenstockError
from penstock.log.base import PartitionLog
from penstock.model.namespaces import AuditEntry, AuditPage
from penstock.record.batch import Batch

_logger = logging.getLogger("penstock.broker")

RETENTION = Retention(age_ms=90 * DAY_MS, bytes_max=64 << 20)
_LOOKED_AT_MAX = 20_000  # entries of one page
_READ = 500
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(AuditEntry).decode


def audit_log_config(free_bytes_min: int) -> LogConfig:
    return LogConfig(
        segment_bytes=4 << 20, segment_age_ms=DAY_MS, codec="zstd", free_bytes_min=free_bytes_min
    )


class AuditLog:
    """Any thread may call."""

    def __init__(self, open_log: Callable[[bool], PartitionLog | None]) -> None:
        """`open_log` makes a log if it may; else it gives None where there is none."""
        self._open_log = open_log
        self._log: PartitionLog | None = None
        self._lock = threading.Lock()

    def note(self, entry: AuditEntry) -> None:
        try:
            log = self._log_if_any(create=True)
            assert log is not None
            log.append(
                Batch.build(
                    [_encode(entry)], keys=[entry.namespace or ""], timestamps_us=entry.at_us
                )
            )
            log.retain(RETENTION, entry.at_us)
        except (PenstockError, OSError) as exc:
            _logger.warning("an entry of the audit log is not stored: %s", exc)

    def page(self, namespace: str | None, before: int | None, limit: int) -> AuditPage:
        """Newest first, from below an offset on."""
        log = self._log_if_any()
        if log is None:
            return AuditPage(entries=[])
        stop = log.end if before is None else min(before, log.end)
        found: list[AuditEntry] = []
        last = max(log.start, stop - _LOOKED_AT_MAX)
        while stop > last:
            first = max(last, stop - _READ)
            at, some = first, []
            while at < stop:
                read = log.read(max(at, log.start), 256 << 10)
                some += [each for each in read.messages() if each.offset < stop]
                at = read.next_offset
            for message in reversed(some):
                entry = _decode(message.value or b"")
                if namespace in (None, entry.namespace):
                    found.append(entry)
                    if len(found) == limit:
                        return AuditPage(entries=found, next=message.offset or None)
            stop = first
        return AuditPage(entries=found, next=stop if stop > log.start else None)

    def close(self) -> None:
        with self._lock:
            if self._log is not None:
                self._log.close()

    def _log_if_any(self, create: bool = False) -> PartitionLog | None:
        with self._lock:
            if self._log is None:
                self._log = self._open_log(create)
            return self._log
