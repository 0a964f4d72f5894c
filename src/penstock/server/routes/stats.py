"""How things stand: of one topic, of all together, and as a table of all."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.broker.names import TopicName
from penstock.broker.stats import TopicStats
from penstock.errors import TopicNotFound
from penstock.server.endpoints import Call, Table
from penstock.wire.topics import Summary, TableOptions, TopicRow, TopicTable

table = Table("stats")


@table.add("GET", "/topics/{topic}/stats", right="describe", result=TopicStats)
async def topic_stats(call: Call) -> TopicStats:
    """Depth, in flight, delayed, dead and rates of a topic, by partition, group and priority."""
    return await call.door.aside(call.broker.stats, call.topic)


@table.add("GET", "/stats", right="describe", result=Summary)
async def summary(call: Call) -> Summary:
    """Everything together, in one pass. With a namespace in the path, of that one."""
    rows = await call.door.aside(lambda: list(_rows(call, "")))
    groups = call.broker.streams.groups()
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

    def read() -> TopicTable:
        if options.sort == "topic":
            # Only the rows of the page are computed.
            names = [name for name in _names(call) if options.search in str(name)]
            names.sort(key=str, reverse=options.descending)
            page = names[options.offset : options.offset + options.limit]
            return TopicTable(topics=list(_described(call, page)), total=len(names))
        rows = list(_rows(call, options.search))
        rows.sort(key=lambda row: (getattr(row, options.sort), row.topic))
        if options.descending:
            rows.reverse()
        page_of_rows = rows[options.offset : options.offset + options.limit]
        return TopicTable(topics=page_of_rows, total=len(rows))

    return await call.door.aside(read)


def _names(call: Call) -> list[TopicName]:
    if "namespace" in call.parameters:
        return call.broker.topics(call.namespace)
    if call.key is not None and call.key.namespace is not None:
        return call.broker.topics(call.key.namespace)
    return call.broker.topics()


def _rows(call: Call, search: str) -> Iterator[TopicRow]:
    return _described(call, [name for name in _names(call) if search in str(name)])


def _described(call: Call, names: list[TopicName]) -> Iterator[TopicRow]:
    for name in names:
        try:
            stats = call.broker.stats(name)
        except TopicNotFound:  # deleted just now
            continue
        yield TopicRow(
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
