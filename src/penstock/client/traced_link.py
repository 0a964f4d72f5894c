"""A link whose publishes, receives and settlements are spans of OpenTelemetry."""

from __future__ import annotations

from typing import Any, TypeVar

from penstock.client.leases import HeldLease
from penstock.client.link import DeliverySource, Link
from penstock.client.traced_transaction import traced_transaction
from penstock.client.waiting import Steps
from penstock.model.calls import Call
from penstock.model.deliveries import Delivered, Receive, Refusal, Settle, Verb
from penstock.model.groups import Fetch, Fetched
from penstock.model.names import TopicName
from penstock.model.transactions import StagedTransaction, TransactionOutcome
from penstock.otel import spans
from penstock.record.batch import Batch

T = TypeVar("T")


class TracedLink(Link):
    """Beyond that it is the link that it is given."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self.clock = link.clock
        self.retries = link.retries
        self.on_wake = link.on_wake  # type: ignore[method-assign]
        self.plan = link.plan  # type: ignore[method-assign]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._link, name)

    @property
    def closed(self) -> bool:
        return self._link.closed

    def close(self) -> None:
        self._link.close()

    def ask(self, call: Call[T], *, retry_for_s: float | None = None) -> Steps[T]:
        return self._link.ask(call, retry_for_s=retry_for_s)

    def publish(self, name: TopicName, batch: Batch, **how: Any) -> Steps[Any]:
        with spans.sending(str(name), len(batch), batch.payload_bytes) as span:
            return (yield from self._link.publish(name, spans.injected(batch, span), **how))

    def delay(self, name: TopicName, batch: Batch, **how: Any) -> Steps[Any]:
        with spans.sending(str(name), len(batch), batch.payload_bytes) as span:
            return (yield from self._link.delay(name, spans.injected(batch, span), **how))

    def transact(self, staged: StagedTransaction) -> Steps[TransactionOutcome]:
        with traced_transaction(staged) as traced:
            return (yield from self._link.transact(traced))

    def partitions(self, name: TopicName) -> int:
        return self._link.partitions(name)

    def receive(self, name: TopicName, group: str, wanted: Receive) -> Steps[list[Delivered]]:
        began_ns = spans.now_ns()
        delivered = yield from self._link.receive(name, group, wanted)
        if delivered:
            batches = (batch for each in delivered for batch, _ in each.pieces)
            count = sum(each.count for each in delivered)
            spans.received(str(name), group, wanted.consumer, batches, count, began_ns)
        return delivered

    def listen(self, name: TopicName, group: str, wanted: Receive) -> DeliverySource:
        return self._link.listen(name, group, wanted)

    def fetch(self, namespace: str, wanted: Fetch) -> Steps[Fetched]:
        return self._link.fetch(namespace, wanted)

    def ack(self, lease: HeldLease, offset: int) -> Steps[None]:
        with spans.settling("ack", str(lease.topic), lease.group, 1):
            yield from self._link.ack(lease, offset)

    def settle(
        self, verb: Verb, name: TopicName, group: str, named: Settle, *, repeated: bool = False
    ) -> Steps[tuple[list[Refusal], bool]]:
        with spans.settling(verb, str(name), group, len(named.receipts) or None):
            return (yield from self._link.settle(verb, name, group, named, repeated=repeated))
