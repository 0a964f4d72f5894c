"""The fast way for single messages: they are gathered and written as batches."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self

import msgspec

from penstock.clock import Clock, SystemClock
from penstock.errors import InvalidInput, LogClosed, MessageTooLarge, PenstockError
from penstock.log.base import Appendable, Appended
from penstock.log.commit import BackgroundCommitter, Committer
from penstock.log.local import LocalLog
from penstock.record.batch import Batch
from penstock.record.plain import WORTH_IT_MAX, Plain
from penstock.record.schema import Priority, parse_priority

_lingerer = BackgroundCommitter("penstock-linger")


class Sent(msgspec.Struct, frozen=True, gc=False):
    """A message on its way. It costs next to nothing unless somebody asks."""

    pending: Pending
    row: int

    def result(self, timeout_s: float | None = None) -> int:
        """The message's offset, once the log's fsync policy calls it durable."""
        return self.pending.first_offset(timeout_s) + self.row


class Pending:
    """Messages that wait for each other, column by column; a column exists once it is used."""

    __slots__ = (
        "appended",
        "appender",
        "bytes",
        "columns",
        "confirmed",
        "error",
        "since_ns",
        "values",
    )

    def __init__(self, appender: BufferedAppender) -> None:
        self.appender = appender
        self.values: list[bytes] = []
        self.bytes = 0
        self.columns: dict[str, list[Any]] = {}
        self.since_ns = 0
        self.appended: Appended | None = None
        self.error: Exception | None = None
        self.confirmed: Future[int] | None = None
        """Its first offset, for those who wait until it is durable before it is written."""

    def first_offset(self, timeout_s: float | None) -> int:
        """Where the batch went, once it is durable; it is written now if nobody did so yet."""
        if self.confirmed is None and self.appended is None and self.error is None:
            self.appender.flush_pending(self)
        if self.confirmed is not None:
            return self.confirmed.result(timeout_s)
        if self.error is not None:
            raise self.error
        assert self.appended is not None
        self.appended.durable.result(timeout_s)
        return self.appended.first_offset

    def was_written(self) -> None:
        """See to it that those who wait are told."""
        if self.confirmed is not None:
            if self.appended is not None:
                self.appended.durable.add_done_callback(self._confirm)
            else:
                self.confirmed.set_exception(self.error)

    def _confirm(self, durable: Future[None]) -> None:
        assert self.confirmed is not None
        assert self.appended is not None
        failure = durable.exception()
        if failure is not None:
            self.confirmed.set_exception(failure)
        else:
            self.confirmed.set_result(self.appended.first_offset)

    def add_columns(self, extras: Mapping[str, Any]) -> None:
        """Give the newest message what few messages have."""
        for name, extra in extras.items():
            column = self.columns.setdefault(name, [])
            column.extend([_NOTHING[name]] * (len(self.values) - 1 - len(column)))
            column.append(extra)

    def batch(self) -> Batch:
        for name, column in self.columns.items():
            column.extend([_NOTHING[name]] * (len(self.values) - len(column)))
        if not self.columns and len(self.values) <= WORTH_IT_MAX:
            return Plain(self.values)
        return Batch.build(self.values, **self.columns)


_NOTHING: Mapping[str, Any] = {
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

    Where a result has to wait for an fsync (`always`), the batch is written by the log's committer
    right before it syncs. Threads that ask meanwhile share one frame, one fsync and one wake-up.
    """

    def __init__(
        self,
        log: Appendable,
        *,
        messages_max: int = 1000,
        bytes_max: int = 64 << 10,
        linger_ms: float = 5,
        clock: Clock | None = None,
        committer: Committer | None = None,
    ) -> None:
        self._log = log
        self._syncer = log.committer if isinstance(log, LocalLog) else None
        self._messages_max = messages_max
        self._bytes_max = min(bytes_max, log.config.message_bytes_max)
        self._linger_ms = linger_ms
        self._clock = clock or SystemClock()
        self._committer = committer or _lingerer
        self._lock = threading.Lock()
        self._pending = Pending(self)
        self._linger_is_due = False
        self._error: Exception | None = None
        self._closed = False
        self._message_bytes_max = log.config.message_bytes_max

    def send(
        self,
        value: bytes | str,
        key: bytes | str | None = None,
        *,
        headers: Mapping[str, bytes | str | None] | None = None,
        priority: int | str = 2,
        expires_at_us: int | None = None,
    ) -> Sent:
        """Add a message to the pending batch."""
        if type(value) is not bytes:
            value = _as_bytes("value", value)
        extras, length = None, len(value)
        if key is not None or headers is not None or priority != 2 or expires_at_us is not None:
            extras = _extras(key, headers, priority, expires_at_us)
            length += _extra_bytes(extras)
        with self._lock:
            pending = self._pending
            size = pending.bytes + length
            if size >= self._bytes_max or self._closed:
                self._check(length)
            values = pending.values
            row = len(values)
            values.append(value)
            pending.bytes = size
            if extras is not None:
                pending.add_columns(extras)
            if size >= self._bytes_max or row + 1 >= self._messages_max:
                self._write()
            elif row == 0:
                self._start_linger()
        return Sent(pending, row)

    def flush(self) -> None:
        """Write what is pending. Raises the error of a batch that failed since the last flush."""
        with self._lock:
            self._write()
            error, self._error = self._error, None
        if error is not None:
            raise error

    def flush_pending(self, pending: Pending) -> None:
        """Write this batch, or let it be written before the next fsync, if it is still pending."""
        with self._lock:
            if pending is not self._pending or pending.confirmed is not None:
                return
            if self._syncer is None or self._log.config.fsync != "always":
                self._write()
            else:
                pending.confirmed = Future()
                self._syncer.schedule(0, self._write_before_sync)

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

    def _check(self, length: int) -> None:
        """Whether a message may be added; asked only when a batch is full, which a long one is."""
        if self._closed:
            raise LogClosed("the appender is closed")
        if length > self._message_bytes_max:
            raise MessageTooLarge(
                f"a message of {length} bytes; at most {self._message_bytes_max} are taken"
            )

    def _write(self) -> None:
        pending = self._pending
        if not pending.values:
            return
        try:
            pending.appended = self._log.append(pending.batch())
        except (PenstockError, OSError, MemoryError) as exc:
            pending.error = self._error = exc
        # Not earlier: what an interrupt (Ctrl-C) kept from being written is still pending.
        self._pending = Pending(self)
        pending.was_written()

    def _write_before_sync(self) -> None:
        """Called by the log's committer, which has nothing more urgent to do than to sync this."""
        with self._lock:
            self._write()

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


