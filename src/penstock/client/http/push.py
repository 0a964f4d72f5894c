"""Messages that a server pushes over a WebSocket, for threads and event loops alike.

A thread of its own reads the socket, and connects again when it is lost; who takes messages, and
who settles them, waits for futures. What cannot be settled over the socket, since it is just lost,
is settled by a request: leases do not belong to a connection.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from penstock.client.link import DeliverySource, SettleLink
from penstock.client.repeating import AnswerLost
from penstock.client.waiting import Signal, Steps, Wait
from penstock.errors import (
    BrokerClosed,
    PenstockError,
    ProtocolError,
    Unauthenticated,
    Unavailable,
)
from penstock.model.deliveries import Delivered, Receive, Refusal, Settle, Verb
from penstock.model.names import DEFAULT_NAMESPACE, TopicName
from penstock.model.problem import error_of
from penstock.randomness import own_random
from penstock.wire import push
from penstock.wire.columns import decode_delivered

if TYPE_CHECKING:
    from penstock.client.http.link import HttpLink

_ID = "listen"
_CONNECT_S = 5.0
_BACKOFF_S, _BACKOFF_S_MAX = 0.05, 2.0
_FRAME_BYTES_MAX = 256 << 20
_said = msgspec.json.Decoder(push.SocketHello | push.Ok | push.ProblemSaid | push.Draining)
_FOR_GOOD: dict[int, type[PenstockError]] = {4400: ProtocolError, 4401: Unauthenticated}
"""Close codes after which it would be no better."""
_ASKED: dict[Verb, type[push.SettleAsked]] = {
    "ack": push.AckAsked,
    "nack": push.NackAsked,
    "reject": push.RejectAsked,
    "extend": push.ExtendAsked,
}


class PushedDeliveries(DeliverySource, SettleLink):
    def __init__(self, link: HttpLink, name: TopicName, group: str, wanted: Receive) -> None:
        self.settle_link = self
        self._link = link
        self._name = name
        self._group = group
        self._wanted = wanted
        self._lock = threading.Lock()
        self._came: deque[list[Delivered]] = deque()
        self._signal = Signal()
        self._settling: dict[int, Future[push.Ok]] = {}
        self._refs = 0
        self._taken = 0  # messages since credit was last given
        self._error: PenstockError | None = None
        self._socket: ClientConnection | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="penstock-listen", daemon=True)
        self._thread.start()

    # For who takes messages.

    def next(self, wait_s: float) -> Steps[list[Delivered]]:
        signal = self._signal
        if not self._came and self._error is None:
            yield Wait(signal.future, wait_s)
        with self._lock:
            if self._came:
                delivered = self._came.popleft()
                self._taken += sum(each.count for each in delivered)
            else:
                if self._error is not None:
                    raise self._error
                return []
            credit = self._taken if self._taken * 2 >= self._wanted.max_messages else 0
            self._taken -= credit
        if credit:
            self._say(push.AddCredit(id=_ID, add=credit))
        return delivered

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            socket = self._socket
        self._fail(BrokerClosed("the listener was closed"))
        if socket is not None:
            with suppress(Exception):  # it may be lost already
                socket.close()
        if threading.current_thread() is not self._thread:
            self._thread.join(_CONNECT_S)

    # For who settles them.

    def settle(
        self, verb: Verb, name: TopicName, group: str, named: Settle, *, repeated: bool = False
    ) -> Steps[tuple[list[Refusal], bool]]:
        if not repeated:
            answer: Future[push.Ok] = Future()
            if self._say_settle(verb, named, answer):
                yield Wait(answer)
                try:
                    return answer.result().refused, False
                except AnswerLost:
                    repeated = True
        return (yield from self._link.settle(verb, name, group, named, repeated=repeated))

    def _say_settle(self, verb: Verb, named: Settle, answer: Future[push.Ok]) -> bool:
        with self._lock:
            if self._socket is None:
                return False
            self._refs += 1
            ref = self._refs
            self._settling[ref] = answer
        fields = msgspec.structs.asdict(named)
        fields["receipts"], fields["leases"] = list(named.receipts), list(named.leases)
        if self._say(_ASKED[verb](id=_ID, ref=ref, **fields)):
            return True
        with self._lock:
            self._settling.pop(ref, None)
        return False

    def _say(self, said: push.Said) -> bool:
        """Whether there was a connection; what becomes of it, the thread that reads finds out."""
        socket = self._socket
        if socket is None:
            return False
        try:
            socket.send(msgspec.json.encode(said), text=True)
        except (OSError, ConnectionClosed):
            return False
        return True

    # The thread.

    def _run(self) -> None:
        alone_since = time.monotonic()
        pause_s = _BACKOFF_S
        while not self._closed:
            lost: Exception | None = None
            try:
                self._listen()
            except _Refused as exc:
                self._fail(exc.error)
                return
            except ConnectionClosed as exc:
                lost = exc
                if exc.rcvd is not None and exc.rcvd.code in _FOR_GOOD:
                    self._fail(_FOR_GOOD[exc.rcvd.code](exc.rcvd.reason))
                    return
            except (OSError, WebSocketException) as exc:
                lost = exc
            heard = self._disconnected()
            now = time.monotonic()
            if heard:
                alone_since, pause_s = now, _BACKOFF_S
            if now - alone_since > self._link.server.retry_for_s:
                self._fail(Unavailable(f"the server cannot be listened to: {lost}"))
                return
            time.sleep(pause_s * own_random.uniform(0.5, 1))
            pause_s = min(pause_s * 2, _BACKOFF_S_MAX)

    def _listen(self) -> None:
        """Until the connection is lost; raises how."""
        way = self._link.server.connections
        url = str(way.address).replace("http", "ws", 1) + push.PATH
        if self._name.namespace != DEFAULT_NAMESPACE:
            url += f"?namespace={self._name.namespace}"  # it may live on another node
        with connect(
            url,
            additional_headers=way.writer.authorization,
            subprotocols=[Subprotocol(push.ARROW_SUBPROTOCOL)],
            compression=None,
            ssl=way.tls,
            open_timeout=_CONNECT_S,
            close_timeout=1,
            max_size=_FRAME_BYTES_MAX,
            proxy=None,
        ) as socket:
            self._hear(socket, socket.recv(timeout=_CONNECT_S))
            self._socket = socket
            ahead = sum(each.count for some in self._came for each in some)
            self._taken = 0
            self._say(
                push.Subscribe(
                    ref=0,
                    id=_ID,
                    topic=self._name.topic,
                    namespace=self._name.namespace,
                    group=self._group,
                    credit=max(self._wanted.max_messages - ahead, 0),
                    max_batch=self._wanted.max_messages,
                    visibility=self._wanted.visibility,
                    consumer=self._wanted.consumer,
                    start=self._wanted.start,
                )
            )
            while not self._closed:
                self._hear(socket, socket.recv())

    def _hear(self, socket: ClientConnection, frame: str | bytes) -> None:
        if isinstance(frame, bytes):
            _, body = push.decode_frame(frame)
            self._came.append(decode_delivered(body))
            signal, self._signal = self._signal, Signal()
            signal.fire()
            return
        try:
            said = _said.decode(frame)
        except msgspec.MsgspecError as exc:
            raise _Refused(ProtocolError(f"the server says what is not understood: {exc}")) from exc
        if isinstance(said, push.Ok):
            self._answered(said.ref, said, None)
        elif isinstance(said, push.ProblemSaid):
            error = error_of(said.problem)
            if said.id == _ID or said.ref == 0:
                raise _Refused(error)
            self._answered(said.ref, None, error)

    def _answered(self, ref: Any, ok: push.Ok | None, error: PenstockError | None) -> None:
        with self._lock:
            future = self._settling.pop(ref, None)
        if future is None:
            return
        if error is not None:
            future.set_exception(error)
        else:
            assert ok is not None
            future.set_result(ok)

    def _disconnected(self) -> bool:
        """Whether there was a connection. Those who wait for an answer look for another way."""
        with self._lock:
            heard = self._socket is not None
            self._socket = None
            lost, self._settling = self._settling, {}
        for future in lost.values():
            future.set_exception(AnswerLost("the connection was lost"))
        return heard

    def _fail(self, error: PenstockError) -> None:
        """No more messages come; settling goes on by requests."""
        self._disconnected()
        self._error = error
        self._signal.fire()


class _Refused(Exception):
    """The server ends it, for good."""

    def __init__(self, error: PenstockError) -> None:
        self.error = error
        super().__init__(str(error))
