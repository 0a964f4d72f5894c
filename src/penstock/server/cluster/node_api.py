"""What a node says about all that it owns together: for questions about every namespace, and for
what is asked of the node itself. Everything else is asked of a shard."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from penstock.broker.api import Api
from penstock.clock import Clock, SystemClock
from penstock.errors import NotFound
from penstock.model.calls import Call, EverywhereCall, ListNamespaces
from penstock.model.groups import StreamGroup
from penstock.model.namespaces import NamespaceDescription
from penstock.model.schedules import ScheduleTotals
from penstock.model.stats import MessageCounters, QueuePage, QueueSummary, TopicStats
from penstock.model.traces import TraceTotals
from penstock.model.transactions import TransactionTotals
from penstock.server.cluster import merging

_audit = logging.getLogger("penstock.audit")


class NodeApi:
    """Stands where the API of a broker does, as far as a server asks it without a namespace."""

    closed = False

    def __init__(
        self, apis: Callable[[], Sequence[Api]], api_of: Callable[[str], Api | None]
    ) -> None:
        """`api_of` a namespace, if this node owns it."""
        self._apis = apis
        self._api_of = api_of
        self.clock: Clock = SystemClock()

    def ask(self, call: Call[Any]) -> Any:
        if not isinstance(call, EverywhereCall | ListNamespaces):
            raise NotFound(f"{type(call).__name__} is asked in a namespace")
        part = merging.part_of(call)
        return merging.merge(call, [api.ask(part) for api in self._apis()])

    def queue_summary(self) -> QueueSummary:
        return merging.queue_summary([api.queue_summary() for api in self._apis()])

    def queue_page(self, page: int, limit: int) -> QueuePage:
        rows = [api.queue_page(1, page * limit) for api in self._apis()]
        return merging.queue_page(rows, page, limit)

    def each_topic(self) -> Iterator[TopicStats]:
        return (stats for api in self._apis() for stats in api.each_topic())

    def counters(self) -> Iterator[tuple[str, MessageCounters]]:
        return (each for api in self._apis() for each in api.counters())

    def latency_totals(self) -> Iterator[Any]:
        return (total for api in self._apis() for total in api.latency_totals())

    def each_stream_group(self) -> Iterator[StreamGroup]:
        return (group for api in self._apis() for group in api.each_stream_group())

    def schedule_totals(self) -> ScheduleTotals:
        return merging.schedule_totals([api.schedule_totals() for api in self._apis()])

    def transaction_totals(self) -> TransactionTotals:
        return merging.transaction_totals([api.transaction_totals() for api in self._apis()])

    def trace_totals(self) -> TraceTotals:
        return merging.trace_totals([api.trace_totals() for api in self._apis()])

    def each_limited_namespace(self) -> Iterator[NamespaceDescription]:
        return (each for api in self._apis() for each in api.each_limited_namespace())

    def note_audit(self, entry: Any) -> None:
        """What is done to the node itself is in its log; what is done in a namespace is with it."""
        _audit.warning("%s", msgspec.json.encode(entry).decode())

    def count_connections_by(self, count: Callable[[str], int]) -> None:
        """The shards are told as they come."""

    def check_quota(self, namespace: str, quota: str, more: int) -> None:
        api = self._api_of(namespace)
        if api is not None:
            api.check_quota(namespace, quota, more)

    def failed_logs(self) -> list[str]:
        return []  # a log that fails costs the node its shard, which is taken over anew

    def is_lost(self) -> bool:
        return False

    def has_room(self) -> bool:
        return all(api.has_room() for api in self._apis())

    def on_webhooks(self, callback: Callable[[], None]) -> None:
        """Webhooks are posted by the shards that have them."""

    def webhook_records(self) -> list[Any]:
        return []

    def webhook_tests(self) -> list[tuple[str, str]]:
        return []