def _extras(
    key: bytes | str | None,
    headers: Mapping[str, bytes | str | None] | None,
    priority: int | str,
    expires_at_us: int | None,
) -> dict[str, Any]:
    """The optional parts of a message, each checked now: one bad message must not spoil a batch."""
    extras: dict[str, Any] = {}
    if key is not None:
        extras["keys"] = _as_bytes("key", key)
    if headers is not None:
        extras["headers"] = _header_map(headers)
    if priority != Priority.NORMAL:
        extras["priority"] = int(parse_priority(priority))
    if expires_at_us is not None:
        if not isinstance(expires_at_us, int) or not -(1 << 63) <= expires_at_us < 1 << 63:
            raise InvalidInput(f"expires_at_us is {expires_at_us!r}: not microseconds since 1970")
        extras["expires_at_us"] = expires_at_us
    return extras


def _extra_bytes(extras: Mapping[str, Any]) -> int:
    """What key and headers add to the length of a message."""
    headers = extras.get("headers", {})
    named = sum(len(name.encode()) + len(value or b"") for name, value in headers.items())
    return len(extras.get("keys", b"")) + named


def _header_map(headers: Mapping[str, bytes | str | None]) -> dict[str, bytes | None]:
    if not isinstance(headers, Mapping):
        raise InvalidInput(f"headers must be a dict, not {type(headers).__name__}")
    checked = {}
    for name, value in headers.items():
        if not isinstance(name, str):
            raise InvalidInput(f"the name of a header must be str, not {type(name).__name__}")
        _as_bytes("the name of a header", name)
        checked[name] = None if value is None else _as_bytes(f"header {name!r}", value)
    return checked


def _as_bytes(name: str, value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as exc:
            raise InvalidInput(f"{name}: {exc}") from None
    raise InvalidInput(f"{name} must be bytes or str, not {type(value).__name__}")
