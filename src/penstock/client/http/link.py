"""The link to a server over HTTP: JSON, and Arrow for messages."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np

from penstock.client.call_ids import CallIds
from penstock.client.http.protocol import Reply, ServerRequest
from penstock.client.http.retrying import JSON, RetryingClient, check_type, decode, encode
from penstock.client.link import DeliverySource, Link
from penstock.client.repeating import refused_anew
from penstock.client.waiting import Steps
from penstock.delivery.offsets import Int64s
from penstock.durations import Duration, Moment, parse_ns
from penstock.errors import InvalidInput, MissingExtra, PartitionNotFound, ProtocolError
from penstock.log.base import DONE
from penstock.model.calls import ROUTES, Call, DescribeTopic
from penstock.model.deliveries import (
    Delivered,
    Receive,
    Refusal,
    Settle,
    Settled,
    Verb,
    poll_seconds,
)
from penstock.model.groups import Fetch, Fetched
from penstock.model.messages import (
    EACH_ROW,
    MessagePage,
    PublishedMessage,
    PublishedRuns,
    placed_of,
)
from penstock.model.names import TopicName, dedup_names, group_name
from penstock.model.published import (
    CallId,
    DelayedIds,
    Placed,
    ProducerSequence,
)
from penstock.model.settings import parse_dedup_window_ms, parse_ttl_us
from penstock.model.topics import Found, TopicDescription
from penstock.model.transactions import StagedTransaction, TransactionOutcome
from penstock.model.values import parse_moment_us
from penstock.record.batch import Batch
from penstock.record.plain import Single
from penstock.record.schema import Priority, parse_ulid
from penstock.wire.columns import (
    ARROW_TYPE,
    COMPACT_TYPE,
    decode_delivered,
    decode_read,
    encode_new,
)
from penstock.wire.json_forms import FetchedView, MessagePageView, fetched_of, form_of, page_of
from penstock.wire.routes import base_path, http_call, query, topic_path
from penstock.wire.transactions import TRANSACTION_TYPE, encode_transaction

T = TypeVar("T")

RAW = "application/octet-stream"


class HttpLink(Link):
    retries = True

    def __init__(self, server: RetryingClient) -> None:
        self.server = server
        self.clock = server.clock
        self._partitions: dict[TopicName, int] = {}
        self._call_ids = CallIds()

    @property
    def closed(self) -> bool:
        return self.server.closed

    def close(self) -> None:
        self.server.close()

    def listen(self, name: TopicName, group: str, wanted: Receive) -> DeliverySource:
        try:
            from penstock.client.http.push import PushedDeliveries  # noqa: PLC0415 - few listen
        except ImportError:
            raise MissingExtra("remote", "listening to a server") from None
        return PushedDeliveries(self, name, group, wanted)

    def ask(self, call: Call[T], *, retry_for_s: float | None = None) -> Steps[T]:
        route = ROUTES[type(call)]
        method, path, body = http_call(call)
        as_arrow = route.answer is MessagePage
        request = ServerRequest(
            method,
            path,
            None if body is None else encode(body),
            JSON,
            ARROW_TYPE if as_arrow else "",
            repeatable=route.repeatable or getattr(call, "exist_ok", False),
        )
        reply, again = yield from self.server.ask_again(request, retry_for_s=retry_for_s)
        answer: Any
        if as_arrow:
            check_type(reply, ARROW_TYPE)
            batches, about = decode_read(reply.body)
            answer = page_of(_decoded(about, MessagePageView), batches)
        elif route.answer is None:
            check_type(reply, "")
            answer = None
        else:
            form = form_of(route.answer)
            answer = form.of(decode(reply, form.kind))
        if isinstance(answer, TopicDescription):
            name = TopicName(call.namespace, answer.topic)
            self._partitions[name] = answer.settings.partitions
        if again and isinstance(answer, Found):
            answer = Found(found=True)  # the first attempt, whose answer was lost, may have done it
        return answer  # type: ignore[no-any-return]

    def publish(
        self,
        name: TopicName,
        batch: Batch,
        *,
        partition: int | None = None,
        ttl: Duration | None = None,
        producer: ProducerSequence | None = None,
        dedup_ids: Sequence[str | bytes | None] | None = None,
        dedup_window: Duration | None = None,
        call: CallId | None = None,
        wait: bool = True,
        retry_for_s: float | None = None,
    ) -> Steps[Sequence[Placed]]:
        options = _options(ttl, partition, dedup_window)
        if producer is not None:
            options |= {
                "producer_id": producer.id,
                "epoch": producer.epoch,
                "sequence": producer.sequence,
            }
        ids = None if dedup_ids is None else dedup_names(dedup_ids, len(batch))
        yield from self._check_partition(name, partition)
        reply = yield from self._post(name, batch, ids, options, retry_for_s)
        if reply.value is not None:
            return [_placed_alone(reply.value)]
        assert reply.runs is not None
        return _LazyPlaced(reply.runs)

    def delay(
        self,
        name: TopicName,
        batch: Batch,
        *,
        delay: Duration | None = None,
        deliver_at: Moment | Int64s | None = None,
        partition: int | None = None,
        ttl: Duration | None = None,
        dedup_ids: Sequence[str | bytes | None] | None = None,
        dedup_window: Duration | None = None,
        call: CallId | None = None,
    ) -> Steps[tuple[DelayedIds, int]]:
        options = _options(ttl, partition, dedup_window)
        if delay is not None and deliver_at is not None:
            raise InvalidInput("give delay or deliver_at, not both")
        if delay is not None:
            options["delay"] = _decimal(parse_ns(delay, "delay"), 9)
        elif isinstance(deliver_at, np.ndarray):
            if len(deliver_at) != len(batch):
                raise InvalidInput(f"{len(batch)} messages, but {len(deliver_at)} of deliver_at")
            batch = batch.stamped(deliver_at)
            options["deliver_at"] = EACH_ROW
        elif deliver_at is not None:
            options["deliver_at"] = _decimal(max(parse_moment_us(deliver_at, "deliver_at"), 0), 6)
        else:
            raise InvalidInput("say when: give delay or deliver_at")
        names = None if dedup_ids is None else dedup_names(dedup_ids, len(batch))
        yield from self._check_partition(name, partition)
        reply = yield from self._post(name, batch, names, options, None)
        if reply.value is not None:
            return _delayed_alone(reply.value)
        runs = reply.runs
        assert runs is not None
        ids = DelayedIds([placed_of(run) for run in runs.delayed])
        return ids, runs.deliver_at_us or 0

    def transact(self, staged: StagedTransaction) -> Steps[TransactionOutcome]:
        path = f"{base_path(staged.namespace)}/transactions"
        body = encode_transaction(staged)
        reply = yield from self.server.ask(ServerRequest("POST", path, body, TRANSACTION_TYPE))
        return decode(reply, TransactionOutcome)

    def partitions(self, name: TopicName) -> int:
        return self._partitions.get(name, 0)

    def receive(self, name: TopicName, group: str, wanted: Receive) -> Steps[list[Delivered]]:
        path = f"{topic_path(name)}/groups/{group_name(group)}/receive"
        if type(wanted.max_messages) is not int:
            raise InvalidInput(f"max_messages is {wanted.max_messages!r}; give a whole number")
        left_s = poll_seconds(wanted.wait)
        deadline = time.monotonic() + left_s
        while True:
            wanted = msgspec.structs.replace(wanted, wait=left_s)
            request = ServerRequest("POST", path, encode(wanted), JSON, COMPACT_TYPE, wait_s=left_s)
            reply = yield from self.server.ask(request)
            check_type(reply, ARROW_TYPE)
            delivered = decode_delivered(reply.body, reply.pieces)
            left_s = deadline - time.monotonic()
            if delivered or left_s <= 0:
                return delivered
            # The server was told to stop, and answered early: there may be another one soon.
            wanted = msgspec.structs.replace(wanted, ack=None)

    def settle(
        self, verb: Verb, name: TopicName, group: str, named: Settle, *, repeated: bool = False
    ) -> Steps[tuple[list[Refusal], bool]]:
        path = f"{topic_path(name)}/groups/{group_name(group)}/{verb}"
        request = ServerRequest("POST", path, encode(named), JSON)
        reply, again = yield from self.server.ask_again(request)
        refused = decode(reply, Settled).refused
        if (again or repeated) and refused:
            refused = refused_anew(verb, refused)
        return refused, again or repeated

    def fetch(self, namespace: str, wanted: Fetch) -> Steps[Fetched]:
        base = base_path(namespace)
        wait_s = poll_seconds(wanted.wait)
        request = ServerRequest(
            "POST", f"{base}/fetch", encode(wanted), JSON, ARROW_TYPE, wait_s=wait_s
        )
        reply = yield from self.server.ask(request)
        check_type(reply, ARROW_TYPE)
        batches, about = decode_read(reply.body)
        return fetched_of(_decoded(about, FetchedView), batches)

    def _check_partition(self, name: TopicName, partition: object) -> Steps[None]:
        """What is no number at all is told of in the words of the broker."""
        if partition is not None and (type(partition) is not int or partition < 0):
            call = DescribeTopic(namespace=name.namespace, topic=name.topic)
            settings = (yield from self.ask(call)).settings
            raise PartitionNotFound(str(name), partition, settings.partitions)

    def _post(
        self,
        name: TopicName,
        batch: Batch,
        dedup_ids: Sequence[bytes | None] | None,
        options: dict[str, Any],
        retry_for_s: float | None,
    ) -> Steps[_PublishReply]:
        path = f"{topic_path(name)}/messages{query(options)}"
        plain = dedup_ids is None and "producer_id" not in options
        if plain and isinstance(batch, Single) and batch.priority == Priority.NORMAL:
            reply = yield from self._post_once(path, batch.value, RAW, retry_for_s)
            return _PublishReply(value=decode(reply, PublishedMessage))
        body = encode_new(batch, dedup_ids)
        if plain:
            reply = yield from self._post_once(path, body, ARROW_TYPE, retry_for_s)
        else:
            request = ServerRequest("POST", path, body, ARROW_TYPE)
            reply = yield from self.server.ask(request, retry_for_s=retry_for_s)
        runs = decode(reply, PublishedRuns)
        self._partitions[name] = runs.partitions
        return _PublishReply(runs=runs)

    def _post_once(
        self, path: str, body: bytes, content_type: str, retry_for_s: float | None
    ) -> Steps[Reply]:
        """Under an id of the call: however often it has to be sent, it is stored once."""
        with self._call_ids.one() as call:
            request = ServerRequest("POST", path, body, content_type, call=call)
            return (yield from self.server.ask(request, retry_for_s=retry_for_s))


class _PublishReply(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The answer to a body that was the value of one message, or to columns."""

    value: PublishedMessage | None = None
    runs: PublishedRuns | None = None


