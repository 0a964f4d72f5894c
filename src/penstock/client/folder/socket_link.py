"""The link to the owner of a data folder: each operation once, as it is; nothing is retried."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np

from penstock.client.folder.connections import OwnerConnections, SocketExchange
from penstock.client.folder.protocol import (
    AskCall,
    AskDelay,
    AskFetch,
    AskPublish,
    AskReceive,
    AskSettle,
    AskTransaction,
    Hello,
    Question,
    decode,
    decode_answer,
    encode,
    question_frame,
)
from penstock.client.link import Link
from penstock.client.waiting import Steps
from penstock.clock import Clock, SystemClock
from penstock.delivery.offsets import Int64s
from penstock.durations import Duration, Moment, parse_ns
from penstock.errors import InvalidInput, PenstockError
from penstock.model.calls import ROUTES, Call
from penstock.model.deliveries import (
    Delivered,
    Receive,
    Refusal,
    Settle,
    Verb,
    poll_seconds,
)
from penstock.model.groups import Fetch, Fetched
from penstock.model.messages import MessagePage, PublishedRuns, placed_of
from penstock.model.names import TopicName, dedup_names, group_name
from penstock.model.published import CallId, DelayedIds, Placed, ProducerSequence
from penstock.model.settings import parse_dedup_window_ms, parse_ttl_us
from penstock.model.topics import TopicDescription
from penstock.model.transactions import StagedTransaction, TransactionOutcome
from penstock.model.values import parse_moment_us
from penstock.record.batch import Batch
from penstock.record.plain import Single
from penstock.record.schema import Priority
from penstock.wire.columns import decode_delivered, decode_read, encode_new
from penstock.wire.json_forms import FetchedView, MessagePageView, fetched_of, form_of, page_of
from penstock.wire.transactions import encode_transaction

T = TypeVar("T")

_DELAY_NS_MAX = 1 << 62


class SocketLink(Link):
    retries = False

    def __init__(self, folder: str, timeout_s: float, clock: Clock | None = None) -> None:
        self.connections = OwnerConnections(folder)
        self.clock = clock or SystemClock()
        self._timeout_s = timeout_s
        self._partitions: dict[TopicName, int] = {}

    @property
    def closed(self) -> bool:
        return self.connections.closed

    def close(self) -> None:
        self.connections.close()

    def hello(self) -> Steps[int]:
        """Hear from the owner, as which of its clients; ProtocolError if its version is another."""
        result, _ = yield from self._exchange(Hello())
        return int(decode(result, int))

    def ask(self, call: Call[T], *, retry_for_s: float | None = None) -> Steps[T]:
        question = AskCall(type(call).__name__, msgspec.Raw(encode(call)))
        result, body = yield from self._exchange(question)
        kind = ROUTES[type(call)].answer
        answer: Any = None
        if kind is MessagePage:
            batches, about = decode_read(body)
            answer = page_of(msgspec.json.decode(about, type=MessagePageView), batches)
        elif kind is not None:
            form = form_of(kind)
            answer = form.of(decode(result, form.kind))
        if isinstance(answer, TopicDescription):
            self._partitions[TopicName(call.namespace, answer.topic)] = answer.settings.partitions
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
        is_value = (
            dedup_ids is None and isinstance(batch, Single) and batch.priority == Priority.NORMAL
        )
        if is_value:
            assert isinstance(batch, Single)
            body = batch.value
        else:
            ids = None if dedup_ids is None else dedup_names(dedup_ids, len(batch))
            body = encode_new(batch, ids)
        window = _window(dedup_window)
        question = AskPublish(*name, partition, _ttl(ttl), producer, call, is_value, window)
        result, _ = yield from self._exchange(question, body)
        published: PublishedRuns = decode(result, PublishedRuns)
        self._partitions[name] = published.partitions
        return [placed_of(run) for run in published.runs]

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
        if delay is not None and deliver_at is not None:
            raise InvalidInput("give delay or deliver_at, not both")
        delay_ns = at_us = None
        if delay is not None:
            delay_ns = min(
                parse_ns(delay, "delay"), _DELAY_NS_MAX
            )  # the broker says what is allowed
        elif isinstance(deliver_at, np.ndarray):
            if len(deliver_at) != len(batch):
                raise InvalidInput(f"{len(batch)} messages, but {len(deliver_at)} of deliver_at")
            batch = batch.stamped(deliver_at)
        elif deliver_at is None:
            raise InvalidInput("say when: give delay or deliver_at")
        else:
            at_us = max(parse_moment_us(deliver_at, "deliver_at"), 0)
        window = _window(dedup_window)
        question = AskDelay(*name, partition, _ttl(ttl), delay_ns, at_us, call, window)
        names = None if dedup_ids is None else dedup_names(dedup_ids, len(batch))
        result, _ = yield from self._exchange(question, encode_new(batch, names))
        published: PublishedRuns = decode(result, PublishedRuns)
        self._partitions[name] = published.partitions
        ids = DelayedIds([placed_of(run) for run in published.delayed])
        return ids, published.deliver_at_us or 0

    def transact(self, staged: StagedTransaction) -> Steps[TransactionOutcome]:
        question = AskTransaction(staged.namespace)
        result, _ = yield from self._exchange(question, encode_transaction(staged))
        outcome: TransactionOutcome = decode(result, TransactionOutcome)
        return outcome

    def partitions(self, name: TopicName) -> int:
        return self._partitions.get(name, 0)

    def receive(self, name: TopicName, group: str, wanted: Receive) -> Steps[list[Delivered]]:
        question = AskReceive(*name, group_name(group), msgspec.Raw(encode(wanted)))
        wait_s = poll_seconds(wanted.wait)
        pieces, body = yield from self._exchange(question, wait_s=wait_s)
        return decode_delivered(body, decode(pieces, bytes))

    def settle(
        self, verb: Verb, name: TopicName, group: str, named: Settle, *, repeated: bool = False
    ) -> Steps[tuple[list[Refusal], bool]]:
        question = AskSettle(verb, *name, group_name(group), msgspec.Raw(encode(named)))
        result, _ = yield from self._exchange(question)
        return decode(result, list[Refusal]), False

    def fetch(self, namespace: str, wanted: Fetch) -> Steps[Fetched]:
        wait_s = poll_seconds(wanted.wait)
        question = AskFetch(namespace, msgspec.Raw(encode(wanted)))
        _, body = yield from self._exchange(question, wait_s=wait_s)
        batches, about = decode_read(body)
        return fetched_of(msgspec.json.decode(about, type=FetchedView), batches)

    def _exchange(
        self, question: Question, body: bytes = b"", wait_s: float = 0.0
    ) -> Steps[tuple[msgspec.Raw, bytes]]:
        data = question_frame(question, body)
        frame = yield SocketExchange(self.connections, data, self._timeout_s + wait_s)
        result = decode_answer(frame.head)
        if isinstance(result, PenstockError):
            raise result
        return result, frame.body


def _ttl(ttl: Duration | None) -> str | None:
    return None if ttl is None else f"{parse_ttl_us(ttl)}us"


def _window(window: Duration | None) -> str | None:
    return None if window is None else f"{parse_dedup_window_ms(window)}ms"
