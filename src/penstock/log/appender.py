"""The fast way for single messages: they are gathered and written as batches."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self

import msgspec

from penstock.clock import Clock, SystemClock
from penstock.errors import InvalidInput, LogClosed, MessageTooLarge, PenstockError
from penstock.log.base import Appendable, Appended
from penstock.log.commit import BackgroundCommitter, Committer
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
        "built",
        "bytes",
        "columns",
        "error",
        "gate",
        "since_ns",
        "undecided",
        "values",
    )

    def __init__(self, appender: BufferedAppender) -> None:
        self.appender = appender
        self.values: list[bytes] = []
        self.bytes = 0
        self.columns: dict[str, list[Any]] = {}
        self.since_ns = 0
        self.built: Batch | None = None
        self.appended: Appended | None = None
        self.error: BaseException | None = None
        self.gate: threading.Lock | None = None
        """Held until it is durable, where somebody waits for that before it is written."""
        self.undecided = True
        """Whether the gate is still to be opened."""

    @property
    def is_written(self) -> bool:
        """Written, or failed for good."""
        return self.appended is not None or self.error is not None

    def first_offset(self, timeout_s: float | None) -> int:
        """Where the batch went, once it is durable; it is written now if nobody did so yet."""
        if self.gate is None and not self.is_written:
            self.appender.flush_pending(self)
        if self.gate is not None:
            self._pass(self.gate, timeout_s)
        if self.error is not None:
            raise self.error
        assert self.appended is not None
        if self.gate is None:
            self.appended.durable.result(timeout_s)
        return self.appended.first_offset

    def tell(self) -> None:
        """Now that it is written or failed: see to it that those who wait learn of it."""
        if self.gate is not None:
            if self.appended is not None:
                self.appended.durable.add_done_callback(self._decide)
            else:
                self._open(self.gate)

    def _decide(self, durable: Future[None]) -> None:
        assert self.gate is not None
        self.error = durable.exception()
        self._open(self.gate)

    def _open(self, gate: threading.Lock) -> None:
        self.undecided = False
        gate.release()

    def _pass(self, gate: threading.Lock, timeout_s: float | None) -> None:
        """Wait until the gate is open, and let the next one through.

        One thread wakes the other. A condition would wake them all at once, to queue for its lock.
        """
        rest_s = math.inf if timeout_s is None else timeout_s
        while self.undecided:  # looked at now and then: Ctrl-C may strike one who is in the gate
            if gate.acquire(timeout=max(min(rest_s, 1), 0)):
                gate.release()
            elif rest_s <= 1:
                raise TimeoutError
            rest_s -= 1

    def add_columns(self, extras: Mapping[str, Any]) -> None:
        """Give the newest message what few messages have."""
        for name, extra in extras.items():
            column = self.columns.setdefault(name, [])
            column.extend([_NOTHING[name]] * (len(self.values) - 1 - len(column)))
            column.append(extra)

    def batch(self) -> Batch:
        """The same one each time, by which a producer knows what it has sent already."""
        if self.built is None:
            self.built = self._build()
        return self.built

    def _build(self) -> Batch:
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
    "timestamps_us": 0,
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
        self._syncer: Committer | None = getattr(log, "committer", None)
        self._last_row = messages_max - 1
        self._bytes_max = min(bytes_max, log.config.message_bytes_max)
        self._linger_ms = linger_ms
        self._clock = clock or SystemClock()
        self._committer = committer or _lingerer
        self._lock = threading.Lock()  # held for moments: nobody who sends waits for a write
        self._pending = Pending(self)
        self._write_lock = threading.Lock()  # taken before the other one, never after it
        self._complete: deque[Pending] = deque()
        """Batches that nothing is added to any more, and that are not written yet."""
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
        timestamp_us: int | None = None,
    ) -> Sent:
        """Add a message to the pending batch. A timestamp is given to all of them or to none."""
        extras = _extras(key, headers, priority, expires_at_us)
        if timestamp_us is not None:
            extras["timestamps_us"] = timestamp_us
        if not extras:
            return self.send_value(value)
        return self._add(_as_bytes("value", value), extras)

    def send_value(self, value: bytes | str) -> Sent:
        """Add a message that has a value and nothing else: the short way."""
        if type(value) is bytes:
            with self._lock:  # not `acquire`, behind which Ctrl-C would leave it locked for ever
                pending = self._pending
                row, size = len(pending.values), pending.bytes + len(value)
                if 0 < row < self._last_row and size < self._bytes_max:
                    pending.values.append(value)
                    pending.bytes = size
                    return Sent(pending, row)
        return self._add(_as_bytes("value", value), None)

    def flush(self) -> None:
        """Write what is pending. Raises the error of a batch that failed since the last flush."""
        self._write_all()
        with self._lock:
            error, self._error = self._error, None
        if error is not None:
            raise error

    def flush_pending(self, pending: Pending) -> None:
        """Write this batch, or let it be written before the next fsync, if nobody did so yet."""
        with self._lock:
            if pending.is_written or pending.gate is not None:
                return
            syncer = self._syncer if self._log.config.fsync == "always" else None
            if syncer is not None:
                pending.gate = threading.Lock()
                pending.gate.acquire()
        if syncer is not None:
            syncer.schedule(0, self._write_all)
        else:
            self._write_all()

    def close(self) -> None:
        """Write what is pending and take no more. The log stays open."""
        with self._lock:
            self._closed = True
            self._bytes_max = 0  # so that nothing is added without a closer look
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

    def _write_all(self) -> None:
        with self._lock:
            self._complete_pending()
        self._write()

    def _write(self) -> None:
        """Write the batches that are complete, in their order."""
        with self._write_lock:
            while self._complete:
                pending = self._complete[0]
                appended, error = None, None
                try:
                    appended = self._log.append(pending.batch())
                except (PenstockError, OSError, MemoryError) as exc:
                    error = exc
                with self._lock:
                    pending.appended, pending.error = appended, error
                    self._error = error or self._error
                    # Not earlier: what an interrupt (Ctrl-C) kept from being written is not lost.
                    self._complete.popleft()
                pending.tell()

    def _linger(self) -> None:
        """Write the pending batch if it waited long enough; else come back when it will have."""
        with self._lock:
            self._linger_is_due = False
            if self._pending.values:
                waited_ms = (self._clock.monotonic_ns() - self._pending.since_ns) / 1e6
                if waited_ms < self._linger_ms:
                    self._linger_is_due = True
                    self._committer.schedule(self._linger_ms - waited_ms, self._linger)
                    return
        self._write_all()

    def _add(self, value: bytes, extras: Mapping[str, Any] | None) -> Sent:
        """Add a message that may be the first of its batch, or the last, or have more to it."""
        length = len(value) + (_extra_bytes(extras) if extras else 0)
        with self._lock:
            if self._closed:
                raise LogClosed("the appender is closed")
            if length > self._message_bytes_max:
                raise MessageTooLarge(
                    f"a message of {length} bytes; at most {self._message_bytes_max} are taken"
                )
            pending = self._pending
            row = len(pending.values)
            pending.values.append(value)
            pending.bytes += length
            if extras:
                pending.add_columns(extras)
            if pending.bytes < self._bytes_max and row < self._last_row:
                if row == 0:
                    self._start_linger()
                return Sent(pending, row)
            self._complete_pending()
        self._write()
        return Sent(pending, row)

    # The lock is held.

    def _complete_pending(self) -> None:
        if self._pending.values:
            following = Pending(self)
            try:
                self._complete.append(self._pending)
            finally:  # also after Ctrl-C: one that is in both places would be written twice
                self._pending = following

    def _start_linger(self) -> None:
        self._pending.since_ns = self._clock.monotonic_ns()
        if not self._linger_is_due:
            self._linger_is_due = True
            self._committer.schedule(self._linger_ms, self._linger)


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