class _LazyPlaced(Sequence[Placed]):
    """Worked out of the answer when somebody wants to know: most callers do not."""

    def __init__(self, runs: PublishedRuns) -> None:
        self._runs = runs.runs

    def __len__(self) -> int:
        return len(self._runs)

    def __getitem__(self, index: Any) -> Any:
        found = self._runs[index]
        return [placed_of(run) for run in found] if isinstance(found, list) else placed_of(found)


def _placed_alone(message: PublishedMessage) -> Placed:
    ulid = parse_ulid(message.id) if message.id else 0
    partition = message.partition or 0
    offset = -1 if message.offset is None else message.offset
    return Placed(
        partition,
        range(1),
        offset,
        ulid,
        DONE,
        message.duplicate,
        dead_letter=message.dead_letter,
    )


def _delayed_alone(message: PublishedMessage) -> tuple[DelayedIds, int]:
    return DelayedIds([_placed_alone(message)]), message.deliver_at_us or 0


def _options(
    ttl: Duration | None, partition: int | None, dedup_window: Duration | None
) -> dict[str, Any]:
    """How to publish, as a query."""
    options: dict[str, Any] = {}
    if dedup_window is not None:
        options["dedup_window"] = f"{parse_dedup_window_ms(dedup_window)}ms"
    if ttl is not None:
        options["ttl"] = f"{parse_ttl_us(ttl)}us"
    if partition is not None:
        options["partition"] = partition
    return options


def _decimal(number: int, places: int) -> str:
    """A count of small units as seconds, without rounding."""
    whole, rest = divmod(number, 10**places)
    return f"{whole}.{rest:0{places}d}"


def _decoded(about: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(about, type=kind)
    except msgspec.DecodeError as exc:
        raise ProtocolError(f"the answer cannot be understood: {exc}") from None
