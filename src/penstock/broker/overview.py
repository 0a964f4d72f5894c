"""The overview: all topics together, and what needs attention."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from penstock.broker.withheld import LETTERS_GROUP
from penstock.errors import GroupError
from penstock.model.names import TopicName, parse_stream_group, parse_topic
from penstock.model.overview import FailingWebhook, LaggingGroup, Overview, TopicAlarms
from penstock.model.stats import Summary, TopicRow, TopicStats

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

T = TypeVar("T")

_SHOWN = 10


class _Known(NamedTuple):
    name: TopicName
    stats: TopicStats
    row: TopicRow


def overview(
    broker: Broker,
    namespace: str | None,
    topics: Iterable[tuple[TopicName, TopicStats, TopicRow]],
) -> Overview:
    """Of all topics of a namespace, or of all there are. A topic of dead letters counts only as the
    dead letters of another one."""
    known = [_Known(*each) for each in topics if not broker.is_dead_letters(each[0])]
    rows = [each.row for each in known]
    streams = _stream_groups(broker, namespace)
    lagging = [*_queue_groups(known), *streams]
    return Overview(
        summary=summary(rows, len(broker.streams.groups(namespace))),
        disk_free_bytes=broker.free_bytes() if namespace is None else None,
        disk_floor_bytes=broker.config.free_bytes_min,
        lagging=_worst(lagging, lambda each: (each.oldest_age_us or 0, each.lag)),
        dead=_worst([row for row in rows if row.dead], lambda row: row.dead),
        busiest=_worst(
            [row for row in rows if row.publish_rate or row.deliver_rate],
            lambda row: row.publish_rate + row.deliver_rate,
        ),
        alarms=_alarms(known),
        webhooks=_webhooks(broker, namespace),
        failed_logs=len(broker.failed_logs()) if namespace is None else 0,
    )


def summary(rows: Sequence[TopicRow], stream_groups: int) -> Summary:
    """Topics added up."""
    return Summary(
        topics=len(rows),
        partitions=sum(row.partitions for row in rows),
        groups=sum(row.groups for row in rows),
        stream_groups=stream_groups,
        messages=sum(row.messages for row in rows),
        size_bytes=sum(row.size_bytes for row in rows),
        depth=sum(row.depth for row in rows),
        in_flight=sum(row.in_flight for row in rows),
        delayed=sum(row.delayed for row in rows),
        dead=sum(row.dead for row in rows),
        publish_rate=sum(row.publish_rate for row in rows),
        deliver_rate=sum(row.deliver_rate for row in rows),
        ack_rate=sum(row.ack_rate for row in rows),
    )


def _queue_groups(known: Iterable[_Known]) -> list[LaggingGroup]:
    return [
        LaggingGroup(
            namespace=each.name.namespace,
            topic=each.name.topic,
            group=group.group,
            mode="queue",
            lag=group.depth,
            oldest_age_us=group.oldest_age_us,
        )
        for each in known
        for group in each.stats.groups
        if group.depth and group.group != LETTERS_GROUP
    ]


def _stream_groups(broker: Broker, namespace: str | None) -> list[LaggingGroup]:
    found: dict[tuple[str, str], int] = {}
    for full in broker.streams.groups():
        where, group = parse_stream_group(full)
        if namespace not in (None, where):
            continue
        with suppress(GroupError):  # deleted just now
            for place, lag in broker.streams.describe(full).lag.items():
                found[group, place.topic] = found.get((group, place.topic), 0) + lag
    lagging = []
    for (group, topic), lag in found.items():
        name = parse_topic(topic)
        if lag:
            lagging.append(
                LaggingGroup(
                    namespace=name.namespace,
                    topic=name.topic,
                    group=group,
                    mode="stream",
                    lag=lag,
                    oldest_age_us=None,
                )
            )
    return lagging


def _alarms(known: Iterable[_Known]) -> list[TopicAlarms]:
    found = [
        TopicAlarms(
            namespace=each.name.namespace,
            topic=each.name.topic,
            kinds=sorted({alarm.kind for alarm in each.stats.alarms}),
        )
        for each in known
        if each.stats.alarms
    ]
    return found[:_SHOWN]


def _webhooks(broker: Broker, namespace: str | None) -> list[FailingWebhook]:
    views = [broker.webhooks.view(record) for record in broker.webhooks.all(namespace)]
    failing = [
        FailingWebhook(
            namespace=view.namespace,
            name=view.name,
            failing_since_us=view.failing_since_us,
            disabled=view.disabled,
        )
        for view in views
        if view.disabled or view.failing_since_us is not None
    ]
    return failing[:_SHOWN]


def _worst(found: Sequence[T], rank: Callable[[T], Any]) -> list[T]:
    return heapq.nlargest(_SHOWN, found, key=rank)
