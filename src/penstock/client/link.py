"""What a client needs of a broker, wherever it is.

A link to a broker in this process calls its API; one to a server asks over HTTP. Both are written
as steps (see `waiting.py`), so that a thread and an event loop can take them. Everything that a
client does beyond that is written once, above this.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

import msgspec

from penstock.client.waiting import Steps
from penstock.clock import Clock
from penstock.delivery.offsets import Int64s
from penstock.durations import Duration, Moment
from penstock.model.calls import Call
from penstock.model.deliveries import (
    WAIT_MS_MAX,
    Delivered,
    LeasePart,
    Receive,
    Refusal,
    Settle,
    Verb,
)
from penstock.model.groups import Fetch, Fetched
from penstock.model.names import TopicName
from penstock.model.problem import refusal_error
from penstock.model.published import CallId, DelayedIds, Placed, ProducerSequence, Published
from penstock.model.transactions import StagedTransaction, TransactionOutcome
from penstock.record.batch import Batch

if TYPE_CHECKING:
    from penstock.client.leases import HeldLease

T = TypeVar("T")


class SettleLink(ABC):
    """A way on which messages under a lease are settled."""

    def ack(self, lease: HeldLease, offset: int) -> Steps[None]:
        """One message is done; raises what is refused."""
        return self.settle_one("ack", lease, offset, Settle())

    def settle_one(self, verb: Verb, lease: HeldLease, offset: int, how: Settle) -> Steps[None]:
        """Settle one message of a lease; raises what is refused."""
        part = LeasePart(partition=lease.partition, lease=lease.nonce, offsets=[offset])
        named = msgspec.structs.replace(how, leases=[part])
        refused, _ = yield from self.settle(verb, lease.topic, lease.group, named)
        for refusal in refused:
            raise refusal_error(refusal)

    @abstractmethod
    def settle(
        self, verb: Verb, name: TopicName, group: str, named: Settle, *, repeated: bool = False
    ) -> Steps[tuple[list[Refusal], bool]]:
        """Those messages that could not be settled, and whether it was asked twice, since an answer
        was lost. `repeated`: it was asked before, and may have been done."""


class DeliverySource(ABC):
    """Messages of a queue group as they come, each under a lease."""

    settle_link: SettleLink

    @abstractmethod
    def next(self, wait_s: float) -> Steps[list[Delivered]]:
        """Some messages, waiting for the first; none when time is up."""

    @abstractmethod
    def close(self) -> None:
        """Messages that nobody took come again when their lease is over."""


class Link(SettleLink):
    """A way to a broker. Results are durable, as the topic's fsync policy says, when they come."""

    clock: Clock
    """For sessions, commits and expiry."""

    retries: bool
    """Whether it tries again by itself what can pass."""

    @property
    @abstractmethod
    def closed(self) -> bool: ...

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def ask(self, call: Call[T], *, retry_for_s: float | None = None) -> Steps[T]:
        """The answer to a call. `retry_for_s`: how long what can pass is tried again, if that is
        another time than the client's own."""

    def publish_value(
        self, namespace: str, topic: str, value: bytes
    ) -> tuple[Published, Future[None] | None] | None:
        """The short way of one message that is a value and no more, where there is one: where it
        is, and when that is durable, if it is not now. None: `publish` does it."""
        return None

    @abstractmethod
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
        """Where the messages are. Without `wait` they may not be durable yet: see the futures.

        With a `call`, a publish that is made again is stored once; links that repeat requests by
        themselves give theirs."""

    @abstractmethod
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
        """The ids of messages that are delivered later, and when they fall due in microseconds
        since 1970: 0 where each has its own moment. For one that is a duplicate, when the message
        from before falls due: 0 if it did already."""

    @abstractmethod
    def transact(self, staged: StagedTransaction) -> Steps[TransactionOutcome]:
        """Do all of a transaction, once however often it has to be sent, or raise."""

    @abstractmethod
    def partitions(self, name: TopicName) -> int:
        """How many partitions a topic has, as far as is known without asking; 0: nothing is."""

    def receive_now(
        self, namespace: str, topic: str, group: str, max_messages: int
    ) -> tuple[TopicName, list[Delivered]] | None:
        """The short way of a receive that says nothing else and does not wait, where there is one.
        None: `receive` does it."""
        return None

    @abstractmethod
    def receive(self, name: TopicName, group: str, wanted: Receive) -> Steps[list[Delivered]]:
        """Messages under a lease; waits for the first. What `wanted.ack` names is acked before; if
        that is refused, the error is raised and nothing is received."""

    def listen(self, name: TopicName, group: str, wanted: Receive) -> DeliverySource:
        """Messages as they come, at most `wanted.max_messages` ahead of who takes them."""
        return PolledDeliveries(self, name, group, wanted)

    def on_wake(
        self, namespace: str, group: str, member_id: str, callback: Callable[[], None]
    ) -> Callable[[], None]:
        """Call back when a member of a stream group should heartbeat, where that is known at once;
        returns how to stop that. Otherwise its next fetch tells."""
        return _nothing

    def plan(self, chore: Callable[[int], int | None], deadline_ns: int) -> bool:
        """Have a chore called at a time, and again when it says so, by a broker that keeps house in
        this process; False: there is none."""
        return False

    @abstractmethod
    def fetch(self, namespace: str, wanted: Fetch) -> Steps[Fetched]:
        """What there is to read from some positions on, perhaps by a member of a group of the
        namespace. Waits for the first message, or until the member is to heartbeat."""


class PolledDeliveries(DeliverySource):
    """Asks again and again, where nothing is pushed."""

    def __init__(self, link: Link, name: TopicName, group: str, wanted: Receive) -> None:
        self.settle_link = self._link = link
        self._name = name
        self._group = group
        self._wanted = wanted

    def next(self, wait_s: float) -> Steps[list[Delivered]]:
        wanted = msgspec.structs.replace(self._wanted, wait=min(wait_s, WAIT_MS_MAX / 1000))
        return self._link.receive(self._name, self._group, wanted)

    def close(self) -> None:
        pass


def _nothing() -> None:
    pass
