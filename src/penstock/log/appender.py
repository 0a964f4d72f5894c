"""The fast way for single messages: they are gathered and written as batches."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import msgspec

from penstock.clock import Clock, SystemClock
from penstock.errors import InvalidInput, LogClosed, MessageTooLarge, PenstockError
from penstock.log.base import Appended
from penstock.log.commit import BackgroundCommitter, Committer
from penstock.log.local import LocalLog
from penstock.record.batch import Batch
from penstock.record.schema import Priority, parse_priority

_lingerer = BackgroundCommitter("penstock-linger")


class Sent(msgspec.Struct, frozen=True, gc=False):
    """A message on its way. It costs next to nothing unless somebody asks."""

    pending: Pending
    row: int

    def result(self, timeout_s: float | None = None) -> int:
        """The message's offset, once the log's fsync policy calls it durable."""
        appended = self.pending.written(timeout_s)
        appended.durable.result(timeout_s)
        return appended.first_offset + self.row


class Pending:
    """Messages that wait for each other, column by column; a column exists once it is used."""

    __slots__ = ("appended", "appender", "columns", "error", "since_ns", "values", "written_event")

    def __init__(self, appender: BufferedAppender) -> None:
        self.appender = appender
        self.values: list[bytes | str | None] = []
        self.columns: dict[str, list[Any]] = {}
        self.since_ns = 0
        self.appended: Appended | None = None
        self.error: PenstockError | None = None

    def written(self, timeout_s: float | None) -> Appended:
        """Where the batch went; it is written now if nobody did so yet."""
        if self.appended is None and self.error is None:
            self.appender.flush_pending(self)
        if self.error is not None:
            raise self.error
        assert self.appended is not None
        return self.appended

    def set(self, name: str, value: Any, default: Any) -> None:
        """Give the newest message a value in a column that few messages use."""
        column = self.columns.get(name)
        if column is None:
            column = self.columns[name] = []
        column.extend([default] * (len(self.values) - 1 - len(column)))
        column.append(value)

    def batch(self) -> Batch:
        rows = len(self.values)
        for name, column in self.columns.items():
            column.extend([_DEFAULTS[name]] * (rows - len(column)))
        return Batch.build(self.values, **self.columns)


_DEFAULTS: Mapping[str, Any] = {
    "keys": None,
    "headers": None,
    "priority": int(Priority.NORMAL),
    "expires_at_us": None,
}


class BufferedAppender:
    """Gathers messages for a log and appends them when there are enough, or after a short while.

    A batch is written when it holds `messages_max` messages or `bytes_max` bytes, `linger_ms` after
    its first message, at `flush()`, or when somebody asks for a message's `result()`. Until
    then its messages are in this process alone. A batch that could not be written raises its
    error from each `result()` and once from the next `flush()` or `close()`. Any thread may send.
    """

    def __init__(
        self,
        log: LocalLog,
        *,
        messages_max: int = 100,
        bytes_max: int = 64 << 10,
        linger_ms: float = 5,
        clock: Clock | None = None,
        committer: Committer | None = None,
    ) -> None:
        self._log = log
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._linger_ms = linger_ms
        self._clock = clock or SystemClock()
        self._committer = committer or _lingerer
        self._lock = threading.Lock()
        self._pending = Pending(self)
        self._bytes = 0
        self._linger_is_due = False
        self._error: PenstockError | None = None
        self._closed = False
        self._message_bytes_max = log.config.message_bytes_max

    def send(
        self,
        value: bytes | str | None,
        key: bytes | str | None = None,
        *,
        headers: Mapping[str, bytes | str | None] | None = None,
        priority: int | str = Priority.NORMAL,
        expires_at_us: int | None = None,
    ) -> Sent:
        """Add a message to the pending batch."""
        if not isinstance(value, bytes):
            value = _as_bytes("value", value)
        size = len(value) if value is not None else 0
        if size > self._message_bytes_max:
            raise MessageTooLarge(
                f"a message of {size} bytes; at most {self._message_bytes_max} are taken"
            )
        if priority != 2:
            priority = int(parse_priority(priority))
        with self._lock:
            if self._closed:
                raise LogClosed("the appender is closed")
            pending = self._pending
            values = pending.values
            values.append(value)
            rows = len(values)
            if key is not None:
                pending.set("keys", key, None)
            if headers is not None:
                pending.set("headers", headers, None)
            if priority != 2:
                pending.set("priority", priority, 2)
            if expires_at_us is not None:
                pending.set("expires_at_us", expires_at_us, None)
            self._bytes += size
            if rows >= self._messages_max or self._bytes >= self._bytes_max:
                self._write()
            elif rows == 1:
                self._start_linger()
        return Sent(pending, rows - 1)

    def flush(self) -> None:
        """Write what is pending. Raises the error of a batch that failed since the last flush."""
        with self._lock:
            self._write()
            error, self._error = self._error, None
        if error is not None:
            raise error

    def flush_pending(self, pending: Pending) -> None:
        """Write this batch, if it is still the pending one."""
        with self._lock:
            if pending is self._pending:
                self._write()

    def close(self) -> None:
        """Write what is pending and take no more. The log stays open."""
        with self._lock:
            self._closed = True
        self.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # The lock is held.

    def _write(self) -> None:
        pending = self._pending
        if not pending.values:
            return
        self._pending = Pending(self)
        self._bytes = 0
        try:
            pending.appended = self._log.append(pending.batch())
        except PenstockError as exc:
            pending.error = self._error = exc

    def _start_linger(self) -> None:
        self._pending.since_ns = self._clock.monotonic_ns()
        if not self._linger_is_due:
            self._linger_is_due = True
            self._committer.schedule(self._linger_ms, self._linger)

    def _linger(self) -> None:
        """Write the pending batch if it waited long enough; else come back when it will have."""
        with self._lock:
            self._linger_is_due = False
            if not self._pending.values:
                return
            waited_ms = (self._clock.monotonic_ns() - self._pending.since_ns) / 1e6
            if waited_ms >= self._linger_ms:
                self._write()
            else:
                self._linger_is_due = True
                self._committer.schedule(self._linger_ms - waited_ms, self._linger)


def _as_bytes(name: str, value: object) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    raise InvalidInput(f"{name} must be bytes or str, not {type(value).__name__}")
