"""The gRPC door with the face of `Client`: whatever a scenario asks goes through `Api.Ask`, and
messages through their own methods. What gRPC does not carry (delays of batches, transactions,
streams of groups) goes over HTTP to the same server.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any, TypeVar

import grpc
import msgspec
from google.protobuf import message_factory

from penstock.broker.api import METHODS
from penstock.client.client import Client
from penstock.client.connect import connect_http
from penstock.client.http.link import HttpLink
from penstock.client.waiting import Steps
from penstock.durations import parse_ns
from penstock.errors import InvalidInput, PenstockError
from penstock.log.base import DONE
from penstock.model.calls import ROUTES, Call
from penstock.model.deliveries import Delivered, Receive, Refusal, Settle, Verb, poll_seconds
from penstock.model.messages import MessagePage
from penstock.model.names import TopicName, dedup_names, group_name
from penstock.model.problem import make_error
from penstock.model.published import Placed
from penstock.model.topics import TopicDescription
from penstock.record.batch import Batch
from penstock.record.schema import parse_ulid
from penstock.server.grpc.descriptors import PACKAGE, message, pool
from penstock.wire.columns import decode_delivered, encode_new
from penstock.wire.json_forms import form_of

T = TypeVar("T")
_VERBS: dict[Verb, int] = {"ack": 1, "nack": 2, "reject": 3, "extend": 4}
_RETRY_S = 0.3
_OPTIONS = [("grpc.max_receive_message_length", -1)]


class GrpcLink(HttpLink):
    """Beside the link over HTTP, whose place it takes."""

    def __init__(self, http: HttpLink, port: int) -> None:
        super().__init__(http.server)
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}", _OPTIONS)

    def close(self) -> None:
        self._channel.close()
        super().close()

    def ask(self, call: Call[T], *, retry_for_s: float | None = None) -> Steps[T]:
        route = ROUTES[type(call)]
        if route.answer is MessagePage:  # its JSON is for people
            return (yield from super().ask(call, retry_for_s=retry_for_s))
        fields = msgspec.json.encode(call).decode()
        request = message("AskRequest")(call=METHODS[type(call)], fields=fields)
        answer = self._call("Api.Ask", request, retry_for_s).answer
        if route.answer is None:
            return None  # type: ignore[return-value]
        form = form_of(route.answer)
        found = form.of(msgspec.json.decode(answer, type=form.kind))
        if isinstance(found, TopicDescription):
            name = TopicName(call.namespace, found.topic)
            self._partitions[name] = found.settings.partitions
        return found  # type: ignore[no-any-return]

    def publish(self, name: TopicName, batch: Batch, **how: Any) -> Steps[Sequence[Placed]]:
        own = {"dedup_ids", "retry_for_s", "wait", "call"}
        if any(value is not None for option, value in how.items() if option not in own):
            return (yield from super().publish(name, batch, **how))
        ids = how.get("dedup_ids")
        names = None if ids is None else dedup_names(ids, len(batch))
        request = message("PublishRequest")(
            namespace=name.namespace, topic=name.topic, arrow=encode_new(batch, names)
        )
        runs = self._call("Messages.Publish", request, how.get("retry_for_s")).runs
        return [_placed(run) for run in runs]

    def receive(self, name: TopicName, group: str, wanted: Receive) -> Steps[list[Delivered]]:
        is_odd = type(wanted.max_messages) is not int or not _is_text(wanted.consumer)
        if is_odd or wanted.max_messages < 1 or not _is_text(group):
            return (yield from super().receive(name, group, wanted))
        if wanted.ack is not None or wanted.start != "earliest":
            return (yield from super().receive(name, group, wanted))
        request = message("ReceiveRequest")(
            namespace=name.namespace,
            topic=name.topic,
            group=group_name(group),
            max_messages=wanted.max_messages,
            consumer=wanted.consumer,
            arrow=True,
        )
        _set_duration(request.wait, poll_seconds(wanted.wait))
        if wanted.visibility is not None:
            _set_duration(request.visibility, parse_ns(wanted.visibility, "visibility") / 1e9)
        if wanted.partition is not None:
            request.partition = wanted.partition
        return decode_delivered(self._call("Queue.Receive", request).arrow)

    def settle(
        self, verb: Verb, name: TopicName, group: str, named: Settle, *, repeated: bool = False
    ) -> Steps[tuple[list[Refusal], bool]]:
        given = msgspec.to_builtins(named)
        error = given.get("error") or given.get("reason") or ""
        if given.get("retries") is not None or repeated or not _is_text(group):
            return (yield from super().settle(verb, name, group, named, repeated=repeated))
        if not _is_text(error.replace("\n", "")):
            return (yield from super().settle(verb, name, group, named, repeated=repeated))
        request = message("SettleRequest")(
            namespace=name.namespace,
            topic=name.topic,
            group=group_name(group),
            verb=_VERBS[verb],
            receipts=named.receipts,
            error=error,
            even_if_lost=named.even_if_lost,
        )
        for part in named.leases:
            request.leases.add(
                partition=part.partition, lease=part.lease, offsets=part.offsets or ()
            )
        for field in ("delay", "visibility"):
            if given.get(field) is not None:
                _set_duration(getattr(request, field), parse_ns(given[field], field) / 1e9)
        refused = self._call("Queue.Settle", request).refused
        found = [
            Refusal(
                code=each.code,
                detail=each.detail,
                partition=each.partition,
                offset=each.offset if each.HasField("offset") else None,
                receipt=each.receipt,
                lease=each.lease,
            )
            for each in refused
        ]
        return found, False

    def _call(self, name: str, request: Any, retry_for_s: float | None = None) -> Any:
        service, _, method_name = name.partition(".")
        method = pool().FindServiceByName(f"{PACKAGE}.{service}").methods_by_name[method_name]
        call = self._channel.unary_unary(
            f"/{PACKAGE}.{service}/{method_name}",
            request_serializer=lambda each: each.SerializeToString(),
            response_deserializer=message_factory.GetMessageClass(method.output_type).FromString,
        )
        until = time.monotonic() + (_RETRY_S if retry_for_s is None else retry_for_s)
        while True:
            try:
                return call(request, timeout=60)
            except grpc.RpcError as exc:
                error = _error_of(exc)
                if not error.retriable or time.monotonic() > until:
                    raise error from None
                time.sleep(0.05)


def connect_grpc(url: str, port: int, namespace: str, config: Any, clock: Any) -> Client:
    over_http = connect_http(url, namespace, config, clock)
    link = over_http.link
    assert isinstance(link, HttpLink)
    return Client(GrpcLink(link, port), namespace)


def _is_text(text: object) -> bool:
    """What is no text, or cannot be sent as such, is told in the words of the broker."""
    return isinstance(text, str) and text.isprintable()


def _set_duration(duration: Any, seconds: float) -> None:
    duration.FromNanoseconds(round(seconds * 1e9))


def _placed(run: Any) -> Placed:
    rows = list(run.rows) or range(run.row, run.row + run.count)
    return Placed(
        run.partition,
        rows,
        run.offset,
        parse_ulid(run.id) if run.id else 0,
        DONE,
        run.duplicate,
        dead_letter=run.dead_letter,
    )


def _error_of(exc: Any) -> PenstockError:
    """As ErrorInfo tells of it."""
    details = dict(exc.trailing_metadata() or ()).get("grpc-status-details-bin")
    if details is None:
        return InvalidInput(exc.details())
    status = message("Status", "google.rpc").FromString(details)
    info = message("ErrorInfo", "google.rpc")()
    assert status.details[0].Unpack(info)
    fields = {name: _value(text) for name, text in info.metadata.items()}
    return make_error(info.reason, status.message, fields)


def _value(text: str) -> Any:
    if text in ("True", "False", "None"):
        return {"True": True, "False": False, "None": None}[text]
    try:
        return json.loads(text)
    except ValueError:
        return text
