"""What Prometheus is told: computed when it asks, in one pass over the topics."""

from __future__ import annotations

import bisect
import os
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, get_args

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from penstock.log.files import Buffer, DiskFile, DiskFiles
from penstock.model.namespaces import NamespaceUsage
from penstock.model.stats import AlarmKind, GroupStats, TopicStats

if TYPE_CHECKING:
    from penstock.server.door import Door

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

BUCKETS_S = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)

EDGES_US = tuple(1 << power for power in range(8, 33, 2))
"""Of the latencies of messages, from a quarter of a millisecond to 72 minutes: edges that the
broker's finer buckets have too, so that nothing has to be guessed."""

NAMESPACES_MAX = 200
"""Namespaces with quotas that a scrape tells of: up to 20 series each."""

_COUNTERS = {
    "published": "Messages stored in a topic.",
    "delivered": "Messages handed out, each time anew.",
    "acked": "Messages that groups were done with.",
    "nacked": "Messages that were given back.",
    "rejected": "Messages that were given up by a consumer.",
    "expired": "Messages that outlived their TTL before a group got them.",
    "dead_lettered": "Messages that became dead letters.",
}


class RequestHistogram:
    """Durations. One thread at a time adds, or a count may be lost, which does no harm."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        self.sum_s = 0.0

    def add(self, took_s: float) -> None:
        self.counts[bisect.bisect_left(BUCKETS_S, took_s)] += 1
        self.sum_s += took_s

    def buckets(self) -> list[tuple[str, float]]:
        """As Prometheus wants them: each with all that was quicker."""
        names = [*map(str, BUCKETS_S), "+Inf"]
        total, found = 0, []
        for name, count in zip(names, self.counts, strict=True):
            total += count
            found.append((name, float(total)))
        return found


class Requests:
    """How many requests there were, and how long they took, by endpoint."""

    def __init__(self) -> None:
        self.statuses: dict[tuple[str, int], int] = {}
        self.durations: dict[str, RequestHistogram] = {}
        self.bytes_in = 0
        self.bytes_out = 0

    def count(self, name: str, status: int, took_s: float, bytes_in: int, bytes_out: int) -> None:
        self.statuses[name, status] = self.statuses.get((name, status), 0) + 1
        histogram = self.durations.get(name)
        if histogram is None:
            histogram = self.durations[name] = RequestHistogram()
        histogram.add(took_s)
        self.bytes_in += bytes_in
        self.bytes_out += bytes_out


class MeteredFiles(DiskFiles):
    """The disk, with a watch on how long writes and fsyncs take."""

    def __init__(self) -> None:
        self.appends = RequestHistogram()
        self.syncs = RequestHistogram()

    def create(self, path: str) -> DiskFile:
        return _MeteredFile(super().create(path), self)

    def open(self, path: str) -> DiskFile:
        return _MeteredFile(super().open(path), self)


class _MeteredFile(DiskFile):
    def __init__(self, file: DiskFile, files: MeteredFiles) -> None:
        super().__init__(file._descriptor, file.size)
        self._files = files

    def append(self, buffers: Sequence[Buffer]) -> None:
        began = time.perf_counter()
        super().append(buffers)
        self._files.appends.add(time.perf_counter() - began)

    def sync(self) -> None:
        began = time.perf_counter()
        super().sync()
        self._files.syncs.add(time.perf_counter() - began)


def exposition(door: Door, files: MeteredFiles | None) -> bytes:
    """The text that a scrape gets."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Everything(door, files))
    return generate_latest(registry)


