"""A connection to NATS on an event loop of its own, for threads."""

from __future__ import annotations

import asyncio
import base64
import logging
import ssl
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import msgspec
import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from penstock.errors import ClusterUnsafe, Unavailable

T = TypeVar("T")

_logger = logging.getLogger("penstock.cluster")

REQUEST_S = 5.0
_OPEN_S = 10.0
EXPECTED_LAST = "Nats-Expected-Last-Sequence"
WRONG_LAST = frozenset({10071, 10164})  # somebody else was quicker
NO_ROOM = frozenset({10023, 10028, 10047})
NAME_IN_USE = 10058
NOT_FOUND = frozenset({10014, 10037, 10043, 10059})  # 10043: nothing there to delete
OLDEST = (2, 12)
"""Of the servers: what of JetStream is needed came with it."""
_PENDING_BYTES = 128 << 20
_LARGE_BYTES = 4 << 20


class NatsOptions(NamedTuple):
    """How to reach the NATS servers."""

    servers: tuple[str, ...]
    credentials: str | None = None
    """A file with a user's JWT and key."""
    tls_ca: str | None = None


class JetStreamError(Exception):
    """An answer of JetStream that is an error."""

    def __init__(self, code: int, text: str) -> None:
        self.code = code
        super().__init__(f"{text} ({code})")


class NatsConnection:
    """Reconnects for ever. Any thread may use it, but that of its own event loop."""

    def __init__(self, options: NatsOptions, name: str) -> None:
        self.options = options
        keep_freed_memory()
        self.loop = _new_event_loop()
        self._thread = threading.Thread(target=self._run, name="penstock-nats", daemon=True)
        self._thread.start()
        self._name = name
        self.client = Client()
        self._is_open = False
        self._last_error: Exception | None = None

    def open(self) -> None:
        """Raises Unavailable if no server answers, ClusterUnsafe if they are too old."""
        try:
            self.call(self._open(), _OPEN_S)
        except (NatsError, OSError, TimeoutError, Unavailable) as exc:
            # The client tries on by itself, and tells of each failure aside.
            why = self._last_error or exc
            raise Unavailable(
                f"no NATS server lets us in at {', '.join(self.options.servers)}: "
                f"{why or type(why).__name__}"
            ) from exc
        self._is_open = True
        version = self.client.connected_server_version
        if (version.major, version.minor) < OLDEST:
            raise ClusterUnsafe(
                f"the NATS server is of version {version}; use {OLDEST[0]}.{OLDEST[1]} or later"
            )

    async def _open(self) -> None:
        options = self.options
        tls = None
        if options.tls_ca is not None:
            tls = ssl.create_default_context(cafile=options.tls_ca)
        extra: dict[str, Any] = {} if tls is None else {"tls": tls}
        if options.credentials is not None:
            extra["user_credentials"] = options.credentials
        self.client = await nats.connect(
            list(options.servers),
            name=self._name,
            connect_timeout=2,
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.2,
            ping_interval=2,
            max_outstanding_pings=2,
            pending_size=_PENDING_BYTES,
            error_cb=self._failed,
            **extra,
        )

    def call(self, work: Coroutine[Any, Any, T], timeout_s: float = 60) -> T:
        """Wait for something that runs on the loop."""
        assert threading.current_thread() is not self._thread
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result(timeout_s)
        except TimeoutError:
            future.cancel()
            raise Unavailable("NATS does not answer") from None

    def api(self, subject: str, body: Any = None, timeout_s: float = REQUEST_S) -> Any:
        """Ask JetStream. Raises JetStreamError, and Unavailable if there is no answer."""
        return self.call(self.api_async(subject, body, timeout_s), timeout_s + 5)

    async def api_async(self, subject: str, body: Any = None, timeout_s: float = REQUEST_S) -> Any:
        data = b"" if body is None else msgspec.json.encode(body)
        return await self.request_async(f"$JS.API.{subject}", data, None, timeout_s)

    def request(
        self,
        subject: str,
        data: bytes,
        headers: dict[str, str] | None,
        timeout_s: float = REQUEST_S,
    ) -> Any:
        """A message to a stream, and what it says."""
        return self.call(self.request_async(subject, data, headers, timeout_s), timeout_s + 5)

    async def request_async(
        self, subject: str, data: bytes, headers: dict[str, str] | None, timeout_s: float
    ) -> Any:
        try:
            answer = await self.client.request(subject, data, timeout=timeout_s, headers=headers)
        except (NatsError, OSError, TimeoutError) as exc:
            raise Unavailable(f"NATS does not answer: {exc or type(exc).__name__}") from exc
        return decode_answer(answer.data)

    def subscribe(self, subject: str, callback: Callable[[Msg], Awaitable[None]]) -> Any:
        return self.call(
            self.client.subscribe(
                subject, cb=callback, pending_msgs_limit=-1, pending_bytes_limit=-1
            )
        )

    def publish(self, subject: str, data: bytes = b"") -> None:
        """Tell whoever listens, if anybody does."""
        with suppress(NatsError, OSError, TimeoutError, Unavailable):
            self.call(self.client.publish(subject, data), 2)

    def close(self) -> None:
        if self._is_open:
            with suppress(NatsError, OSError, TimeoutError, Unavailable):
                self.call(self.client.close(), 5)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(5)
        if not self._thread.is_alive():
            self.loop.close()

    async def _failed(self, error: Exception) -> None:
        self._last_error = error
        _logger.debug("NATS: %r", error)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        left = asyncio.all_tasks(self.loop)
        for task in left:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))


def keep_freed_memory() -> None:
    """Let the allocator keep what a long record has freed for the next one.

    The one of glibc gives it back to the system at once otherwise, and to get it again costs more
    than all else that is done with a record. What it keeps follows the largest block that was freed
    so far: this one, which no page of memory was ever given to.
    """
    bytes(_LARGE_BYTES)


def _new_event_loop() -> asyncio.AbstractEventLoop:
    """Each record of a shard takes some turns of the loop."""
    try:
        import uvloop  # noqa: PLC0415 - not on every system
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def decode_answer(data: bytes) -> Any:
    """Raises JetStreamError if it is an error."""
    try:
        answer = msgspec.json.decode(data)
    except msgspec.DecodeError:
        raise Unavailable(f"NATS gave no answer: {data[:100]!r}") from None
    error = answer.get("error")
    if error is not None:
        raise JetStreamError(error.get("err_code", error.get("code", 0)), error.get("description"))
    return answer


def message_of(answer: Any) -> tuple[int, bytes]:
    """The number and the bytes of a message that was asked for."""
    message = answer["message"]
    return int(message["seq"]), base64.b64decode(message.get("data", ""))
