"""One line of JSON for every request."""

from __future__ import annotations

import asyncio
import time
from typing import BinaryIO

import msgspec

from penstock.server.http.answers import Answer, Request
from penstock.server.keys import Key

_FLUSH_EVERY_S = 0.2
_BUFFER_BYTES_MAX = 64 << 10


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
    """Lines are gathered for a moment, so that writing them does not hold up answers."""

    def __init__(self, out: BinaryIO | None, *, failures_only: bool = False) -> None:
        """`failures_only`: what the server could not do, and who was not let in."""
        self._out = out
        self._failures_only = failures_only
        self._encoder = msgspec.json.Encoder()
        self._lines = bytearray()
        self._flush_is_due = False
        self._second, self._second_text = 0, ""

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
        if self._out is not None and self._lines:
            lines, self._lines = self._lines, bytearray()
            self._out.write(lines)
            self._out.flush()

    def close(self) -> None:
        self.flush()
