"""One connection: frames of bytes in, answers out in their order.

A frame is its length (4 bytes) and a request. The length is checked before anything of it is kept,
and bytes that are kept are counted with those of the requests of HTTP. One request is handled at a
time, as brokers of Kafka do, so that a client finds its requests carried out in their order; the
next ones wait in the socket. A client that does not take its answers is asked nothing more, and is
cut off in the end.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import deque
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from penstock.errors import (
    PenstockError,
    TooManyRequests,
    Unauthenticated,
    Unavailable,
)
from penstock.server.kafka import messages
from penstock.server.kafka.apis import (
    NO_ANSWER,
    UNAUTHENTICATED,
    Handled,
    supported,
    versions_answer,
)
from penstock.server.kafka.call import KafkaCall, KafkaSession
from penstock.server.kafka.codes import Code, Refused
from penstock.server.kafka.messages import API_VERSIONS, Answer, Head
from penstock.server.kafka.tunnel import FORWARDED, Tunnel

if TYPE_CHECKING:
    from penstock.server.kafka.broker import KafkaBroker
    from penstock.server.kafka.listener import KafkaListener

_logger = logging.getLogger("penstock.server")

_SIZE = struct.Struct(">i")
_PRODUCE = struct.pack(">h", messages.PRODUCE)  # with which a request begins
_FRAME_BYTES_UNKNOWN = 64 << 10  # of who has not said yet who it is
_FRAMES_MAX = 16  # that wait, read already
_FRAMES_AT_ONCE = 16  # that are answered before the event loop may do something else
_SHORT_BYTES_MAX = 1 << 20  # of what brings no messages
_ANSWERS_BYTES_MAX = 1 << 20  # that a client may leave before it is asked nothing more
_THROTTLE_S_MAX = 5.0
IDLE_S = 600.0


async def _committed(broker: KafkaBroker, handled: Handled) -> Answer:
    """An answer, once all that it was decided on is as safe as it has to be."""
    answer: Answer = await handled if isinstance(handled, Coroutine) else handled  # type: ignore[union-attr]
    if answer is not NO_ANSWER:
        await broker.door.committed()
    return answer


class KafkaConnection(asyncio.Protocol):
    def __init__(self, listener: KafkaListener) -> None:
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray()
        self._frames: deque[bytes] = deque()
        self._counted = 0  # bytes of ours in the budget
        self._task: asyncio.Task[Answer] | None = None
        self._is_reading = True
        self._is_writing = True
        self._is_stopping = False
        self._next: asyncio.Handle | None = None  # when the frames that wait are handled
        self.transport: asyncio.Transport | None = None
        self.session = KafkaSession("", "", 0)
        self.broker: KafkaBroker | None = None
        """That its client asks."""
        self._sasl: list[bytes] = []  # by what it said who it is
        self._tunnel: Tunnel | None = None
        self._since = self._loop.time()
        """When it last asked or took something."""

    # The protocol of asyncio.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        transport.set_write_buffer_limits(high=_ANSWERS_BYTES_MAX)
        peer = transport.get_extra_info("peername") or ("", 0)
        here = transport.get_extra_info("sockname") or ("127.0.0.1", 0)
        self.session = KafkaSession(str(peer[0]), str(here[0]), int(here[1]))
        self._listener.came(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self._frames.clear()
        self._buffer.clear()
        self._count(-self._counted)
        if self._task is not None:
            self._task.cancel()
        self._listener.door.connections.closed(self)
        self._listener.went(self)

    def data_received(self, data: bytes) -> None:
        self._since = self._loop.time()
        try:
            self._count(len(data))
        except Unavailable as exc:
            self._cut_off(str(exc))
            return
        buffer = self._buffer
        buffer += data
        at = 0
        while len(buffer) - at >= _SIZE.size:
            (size,) = _SIZE.unpack_from(buffer, at)
            if not 0 < size <= self._frame_bytes_max(buffer, at + _SIZE.size):
                self._cut_off(f"a request of {size} bytes")
                return
            end = at + _SIZE.size + size
            if end > len(buffer):
                break
            self._frames.append(bytes(memoryview(buffer)[at + _SIZE.size : end]))
            at = end
        if at:
            del buffer[:at]
        self._handle_frames()

    def pause_writing(self) -> None:
        self._is_writing = False
        if self._tunnel is not None:
            self._tunnel.pause()

    def resume_writing(self) -> None:
        self._is_writing = True
        self._since = self._loop.time()
        if self._tunnel is not None:
            self._tunnel.resume()
        self._handle_frames()

    # What its listener calls.

    def stop(self) -> None:
        """The server ends: what is under way is answered, nothing more is begun."""
        self._is_stopping = True
        if (self._task is None or self._tunnel is not None) and self.transport is not None:
            self.transport.close()

    def look_after(self, now: float, request_s: float) -> None:
        """End it if it does nothing, or does not go on with what it began."""
        is_halfway = bool(self._buffer) or not self._is_writing
        if self._task is not None and self._is_writing:
            return
        if now - self._since > (request_s if is_halfway else IDLE_S):
            self._cut_off("it went on too slowly" if is_halfway else "")

    # Requests.

    def _handle_frames(self) -> None:
        if self._tunnel is not None:
            self._tunnel.news.set()
        if self._next is not None:
            self._next.cancel()
            self._next = None
        answered = 0
        while self._frames and self._task is None and self._is_writing and self.transport:
            if answered == _FRAMES_AT_ONCE:
                self._next = self._loop.call_soon(self._handle_frames)
                break
            answered += 1
            frame = self._frames.popleft()
            try:
                self._handle(frame)
            finally:
                if self._task is None:
                    self._count(-len(frame) - _SIZE.size)
        self._read_on()

    def _read_on(self) -> None:
        """Leave in the socket what would only wait here."""
        if self.transport is None or self.transport.is_closing():
            return
        wanted = len(self._frames) < _FRAMES_MAX and self._is_writing
        if wanted != self._is_reading:
            self._is_reading = wanted
            (self.transport.resume_reading if wanted else self.transport.pause_reading)()

    def _handle(self, frame: bytes) -> None:
        """Answer at once, or leave a task that will."""
        head = Head(0, 0, 0)
        try:
            head = messages.parse_head(frame)
            if head.key == API_VERSIONS and supported(head) is None:
                head = head._replace(version=0)  # how a later client is told what there is
                self._answer(head, versions_answer(Code.UNSUPPORTED_VERSION))
                return
            handled = self._dispatch(frame, head)
        except TooManyRequests as exc:
            self._begin(head, self._later(frame, exc), len(frame))
            return
        except (Refused, PenstockError) as exc:
            self._cut_off(str(exc))
            return
        if isinstance(handled, Coroutine):
            self._begin(head, handled, len(frame))
        else:
            self._answer(head, handled)

    def _dispatch(self, frame: bytes, head: Head) -> Handled:
        session, gate = self.session, self._listener.door.gate
        gate.arrive(session.address)
        entry = supported(head)
        if entry is None:
            said = f"API {head.key} version {head.version} is not offered"
            raise Refused(Code.UNSUPPORTED_VERSION, said)
        broker = self._listener.home
        if head.key not in UNAUTHENTICATED:
            if not session.is_authenticated and not gate.keys.empty:
                raise Unauthenticated("an API key is needed: use SASL with the mechanism PLAIN")
            gate.check_still_good(session.key)
            gate.allow(session.key, "describe", session.namespace)  # which counts the request
            self._listener.door.connections.use(self, "consume", session.namespace)
            self.broker = self._listener.broker_of(session.namespace)
            if self.broker is None:
                return self._send_on(frame)
            broker = self.broker
        client_id, body = messages.parse(frame, head)
        if head.key == API_VERSIONS:
            session.is_forwarded = client_id == FORWARDED
        elif head.key in UNAUTHENTICATED:
            self._sasl = [*self._sasl[-1:], frame]
        handled = entry.handle(KafkaCall(broker, session, head, client_id, body))
        return handled if self._listener.placement is None else _committed(broker, handled)

    def _send_on(self, frame: bytes) -> Coroutine[Any, Any, Answer]:
        """Let this and all that comes after it be answered by another node of the cluster. Raises
        Unavailable if it is not known which, NotOwner if another one has sent the client here."""
        placement, session = self._listener.placement, self.session
        assert placement is not None
        node = placement.owner_of(session.namespace, is_forwarded=session.is_forwarded)
        self._frames.appendleft(frame)
        self._count(len(frame) + _SIZE.size)
        self._tunnel = Tunnel(node, is_secure=self._listener.door.config.tls_cert is not None)
        return self._tunnel_through(self._tunnel)

    async def _tunnel_through(self, tunnel: Tunnel) -> Answer:
        async with tunnel.opened(self._sasl, self._came_back):
            while self.transport is not None:
                while self._frames:
                    frame = self._frames.popleft()
                    self._count(-len(frame) - _SIZE.size)
                    await tunnel.send(frame)
                self._read_on()
                await tunnel.wait()
        raise AssertionError("a tunnel ends with an error, or with its connection")

    def _came_back(self, data: bytes) -> None:
        if self.transport is not None:
            self._since = self._loop.time()
            self.transport.write(data)

    async def _later(self, frame: bytes, refused: TooManyRequests) -> Answer:
        """Who asks too often is answered late."""
        await asyncio.sleep(min(refused.retry_after_s, _THROTTLE_S_MAX))
        self._frames.appendleft(frame)
        self._count(len(frame) + _SIZE.size)
        return NO_ANSWER

    def _begin(self, head: Head, work: Coroutine[Any, Any, Answer], frame_bytes: int) -> None:
        self._task = asyncio.create_task(work)
        self._task.add_done_callback(lambda task: self._done(head, task, frame_bytes + _SIZE.size))

    def _done(self, head: Head, task: asyncio.Task[Answer], counted: int) -> None:
        self._task = None
        if self.transport is None:
            if not task.cancelled():
                task.exception()  # nobody is there to be told of it
            return
        self._count(-counted)
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or error is not None:
            if error is not None and not isinstance(error, Refused | PenstockError):
                _logger.error("a request of the Kafka protocol failed", exc_info=error)
            self._cut_off(str(error or ""))
            return
        self._answer(head, task.result())
        self._handle_frames()
        if self._is_stopping and self._task is None and self.transport is not None:
            self.transport.close()

    def _answer(self, head: Head, answer: Answer) -> None:
        if self.transport is None or answer is NO_ANSWER:
            return
        data = messages.encode(head, answer)
        self._since = self._loop.time()
        self.transport.write(data)

    # Inside.

    def _frame_bytes_max(self, buffer: bytearray, at: int) -> int:
        """Of the request that begins there. What brings messages is long; of a long request of
        another kind each few bytes would be something to answer."""
        door = self._listener.door
        if not (self.session.is_authenticated or door.gate.keys.empty):
            return _FRAME_BYTES_UNKNOWN
        longest = door.config.body_bytes_max
        is_produce = buffer[at : at + len(_PRODUCE)] == _PRODUCE[: len(buffer) - at]
        return longest if is_produce else min(longest, _SHORT_BYTES_MAX)

    def _count(self, count: int) -> None:
        buffers = self._listener.door.gate.buffers
        if count > 0:
            buffers.take(count)
        else:
            buffers.give_back(-count)
        self._counted += count

    def _cut_off(self, why: str) -> None:
        if self.transport is None or self.transport.is_closing():
            return
        if why:
            _logger.info("cut off a Kafka client at %s: %s", self.session.address, why)
        self.transport.close() if self._is_writing else self.transport.abort()
