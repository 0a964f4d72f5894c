"""The link to a broker in this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar, cast

from penstock.broker.api import Api
from penstock.client.leases import HeldLease
from penstock.client.link import Link
from penstock.client.waiting import NOTHING_TO_WAIT_FOR, Aside, Signal, Steps, Wait, until
from penstock.delivery.offsets import Int64s, Offsets
from penstock.durations import Duration, Moment
from penstock.errors import BrokerClosed, PenstockError
from penstock.log.base import DONE
from penstock.model.calls import Call
from penstock.model.deliveries import Delivered, Receive, Refusal, Settle, Verb, poll_seconds
from penstock.model.groups import Fetch, Fetched
from penstock.model.names import TopicName, parse_topic
from penstock.model.problem import refusal_error
from penstock.model.published import CallId, DelayedIds, Placed, ProducerSequence
from penstock.model.transactions import StagedTransaction, TransactionOutcome
from penstock.record.batch import Batch

T = TypeVar("T")


class LocalLink(Link):
    retries = False

    def __init__(self, api: Api, before_close: Callable[[], None] = lambda: None) -> None:
        self._api = api
        self._before_close = before_close
        self.clock = api.clock
        self.publish_value = api.publish_value  # type: ignore[method-assign]
        self.receive_now = api.receive_now  # type: ignore[method-assign]

    @property
    def closed(self) -> bool:
        return self._api.closed

    def close(self) -> None:
        self._before_close()
        self._api.close()

    def ask(self, call: Call[T], *, retry_for_s: float | None = None) -> Steps[T]:
        answer = yield Aside(self._api.ask, call)
        if isinstance(answer, Future):
            yield from until(answer)
            answer = None
        return cast(T, answer)

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
        placed = self._api.publish(
            name,
            batch,
            partition=partition,
            ttl=ttl,
            producer=producer,
            dedup_ids=dedup_ids,
            dedup_window=dedup_window,
            call=call,
        )
        for each in placed:
            if wait and each.durable is not DONE:
                yield from until(each.durable)
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
        ids, at_us, durable = self._api.delay(
            name,
            batch,
            delay=delay,
            deliver_at=deliver_at,
            partition=partition,
            ttl=ttl,
            dedup_ids=dedup_ids,
            dedup_window=dedup_window,
            call=call,
        )
        if durable is not DONE:
            yield from until(durable)
        return ids, at_us if isinstance(at_us, int) else 0

    def transact(self, staged: StagedTransaction) -> Steps[TransactionOutcome]:
        outcome: TransactionOutcome
        outcome, told = yield Aside(self._api.transact, staged)
        yield from until(told)
        return outcome

    def partitions(self, name: TopicName) -> int:
        with suppress(PenstockError):  # it was deleted, or the broker closed
            return self._api.partitions(name)
        return 0

    def receive(self, name: TopicName, group: str, wanted: Receive) -> Steps[list[Delivered]]:
        api = self._api
        if wanted.ack is not None:
            refused, _ = yield from self.settle("ack", name, group, wanted.ack)
            if refused:
                raise refusal_error(refused[0])
        if wanted.start == "latest":
            api.begin_at_end(name, group)
        asked = (
            name,
            group,
            wanted.max_messages,
            wanted.visibility,
            wanted.consumer,
            wanted.partition,
        )
        delivered = api.receive(*asked)
        if not delivered and wanted.wait:
            wait_s = poll_seconds(wanted.wait)
            found = yield from self._poll([name], None, lambda: api.receive(*asked) or None, wait_s)
            delivered = found or []
        return delivered

    def ack(self, lease: HeldLease, offset: int) -> Steps[None]:
        settled = self._api.ack(
            lease.topic, lease.partition, lease.group, lease.nonce, Offsets(offset, 1)
        )
        for refused_offset, refusal in settled.refused.items():
            raise refusal(refused_offset)  # type: ignore[arg-type]
        return NOTHING_TO_WAIT_FOR if settled.durable is DONE else until(settled.durable)

    def settle(
        self, verb: Verb, name: TopicName, group: str, named: Settle, *, repeated: bool = False
    ) -> Steps[tuple[list[Refusal], bool]]:
        settling = self._api.settle(verb, name, group, named)
        for future in settling.durable:
            yield from until(future)
        return settling.refused, False

    def on_wake(
        self, namespace: str, group: str, member_id: str, callback: Callable[[], None]
    ) -> Callable[[], None]:
        return self._api.on_wake(namespace, group, member_id, callback)

    def plan(self, chore: Callable[[int], int | None], deadline_ns: int) -> bool:
        self._api.plan(chore, deadline_ns)
        return True

    def fetch(self, namespace: str, wanted: Fetch) -> Steps[Fetched]:
        member = None
        if wanted.group is not None and wanted.member_id is not None:
            member = namespace, wanted.group, wanted.member_id

        def fetch() -> Fetched:
            return self._api.fetch(
                wanted.positions,
                wanted.max_bytes,
                namespace=namespace,
                group=wanted.group,
                member_id=wanted.member_id,
                generation=wanted.generation,
            )

        def fetch_news() -> Fetched | None:
            fetched = fetch()
            return fetched if fetched.woken or fetched.has_moved(wanted.positions) else None

        found = fetch_news()
        wait_s = poll_seconds(wanted.wait)
        if found is None and wait_s:
            names = [parse_topic(topic) for topic in {at.topic for at in wanted.positions}]
            found = yield from self._poll(names, member, fetch_news, wait_s)
        return found or fetch()

    def _poll(
        self,
        names: Sequence[TopicName],
        member: tuple[str, str, str] | None,
        look: Callable[[], T | None],
        wait_s: float,
    ) -> Steps[T | None]:
        """What `look` finds as soon as there is something, or None when time is up."""
        deadline = time.monotonic() + wait_s
        while True:
            signal = Signal()
            stops = [self._api.on_news(name, signal.fire) for name in names]
            if member is not None:
                stops.append(self._api.on_wake(*member, signal.fire))
            try:
                found = look()  # what came before we were listening
                left_s = deadline - time.monotonic()
                if found is not None or left_s <= 0:
                    return found
                yield Wait(signal.future, left_s)
            finally:
                for stop in stops:
                    stop()
            if self._api.closed:
                raise BrokerClosed("the broker was closed while somebody waited for messages")
