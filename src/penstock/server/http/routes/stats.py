"""How things stand: of one topic, of all together, and as a table of all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from penstock.broker.names import TopicName
from penstock.broker.stats import TopicStats
from penstock.durations import parse_us
from penstock.errors import TopicNotFound
from penstock.server.http.endpoints import Call, Table
from penstock.server.http.routes.streams import list_stream_groups
from penstock.wire.topics import (
    LatencyOptions,
    LatencyPage,
    Summary,
    TableOptions,
    TopicRow,
    TopicTable,
)
from penstock.wire.values import parse_time

table = Table("stats")


@table.add("GET", "/topics/{topic}/stats", right="describe", result=TopicStats)
async def topic_stats(call: Call) -> TopicStats:
    """Depth, in flight, delayed, dead and rates of a topic, by partition, group and priority."""
    return await call.door.aside(call.broker.stats, call.topic)


@table.add(
    "GET",
    "/topics/{topic}/latencies",
    right="describe",
    options=LatencyOptions,
    result=LatencyPage,
)
async def latencies(call: Call) -> LatencyPage:
    """How long messages waited for their first hand-out, and were worked on until their ack: by
    minute, group and priority, page by page."""
    options: LatencyOptions = call.options
    rows, next_us = await call.door.aside(
        call.broker.latency_page,
        call.topic,
        _moment_us("since", options.since),
        _moment_us("until", options.until),
        options.limit,
    )
    return LatencyPage(rows=rows, next=None if next_us is None else next_us // 1_000_000)


@table.add("GET", "/stats", right="describe", result=Summary)
async def summary(call: Call) -> Summary:
    """Everything together, in one pass. With a namespace in the path, of that one."""
    rows = await call.door.aside(lambda: [_row(*each) for each in _stats(call, _names(call))])
    groups = list_stream_groups(call).groups
    return Summary(
        topics=len(rows),
        partitions=sum(row.partitions for row in rows),
        groups=sum(row.groups for row in rows),
        stream_groups=len(groups),
        messages=sum(row.messages for row in rows),
        size_bytes=sum(row.size_bytes for row in rows),
        depth=sum(row.depth for row in rows),
        in_flight=sum(row.in_flight for row in rows),
        delayed=sum(row.delayed for row in rows),
        dead=sum(row.dead for row in rows),
        publish_rate=sum(row.publish_rate for row in rows),
        deliver_rate=sum(row.deliver_rate for row in rows),
        ack_rate=sum(row.ack_rate for row in rows),
        polls=len(call.door.polls),
    )


@table.add("GET", "/stats/topics", right="describe", options=TableOptions, result=TopicTable)
async def topic_table(call: Call) -> TopicTable:
    """A page of the table of all topics, sorted. With a namespace in the path, of that one."""
    options: TableOptions = call.options
    page = slice(options.offset, options.offset + options.limit)

    def read() -> TopicTable:
        names = [name for name in _names(call) if options.search in str(name)]
        if options.sort == "topic":
            # Only the rows of the page are computed.
            names.sort(key=str, reverse=options.descending)
            shown = list(_stats(call, names[page]))
            total = len(names)
        else:
            found = list(_stats(call, names))
            found.sort(key=lambda each: (getattr(each[1], options.sort), each[0].topic))
            if options.descending:
                found.reverse()
            shown, total = found[page], len(found)
        return TopicTable(
            topics=[_row(*each) for each in shown],
            total=total,
            details=[stats for _, stats in shown] if options.details else [],
        )

    return await call.door.aside(read)


def _moment_us(name: str, value: str | int | float | None) -> int | None:
    return None if value is None else parse_us(parse_time(value, name), name)


def _names(call: Call) -> list[TopicName]:
    if "namespace" in call.parameters:
        return call.broker.topics(call.namespace)
    if call.key is not None and call.key.namespace is not None:
        return call.broker.topics(call.key.namespace)
    return call.broker.topics()


def _stats(call: Call, names: list[TopicName]) -> Iterator[tuple[TopicName, TopicStats]]:
    for name in names:
        with suppress(TopicNotFound):  # deleted just now
            yield name, call.broker.stats(name)


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
