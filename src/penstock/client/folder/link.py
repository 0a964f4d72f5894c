"""The link of a process that shares a data folder: to its owner, or, once that is gone, to the
broker of this process, which takes the folder over.

What fails because the owner went away is tried again, with the next owner. A publish is stored once
all the same: it carries the id of a producer, and an epoch of its own, which the log keeps.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TypeVar

import msgspec

from penstock.client.call_ids import CallIds
from penstock.client.folder.address import is_listening
from penstock.client.folder.socket_link import SocketLink
from penstock.client.leases import HeldLease
from penstock.client.link import Link
from penstock.client.local_link import LocalLink
from penstock.client.repeating import AnswerLost, refused_anew
from penstock.client.waiting import Aside, Pause, Steps
from penstock.delivery.offsets import Int64s
from penstock.durations import Duration, Moment
from penstock.errors import (
    BrokerClosed,
    DataFolderInUse,
    PenstockError,
    TopicNotFound,
    TransactionRefused,
    Unavailable,
)
from penstock.model.calls import ROUTES, Call, CreateTopic
from penstock.model.deliveries import (
    Delivered,
    Receive,
    Refusal,
    Settle,
    Verb,
    poll_seconds,
)
from penstock.model.groups import Fetch, Fetched
from penstock.model.names import TopicName
from penstock.model.published import CallId, DelayedIds, Placed, ProducerSequence
from penstock.model.topics import Found
from penstock.model.transactions import StagedTransaction, TransactionOutcome
from penstock.randomness import own_random
from penstock.record.batch import Batch

T = TypeVar("T")

_BACKOFF_S = 0.005
_BACKOFF_S_MAX = 0.2


class FolderLink(Link):
    def __init__(
        self,
        folder: str,
        own: Callable[[], LocalLink],
        *,
        timeout_s: float,
        retry_for_s: float,
        auto_create: bool,
    ) -> None:
        """`own` opens the folder in this process, or raises DataFolderInUse."""
        self._folder = folder
        self._own = own
        self._retry_for_s = retry_for_s
        self._auto_create = auto_create
        self._taking_over = threading.Lock()
        self._local: LocalLink | None = None
        self._call_ids = CallIds()
        self.socket = SocketLink(folder, timeout_s)
        self.clock = self.socket.clock

    @property
    def retries(self) -> bool:  # type: ignore[override]
        return self._local is None

    @property
    def closed(self) -> bool:
        return self.socket.closed if self._local is None else self._local.closed

    def close(self) -> None:
        self.socket.close()
        with self._taking_over:
            if self._local is not None:
                self._local.close()

    def hello(self) -> Steps[None]:
        """Hear from the owner, or raise Unavailable."""
        yield from self.socket.hello()

    def ask(self, call: Call[T], *, retry_for_s: float | None = None) -> Steps[T]:
        repeatable = ROUTES[type(call)].repeatable
        answer, again = yield from self._try(
            lambda link: link.ask(call), repeatable=repeatable, retry_for_s=retry_for_s
        )
        if again and isinstance(answer, Found):
            answer = Found(found=True)  # type: ignore[assignment] # the first attempt may have
        return answer

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
        if self._local is not None:
            return (
                yield from self._local.publish(
                    name,
                    batch,
                    partition=partition,
                    ttl=ttl,
                    producer=producer,
                    dedup_ids=dedup_ids,
                    dedup_window=dedup_window,
                    wait=wait,
                )
            )
        is_known = producer is not None or dedup_ids is not None  # it is stored once already
        with nullcontext() if is_known else self._call_ids.one() as own:
            placed, _ = yield from self._try(
                lambda link: link.publish(
                    name,
                    batch,
                    partition=partition,
                    ttl=ttl,
                    producer=producer,
                    dedup_ids=dedup_ids,
                    dedup_window=dedup_window,
                    call=own,
                ),
                topic=name,
                retry_for_s=retry_for_s,
            )
        return placed

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
        with self._call_ids.one() as own:
            delayed, _ = yield from self._try(
                lambda link: link.delay(
                    name,
                    batch,
                    delay=delay,
                    deliver_at=deliver_at,
                    partition=partition,
                    ttl=ttl,
                    dedup_ids=dedup_ids,
                    dedup_window=dedup_window,
                    call=own,
                ),
                topic=name,
            )
        return delayed

    def transact(self, staged: StagedTransaction) -> Steps[TransactionOutcome]:
        try:
            outcome, _ = yield from self._try(lambda link: link.transact(staged))
        except TransactionRefused as exc:
            codes = {reason.code for reason in exc.reasons}
            if not self._auto_create or codes != {TopicNotFound.code}:
                raise
            for name in {each.topic for each in staged.messages}:
                yield from self._create(TopicName(staged.namespace, name))
            outcome, _ = yield from self._try(lambda link: link.transact(staged))
        return outcome

    def partitions(self, name: TopicName) -> int:
        return self._link.partitions(name)

    def receive(self, name: TopicName, group: str, wanted: Receive) -> Steps[list[Delivered]]:
        deadline = time.monotonic() + poll_seconds(wanted.wait)

        def receive(link: Link) -> Steps[list[Delivered]]:
            return link.receive(name, group, _until(wanted, deadline))

        delivered, _ = yield from self._try(receive, topic=name)
        return delivered

    def ack(self, lease: HeldLease, offset: int) -> Steps[None]:
        here = self._local
        return super().ack(lease, offset) if here is None else here.ack(lease, offset)

    def settle(
        self, verb: Verb, name: TopicName, group: str, named: Settle, *, repeated: bool = False
    ) -> Steps[tuple[list[Refusal], bool]]:
        (refused, _), again = yield from self._try(
            lambda link: link.settle(verb, name, group, named)
        )
        if again or repeated:
            refused = refused_anew(verb, refused)
        return refused, again or repeated

    def on_wake(
        self, namespace: str, group: str, member_id: str, callback: Callable[[], None]
    ) -> Callable[[], None]:
        return self._link.on_wake(namespace, group, member_id, callback)

    def plan(self, chore: Callable[[int], int | None], deadline_ns: int) -> bool:
        return self._link.plan(chore, deadline_ns)

    def fetch(self, namespace: str, wanted: Fetch) -> Steps[Fetched]:
        deadline = time.monotonic() + poll_seconds(wanted.wait)
        fetched, _ = yield from self._try(
            lambda link: link.fetch(namespace, _until(wanted, deadline))
        )
        return fetched

    @property
    def _link(self) -> Link:
        return self._local or self.socket

    def _try(
        self,
        attempt: Callable[[Link], Steps[T]],
        *,
        topic: TopicName | None = None,
        repeatable: bool = True,
        retry_for_s: float | None = None,
    ) -> Steps[tuple[T, bool]]:
        """The result, and whether an earlier attempt may have been carried out. `topic` is made if
        it is missing and topics are made on demand."""
        patience = _Patience(self._retry_for_s if retry_for_s is None else retry_for_s)
        lost = begun = False
        while True:
            link = self._link
            try:
                return (yield from attempt(link)), lost or begun
            except PenstockError as exc:
                error = exc
            if isinstance(error, TopicNotFound) and topic is not None and self._auto_create:
                yield from self._create(topic)
                topic = None
                continue
            is_gone = link is self.socket and isinstance(error, Unavailable | BrokerClosed)
            if self.socket.closed and self._local is None:
                is_told = isinstance(error, BrokerClosed)
                raise error if is_told else BrokerClosed("the client was closed") from error
            if link is not self.socket or not (is_gone or error.retriable):
                error.repeated = lost or begun
                raise error
            lost = lost or isinstance(error, AnswerLost | BrokerClosed)
            begun = begun or not isinstance(error, Unavailable)  # it may have got somewhere
            if lost and not repeatable:
                raise Unavailable(f"{error}; whether it was done is not known") from error
            if is_gone:
                error = (yield Aside(self._find_owner, None)) or error
            pause_s = patience.pause_s(at_once=is_gone and not isinstance(error, DataFolderInUse))
            if pause_s is None:
                raise error
            yield Pause(pause_s)

    def _create(self, topic: TopicName) -> Steps[None]:
        call = CreateTopic(namespace=topic.namespace, topic=topic.topic, exist_ok=True)
        yield from self.ask(call)

    def _find_owner(self, _: None) -> DataFolderInUse | None:
        """See to it that there is an owner: another process that listens, or this one."""
        with self._taking_over:
            if self._local is not None or self.socket.closed or is_listening(self._folder):
                return None
            try:
                self._local = self._own()
            except DataFolderInUse as exc:  # who has it opens or closes it just now
                return exc
            return None


class _Patience:
    """How long, and how often, something is tried again: from the first failure on."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._deadline: float | None = None
        self._backoff_s = 0.0

    def pause_s(self, *, at_once: bool) -> float | None:
        """How long to wait before the next attempt; None: it was the last. `at_once`: the first
        time there is no reason to wait."""
        now = time.monotonic()
        if self._deadline is None:
            self._deadline = now + self._seconds
            if at_once and self._seconds:
                self._backoff_s = _BACKOFF_S
                return 0.0
        pause_s = (self._backoff_s or _BACKOFF_S) * own_random.uniform(0.5, 1.0)
        self._backoff_s = min((self._backoff_s or _BACKOFF_S) * 2, _BACKOFF_S_MAX)
        return pause_s if now + pause_s <= self._deadline else None


W = TypeVar("W", Receive, Fetch)


def _until(wanted: W, deadline: float) -> W:
    """The same with what is left of its time."""
    if not wanted.wait:
        return wanted
    return msgspec.structs.replace(wanted, wait=max(0.0, deadline - time.monotonic()))