class _Everything(Collector):
    def __init__(self, door: Door, files: MeteredFiles | None) -> None:
        self._door = door
        self._files = files

    def describe(self) -> Iterator[Metric]:
        return iter(())  # or registering would collect everything to find out its names

    def collect(self) -> Iterator[Metric]:
        yield from self._requests()
        yield from self._disk()
        yield from self._topics()
        yield from self._counters()
        yield from self._latencies()
        yield from self._streams()
        yield from self._schedules()
        yield from self._transactions()
        yield from self._traces()
        yield from self._namespaces()
        yield GaugeMetricFamily(
            "penstock_open_polls", "Requests that wait for messages.", len(self._door.polls)
        )
        yield GaugeMetricFamily(
            "penstock_resident_bytes", "Memory of the server's process.", _resident_bytes()
        )

    def _requests(self) -> Iterator[Metric]:
        requests = self._door.requests
        total = CounterMetricFamily(
            "penstock_requests", "Requests answered.", labels=["endpoint", "status"]
        )
        for (name, status), count in list(requests.statuses.items()):
            total.add_metric([name, str(status)], count)
        yield total
        took = HistogramMetricFamily(
            "penstock_request_seconds", "How long requests took, polls too.", labels=["endpoint"]
        )
        for name, histogram in list(requests.durations.items()):
            took.add_metric([name], histogram.buckets(), histogram.sum_s)
        yield took
        yield CounterMetricFamily(
            "penstock_request_bytes", "Bodies of requests.", requests.bytes_in
        )
        yield CounterMetricFamily("penstock_answer_bytes", "Bodies of answers.", requests.bytes_out)

    def _disk(self) -> Iterator[Metric]:
        if self._files is None:
            return
        for name, text, histogram in (
            ("penstock_append_seconds", "Writes to log files.", self._files.appends),
            ("penstock_fsync_seconds", "Fsyncs of log files.", self._files.syncs),
        ):
            family = HistogramMetricFamily(name, text)
            family.add_metric([], histogram.buckets(), histogram.sum_s)
            yield family

    def _topics(self) -> Iterator[Metric]:
        families = _TopicFamilies()
        for stats in self._door.api.each_topic():
            families.add(stats)
        return families.all()

    def _counters(self) -> Iterator[Metric]:
        """Since the broker was opened; no topic is opened for them."""
        families = {
            name: CounterMetricFamily(f"penstock_messages_{name}", text, labels=["topic"])
            for name, text in _COUNTERS.items()
        }
        for topic, counters in self._door.api.counters():
            for name, family in families.items():
                family.add_metric([topic], getattr(counters, name))
        yield from families.values()

    def _latencies(self) -> Iterator[Metric]:
        labels = ["topic", "group", "priority"]
        families = {
            "waited": HistogramMetricFamily(
                "penstock_wait_seconds",
                "From a message's timestamp to its first hand-out.",
                labels=labels,
            ),
            "handled": HistogramMetricFamily(
                "penstock_handling_seconds", "From a hand-out to the ack.", labels=labels
            ),
        }
        names = [*(str(edge_us / 1e6) for edge_us in EDGES_US), "+Inf"]
        for total in self._door.api.latency_totals():
            histogram = total.histogram
            counts = [*histogram.below(EDGES_US), histogram.count]
            families[total.kind].add_metric(
                [total.topic, total.group, total.priority.name.lower()],
                [(name, float(count)) for name, count in zip(names, counts, strict=True)],
                histogram.sum_us / 1e6,
            )
        yield from families.values()

    def _streams(self) -> Iterator[Metric]:
        lag = GaugeMetricFamily(
            "penstock_stream_lag",
            "Messages that a stream group has not committed.",
            labels=["group", "topic", "partition"],
        )
        members = GaugeMetricFamily(
            "penstock_stream_members", "Members of a stream group.", labels=["group"]
        )
        for group in self._door.api.each_stream_group():
            name = group.group
            members.add_metric([name], len(group.members))
            for place, behind in group.lag.items():
                lag.add_metric([name, place.topic, str(place.partition)], behind)
        yield lag
        yield members

    def _schedules(self) -> Iterator[Metric]:
        totals = self._door.api.schedule_totals()
        yield GaugeMetricFamily("penstock_schedules", "Recurring schedules.", totals.schedules)
        yield GaugeMetricFamily(
            "penstock_schedules_paused", "Schedules that are paused.", totals.paused
        )
        for name, text, count in (
            ("", "Fires of schedules.", totals.fired),
            ("_late", "Fires published more than 10 ms after they were due.", totals.late),
            ("_failed", "Fires without a message.", totals.failed),
            ("_skipped", "Fires left out while the last one was at work.", totals.skipped),
        ):
            yield CounterMetricFamily(f"penstock_schedule_fires{name}", text, count)

    def _transactions(self) -> Iterator[Metric]:
        totals = self._door.api.transaction_totals()
        for state, count in (("committed", totals.committed), ("refused", totals.refused)):
            yield CounterMetricFamily(
                f"penstock_transactions_{state}", f"Transactions that were {state}.", count
            )
        yield GaugeMetricFamily(
            "penstock_transactions_finishing",
            "Committed transactions of which some waits to be stored.",
            totals.finishing,
        )

    def _traces(self) -> Iterator[Metric]:
        totals = self._door.api.trace_totals()
        yield CounterMetricFamily(
            "penstock_trace_events_noted", "Events of traces that are stored.", totals.noted
        )
        yield CounterMetricFamily(
            "penstock_trace_events_dropped", "Events of traces that are not.", totals.dropped
        )

    def _namespaces(self) -> Iterator[Metric]:
        """Of those with quotas, and no more of them than a scrape has room for."""
        namespace, quota = ["namespace"], ["namespace", "quota"]
        limit = _gauge("quota_limit", "What a namespace may use.", quota)
        used = _gauge("quota_used", "What a namespace uses of what it may.", quota)
        delayed = CounterMetricFamily(
            "penstock_quota_delayed_answers", "Answers that came too fast.", labels=namespace
        )
        refused = CounterMetricFamily(
            "penstock_quota_refused", "What was over a quota.", labels=namespace
        )
        for each in islice(self._door.api.each_limited_namespace(), NAMESPACES_MAX):
            for name in NamespaceUsage.__struct_fields__:
                most = getattr(each.quotas, name)
                if most is not None:
                    limit.add_metric([each.namespace, name], most)
                    used.add_metric([each.namespace, name], getattr(each.usage, name))
            delayed.add_metric([each.namespace], each.delayed_answers)
            refused.add_metric([each.namespace], each.refused)
        yield from (limit, used, delayed, refused)


