"""The calls of the API that say how things stand, now and before."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from penstock.broker.api_part import ApiPart, moment_us, topic_of
from penstock.broker.history import MINUTE_US, step_of, totals_key
from penstock.broker.latencies import HOUR_US, Total
from penstock.broker.namespaces import described as described_namespace
from penstock.broker.overview import overview, summary
from penstock.broker.priority_stats import priority_stats
from penstock.broker.trace_lookup import find_traces, read_blocks
from penstock.errors import GroupError, TopicNotFound
from penstock.model import calls
from penstock.model.groups import StreamGroup
from penstock.model.names import TopicName
from penstock.model.namespaces import NamespaceDescription
from penstock.model.overview import HistoryPage, Overview
from penstock.model.schedules import ScheduleTotals
from penstock.model.stats import (
    LatencyPage,
    MessageCounters,
    PriorityStats,
    PriorityTable,
    QueuePage,
    QueueRow,
    QueueSummary,
    Summary,
    TopicRow,
    TopicStats,
    TopicTable,
)
from penstock.model.traces import TraceBlocks, TracePage, TraceTotals


class StatsApi(ApiPart):
    """Numbers: of topics, of times gone by, of all of it."""

    # Traces.

    def find_traces(self, call: calls.FindTraces) -> TracePage:
        return find_traces(self._broker, call)

    def read_trace_blocks(self, call: calls.ReadTraceBlocks) -> TraceBlocks:
        return read_blocks(self._broker, call)

    # How things stand.

    def describe_stats(self, call: calls.DescribeStats) -> TopicStats:
        return self._broker.stats(topic_of(call))

    def describe_priorities(self, call: calls.DescribePriorities) -> PriorityStats:
        topic = self._broker.topic(topic_of(call), create=False)
        return priority_stats(topic, self.clock)

    def tabulate_priorities(self, call: calls.TabulatePriorities) -> PriorityTable:
        names = sorted(self._names(call.namespace))
        found = []
        for name in names[call.offset : call.offset + call.limit]:
            with suppress(TopicNotFound):  # deleted just now
                topic = self._broker.topic(name, create=False)
                found.append(priority_stats(topic, self.clock))
        return PriorityTable(topics=found, total=len(names))

    def list_latencies(self, call: calls.ListLatencies) -> LatencyPage:
        rows, next_us = self._broker.latency_page(
            topic_of(call),
            moment_us("since", call.since),
            moment_us("until", call.until),
            call.limit,
        )
        return LatencyPage(rows=rows, next=None if next_us is None else next_us // 1_000_000)

    def describe_overview(self, call: calls.DescribeOverview) -> Overview:
        found = list(self._stats(self._names(call.namespace)))
        return overview(
            self._broker,
            call.namespace,
            [(name, stats, _row(name, stats)) for name, stats in found],
        )

    def list_history(self, call: calls.ListHistory) -> HistoryPage:
        name = topic_of(call)
        self._broker.settings(name)
        created_us = self._broker.topic_times(name).created_us or 0
        return self._history(call, str(name), created_us)

    def list_all_history(self, call: calls.ListAllHistory) -> HistoryPage:
        return self._history(call, totals_key(call.namespace), 0)

    def _history(
        self, call: calls.ListHistory | calls.ListAllHistory, key: str, created_us: int
    ) -> HistoryPage:
        until_us = moment_us("until", call.until)
        since_us = moment_us("since", call.since)
        if since_us is None:
            now_us = self.clock.wall_ns() // 1000
            since_us = (now_us if until_us is None else until_us) - HOUR_US
        step_us = step_of(call.step)
        return self._broker.history.page(
            key, max(since_us, created_us - MINUTE_US), until_us, step_us
        )

    def summarize(self, call: calls.Summarize) -> Summary:
        rows = [_row(name, stats) for name, stats in self._stats(self._names(call.namespace))]
        return summary(rows, len(self._broker.streams.groups(call.namespace)))

    def tabulate_topics(self, call: calls.TabulateTopics) -> TopicTable:
        page = slice(call.offset, call.offset + call.limit)
        names = [name for name in self._names(call.namespace) if call.search in str(name)]
        if not call.dead_letter_topics:
            names = [name for name in names if not self._broker.is_dead_letters(name)]
        if call.sort == "topic":
            # Only the rows of the page are computed.
            names.sort(key=str, reverse=call.descending)
            shown = list(self._stats(names[page]))
        else:
            found = list(self._stats(names))
            found.sort(key=lambda each: (getattr(each[1], call.sort), each[0].topic))
            if call.descending:
                found.reverse()
            shown = found[page]
        return TopicTable(
            topics=[_row(*each) for each in shown],
            total=len(names),
            details=[stats for _, stats in shown] if call.details else [],
            recent=[self._broker.history.recent(name) for name, _ in shown] if call.recent else [],
        )

    def queue_summary(self) -> QueueSummary:
        """The cards of a dashboard, in one pass."""
        names = self._queue_names()
        rows = [stats for _, stats in self._stats(names)]
        return QueueSummary(
            total_queues=len(rows),
            namespaces=len({name.namespace for name in names}),
            total_depth=sum(row.depth for row in rows),
            total_scheduled=sum(row.delayed for row in rows),
            dlq_alerts=sum(row.dead > 0 for row in rows),
        )

    def queue_page(self, page: int, limit: int) -> QueuePage:
        """A page, from 1 on, of the table of a dashboard: only its rows are computed."""
        names = self._queue_names()
        shown = names[(page - 1) * limit : page * limit]
        return QueuePage(
            queues=[
                QueueRow(
                    namespace=name.namespace,
                    queue=name.topic,
                    depth=stats.depth,
                    in_flight=stats.in_flight,
                    scheduled=stats.delayed,
                    dead=stats.dead,
                    publish_rate=stats.publish_rate,
                    ack_rate=stats.ack_rate,
                )
                for name, stats in self._stats(shown)
            ],
            total=len(names),
            page=page,
            limit=limit,
            total_pages=-(-len(names) // limit),
        )

    def _queue_names(self) -> list[TopicName]:
        """By namespace and name, without the topics of dead letters."""
        broker = self._broker
        return [name for name in broker.topics() if not broker.is_dead_letters(name)]

    # For who keeps a watch on all of it.

    def each_topic(self) -> Iterator[TopicStats]:
        """How each topic stands, in one pass."""
        return (stats for _, stats in self._stats(self._names(None)))

    def counters(self) -> Iterator[tuple[str, MessageCounters]]:
        """What became of the messages of each topic since the broker was opened."""
        return ((str(name), each) for name, each in self._broker.counters.summaries())

    def latency_totals(self) -> Iterator[Total]:
        """How long messages took since the broker was opened, by topic, group and priority."""
        return self._broker.latencies.totals()

    def each_stream_group(self) -> Iterator[StreamGroup]:
        for group in self._broker.streams.groups():
            with suppress(GroupError):  # deleted just now
                yield self._broker.streams.describe(group)

    def schedule_totals(self) -> ScheduleTotals:
        """All schedules together, since the broker was opened."""
        return self._broker.schedules.totals()

    def trace_totals(self) -> TraceTotals:
        return self._broker.tracer.totals()

    def each_limited_namespace(self) -> Iterator[NamespaceDescription]:
        """Those with quotas, by name."""
        for namespace in self._broker.tenants.limited_names():
            yield described_namespace(self._broker, namespace)

    def count_connections_by(self, count: Callable[[str], int]) -> None:
        """How a server tells how many connections are open for a namespace."""
        self._broker.tenants.connections = count

    def check_quota(self, namespace: str, quota: str, more: int) -> None:
        """Raises QuotaExceeded if so many more would be too many."""
        self._broker.tenants.check(namespace, quota, more)

    def failed_logs(self) -> list[str]:
        """Logs that take no writes any more, after a failed write or fsync."""
        return self._broker.failed_logs()

    def is_lost(self) -> bool:
        """Whether the data folder was removed, moved or replaced, so that nothing is taken."""
        return self._broker.is_lost()

    def has_room(self) -> bool:
        """Whether the disk has room for what is published."""
        return self._broker.has_room()

    def _names(self, namespace: str | None) -> list[TopicName]:
        return self._broker.topics(namespace)

    def _stats(self, names: Sequence[TopicName]) -> Iterator[tuple[TopicName, TopicStats]]:
        for name in names:
            with suppress(TopicNotFound):  # deleted just now
                yield name, self._broker.stats(name)


def _row(name: TopicName, stats: TopicStats) -> TopicRow:
    return TopicRow(
        topic=name.topic,
        namespace=name.namespace,
        partitions=len(stats.partitions),
        groups=len(stats.groups),
        messages=stats.messages,
        size_bytes=stats.size_bytes,
        depth=stats.depth,
        in_flight=stats.in_flight,
        delayed=stats.delayed,
        dead=stats.dead,
        publish_rate=stats.publish_rate,
        deliver_rate=stats.deliver_rate,
        ack_rate=stats.ack_rate,
    )
