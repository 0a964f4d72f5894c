"""The WebSocket door with the face of `Client`: what is published, received and settled goes over
one socket. What a socket does not carry goes over HTTP to the same server.
"""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import count
from typing import Any

import msgspec
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from penstock.client.client import Client
from penstock.client.connect import connect_http
from penstock.client.http.link import HttpLink
from penstock.client.waiting import Steps
from penstock.errors import TopicNotFound
from penstock.log.base import DONE
from penstock.model.deliveries import Delivered, Receive, Refusal, Settle, Verb, poll_seconds
from penstock.model.names import TopicName, dedup_names
from penstock.model.problem import error_of
from penstock.model.published import Placed
from penstock.record.batch import Batch
from penstock.record.schema import BITS, parse_ulid
from penstock.wire import push
from penstock.wire.columns import decode_delivered

_ASKED: dict[Verb, type[push.SettleAsked]] = {
    "ack": push.AckAsked,
    "nack": push.NackAsked,
    "reject": push.RejectAsked,
    "extend": push.ExtendAsked,
}
_FRAME_BYTES = 256 << 10
_NAME_MAX = 256
_PLAIN = BITS["value"] | BITS["key"] | BITS["headers"] | BITS["priority"]
_said = msgspec.json.Decoder(push.Ok | push.ProblemSaid | push.SocketHello | push.Draining)


class SocketLink(HttpLink):
    """Beside the link over HTTP, whose place it takes."""

    def __init__(self, http: HttpLink, url: str) -> None:
        super().__init__(http.server)
        self._refs = count(1)
        self._lock = threading.Lock()
        self._came: dict[str, list[Delivered]] = {}
        self._url = url.replace("http", "ws", 1) + push.PATH
        self._open = ExitStack()
        self._socket: ClientConnection = self._open.enter_context(
            connect(
                self._url,
                subprotocols=[Subprotocol(push.ARROW_SUBPROTOCOL)],
                compression=None,
                max_size=None,
                proxy=None,
                close_timeout=1,
            )
        )
        self._settles: dict[tuple[TopicName, str], str] = {}

    def close(self) -> None:
        self._open.close()
        super().close()

    def receive(self, name: TopicName, group: str, wanted: Receive) -> Steps[list[Delivered]]:
        most = wanted.max_messages
        is_plain = type(most) is int and 0 < most <= push.BATCH_MAX and wanted.ack is None
        is_plain &= isinstance(wanted.consumer, str) and len(wanted.consumer) <= _NAME_MAX
        if not is_plain or not isinstance(group, str) or wanted.visibility == 0:
            return (yield from super().receive(name, group, wanted))
        if poll_seconds(wanted.wait):  # somebody else may use the socket meanwhile
            return (yield from super().receive(name, group, wanted))
        asked = push.Subscribe(
            id=f"receive-{next(self._refs)}",
            topic=name.topic,
            namespace=name.namespace,
            group=group,
            credit=most,
            max_batch=most,
            visibility=wanted.visibility,
            consumer=wanted.consumer,
            partition=wanted.partition,
            start=wanted.start,
        )
        with self._lock:
            came = self._came[asked.id] = []
            self._ask(asked)
            seen = -1
            while seen < (got := sum(each.count for each in came)) < most or seen < 0:
                seen = got
                self._ask(push.Ping())  # whose answer comes after what is ready
                time.sleep(0.005)
            self._ask(push.Unsubscribe(id=asked.id))
            return self._came.pop(asked.id)

    def settle(
        self, verb: Verb, name: TopicName, group: str, named: Settle, *, repeated: bool = False
    ) -> Steps[tuple[list[Refusal], bool]]:
        fields = {field: getattr(named, field) for field in named.__struct_fields__}
        fields |= {"receipts": list(named.receipts), "leases": list(named.leases)}
        if repeated or not isinstance(group, str) or len(named.receipts) > push.BATCH_MAX:
            return (yield from super().settle(verb, name, group, named, repeated=repeated))
        if not str(fields.get("error") or fields.get("reason") or "").isascii():
            return (yield from super().settle(verb, name, group, named, repeated=repeated))
        with self._lock:
            try:
                id_ = self._settling(name, group)
            except TopicNotFound:
                id_ = ""
        if not id_:
            return (yield from super().settle(verb, name, group, named, repeated=repeated))
        with self._lock:
            return self._ask(_ASKED[verb](id=id_, **fields)).refused, False

    def publish(self, name: TopicName, batch: Batch, **how: Any) -> Steps[Sequence[Placed]]:
        own = {"dedup_ids", "retry_for_s", "wait", "call"}
        is_odd = any(value is not None for option, value in how.items() if option not in own)
        if is_odd or batch.columns & ~_PLAIN or batch.timestamp_us is not None:
            return (yield from super().publish(name, batch, **how))
        if len(batch) > push.BATCH_MAX or batch.payload_bytes > _FRAME_BYTES or not len(batch):
            return (yield from super().publish(name, batch, **how))
        ids = how.get("dedup_ids")
        names = [None] * len(batch) if ids is None else dedup_names(ids, len(batch))
        if any(each is not None and not each.isascii() for each in names):
            return (yield from super().publish(name, batch, **how))
        messages = [
            {
                "value_base64": _base64(each.value),
                "key_base64": _base64(each.key),
                "headers": {
                    header: None if value is None else {"base64": _base64(value)}
                    for header, value in each.headers.items()
                },
                "priority": each.priority,
                "dedup_id": None if id_ is None else id_.decode(),
            }
            for each, id_ in zip(batch.messages(), names, strict=True)
        ]
        with self._lock:
            asked = {"type": "publish", "topic": str(name), "messages": messages}
            stored = self._ask(asked).published
        return [
            Placed(
                each.partition or 0,
                range(row, row + 1),
                -1 if each.offset is None else each.offset,
                parse_ulid(each.id) if each.id else 0,
                DONE,
                each.duplicate,
                dead_letter=each.dead_letter,
            )
            for row, each in enumerate(stored)
        ]

    # The lock is held.

    def _settling(self, name: TopicName, group: str) -> str:
        """A subscription that gets nothing: what is settled in band belongs to one."""
        id_ = self._settles.get((name, group))
        if id_ is None:
            id_ = f"settle-{len(self._settles)}"
            self._ask(
                push.Subscribe(id=id_, topic=name.topic, namespace=name.namespace, group=group)
            )
            self._settles[name, group] = id_
        return id_

    def _ask(self, asked: push.Asked | dict[str, Any]) -> push.Ok:
        """The answer; messages that come before it are kept."""
        ref = next(self._refs)
        said = {**msgspec.to_builtins(asked), "ref": ref}
        self._socket.send(msgspec.json.encode(said), text=True)
        while True:
            frame = self._socket.recv(timeout=60)
            if isinstance(frame, bytes):
                head, body = push.decode_frame(frame)
                self._came[head.id] += decode_delivered(body)
                continue
            heard = _said.decode(frame)
            if isinstance(heard, push.Ok) and heard.ref == ref:
                return heard
            if isinstance(heard, push.ProblemSaid) and heard.ref == ref:
                raise error_of(heard.problem)
            if isinstance(heard, push.ProblemSaid) and heard.id is not None:
                raise error_of(heard.problem)  # of a receive that went wrong later


def connect_socket(url: str, namespace: str, config: Any, clock: Any) -> Client:
    over_http = connect_http(url, namespace, config, clock)
    link = over_http.link
    assert isinstance(link, HttpLink)
    return Client(SocketLink(link, url), namespace)


def _base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()