class _TopicFamilies:
    def __init__(self) -> None:
        topic = ["topic"]
        partition = ["topic", "partition"]
        group = ["topic", "group"]
        priority = ["topic", "group", "priority"]
        self.depth = _gauge("topic_depth", "Messages that some group still has to do.", topic)
        self.dead = _gauge("topic_dead", "Dead letters.", topic)
        self.delayed = _gauge("topic_delayed", "Messages that wait for their time.", topic)
        self.alarms = _gauge("topic_alarms", "Messages that wait for too long.", [*topic, "kind"])
        self.publish_rate = _gauge("publish_rate", "Messages published a second.", partition)
        self.end = _gauge("partition_end", "One past the last offset.", partition)
        self.size = _gauge("partition_bytes", "Size on disk.", partition)
        self.damaged = _gauge("partition_damaged", "Places where messages are lost.", partition)
        self.group_depth = _gauge(
            "group_depth", "Messages that a group still has to do.", [*partition, "group"]
        )
        self.oldest = _gauge(
            "group_oldest_seconds", "Age of the oldest message that is not done.", group
        )
        self.deliver_rate = _gauge("deliver_rate", "Messages delivered a second.", group)
        self.ack_rate = _gauge("ack_rate", "Messages acked a second.", group)
        self.ready = _gauge("group_ready", "Messages never handed out.", priority)
        self.in_flight = _gauge("group_in_flight", "Messages under a lease.", priority)
        self.retrying = _gauge("group_retrying", "Messages that wait for a retry.", priority)

    def add(self, stats: TopicStats) -> None:
        topic = stats.topic
        self.depth.add_metric([topic], stats.depth)
        self.dead.add_metric([topic], stats.dead)
        self.delayed.add_metric([topic], stats.delayed)
        for kind in get_args(AlarmKind):
            on = sum(alarm.kind == kind for alarm in stats.alarms)
            self.alarms.add_metric([topic, kind], on)
        for each in stats.partitions:
            where = [topic, str(each.partition)]
            self.publish_rate.add_metric(where, each.publish_rate)
            self.end.add_metric(where, each.end)
            self.size.add_metric(where, each.size_bytes)
            self.damaged.add_metric(where, each.damaged)
        for group in stats.groups:
            self._add_group(topic, group)

    def all(self) -> Iterator[Metric]:
        return iter(vars(self).values())

    def _add_group(self, topic: str, group: GroupStats) -> None:
        who = [topic, group.group]
        for partition, depth in group.depth_by_partition.items():
            self.group_depth.add_metric([topic, str(partition), group.group], depth)
        self.oldest.add_metric(who, (group.oldest_age_us or 0) / 1e6)
        self.deliver_rate.add_metric(who, group.deliver_rate)
        self.ack_rate.add_metric(who, group.ack_rate)
        for family, counts in (
            (self.ready, group.ready_by_priority),
            (self.in_flight, group.in_flight_by_priority),
            (self.retrying, group.retrying_by_priority),
        ):
            for priority, count in counts.items():
                family.add_metric([*who, priority], count)


def _gauge(name: str, text: str, labels: list[str]) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"penstock_{name}", text, labels=labels)


def _resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
