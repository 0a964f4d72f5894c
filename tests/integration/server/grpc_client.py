"""Clients of the gRPC port, made from the descriptors."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf import message_factory

from penstock.server.grpc.descriptors import PACKAGE, message, pool


class Client:
    """Stubs for all methods, made from the descriptors."""

    def __init__(self, port: int, token: str | None = None, metadata: Any = ()) -> None:
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        self._metadata = (("authorization", f"Bearer {token}"),) if token else metadata

    def __call__(self, name: str, request: Any, package: str = PACKAGE, **more: Any) -> Any:
        service, _, method_name = name.partition(".")
        method = pool().FindServiceByName(f"{package}.{service}").methods_by_name[method_name]
        kind = f"{'stream' if method.client_streaming else 'unary'}_" + (
            "stream" if method.server_streaming else "unary"
        )
        call = getattr(self.channel, kind)(
            f"/{package}.{service}/{method_name}",
            request_serializer=lambda each: each.SerializeToString(),
            response_deserializer=message_factory.GetMessageClass(method.output_type).FromString,
        )
        return call(request, metadata=self._metadata, timeout=20, **more)

    def ask(self, call: str, **fields: Any) -> Any:
        request = message("AskRequest")(call=call, fields=json.dumps(fields))
        answer = self("Api.Ask", request).answer
        return json.loads(answer) if answer else None

    def publish(self, *values: bytes, topic: str = "orders", **more: Any) -> Any:
        return self("Messages.Publish", publish_of(*values, topic=topic, **more))

    def receive(self, group: str = "g", topic: str = "orders", **more: Any) -> Any:
        return self("Queue.Receive", message("ReceiveRequest")(topic=topic, group=group, **more))

    def settle(self, verb: int, receipts: list[str], **more: Any) -> list[Any]:
        request = message("SettleRequest")(
            topic="orders", group="g", verb=verb, receipts=receipts, **more
        )
        return list(self("Queue.Settle", request).refused)


def publish_of(*values: bytes, topic: str = "orders", **more: Any) -> Any:
    messages = [message("NewMessage")(value=value) for value in values]
    return message("PublishRequest")(
        topic=topic, list=message("MessageList")(messages=messages), **more
    )


def seconds(number: float) -> Any:
    return message("Duration", "google.protobuf")(seconds=int(number), nanos=int(number % 1 * 1e9))


def code_of(call: Any) -> tuple[grpc.StatusCode, str]:
    """The status of a call that is refused, and the reason in its details."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    error: Any = caught.value
    details = dict(error.trailing_metadata())["grpc-status-details-bin"]
    status = message("Status", "google.rpc").FromString(details)
    info = message("ErrorInfo", "google.rpc")()
    assert status.details[0].Unpack(info)
    assert info.domain == "penstock"
    return error.code(), info.reason


class Leasing:
    """A `Lease` stream, driven by hand."""

    def __init__(self, client: Client, **subscribe: Any) -> None:
        self._asked: list[Any] = []
        self._news = threading.Condition()
        self._over = False
        self.ask(subscribe={"topic": "orders", "group": "g", **subscribe})
        self._call = client("Queue.Lease", self._requests())

    def ask(self, **asked: Any) -> None:
        with self._news:
            self._asked.append(message("LeaseRequest")(**asked))
            self._news.notify()

    def next(self) -> Any:
        return next(self._call)

    def settled_and_delivered(self) -> tuple[Any, Any]:
        """One of each, whether they come together or not."""
        settled, delivered = [], []
        while not (settled and delivered):
            said = self.next()
            settled += said.settled
            delivered += [said.delivered] if said.HasField("delivered") else []
        (one,), (other,) = settled, delivered
        return one, other

    def end(self) -> list[Any]:
        with self._news:
            self._over = True
            self._news.notify()
        return list(self._call)

    def _requests(self) -> Iterator[Any]:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._asked or self._over)
                if not self._asked:
                    return
                asked = self._asked.pop(0)
            yield asked
