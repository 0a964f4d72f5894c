"""The only way into a broker: everything that can be asked, in the user's words.

Every door (a client in this process, HTTP, and those to come) translates to these calls and back,
and decides nothing. Calls are synchronous, and any thread may make them. None waits for messages or
for an fsync policy: `receive` and `fetch` give what is there now, `on_news` says when to ask again,
and what has to be durable comes with a future. Those of `ask` may write to the disk, so that an
event loop makes them aside.

Publishing, receiving, settling and fetching carry columns and are methods of their own; every other
question is a `Call` of `penstock.model.calls`, answered by the method of its name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

import numpy as np

from penstock.broker.api_part import topic_of
from penstock.broker.broker import Broker
from penstock.broker.dead_letter_api import DeadLetterApi
from penstock.broker.delay_api import DelayApi
from penstock.broker.in_flight import in_flight_page
from penstock.broker.lost_leases import even_if_lost
from penstock.broker.members import Members
from penstock.broker.message_api import MessageApi
from penstock.broker.namespace_api import NamespaceApi
from penstock.broker.peek import fetch, nothing_yet, offsets_at, stable_end
from penstock.broker.publishing import due_us, expiring, publish_each, staged_of
from penstock.broker.schedule_api import ScheduleApi
from penstock.broker.schema_api import SchemaApi
from penstock.broker.settle import settle_parts
from penstock.broker.settlement import Settlement
from penstock.broker.stats_api import StatsApi
from penstock.broker.stream_group_api import StreamGroupApi
from penstock.broker.topic_api import TopicApi
from penstock.broker.webhook_api import WebhookApi
from penstock.delivery.offsets import Int64s, Offsets
from penstock.durations import Duration, Moment, parse_ns
from penstock.errors import InvalidInput
from penstock.log.base import DONE
from penstock.model import calls
from penstock.model.calls import ROUTES, Call
from penstock.model.deliveries import Delivered, Extend, Nack, Rejection, Settle, Settling, Verb
from penstock.model.groups import Fetched, PartitionOffset
from penstock.model.messages import NewMessage, PublishedMessage
from penstock.model.names import (
    DEFAULT_NAMESPACE,
    TopicName,
    group_name,
    parse_topic,
    stream_group,
    topic_name,
)
from penstock.model.published import CallId, DelayedIds, Placed, ProducerSequence
from penstock.model.settings import parse_dedup_window_ms
from penstock.model.stats import InFlightPage
from penstock.model.topics import (
    Count,
    Found,
    Groups,
)
from penstock.model.transactions import (
    NewTransaction,
    ProducerEpoch,
    StagedTransaction,
    TransactionOutcome,
    TransactionPage,
    TransactionTotals,
)
from penstock.model.values import Time
from penstock.record.batch import Batch

T = TypeVar("T")


class Api(
    DeadLetterApi,
    DelayApi,
    MessageApi,
    NamespaceApi,
    SchemaApi,
    ScheduleApi,
    StatsApi,
    StreamGroupApi,
    TopicApi,
    WebhookApi,
):
    """One broker, as doors see it."""

    def __init__(self, broker: Broker, *, answer_bytes_max: int | None = None) -> None:
        """`answer_bytes_max`: about as many bytes of messages are in one answer, or one message."""
        super().__init__(broker, answer_bytes_max=answer_bytes_max)
        self._members = Members(self._is_member)
        self.publish_value = broker.publish_value
        """The short way of `publish`, without a step of its own here."""
        self.receive_now = partial(broker.receive_now, bytes_max=answer_bytes_max)
        """The same of `receive`."""
        self.is_open = broker.is_open
        """Whether a call about a topic is quick. The first one opens its logs: it takes long."""
        self.ack = broker.ack
        """Messages of one lease are done."""

    def limited(self, answer_bytes_max: int) -> Api:
        """The same broker and members, for a door that has to send what it is given."""
        other = Api(self._broker, answer_bytes_max=answer_bytes_max)
        other._members = self._members
        return other

    @property
    def closed(self) -> bool:
        return self._broker.closed

    def close(self) -> None:
        """Leave a clean folder: everything synced, state written down, the lock released."""
        self._broker.close()

    def ask(self, call: Call[T]) -> T | Future[None]:
        """The answer to a call or, where it has none, perhaps a future of when it is durable."""
        answer: T | Future[None] = getattr(self, METHODS[type(call)])(call)
        return answer

    def open_topic(self, name: TopicName) -> None:
        """Open a topic, if it is there."""
        self._broker.open_topic(name)

    # Publishing.

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
    ) -> list[Placed]:
        """Store messages. When this returns the operating system has them; see the futures.

        What comes again with the same `call` is not stored again, and its answer is the first."""
        if ttl is not None:
            batch = expiring(batch, ttl, self._broker.clock.wall_ns() // 1000)
        tenants = self._broker.tenants
        pause_ns = tenants.publishing(name.namespace, batch) if tenants.limited else 0
        placed = self._broker.publish(
            name,
            batch,
            partition=partition,
            producer=producer,
            dedup_ids=dedup_ids,
            dedup_window_ms=0 if dedup_window is None else _window_ms(dedup_window, dedup_ids),
            call=call,
        )
        return tenants.later(placed, pause_ns) if pause_ns else placed

    def delay(
        self,
        name: TopicName,
        batch: Batch,
        *,
        delay: Duration | None = None,
        deliver_at: Time | Moment | Int64s | None = None,
        partition: int | None = None,
        ttl: Duration | None = None,
        dedup_ids: Sequence[str | bytes | None] | None = None,
        dedup_window: Duration | None = None,
        call: CallId | None = None,
    ) -> tuple[DelayedIds, int | Int64s, Future[None]]:
        """Store messages that are delivered later, all at a time or each at its own: the ids to
        cancel them by, when they fall due in microseconds since 1970, and when that is durable.

        If it is a single one, and a duplicate, that is when the message from before falls due, or 0
        if it did already."""
        at_us = self._due_us(delay, deliver_at)
        if not isinstance(at_us, int) and len(at_us) != len(batch):
            raise InvalidInput(f"{len(batch)} messages, but {len(at_us)} of deliver_at")
        if not len(batch):
            self._broker.topic(name)
            return DelayedIds([]), at_us, DONE
        batch = expiring(batch, ttl, at_us)
        tenants = self._broker.tenants
        pause_ns = tenants.publishing(name.namespace, batch) if tenants.limited else 0
        if tenants.limited:
            tenants.check(name.namespace, "delayed", len(batch))
        ids, durable = self._broker.delay(
            name,
            batch,
            at_us,
            partition=partition,
            dedup_ids=dedup_ids,
            dedup_window_ms=0 if dedup_window is None else _window_ms(dedup_window, dedup_ids),
            call=call,
        )
        if len(batch) == 1 and ids.placed[0].duplicate:
            at_us = ids.placed[0].deliver_at_us
        if pause_ns:
            durable = tenants.later_future(durable, pause_ns)
        return ids, at_us, durable

    def publish_each(
        self, name: TopicName, messages: Sequence[NewMessage]
    ) -> tuple[list[PublishedMessage], list[Future[None]]]:
        """Store messages that each say when and where they want to go; all of them or none."""
        return publish_each(self._broker, name, messages)

    def partitions(self, name: TopicName) -> int:
        """How many a topic has; it is made if that is allowed."""
        return len(self._broker.topic(name).partitions)

    def staged(self, given: NewTransaction, namespace: str) -> StagedTransaction:
        """A transaction that came as JSON."""
        return staged_of(given, namespace, self.clock.wall_ns())

    def transact(self, staged: StagedTransaction) -> tuple[TransactionOutcome, Future[None]]:
        """Do all of a transaction, or raise: TransactionRefused has the reasons. It may wait for
        the disk, and is as durable as it will be when it returns. The answer waits for the future,
        where the namespace publishes faster than it may."""
        topic_name("any", staged.namespace)
        tenants, pause_ns = self._broker.tenants, 0

        def charge() -> None:
            nonlocal pause_ns
            if tenants.limited and staged.messages:
                batches = [each.batch for each in staged.messages]
                pause_ns = tenants.charge(staged.namespace, *batches)

        tenants.look_at_storage(staged.namespace)
        outcome = self._broker.transactions.commit(staged, charge)
        return outcome, tenants.later_future(DONE, pause_ns) if pause_ns else DONE

    def partition_counts(self, namespace: str) -> dict[str, int]:
        """Of each topic of a namespace, whether or not it is open."""
        counts = self._broker.partition_counts()
        return {name.topic: counts[str(name)] for name in self._broker.topics(namespace)}

    def has_stream_members(self, namespace: str, group: str) -> bool:
        """Whether a stream group has members of its own, so that nobody else sets its positions."""
        return self._broker.streams.has_members(stream_group(group, namespace))

    # Queue mode.

    def receive(
        self,
        name: TopicName,
        group: str,
        max_messages: int = 10,
        visibility: Duration | None = None,
        consumer: str = "",
        partition: int | None = None,
    ) -> list[Delivered]:
        """Messages that are ready now, each under a lease; an empty list if there are none."""
        visibility_ns = None if visibility is None else parse_ns(visibility, "visibility")
        tenants = self._broker.tenants
        if tenants.limited:
            self._check_group(name, group)
            if not tenants.may_receive(name):
                return []
        delivered = self._broker.receive(
            name, group, max_messages, visibility_ns, consumer, partition, self._answer_bytes_max
        )
        if tenants.limited:
            for each in delivered:
                size = sum(batch.payload_bytes for batch, _ in each.pieces)
                tenants.received(name, each.count, size)
        return delivered

    def count_in_flight(self, name: TopicName, group: str) -> int:
        """How many messages the group holds now, in all partitions."""
        partitions = self._broker.topic(name, create=False).partitions
        return sum(partition.count_in_flight(group) for partition in partitions)

    def begin_at_end(self, name: TopicName, group: str) -> None:
        """A group that is not there yet begins after the newest message of each partition."""
        self._broker.begin_at_end(name, group)

    def settle(self, verb: Verb, name: TopicName | None, group: str, named: Settle) -> Settling:
        """Ack, nack, reject or extend messages by their receipts or leases; `named` is a `Nack`,
        `Rejection` or `Extend` where it is one of these. Without a topic, receipts of several."""
        group_name(group)
        settle: Callable[..., Settlement] = getattr(self._broker, verb)
        how = _how(named)

        def settle_part(
            topic: TopicName, partition: int, nonce: int, offsets: Offsets | None
        ) -> Settlement:
            return settle(topic, partition, group, nonce, offsets, **how)

        anyway = named.even_if_lost
        return settle_parts(
            even_if_lost(self._broker, verb, group, settle_part) if anyway else settle_part,
            name,
            named.receipts,
            named.leases,
        )

    # Stream mode.

    def fetch(
        self,
        wanted: Sequence[PartitionOffset],
        max_bytes: int = 1 << 20,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        group: str | None = None,
        member_id: str | None = None,
        generation: int = 0,
        durable: bool = False,
    ) -> Fetched:
        """What there is to read now from some positions on, and whether a member of a group of the
        namespace is to heartbeat.

        `durable`: only what no power cut takes back, where the topic promises that of what is
        published."""
        bytes_left = max_bytes
        if self._answer_bytes_max is not None:
            bytes_left = min(bytes_left, self._answer_bytes_max)
        now_us, tenants = self.clock.wall_ns() // 1000, self._broker.tenants
        parts = []
        for position in wanted:
            topic = self._broker.topic(parse_topic(position.topic), create=False)
            partition = topic.partition(position.partition)
            if tenants.limited and not tenants.may_receive(topic.name):
                parts.append(nothing_yet(partition, position))
                continue
            part = fetch(partition, position, bytes_left, now_us, durable=durable)
            size = sum(batch.nbytes for batch in part.batches)
            bytes_left -= size
            if tenants.limited:
                tenants.received(topic.name, sum(map(len, part.batches)), size)
            parts.append(part)
        woken = (
            group is not None
            and member_id is not None
            and self._members.is_woken(stream_group(group, namespace), member_id, generation)
        )
        return Fetched(parts=parts, woken=woken)

    def unconfirmed(self, name: TopicName, partition: int) -> Future[None]:
        """Done when what was published so far is durable: there is more to fetch then for readers
        that ask for durable messages only."""
        log = self._broker.topic(name, create=False).partition(partition).log
        return DONE if stable_end(log) == log.end else log.sync_soon()

    # Waiting.

    def on_news(self, name: TopicName, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back when there may be something to receive or fetch; returns how to stop that."""
        return self._broker.on_news(name, callback)

    def plan(self, chore: Callable[[int], int | None], deadline_ns: int) -> None:
        """Have a short chore called when the clock reaches a time; it says when to call again."""
        self._broker.plan(chore, deadline_ns)

    # Transactions.

    def list_transactions(self, call: calls.ListTransactions) -> TransactionPage:
        topic_name("any", call.namespace)
        return self._broker.transactions.page(call.namespace, call.before, call.limit)

    def describe_transaction(self, call: calls.DescribeTransaction) -> TransactionOutcome:
        return self._broker.transactions.describe(call.id, call.namespace)

    def begin_producer(self, call: calls.BeginProducer) -> ProducerEpoch:
        topic_name("any", call.namespace)
        return self._broker.transactions.begin_producer(call.namespace, call.producer)

    def transaction_totals(self) -> TransactionTotals:
        """All transactions since the broker was opened."""
        return self._broker.transactions.totals()

    # Queue groups.

    def purge(self, call: calls.Purge) -> Count:
        return Count(count=self._broker.purge(topic_of(call), call.group))

    def list_groups(self, call: calls.ListGroups) -> Groups:
        return Groups(groups=self._broker.groups(topic_of(call)))

    def delete_group(self, call: calls.DeleteGroup) -> Found:
        return Found(found=self._broker.delete_group(topic_of(call), call.group))

    def seek(self, call: calls.Seek) -> None:
        name = topic_of(call)
        topic = self._broker.topic(name, create=False)
        self._broker.seek(name, call.group, offsets_at(topic, call.to, call.partition))

    def in_flight(self, call: calls.InFlight) -> InFlightPage:
        topic = self._broker.topic(topic_of(call), create=False)
        return in_flight_page(topic, group_name(call.group), call.after, call.limit, self.clock)

    # Inside.

    def _due_us(
        self, delay: Duration | None, deliver_at: Time | Moment | Int64s | None
    ) -> int | Int64s:
        if isinstance(deliver_at, np.ndarray):
            if delay is not None:
                raise InvalidInput("give delay or deliver_at, not both")
            return deliver_at
        at_us = due_us(delay, deliver_at, self.clock.wall_ns())
        if at_us is None:
            raise InvalidInput("say when: give delay or deliver_at")
        return at_us

    def _check_group(self, name: TopicName, group: str) -> None:
        """Whether a namespace may have one more, if it is one more."""
        topic = self._broker.topic(name)
        if not any(group in partition.queues for partition in topic.partitions):
            self._broker.tenants.check(name.namespace, "groups", 1)


METHODS = {
    call: re.sub(r"(?<!^)(?=[A-Z])", "_", call.__name__).lower()  # CreateTopic: create_topic
    for call in ROUTES
}
"""The method of `Api` that answers each call."""


def _how(named: Settle) -> dict[str, Any]:
    match named:
        case Nack(delay=delay, error=error, retries=retries):
            delay_ns = None if delay is None else parse_ns(delay, "delay")
            return {"delay_ns": delay_ns, "error": error, "retries": retries}
        case Rejection(reason=reason):
            return {"error": reason}
        case Extend(visibility=visibility):
            return {"visibility_ns": parse_ns(visibility, "visibility")}
        case _:
            return {}


def _window_ms(window: Duration, dedup_ids: Sequence[str | bytes | None] | None) -> int:
    """How long deduplication ids are remembered that are given."""
    if dedup_ids is None:
        raise InvalidInput("dedup_window says how long a dedup_id is remembered: give one, too")
    return parse_dedup_window_ms(window)
