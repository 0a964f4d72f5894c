"""One line of JSON for every request."""

from __future__ import annotations

import asyncio
import logging
import time
from queue import SimpleQueue
from threading import Thread
from typing import IO

import msgspec

from penstock.server.http.answers import Answer, Request
from penstock.server.keys import Key

_FLUSH_EVERY_S = 0.2
_BUFFER_BYTES_MAX = 64 << 10
_WAITING_BYTES_MAX = 4 << 20
_CLOSE_S_MAX = 2

_logger = logging.getLogger("penstock.server")


class Line(msgspec.Struct, kw_only=True, omit_defaults=True):
    time: str
    """RFC 3339 in UTC, as in the other lines of the log."""
    level: str
    method: str
    path: str
    status: int
    ms: float
    bytes_in: int = 0
    bytes_out: int = 0
    client: str = ""
    key: str = ""
    """The name of the API key."""
    code: str = ""
    """Of the problem."""
    trace: str = ""
    """The W3C traceparent that came with the request."""


class AccessLog:
    """Lines are gathered for a moment, and written by a thread: whoever reads them may be slow, or
    stop reading, and must not hold up answers. What does not fit into memory then is left out."""

    def __init__(self, out: IO[bytes] | None, *, failures_only: bool = False) -> None:
        """`failures_only`: what the server could not do, and who was not let in."""
        self._out = out
        self._failures_only = failures_only
        self._encoder = msgspec.json.Encoder()
        self._lines = bytearray()
        self._flush_is_due = False
        self._second, self._second_text = 0, ""
        self._waiting_bytes = self._left_out = 0
        self._parts: SimpleQueue[bytes | bytearray | None] = SimpleQueue()
        self._writer = Thread(target=self._write_parts, name="penstock-access-log", daemon=True)
        if out is not None:
            self._writer.start()

    def write(self, request: Request, answer: Answer, took_s: float, key: Key | None) -> None:
        status = answer.status
        if self._out is None or (
            self._failures_only and status < 500 and status not in (401, 403, 429)
        ):
            return
        line = Line(
            time=self._now(),
            level="error" if status >= 500 else "info",
            method=request.method,
            path=request.path,
            status=status,
            ms=int(took_s * 1e6) / 1000,
            bytes_in=len(request.body),
            bytes_out=len(answer.body),
            client=request.client,
            key=key.name if key is not None else "",
            code=answer.code,
            trace=request.headers.get(b"traceparent", b"").decode("latin-1"),
        )
        self._lines += self._encoder.encode(line)
        self._lines += b"\n"
        if len(self._lines) > _BUFFER_BYTES_MAX:
            self.flush()
        elif not self._flush_is_due:
            self._flush_is_due = True
            asyncio.get_running_loop().call_later(_FLUSH_EVERY_S, self.flush)

    def _now(self) -> str:
        """The time; what it has in common with that of the line before is not made again."""
        second, ms = divmod(time.time_ns() // 1_000_000, 1000)
        if second != self._second:
            self._second = second
            self._second_text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        return f"{self._second_text}.{ms:03d}+00:00"

    def flush(self) -> None:
        self._flush_is_due = False
        if self._out is None or not self._lines:
            return
        lines, self._lines = self._lines, bytearray()
        if self._waiting_bytes > _WAITING_BYTES_MAX:
            self._left_out += lines.count(b"\n")
            return
        if self._left_out:
            _logger.warning("left out %d lines of the log: nobody reads it", self._left_out)
            self._left_out = 0
        self._waiting_bytes += len(lines)
        self._parts.put(lines)

    def close(self) -> None:
        self.flush()
        if self._out is not None:
            self._parts.put(None)
            self._writer.join(_CLOSE_S_MAX)

    def _write_parts(self) -> None:
        """On a thread of its own."""
        assert self._out is not None
        while (part := self._parts.get()) is not None:
            try:
                self._out.write(part)
                self._out.flush()
            except (OSError, ValueError):  # nobody can read it any more
                continue
            finally:
                self._waiting_bytes -= len(part)
